"""Clean-up against an API server that is made up: an operator that works, one that does not, and a busy server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from poolpilot_kube.cleanup import CLUSTER, NAMESPACED, Cleanup, main
from poolpilot_kube.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVICE = "/api/v1/namespaces/team/services/llama-picker"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices/llama-picker"
PICKER = "/apis/poolpilot.dev/v1alpha1/namespaces/home/pickers/default"
DEPLOYMENT = "/apis/apps/v1/namespaces/home/deployments/poolpilot-own"
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/roles/poolpilot-home-own"
BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/poolpilot-home-own"
ACCOUNT = "/api/v1/namespaces/home/serviceaccounts/poolpilot-own"
SECRET = "/api/v1/namespaces/home/secrets/poolpilot-own-tls"
POD = "/api/v1/namespaces/home/pods/poolpilot-own-1"
OPERATOR = "/apis/apps/v1/namespaces/home/deployments/operator"
OPERATOR_POD = "/api/v1/namespaces/home/pods/operator-1"
MANAGED = {"app.kubernetes.io/managed-by": "poolpilot", "poolpilot.dev/operator": "home"}
OWN = {**MANAGED, "poolpilot.dev/picker-namespace": "home", "poolpilot.dev/picker": "own"}
MINE = {**OWN, "poolpilot.dev/picker": "default"}
PODS = {name: value for name, value in OWN.items() if name != "poolpilot.dev/operator"} | {
    "app.kubernetes.io/component": "picker"
}


class Server:
    """Objects by path, with their labels; time passes while somebody sleeps."""

    def __init__(self, objects: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.objects = dict(objects or {})
        self.now = 0.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.refusals: list[RefusedError] = []
        self.asked: list[str] = []
        self.deleted: list[str] = []

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        self.asked.append(path)
        if self.refusals:
            raise self.refusals.pop()
        if "monitoring.coreos.com" in path:
            raise RefusedError(f"GET {path}", 404, "page not found")
        if params is None:
            if path not in self.objects:
                raise RefusedError(f"GET {path}", 404, "not found")
            return msgspec.json.encode({"metadata": {"labels": self.objects[path]}})
        wanted = dict(one.split("=") for one in params["labelSelector"].split(","))
        plural, namespace = path.rpartition("/")[2], path.partition("/namespaces/")[2].partition("/")[0]
        items: list[dict[str, Any]] = []
        for one, labels in sorted(self.objects.items()):
            parts = one.split("/")
            where = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
            if parts[-2] == plural and namespace in {"", where} and wanted.items() <= labels.items():
                items.append({"metadata": {"name": parts[-1], "namespace": where, "labels": labels}})
        return msgspec.json.encode({"items": items})

    async def send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: object = None, content_type: str = ""
    ) -> bytes:
        if method == "PATCH":
            assert (body, content_type) == ({"spec": {"replicas": 0}}, "application/merge-patch+json")
            if path.removesuffix("/scale") not in self.objects:
                raise RefusedError(f"PATCH {path}", 404, "not found")
            self.deleted.append(path)
            return msgspec.json.encode({"status": {"replicas": 1, "selector": "app=operator"}})
        assert (method, params) == ("DELETE", {"propagationPolicy": "Background"})
        if path not in self.objects:
            raise RefusedError(f"DELETE {path}", 404, "not found")
        self.drop(path)
        self.deleted.append(path)
        return b"{}"

    def drop(self, path: str) -> None:
        self.objects.pop(path, None)

    def goes(self, at: float, path: str) -> None:
        self.later.append((at, lambda: self.drop(path)))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, what in [one for one in self.later if one[0] <= self.now]:
            self.later.remove((at, what))
            what()


async def cleaned(
    server: Server, timeout_s: float = 10.0, namespaces: tuple[str, ...] = (), picker: str = "default"
) -> tuple[list[str], list[str]]:
    """(what is left, what was said)."""
    said: list[str] = []
    job = Cleanup(
        server,  # type: ignore[arg-type]
        "home",
        picker,
        namespaces,
        operator="operator",
        say=said.append,
        now=lambda: server.now,
        sleep=server.sleep,
    )
    return await job.run(timeout_s), said


async def test_an_operator_that_works_is_waited_for() -> None:
    server = Server({PICKER: {}, SERVICE: MINE, SLICE: MINE})
    server.goes(3.0, SERVICE)
    server.goes(5.0, SLICE)
    left, said = await cleaned(server)
    assert (left, server.deleted) == ([], [PICKER])
    assert server.now == 5.0 and len(said) == 1


async def test_what_an_operator_leaves_is_deleted() -> None:
    server = Server({PICKER: {}, SERVICE: MINE, SLICE: MINE})
    left, said = await cleaned(server)
    assert left == [] and server.deleted == [PICKER, SERVICE, SLICE]
    assert server.now == 10.0 and "the operator has left 2 objects after 10 s" in said[1]


async def test_the_operator_ends_before_it_could_make_anything_again() -> None:
    """It needs its rights to give the Lease back; Helm takes them away as soon as this is done."""
    server = Server({OPERATOR: {}, OPERATOR_POD: {"app": "operator"}, SERVICE: OWN})
    server.goes(4.0, OPERATOR_POD)
    assert (await cleaned(server))[0] == []
    assert server.deleted == [f"{OPERATOR}/scale", SERVICE] and server.now == 4.0


async def test_what_is_a_users_pickers_goes_too_and_rights_go_when_its_pods_have_drained() -> None:
    """Its Picker stays. What another operator made is not looked at, nor a Secret that is somebody else's."""
    own = dict.fromkeys((DEPLOYMENT, SERVICE, ROLE, BINDING, ACCOUNT, SECRET), OWN)
    others = {
        "/api/v1/namespaces/team/services/another": {**OWN, "poolpilot.dev/operator": "elsewhere"},
        "/api/v1/namespaces/home/secrets/poolpilot-foreign-tls": {},
        PICKER.replace("default", "own"): {},
        POD.replace("own", "another"): {**PODS, "poolpilot.dev/picker": "another"},
    }
    server = Server({**own, **others, POD: PODS, ACCOUNT.replace("own", "foreign"): MANAGED})
    server.goes(30.0, POD)
    seen: list[float] = []
    sent = server.send

    async def noted(method: str, path: str, *more: Any, **named: Any) -> bytes:
        if path == BINDING:
            seen.append(server.now)
        return await sent(method, path, *more, **named)

    server.send = noted  # type: ignore[method-assign]
    left, _ = await cleaned(server, picker="")
    assert left == [] and server.objects == others
    assert seen == [30.0] and server.deleted.index(DEPLOYMENT) < server.deleted.index(BINDING)
    assert server.deleted.index(ROLE) < server.deleted.index(SECRET) < server.deleted.index(ACCOUNT)


async def test_pods_that_never_end_do_not_hold_it_up_for_ever() -> None:
    server = Server({ROLE: OWN, POD: PODS})
    assert (await cleaned(server))[0] == [] and 60.0 < server.now < 100.0


async def test_what_cannot_be_removed_is_named() -> None:
    """A finalizer of somebody, for example: it is asked for and stays."""
    server = Server({SERVICE: MINE})

    async def nothing(method: str, path: str, *more: Any) -> bytes:
        if path not in server.objects:
            raise RefusedError(f"{method} {path}", 404, "not found")
        return b"{}"

    server.send = nothing  # type: ignore[method-assign, assignment]
    left, _ = await cleaned(server)
    assert left == [SERVICE] and server.now == pytest.approx(70.0, abs=1.0), "it does not wait for ever"


async def test_without_anything_to_do_it_ends_at_once() -> None:
    server = Server()
    assert await cleaned(server) == ([], []) and server.now == 0.0
    assert set(server.asked) == {one.path() for one in (*NAMESPACED, *CLUSTER)}


async def test_in_namespaces_nothing_of_the_cluster_is_asked_for() -> None:
    server = Server({PICKER: {}, ROLE: OWN})
    await cleaned(server, namespaces=("home", "team"))
    assert all("/namespaces/home/" in path or "/namespaces/team/" in path for path in server.asked)


async def test_a_busy_server_is_asked_again_and_a_forbidden_thing_is_not() -> None:
    server = Server({PICKER: {}})
    server.refusals = [RefusedError("GET /x", 429, "storage is (re)initializing")]
    assert (await cleaned(server))[0] == []
    server.refusals = [RefusedError("GET /x", 403, "no")]
    with pytest.raises(RefusedError, match="403"):
        await cleaned(server)


def test_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--picker", "default"])
    assert ended.value.code == 2 and "--namespace" in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--namespace", "home", "--picker", "default"]) == 2
    assert "/nonexistent" in capsys.readouterr().err
