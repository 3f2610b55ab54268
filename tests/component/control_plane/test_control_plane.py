"""A real etcd and kube-apiserver: started, used, restarted and gone."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes
import pytest

from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.control_plane.cluster import control_plane
from poolpilot_lab.control_plane.programs import MODULE
from poolpilot_lab.gotools import NotAvailable, required_version
from poolpilot_lab.processes import ProcessError

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_lab.control_plane.programs import Programs

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREETING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "greetings.poolpilot.dev"},
    "spec": {
        "group": "poolpilot.dev",
        "names": {"kind": "Greeting", "plural": "greetings"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"word": {"type": "string", "default": "hello"}},
                                "x-kubernetes-validations": [{"rule": "self.word != 'rude'", "message": "be polite"}],
                            },
                            "status": {"type": "object", "properties": {"heard": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def greeting(name: str, **spec: str) -> dict[str, Any]:
    return {"apiVersion": "poolpilot.dev/v1", "kind": "Greeting", "metadata": {"name": name}, "spec": spec}


async def test_objects_are_made_read_changed_and_deleted(plane: ControlPlane) -> None:
    async with plane.api() as api:
        made = await api.create(config_map("one", colour="red"))
        assert made["metadata"]["uid"]
        with pytest.raises(ApiError, match="already exists") as refused:
            await api.create(config_map("one"))
        assert refused.value.status == 409
        await api.apply(config_map("one", colour="blue"))
        read = await api.get("v1", "ConfigMap", "one")
        assert read["data"] == {"colour": "blue"} and read["metadata"]["uid"] == made["metadata"]["uid"]
        await api.delete(config_map("one"))
        with pytest.raises(ApiError) as gone:
            await api.get("v1", "ConfigMap", "one")
        assert gone.value.status == 404
        with pytest.raises(ApiError, match="does not know this kind"):
            await api.get("poolpilot.dev/v9", "Nothing", "one")


async def test_definitions_are_served_and_their_rules_hold(plane: ControlPlane) -> None:
    async with plane.api() as api:
        await api.define([GREETING])
        assert (await api.apply(greeting("one")))["spec"] == {"word": "hello"}
        with pytest.raises(ApiError, match="be polite") as refused:
            await api.apply(greeting("two", word="rude"))
        assert refused.value.status == 422
        await api.set_status(greeting("one"), {"heard": 3})
        await api.apply(greeting("one", word="good morning"))
        read = await api.get("poolpilot.dev/v1", "Greeting", "one")
        assert read["spec"] == {"word": "good morning"} and read["status"] == {"heard": 3}


async def test_a_kubeconfig_serves_other_clients_and_rbac_holds(plane: ControlPlane) -> None:
    admin = kubernetes.config.new_client_from_config(str(plane.kubeconfig))
    said = kubernetes.client.VersionApi(admin).get_code()
    if "KUBEBUILDER_ASSETS" not in os.environ:
        assert said.git_version == await required_version(MODULE, "k8s.io/kubernetes")
    nobody = kubernetes.config.new_client_from_config(str(plane.kubeconfig_of("jane", ["staff"])))
    with pytest.raises(kubernetes.client.ApiException) as refused:
        kubernetes.client.CoreV1Api(nobody).list_namespaced_pod("default")
    assert refused.value.status == 403 and "jane" in str(refused.value.body)
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "staff"}}
    group = "rbac.authorization.k8s.io"
    async with plane.api() as api:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        await api.apply({**rbac, "kind": "Role", "rules": rules})
        subjects = [{"kind": "Group", "name": "staff", "apiGroup": group}]
        role = {"kind": "Role", "name": "staff", "apiGroup": group}
        await api.apply({**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": subjects})
    async with asyncio.timeout(30):
        # The server's own view of its rules comes a moment later.
        while (items := await asyncio.to_thread(pods_seen_by, nobody)) is None:
            pass
    assert items == []


def pods_seen_by(client: kubernetes.client.ApiClient) -> list[object] | None:
    """None where that is forbidden."""
    try:
        return list(kubernetes.client.CoreV1Api(client).list_namespaced_pod("default").items)
    except kubernetes.client.ApiException as error:
        if error.status == 403:
            return None
        raise


async def test_certificates_pass_the_strictest_check(plane: ControlPlane) -> None:
    host, port = plane.server.removeprefix("https://").split(":")
    context = ssl.create_default_context(cadata=plane.authority.certificate.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection((host, int(port))) as connection,
        context.wrap_socket(connection, server_hostname="kubernetes.default.svc") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.3"
    assert all(key.stat().st_mode & 0o077 == 0 for key in plane.folder.rglob("*.key"))
    assert plane.kubeconfig.stat().st_mode & 0o077 == 0


async def test_the_api_server_restarts_with_what_it_had(plane: ControlPlane) -> None:
    async with plane.api() as api:
        await api.apply(config_map("kept", colour="green"))
    await plane.apiserver.stop(0.0)
    plane.apiserver.start()
    await plane.ready()
    async with plane.api() as api:
        assert (await api.get("v1", "ConfigMap", "kept"))["data"] == {"colour": "green"}


async def test_nothing_stays_behind(called: Programs, tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        children = [plane.etcd, plane.apiserver]
        assert all(child.running for child in children)
        port = int(plane.server.rpartition(":")[2])
    assert not any(child.running for child in children)
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port)):
        pass


async def test_a_server_that_does_not_start_says_why(called: Programs, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="--no-such-flag"):
        async with control_plane(tmp_path, flags=["--no-such-flag"]):
            pass
    left = [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in one.read_bytes()]
    assert left == [], "etcd ran already"


async def test_given_programs_are_used_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(NotAvailable, match="there is no program etcd"):
        async with control_plane(tmp_path):
            pass
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).write_text("#!/bin/sh\necho it is $0 >&2; exit 3\n")
        (tmp_path / name).chmod(0o700)
    with pytest.raises(ProcessError, match=rf"it is {tmp_path}/etcd"):
        async with control_plane(tmp_path / "plane"):
            pass
