"""A release with its operator as a process, under the rights that the chart gives: served, looked at, cleaned up."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from control_planes import definitions
from doctor_stage import OURS, POOLS, Stage
from helm import CHARTS
from poolpilot_kube.access import access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.cleanup import Cleanup
from poolpilot_kube.doctor.command import examined
from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.processes import Child, free_ports, http_status

if TYPE_CHECKING:
    from pathlib import Path

    from helm import Helm
    from poolpilot_kube.doctor.findings import Finding
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOME, TEAM = "pp", "team"


async def said_of(plane: ControlPlane, kind: str) -> list[Finding]:
    return [one for one in (await examined(access(plane.kubeconfig))).findings if kind in one.about]


async def until_present(api: Api, version: str, kind: str, name: str, namespace: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await api.get(version, kind, name, namespace)
            except ApiError:
                await asyncio.sleep(0.1)


async def test_from_install_to_uninstall(here: Helm, api: Api, plane: ControlPlane, tmp_path: Path) -> None:
    chart, flags = str(CHARTS / "poolpilot"), ("--namespace", HOME, "--create-namespace")
    said = here.run("install", "poolpilot", chart, *flags)
    assert said.code == 0, said.errors
    await api.define(definitions())
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    team = Stage(api, TEAM)
    await team.pool()
    await team.pod()

    # Nobody acts yet: the doctor says so.
    silent = await said_of(plane, "Picker")
    assert {one.check for one in silent} == {"operator-silent"}
    assert {one.check for one in await said_of(plane, "InferencePool team/llama")} >= {"service-missing"}

    [deployment] = [
        one for one in here.rendered("poolpilot", release="poolpilot", namespace=HOME) if one["kind"] == "Deployment"
    ]
    pod = deployment["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    [port] = free_ports(1)
    args = [f"--admin-port={port}" if arg.startswith("--admin-port") else arg for arg in args]
    user = f"system:serviceaccount:{HOME}:{pod['serviceAccountName']}"
    kubeconfig = plane.kubeconfig_of(user, ["system:authenticated", "system:serviceaccounts"])
    argv = [
        sys.executable,
        "-m",
        "poolpilot_operator",
        "--kubeconfig",
        str(kubeconfig),
        "--admin-host",
        "127.0.0.1",
        *args,
    ]
    async with Child("operator", argv, log=tmp_path / "operator.log", env={"POD_NAME": "operator-0"}) as operator:
        probe = pod["containers"][0]["readinessProbe"]["httpGet"]["path"]

        async def ready() -> bool:
            return await http_status("127.0.0.1", port, probe) == 200

        await operator.ready(ready, 60.0)
        service = await until_present(api, "v1", "Service", "llama-picker", TEAM)
        assert service["spec"]["ports"][0]["port"] == 9002
        made = await until_present(api, "apps/v1", "Deployment", (await deployments(api))[0], HOME)
        [container] = made["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "ghcr.io/poolpilot/picker:0.1.0.dev0"

        # No picker pod runs here; what the doctor says is that, and nothing of the Service.
        async with asyncio.timeout(60):
            while "operator-silent" in {one.check for one in await said_of(plane, "Picker")}:
                await asyncio.sleep(0.1)
        checks = {one.check for one in await said_of(plane, TEAM)}
        assert "service-missing" not in checks and "service-foreign" not in checks and "app-protocol" not in checks
        assert "no-ready-picker" in checks

        log = (tmp_path / "operator.log").read_text()
        assert " 403" not in log and "forbidden" not in log.lower(), log

        # Clean-up: the operator removes what is in the pool's namespace, the rest has no owner's collector here.
        lines: list[str] = []
        async with KubeApi(access(plane.kubeconfig)) as kube:
            left = await Cleanup(kube, HOME, "default", operator="poolpilot-operator", say=lines.append).run(20.0)
        assert left == []
        scaled = await api.get("apps/v1", "Deployment", "poolpilot-operator", HOME)
        assert scaled["spec"]["replicas"] == 0
        assert lines[0] == f"Picker {HOME}/default is deleted; waiting for its operator to remove what it made for it"
        assert not [line for line in lines if f"/namespaces/{TEAM}/" in line], "the operator did that"
        assert operator.running
    pool = await api.get(POOLS, "InferencePool", "llama", TEAM)
    assert "finalizers" not in pool["metadata"]
    said = here.run("uninstall", "poolpilot", "--namespace", HOME, "--no-hooks")
    assert said.code == 0, said.errors
    for path in ("/api/v1", "/apis/apps/v1", "/apis/rbac.authorization.k8s.io/v1"):
        kinds = json.loads(await api.call("GET", path))["resources"]
        for kind in kinds:
            if kind["namespaced"] and {"list"} <= set(kind["verbs"]):
                items = json.loads(await api.call("GET", f"{path}/namespaces/{HOME}/{kind['name']}"))["items"]
                kept = [one["metadata"]["name"] for one in items if kind["name"] not in {"events", "secrets"}]
                assert kept == [], f"{kind['name']}: {kept}"
    with pytest.raises(ApiError, match="404"):
        await api.get(OURS, "Picker", "default", HOME)


async def deployments(api: Api) -> list[str]:
    """Names of those that are not the chart's own."""
    async with asyncio.timeout(60):
        while True:
            items = json.loads(await api.call("GET", f"/apis/apps/v1/namespaces/{HOME}/deployments"))["items"]
            found = [one["metadata"]["name"] for one in items if one["metadata"]["labels"].get("helm.sh/chart") is None]
            if found:
                return found
            await asyncio.sleep(0.1)
