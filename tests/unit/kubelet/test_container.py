"""A container's life against a pod that only keeps notes: no process, no probe over a network."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, cast

import pytest

from poolpilot_lab.kubelet.container import Container, Pace
from poolpilot_lab.kubelet.images import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.kubelet.launch import Launched

FAST = Pace(first_backoff_s=0.001, most_backoff_s=0.002, most_period_s=0.001)


class Process:
    """Ends when it is told to."""

    pid = 1

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        return not self.code.done()

    async def ended(self) -> int:
        return await asyncio.shield(self.code)

    def end(self, code: int) -> None:
        if self.running:
            self.code.set_result(code)

    async def stop(self, grace_s: float) -> int:
        self.end(128 + signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> int:
        self.end(128 + signal.SIGKILL)
        return await self.ended()


class Notes:
    """The pod around."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.launched: list[Process] = []
        self.executed: list[list[str]] = []
        self.codes: dict[str, int] = {}
        self.problem: Exception | None = None
        self._changed = asyncio.Event()

    async def launch(self, container: dict[str, Any], run: int) -> Launched:
        if self.problem is not None:
            raise self.problem
        assert run == len(self.launched)
        self.launched.append(Process())
        return cast("Launched", self.launched[-1])

    async def execute(self, launched: Launched, container: dict[str, Any], argv: Sequence[str]) -> int:
        self.executed.append(list(argv))
        return self.codes.get(argv[0], 0)

    def tell(self, reason: str, message: str) -> None:
        self.told.append(f"{reason}: {message}")

    def changed(self) -> None:
        self._changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await asyncio.wait((asyncio.create_task(self._changed.wait()),), timeout=0.005)


def made(notes: Notes, policy: str = "Always", **spec: Any) -> Container:
    return Container({"name": "c", "image": "i", **spec}, policy, notes, FAST, 1.0)


@pytest.mark.parametrize(
    ("policy", "codes", "runs"),
    [("Never", [1], 1), ("Never", [0], 1), ("OnFailure", [1, 2, 0], 3), ("OnFailure", [0], 1)],
)
async def test_the_policy_says_whether_it_is_started_again(policy: str, codes: list[int], runs: int) -> None:
    notes = Notes()
    container = made(notes, policy)
    running = asyncio.create_task(container.run())
    for index, code in enumerate(codes):
        await notes.until(lambda index=index: len(notes.launched) > index)
        notes.launched[index].end(code)
    assert await running == codes[-1]
    assert len(notes.launched) == runs and container.status.restarts == runs - 1
    assert container.status.state["terminated"]["exitCode"] == codes[-1]


async def test_always_means_until_it_is_stopped() -> None:
    notes = Notes()
    container = made(notes)
    running = asyncio.create_task(container.run())
    for index in range(3):
        await notes.until(lambda index=index: len(notes.launched) > index)
        assert container.status.ready, "without a probe it is ready as soon as it runs"
        notes.launched[index].end(0)
    await notes.until(lambda: len(notes.launched) > 3)
    await container.stop(1.0)
    assert await running == 128 + signal.SIGTERM
    assert container.status.last_state["terminated"]["exitCode"] == 0 and not container.status.ready


async def test_one_that_cannot_be_started_is_tried_again() -> None:
    notes = Notes()
    notes.problem = ImageError("no such image")
    container = made(notes)
    running = asyncio.create_task(container.run())
    await notes.until(lambda: len(notes.told) > 2)
    assert container.status.state["waiting"] == {"reason": "ErrImagePull", "message": "no such image"}
    notes.problem = None
    await notes.until(lambda: notes.launched)
    await container.stop(1.0)
    await running


async def test_one_that_was_never_started_can_be_stopped() -> None:
    notes = Notes()
    notes.problem = ImageError("no such image")
    container = made(notes)
    running = asyncio.create_task(container.run())
    await notes.until(lambda: notes.told)
    await container.stop(1.0)
    assert await running == 0 and notes.launched == []


async def test_probes_come_one_after_the_other() -> None:
    """The startup probe holds the others back; readiness goes both ways; liveness ends the process."""
    notes = Notes()
    notes.codes = {"started": 1, "ready": 1, "alive": 0}
    probes = {
        f"{kind}Probe": {"exec": {"command": [word]}, "periodSeconds": 0.001, "failureThreshold": threshold}
        for kind, word, threshold in (
            ("startup", "started", 10**9),
            ("readiness", "ready", 2),
            ("liveness", "alive", 2),
        )
    }
    container = made(notes, **probes)
    running = asyncio.create_task(container.run())
    await notes.until(lambda: len(notes.executed) > 3)
    assert {one[0] for one in notes.executed} == {"started"} and not container.status.started
    notes.codes["started"] = 0
    await notes.until(lambda: container.status.started)
    await notes.until(lambda: ["ready"] in notes.executed)
    assert not container.status.ready
    notes.codes["ready"] = 0
    await notes.until(lambda: container.status.ready)
    notes.codes["ready"] = 1
    await notes.until(lambda: not container.status.ready)
    assert notes.launched[0].running, "only liveness restarts"
    notes.codes["alive"] = 1
    await notes.until(lambda: len(notes.launched) > 1)
    assert any(one.startswith("Killing: liveness probe of c failed") for one in notes.told)
    await container.stop(1.0)
    await running


async def test_a_startup_that_never_ends_is_given_up() -> None:
    notes = Notes()
    notes.codes = {"started": 1}
    container = made(
        notes, startupProbe={"exec": {"command": ["started"]}, "failureThreshold": 2, "periodSeconds": 0.001}
    )
    running = asyncio.create_task(container.run())
    await notes.until(lambda: len(notes.launched) > 1)
    assert any(one.startswith("Killing: startup probe of c failed") for one in notes.told)
    await container.stop(1.0)
    await running


@pytest.mark.parametrize("probed", [False, True])
async def test_a_sidecar_has_begun_when_its_startup_probe_says_so(probed: bool) -> None:
    notes = Notes()
    notes.codes = {"started": 1}
    probe = {"startupProbe": {"exec": {"command": ["started"]}, "failureThreshold": 10_000, "periodSeconds": 0.001}}
    container = made(notes, restartPolicy="Always", **(probe if probed else {}))
    assert container.sidecar and not made(notes).sidecar
    running, begun = asyncio.create_task(container.run()), asyncio.create_task(container.begun())
    await notes.until(lambda: len(notes.executed) > 2 if probed else notes.launched)
    if probed:
        assert not begun.done() and not container.status.ready
        notes.codes = {}
    async with asyncio.timeout(10):
        await begun
    assert container.status.ready
    # Begun is begun: what comes after it is not held up by a restart.
    notes.launched[0].end(1)
    await notes.until(lambda: len(notes.launched) > 1)
    await container.begun()
    await container.stop(1.0)
    await running


@pytest.mark.parametrize(("code", "complaints"), [(0, 0), (7, 1)])
async def test_the_hook_runs_before_the_end(code: int, complaints: int) -> None:
    notes = Notes()
    notes.codes = {"bye": code}
    container = made(notes, lifecycle={"preStop": {"exec": {"command": ["bye"]}}})
    running = asyncio.create_task(container.run())
    await notes.until(lambda: notes.launched)
    await container.stop(10.0)
    await running
    assert notes.executed == [["bye"]]
    assert sum(one.startswith("FailedPreStopHook") for one in notes.told) == complaints


async def test_a_hook_takes_no_longer_than_the_grace_and_ends_with_the_process() -> None:
    for grace_s, ends_itself in ((0.01, False), (60.0, True)):
        notes = Notes()
        container = made(notes, lifecycle={"preStop": {"sleep": {"seconds": 3600}}})
        running = asyncio.create_task(container.run())
        await notes.until(lambda notes=notes: notes.launched)
        stopping = asyncio.create_task(container.stop(grace_s))
        await asyncio.sleep(0)
        if ends_itself:
            notes.launched[0].end(0)
        async with asyncio.timeout(10):
            await stopping
            assert await running == (0 if ends_itself else 128 + signal.SIGTERM)
