"""Plays the chosen trials: contestants in turn, run after run; every row is written before the next run begins."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from poolpilot_lab.bench.cost import machine, pick, tools
from poolpilot_lab.bench.cost.cases import POOLPILOT, trials
from poolpilot_lab.bench.cost.measure import Measured, run_once
from poolpilot_lab.bench.cost.rows import Row
from poolpilot_lab.bench.cost.stage import Stage
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from poolpilot_lab.bench.cost.cases import Choice, Trial
    from poolpilot_lab.bench.cost.machine import Cores

_PICK_REQUESTS: Final = 2_000

T = TypeVar("T")


class Play:
    """One bench. `told` keeps the run before it returns."""

    def __init__(
        self,
        choice: Choice,
        cores: Cores,
        folder: Path,
        told: Callable[[Measured, str, float], None],
        note: Callable[[str], None],
    ) -> None:
        """`folder` takes the logs; `note` is told in a sentence of what is left out.

        `told` gets each run, the contestant's name, and the seconds it took.
        """
        self._choice = choice
        self._cores = cores
        self._folder = folder
        self._told = told
        self._note = note

    async def run(self) -> None:
        """All of it. Everything started is stopped on the way out, whatever happened."""
        program = await tools.built(self._note)
        # This process is in nobody's way, least of all in the picker's.
        os.sched_setaffinity(0, self._cores.others)
        stage = Stage(program, self._cores, self._choice, self._folder, self._note)
        async with tools.Generator(program, self._folder) as generator:
            for trial in trials(self._choice):
                await self._trial(trial, stage, generator)
            if "pick" in self._choice.cases and POOLPILOT in self._choice.pickers:
                await self._picks()

    async def _trial(self, trial: Trial, stage: Stage, generator: tools.Generator) -> None:
        async with stage.set_for(trial) as entries:
            for run in range(1, (trial.runs or self._choice.runs) + 1):
                for entry in in_order(entries, run):
                    began = time.monotonic()
                    measured = await run_once(trial, entry, generator, run)
                    self._told(measured, entry.contestant.name, time.monotonic() - began)

    async def _picks(self) -> None:
        counts, requests = (pick.ENDPOINTS[:3], 300) if self._choice.quick else (pick.ENDPOINTS, _PICK_REQUESTS)
        for run in range(1, self._choice.runs + 1):
            for count in counts:
                began = time.monotonic()
                row = await self._pick(run, count, requests)
                self._told(Measured(row, None), POOLPILOT, time.monotonic() - began)

    async def _pick(self, run: int, endpoints: int, requests: int) -> Row:
        argv = [
            sys.executable, "-m", "poolpilot_lab.bench.cost.pick",
            "--endpoints", str(endpoints), "--requests", str(requests), "--seed", str(run),
        ]  # fmt: skip
        name = f"pick-{endpoints}-{run}"
        child = Child(name, argv, log=self._folder / f"{name}.log", out=self._folder / f"{name}.out")
        with machine.started_on(self._cores.picker):
            child.start()
        try:
            figures = msgspec.json.decode(await child.line(120.0), type=pick.PickFigures)
        finally:
            await child.stop(0.0)
        return Row(
            run=run,
            case="pick",
            picker=POOLPILOT,
            transport=None,
            body_mode=None,
            endpoints=endpoints,
            concurrency=pick.IN_FLIGHT,
            workers=1,
            scrape=None,
            requests=figures.requests,
            rps=None,
            cpu_us_per_request=figures.cpu_us,
            idle_cores=None,
            refresh_hz=None,
            envoy_cpu_us_per_request=None,
            p50_ms=figures.p50_ms,
            p99_ms=figures.p99_ms,
            rss_mb=figures.rss_mb,
            slope_bytes_per_request=None,
            errors=0,
        )


def in_order(entries: Sequence[T], run: int) -> list[T]:
    """Who plays when in a run (from 1): nobody always comes first, and nobody always behind the same one."""
    first = (run - 1) // 2 % max(len(entries), 1)
    order = [*entries[first:], *entries[:first]]
    return order if run % 2 else order[::-1]
