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
SELECTOR = "app.kubernetes.io/managed-by=poolpilot,poolpilot.dev/picker-namespace=home,poolpilot.dev/picker=default"


class Server:
    """Objects by path; time passes while somebody sleeps."""

    def __init__(self, *paths: str) -> None:
        self.paths = set(paths)
        self.now = 0.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.refusals: list[RefusedError] = []
        self.asked: list[str] = []
        self.deleted: list[str] = []

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        assert params == {"labelSelector": SELECTOR}
        self.asked.append(path)
        if self.refusals:
            raise self.refusals.pop()
        if "monitoring.coreos.com" in path:
            raise RefusedError(f"GET {path}", 404, "page not found")
        plural = path.rpartition("/")[2]
        items: list[dict[str, Any]] = []
        for one in sorted(self.paths):
            parts = one.split("/")
            if parts[-2] == plural:
                namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
                items.append({"metadata": {"name": parts[-1], "namespace": namespace}})
        return msgspec.json.encode({"items": items})

    async def send(self, method: str, path: str, params: Mapping[str, str]) -> bytes:
        assert (method, params) == ("DELETE", {"propagationPolicy": "Background"})
        if path not in self.paths:
            raise RefusedError(f"DELETE {path}", 404, "not found")
        self.paths.remove(path)
        self.deleted.append(path)
        return b"{}"

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, what in [one for one in self.later if one[0] <= self.now]:
            self.later.remove((at, what))
            what()


async def cleaned(
    server: Server, timeout_s: float = 10.0, namespaces: tuple[str, ...] = ()
) -> tuple[list[str], list[str]]:
    """(what is left, what was said)."""
    said: list[str] = []
    job = Cleanup(
        server,  # type: ignore[arg-type]
        "home",
        "default",
        namespaces,
        say=said.append,
        now=lambda: server.now,
        sleep=server.sleep,
    )
    return await job.run(timeout_s), said


async def test_an_operator_that_works_is_waited_for() -> None:
    server = Server(PICKER, SERVICE, SLICE)
    server.later = [(3.0, lambda: server.paths.discard(SERVICE)), (5.0, lambda: server.paths.discard(SLICE))]
    left, said = await cleaned(server)
    assert (left, server.deleted) == ([], [PICKER])
    assert server.now == 5.0 and len(said) == 1


async def test_what_an_operator_leaves_is_deleted() -> None:
    server = Server(PICKER, SERVICE, SLICE)
    left, said = await cleaned(server)
    assert left == [] and server.deleted == [PICKER, SERVICE, SLICE]
    assert server.now == 10.0 and "the operator has left 2 objects after 10 s" in said[1]


async def test_what_cannot_be_removed_is_named() -> None:
    """A finalizer of somebody, for example: it is asked for and stays."""
    server = Server(SERVICE)

    async def nothing(method: str, path: str, params: Mapping[str, str]) -> bytes:
        if path not in server.paths:
            raise RefusedError(f"DELETE {path}", 404, "not found")
        return b"{}"

    server.send = nothing  # type: ignore[method-assign]
    left, _ = await cleaned(server)
    assert left == [SERVICE] and server.now == pytest.approx(70.0, abs=1.0), "it does not wait for ever"


async def test_without_anything_to_do_it_ends_at_once() -> None:
    server = Server()
    assert await cleaned(server) == ([], []) and server.now == 0.0
    assert len(server.asked) == len(NAMESPACED) + len(CLUSTER)


async def test_in_namespaces_nothing_of_the_cluster_is_asked_for() -> None:
    server = Server(PICKER)
    await cleaned(server, namespaces=("home", "team"))
    assert len(server.asked) == 2 * len(NAMESPACED)
    assert all("/namespaces/home/" in path or "/namespaces/team/" in path for path in server.asked)


async def test_a_busy_server_is_asked_again_and_a_forbidden_thing_is_not() -> None:
    server = Server(PICKER)
    server.refusals = [RefusedError("GET /x", 429, "storage is (re)initializing")]
    assert (await cleaned(server))[0] == []
    server.refusals = [RefusedError("GET /x", 403, "no")]
    with pytest.raises(RefusedError, match="403"):
        await cleaned(server)


def test_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--namespace", "home"])
    assert ended.value.code == 2 and "--picker" in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--namespace", "home", "--picker", "default"]) == 2
    assert "/nonexistent" in capsys.readouterr().err
