"""One container of a pod: started, probed, started again, and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp

from poolpilot_kube.backoff import Backoff
from poolpilot_lab.kubelet.environment import MissingError
from poolpilot_lab.kubelet.images import ImageError
from poolpilot_lab.kubelet.launch import LaunchError
from poolpilot_lab.kubelet.probes import Threshold, check, http_get
from poolpilot_lab.kubelet.status import ContainerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from poolpilot_lab.kubelet.launch import Launched
    from poolpilot_lab.kubelet.objects import Json

_STABLE_S: Final = 10.0
"""A container that ran for so long is started again without waiting."""
_PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a node does what real ones take their time for, in seconds."""

    first_backoff_s: float = 0.5
    most_backoff_s: float = 10.0
    most_period_s: float = math.inf
    """Between two probes. A shorter period asks for as many more failures: what a probe tolerates stays the same."""


class Around(Protocol):
    """The pod, as its containers see it."""

    @property
    def address(self) -> str:
        """Of the pod."""

    async def launch(self, container: Json, run: int) -> Launched:
        """Starts it for the `run`-th time. Raises MissingError, ImageError or LaunchError."""

    async def execute(self, launched: Launched, container: Json, argv: Sequence[str]) -> int:
        """Runs a command in a running container; its exit code."""

    def tell(self, reason: str, message: str) -> None:
        """An Event of the pod, for people."""

    def changed(self) -> None:
        """The status has to be written."""


class Container:
    """Runs while `run` does, until the policy lets it rest or `stop` ends it."""

    def __init__(self, spec: Json, policy: str, around: Around, pace: Pace, grace_s: float) -> None:
        """`policy`: Always, OnFailure or Never."""
        self.spec = spec
        self.sidecar = spec.get("restartPolicy") == "Always"
        """Of an init container: it runs on beside those that follow."""
        self.status = ContainerStatus(spec["name"], spec["image"])
        self._policy = policy
        self._around = around
        self._pace = pace
        self._grace_s = grace_s
        self._backoff = Backoff(random.Random(), pace.first_backoff_s, pace.most_backoff_s)
        self._process: Launched | None = None
        self._stopping = asyncio.Event()
        self._begun = asyncio.Event()

    async def run(self) -> int:
        """Returns the last exit code when it will not be started again."""
        runs = 0
        while True:
            self._process = await self._started(runs)
            if self._process is None:
                return 0
            runs += 1
            began = time.monotonic()
            code = await self._watched(self._process)
            # What it started ends with it, as in a container.
            await self._process.kill()
            self.status.end(code)
            self._around.changed()
            if self._stopping.is_set() or self._policy == "Never" or (self._policy == "OnFailure" and code == 0):
                return code
            if time.monotonic() - began >= _STABLE_S:
                self._backoff.reset()
            self.status.again("CrashLoopBackOff", f"ended with exit code {code}")
            self._around.tell("BackOff", f"container {self.status.name} ended with exit code {code}; starting it again")
            self._around.changed()
            if await self._stopped_within(self._backoff.after_failure()):
                return code

    async def begun(self) -> None:
        """Returns when it has started for the first time, as its startup probe says if it has one."""
        await self._begun.wait()

    async def stop(self, grace_s: float) -> None:
        """preStop hook, TERM, and KILL when `grace_s` seconds are over, all counted from now."""
        self._stopping.set()
        if self._process is not None and self._process.running:
            await self._end(self._process, grace_s)

    async def _started(self, runs: int) -> Launched | None:
        """None if it has been stopped before it could be started."""
        while not self._stopping.is_set():
            try:
                process = await self._around.launch(self.spec, runs)
            except (MissingError, ImageError, LaunchError) as error:
                reason = {MissingError: "CreateContainerConfigError", ImageError: "ErrImagePull"}
                self.status.wait(reason.get(type(error), "RunContainerError"), str(error))
                self._around.tell("Failed", str(error))
                self._around.changed()
                await self._stopped_within(self._backoff.after_failure())
                continue
            self.status.run(f"process://{process.pid}", started="startupProbe" not in self.spec)
            self._note_start()
            return process
        return None

    def _note_start(self) -> None:
        self.status.ready = self.status.started and "readinessProbe" not in self.spec
        if self.status.started:
            self._begun.set()
        self._around.changed()

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _watched(self, process: Launched) -> int:
        probing = asyncio.create_task(self._probed(process))
        try:
            return await process.ended()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing

    # ── probes ───────────────────────────────────────────────────────────────

    async def _probed(self, process: Launched) -> None:
        if not any(name in self.spec for name in _PROBES):
            return
        if "startupProbe" in self.spec:
            if not await self._probe(process, "startupProbe", lambda _, __: True):
                await self._give_up(process, "startup")
                return
            self.status.started = True
            self._note_start()
        watching: list[Coroutine[Any, Any, object]] = []
        if "readinessProbe" in self.spec:
            watching.append(self._probe(process, "readinessProbe", self._ready))
        if "livenessProbe" in self.spec:
            watching.append(self._alive(process))
        await asyncio.gather(*watching)

    async def _alive(self, process: Launched) -> None:
        if not await self._probe(process, "livenessProbe", lambda good, _: not good):
            await self._give_up(process, "liveness")

    def _ready(self, good: bool, problem: str) -> bool:
        if self.status.ready is not good:
            self.status.ready = good
            self._around.changed()
            if not good:
                self._around.tell("Unhealthy", f"readiness probe of {self.status.name} failed: {problem}")
        return False

    async def _probe(self, process: Launched, name: str, enough: Callable[[bool, str], bool]) -> bool:
        """Asks again and again until `enough` says so of a verdict, and returns that."""
        probe = self.spec[name]
        period_s = probe.get("periodSeconds", 10)
        pause_s = min(period_s, self._pace.most_period_s)
        threshold = Threshold.of(probe)
        threshold.failures = math.ceil(threshold.failures * period_s / pause_s)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            problem = await check(probe, self.spec, self._around.address, self._runner(process))
            verdict = threshold.add(not problem)
            if verdict is not None and enough(verdict, problem):
                return verdict
            await asyncio.sleep(pause_s)

    def _runner(self, process: Launched) -> Callable[[Sequence[str]], Coroutine[Any, Any, int]]:
        return lambda argv: self._around.execute(process, self.spec, argv)

    async def _give_up(self, process: Launched, name: str) -> None:
        self._around.tell("Killing", f"{name} probe of {self.status.name} failed; the container is restarted")
        # Not as part of the probing, which ends when the process does.
        await asyncio.shield(asyncio.create_task(self._end(process, self._grace_s)))

    # ── the end ──────────────────────────────────────────────────────────────

    async def _end(self, process: Launched, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if hook is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._hook(process, hook)
        await process.stop(max(deadline - time.monotonic(), 0.0))

    async def _hook(self, process: Launched, hook: Json) -> None:
        """Until it is done, or the process has ended by itself."""
        doing = asyncio.create_task(self._hooked(process, hook))
        ended = asyncio.create_task(process.ended())
        try:
            await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
            if doing.done() and (problem := doing.result()):
                self._around.tell("FailedPreStopHook", f"preStop hook of {self.status.name} failed: {problem}")
        finally:
            doing.cancel()
            ended.cancel()
            await asyncio.gather(doing, ended, return_exceptions=True)

    async def _hooked(self, process: Launched, hook: Json) -> str:
        """Why it failed."""
        try:
            if "sleep" in hook:
                await asyncio.sleep(hook["sleep"]["seconds"])
            elif "exec" in hook:
                code = await self._around.execute(process, self.spec, hook["exec"]["command"])
                return f"exit code {code}" if code else ""
            else:
                return await http_get(hook["httpGet"], self.spec, self._around.address)
        except (OSError, aiohttp.ClientError, MissingError) as error:
            return str(error)
        return ""
