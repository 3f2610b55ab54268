"""A pod's ServiceAccount on a real API server: its token is taken, its rights hold, and a new token is used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from kube_pods import Namespace
from poolpilot_kube.access import from_kubeconfig, in_cluster
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import RefusedError, UnreachableError
from poolpilot_kube.objects import PODS
from poolpilot_kube.watch import Watcher, WatchSettings

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def token_of(api: Api, namespace: str, account: str) -> str:
    """A token as the kubelet asks for it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    said = await api.call("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    return str(msgspec.json.decode(said)["status"]["token"])


async def test_a_pod_reads_what_its_account_may(plane: ControlPlane, tmp_path: Path) -> None:
    host, _, port = plane.server.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    (tmp_path / "ca.crt").write_bytes(plane.authority.certificate)
    (tmp_path / "namespace").write_text("accounts")
    (tmp_path / "token").write_text("not a token")
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": "reader", "namespace": "accounts"}
    async with plane.api() as api:
        namespace = Namespace(api, "accounts")
        await namespace.made()
        await namespace.run("a", "10.0.0.1", {"app": "vllm"})
        found = in_cluster(environ, tmp_path)
        assert found.namespace == "accounts"
        async with KubeApi(found) as pod:
            with pytest.raises(RefusedError, match="401: Unauthorized"):
                await pod.get(PODS.path("accounts"))
            watcher = Watcher(
                pod,
                PODS,
                lambda _: None,
                namespace="accounts",
                settings=WatchSettings(first_backoff_s=0.01, most_backoff_s=0.05),
            )
            running = asyncio.create_task(watcher.run())
            (tmp_path / "token").write_text(await token_of(api, "accounts", "default"))
            while "403" not in watcher.status.problem:
                await asyncio.sleep(0.01)
            rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
            await api.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
            subject = {"kind": "ServiceAccount", "name": "default", "namespace": "accounts"}
            role = {"apiGroup": rbac, "kind": "Role", "name": "reader"}
            binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": meta}
            await api.apply({**binding, "subjects": [subject], "roleRef": role})
            await watcher.synced.wait()
            assert list(watcher.objects) == [("accounts", "a")]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_kubeconfig_with_a_certificate(plane: ControlPlane) -> None:
    async with KubeApi(from_kubeconfig(plane.kubeconfig)) as api:
        assert msgspec.json.decode(await api.get("/version"))["major"] == "1"
        with pytest.raises(RefusedError, match="404: 404 page not found"):
            await api.get("/apis/unheard.of/v1/things")


async def test_a_server_of_another_authority_is_not_trusted(plane: ControlPlane, tmp_path: Path) -> None:
    config = msgspec.json.decode(plane.kubeconfig.read_bytes())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    file = tmp_path / "kubeconfig"
    file.write_bytes(msgspec.json.encode(config))
    async with KubeApi(from_kubeconfig(file)) as api:
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await api.get("/version")


async def test_a_token_from_a_plugin_is_asked_for_and_its_failure_told(plane: ControlPlane, tmp_path: Path) -> None:
    async with plane.api() as api:
        await Namespace(api, "plugins").made()
        token = await token_of(api, "plugins", "default")
    plugin, file = tmp_path / "plugin", tmp_path / "kubeconfig"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token},
    }
    plugin.write_text(f"#!/bin/sh\necho '{msgspec.json.encode(credential).decode()}'\n")
    plugin.chmod(0o700)
    config = msgspec.json.decode(plane.kubeconfig.read_bytes())
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    config["users"][0]["user"] = {"exec": command}
    file.write_bytes(msgspec.json.encode(config))
    async with KubeApi(from_kubeconfig(file)) as api:
        with pytest.raises(RefusedError, match="system:serviceaccount:plugins:default"):
            await api.get(PODS.path("plugins"))
    plugin.write_text("#!/bin/sh\nexit 1\n")
    # The loader logs what a plugin says when it fails, and goes on without.
    async with KubeApi(from_kubeconfig(file)) as api:
        with pytest.raises(RefusedError, match="system:anonymous"):
            await api.get(PODS.path("plugins"))
