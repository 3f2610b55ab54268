"""Credentials: a pod's ServiceAccount as the kubelet mounts it, and what is said where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from poolpilot_kube.access import access, from_kubeconfig, in_cluster
from poolpilot_kube.errors import AccessError
from poolpilot_lab.control_plane.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "ca.crt").write_bytes(Authority("cluster").certificate)
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("serving")
    return tmp_path


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_a_pod_knows_its_server_and_its_namespace(mount: Path) -> None:
    found = in_cluster(POD, mount)
    assert found.server == "https://10.96.0.1:6443"
    assert found.namespace == "serving"
    assert found.tls is not None and len(found.tls.get_ca_certs()) == 1


def test_a_token_that_is_rotated_is_used(mount: Path) -> None:
    found = in_cluster(POD, mount)
    assert found.token() == "Bearer first"
    (mount / "token").write_text("second")
    assert found.token() == "Bearer second"


def test_an_ipv6_server_is_put_in_brackets(mount: Path) -> None:
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, mount).server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["token", "ca.crt", "namespace"])
def test_a_pod_without_a_token_is_told(mount: Path, missing: str) -> None:
    (mount / missing).unlink()
    with pytest.raises(AccessError, match=r"no ServiceAccount token \(automountServiceAccountToken\?\)"):
        in_cluster(POD, mount)


def test_neither_a_pod_nor_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessError, match=r"neither \$KUBECONFIG nor ~/.kube/config"):
        access(environ={})
    with pytest.raises(AccessError, match="missing"):
        access(environ={"KUBECONFIG": str(tmp_path / "missing")})


def test_a_kubeconfig_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("kind: Config\n")
    with pytest.raises(AccessError, match=str(file)):
        from_kubeconfig(file)
