"""What a node promises to pods: each on the real API server, with real processes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster_load import get
from cluster_stage import CommandError, until

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_stage import Space

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER = """
import http.server, os, pathlib, signal, sys, threading
STOP = float(os.environ.get("STOP_AFTER", "0"))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/stop": os._exit(0)
        path = pathlib.Path(self.path)
        code = 200 if path.exists() else 404
        body = path.read_bytes() if path.is_file() else os.environ.get(self.path[1:], "").encode()
        self.send_response(200 if body or code == 200 else 404); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("", int(os.environ.get("PORT", "80"))), Handler)
def term(*_):
    print("TERM", flush=True); threading.Timer(STOP, lambda: os._exit(0)).start()
signal.signal(signal.SIGTERM, term)
print("listening", flush=True)
server.serve_forever()
"""
"""Serves its files and its environment."""


def pod(name: str, **more: Any) -> dict[str, Any]:
    """A pod of one container with a server."""
    container = {
        "name": "main",
        "image": "python:3",
        "args": ["-u", "-c", SERVER],
        "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
        **more.pop("container", {}),
    }
    spec = {"terminationGracePeriodSeconds": 5, "containers": [container], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": data}


async def running(space: Space, name: str) -> str:
    """Waits for a pod to be ready; its address."""
    await space.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    return str((await space.get("pod", name))["status"]["podIP"])


async def test_volumes_follow_their_sources(space: Space) -> None:
    volumes = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "secret", "secret": {"secretName": "word"}},
        {"name": "scratch", "emptyDir": {}},
        {
            "name": "self",
            "downwardAPI": {"items": [{"path": "colour", "fieldRef": {"fieldPath": "metadata.labels['colour']"}}]},
        },
    ]
    mounts = [
        {"name": "config", "mountPath": "/etc/poolpilot"},
        {"name": "config", "mountPath": "/etc/fixed.yaml", "subPath": "a.yaml"},
        {"name": "secret", "mountPath": "/run/secret", "readOnly": True},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "self", "mountPath": "/self"},
    ]
    env = [
        {"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}},
    ]
    await space.apply(pod("a", volumes=volumes, container={"volumeMounts": mounts, "env": env}))
    await until(lambda: says(space, "config is not there"), "the missing ConfigMap is not told")
    await space.apply(config_map(**{"a.yaml": "one"}))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word"}, "stringData": {"word": "hush"}}
    await space.apply(secret)
    host = await running(space, "a")
    for path, text in {
        "/etc/poolpilot/a.yaml": "one",
        "/etc/fixed.yaml": "one",
        "/run/secret/word": "hush",
        "/self/colour": "",
        "/MY_IP": host,
        "/WORD": "hush",
        "/var/run/secrets/kubernetes.io/serviceaccount/namespace": space.name,
    }.items():
        assert await get(host, path) == (200, text)

    await space.apply(config_map(**{"a.yaml": "two", "b.yaml": "new"}))
    await until(lambda: shows(host, "/etc/poolpilot/b.yaml", "new"), "the new file does not appear")
    assert await get(host, "/etc/poolpilot/a.yaml") == (200, "two")
    assert await get(host, "/etc/fixed.yaml") == (200, "one"), "a subPath stays"
    await space.kubectl("label", "pod", "a", "colour=red")
    await until(lambda: shows(host, "/self/colour", "red"), "the new label does not appear")


async def says(space: Space, text: str) -> bool:
    return text in await space.kubectl("get", "events")


async def shows(host: str, path: str, text: str) -> bool:
    return await get(host, path) == (200, text)


async def test_a_pod_asks_the_api_server_as_its_service_account(space: Space) -> None:
    """By an unmodified client, with the rights of the account and no others."""
    script = (
        "import kubernetes as k, sys; k.config.load_incluster_config(); v = k.client.CoreV1Api()\n"
        "ns = open('/var/run/secrets/kubernetes.io/serviceaccount/namespace').read()\n"
        "print(len(v.list_namespaced_pod(ns).items))\n"
        "try: v.list_namespaced_secret(ns)\n"
        "except k.client.ApiException as error: print(error.status)\n"
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
    await space.apply(account)
    await space.kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
    await space.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={space.name}:reader")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ask"},
        "spec": {
            "template": {
                "spec": {
                    "serviceAccountName": "reader",
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "python", "args": ["-c", script]}],
                }
            }
        },
    }
    await space.apply(job)
    await space.kubectl("wait", "--for=condition=Complete", "job/ask", "--timeout=60s")
    assert await space.kubectl("logs", "job/ask") == "1\n403\n"


async def test_services_and_names_lead_to_ready_pods(space: Space) -> None:
    await space.apply(pod("a"), pod("b", container={"readinessProbe": {"exec": {"command": ["false"]}}}))
    host = await running(space, "a")
    for name, more in (("one", {}), ("all", {"clusterIP": "None"})):
        selector = {"app": "a"}
        spec = {"selector": selector, "ports": [{"port": 8080, "targetPort": 80}], **more}
        await space.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    script = (
        "import socket, urllib.request as u\n"
        "print(u.urlopen('http://one:8080/HOSTNAME', timeout=5).read().decode())\n"
        f"print(socket.gethostbyname('all.{space.name}.svc.cluster.local'))\n"
        "try: socket.gethostbyname('none')\n"
        "except OSError: print('none')\n"
    )
    for name in ("one", "all"):
        await until(lambda name=name: has_endpoint(space, name), f"the Service {name} has no endpoints")
    overrides = {"spec": {"containers": [{"name": "ask", "image": "python", "args": ["-c", script]}]}}
    await space.kubectl("run", "ask", "--image=python", "--restart=Never", f"--overrides={json.dumps(overrides)}")
    await space.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/ask", "--timeout=60s")
    assert await space.kubectl("logs", "ask") == f"a\n{host}\nnone\n"
    assert (await space.ready("b")) == {}, "its probe fails"


async def has_endpoint(space: Space, service: str) -> bool:
    slices = await space.list("endpointslices", "-l", f"kubernetes.io/service-name={service}")
    return any(one.get("endpoints") for one in slices)


async def test_what_fails_is_started_again_and_init_comes_first(space: Space) -> None:
    """Exit codes, back-off, liveness, the log of the run before; a second container is not touched."""
    volumes = [{"name": "shared", "emptyDir": {}}]
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    once = "test -e /shared/ran || { touch /shared/ran; echo first; exit 3; }; echo second; sleep 1000"
    alive = {"exec": {"command": ["test", "-e", "/shared/alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    containers = [
        {"name": "crash", "image": "busybox", "args": ["sh", "-c", once], **mount},
        {
            "name": "live",
            "image": "busybox",
            "args": ["sh", "-c", "touch /shared/alive; while :; do sleep 0.1; done"],
            "livenessProbe": {**alive, "initialDelaySeconds": 1},
            **mount,
        },
    ]
    init = [{"name": "init", "image": "busybox", "args": ["sh", "-c", "echo prepared > /shared/init"], **mount}]
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": containers,
        "initContainers": init,
        "volumes": volumes,
    }
    await space.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec})

    async def restarts(container: str, times: int) -> bool:
        status = (await space.get("pod", "a"))["status"]
        found = {one["name"]: one for one in status.get("containerStatuses", ())}
        return container in found and found[container]["restartCount"] >= times and found[container]["ready"]

    await until(lambda: restarts("crash", 1), "the container is not started again")

    async def logged() -> bool:
        return await space.kubectl("logs", "a", "-c", "crash") == "second\n"

    # Its status says that it runs, not that it has spoken.
    await until(logged, "the second run does not say so")
    assert await space.kubectl("logs", "a", "-c", "crash", "--previous") == "first\n"
    status = (await space.get("pod", "a"))["status"]
    [before] = [one["lastState"] for one in status["containerStatuses"] if one["name"] == "crash"]
    assert before["terminated"]["exitCode"] == 3
    assert status["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert not await restarts("live", 1)
    await space.apply(pod("other", volumes=[{"name": "x", "emptyDir": {}}]))


async def test_a_container_that_is_no_longer_alive_is_restarted(space: Space) -> None:
    probe = {"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 2}
    script = "import socket,time; s = socket.create_server(('', 80)); time.sleep(2); s.close(); time.sleep(99)"
    await space.apply(pod("a", container={"args": ["-c", script], "livenessProbe": probe, "readinessProbe": probe}))

    async def restarted() -> bool:
        statuses = (await space.get("pod", "a"))["status"].get("containerStatuses", ())
        return any(one["restartCount"] >= 1 for one in statuses)

    await until(restarted, "the container is not restarted")

    async def told() -> bool:
        return "liveness probe of main failed" in await space.kubectl("describe", "pod", "a")

    # Events are written beside the status.
    await until(told, "the reason is not told")


async def test_a_pod_ends_in_order(space: Space) -> None:
    """preStop first, then TERM; it answers until it ends; then the object goes."""
    mark = ["sh", "-c", "sleep 0.5; echo hooked > /scratch/hook"]
    container = {
        "env": [{"name": "STOP_AFTER", "value": "1000"}],
        "lifecycle": {"preStop": {"exec": {"command": mark}}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    volumes = [{"name": "scratch", "emptyDir": {}}]
    await space.apply(pod("a", container=container, volumes=volumes, terminationGracePeriodSeconds=100))
    host = await running(space, "a")
    deleting = asyncio.create_task(space.kubectl("delete", "pod", "a"))
    await until(lambda: shows(host, "/scratch/hook", "hooked\n"), "the hook did not run, or nobody answers after it")
    assert (await space.get("pod", "a"))["metadata"]["deletionTimestamp"]
    [log] = space.stage.cluster.pod_logs.glob(f"{space.name}_a_*/main/0.log")
    await until(lambda: holds(log, "TERM"), "TERM does not come after the hook")
    await get(host, "/stop")
    await deleting
    logs = [path.read_text() for path in space.stage.cluster.pod_logs.glob(f"{space.name}_a_*/main/0.log")]
    assert logs == ["listening\nTERM\n"]


async def holds(path: Path, text: str) -> bool:
    return text in path.read_text()


async def test_a_pod_that_does_not_end_is_killed_after_its_grace(space: Space) -> None:
    container = {"env": [{"name": "STOP_AFTER", "value": "1000"}]}
    await space.apply({**pod("a", container=container)})
    await running(space, "a")
    await space.kubectl("delete", "pod", "a", "--grace-period=1", "--timeout=30s")
    assert not await space.has("pod", "a")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"container": {"image": "nowhere/nothing:1"}}, "nothing on this node stands for it"),
        ({"container": {"command": ["no-such-program"]}}, "no-such-program: No such file"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "hostPath is not known"),
        ({"hostNetwork": True}, "hostNetwork"),
    ],
    ids=["image", "command", "volume", "network"],
)
async def test_what_this_node_cannot_do_is_told(spec: dict[str, Any], reason: str, space: Space) -> None:
    await space.apply(pod("a", **spec))

    async def told() -> bool:
        return reason in await space.kubectl("describe", "pod", "a")

    await until(told, f"describe does not say {reason!r}")
    await space.kubectl("delete", "pod", "a", "--timeout=30s")


async def test_a_deployment_rolls_and_a_rejected_pod_is_told(space: Space) -> None:
    template = pod("web")
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": template["metadata"] | {"name": ""}, "spec": template["spec"]},
    }
    await space.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    await space.available("web")
    before = await space.ready("web")
    assert len(before) == 2
    await space.kubectl("rollout", "restart", "deployment/web")
    await space.available("web")
    after = await space.ready("web")
    assert len(after) == 2 and set(before).isdisjoint(after) and set(before.values()).isdisjoint(after.values())
    with pytest.raises(CommandError, match="not found"):
        await space.get("pod", "nobody")
