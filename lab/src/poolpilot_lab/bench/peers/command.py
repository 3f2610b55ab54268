"""`poolpilot bench routing --peers`: flags → runs in alternating order → peers.json after each → report.md."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop
from msgspec.structs import replace

from poolpilot_lab.bench.cost import machine
from poolpilot_lab.bench.errors import BenchError, InterruptedBenchError, UsageError
from poolpilot_lab.bench.peers.catalogue import LLM_D_EPP, POOLPILOT
from poolpilot_lab.bench.peers.options import Options, parse
from poolpilot_lab.bench.peers.report import report
from poolpilot_lab.bench.peers.rows import Results, Row, fingerprint, read
from poolpilot_lab.bench.peers.run import run
from poolpilot_lab.demo.errors import DemoError
from poolpilot_lab.gotools import NotAvailable
from poolpilot_lab.interrupts import stoppable
from poolpilot_lab.processes import ProcessError, envoy_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from poolpilot_lab.bench.peers.catalogue import Contestant
    from poolpilot_lab.bench.peers.scenarios import Scenario

_PROGRAM: Final = "poolpilot bench routing"


def main(argv: Sequence[str]) -> int:
    """Runs it. 0: results are written, and they say who was left out; 1: ours failed; 2: wrong flags; 130: Ctrl-C."""
    try:
        return _bench(parse(argv), argv)
    except (BenchError, DemoError, ProcessError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BenchError) else 1


def _bench(options: Options, argv: Sequence[str]) -> int:
    if sys.platform != "linux":
        raise UsageError(f"--peers: needs addresses and CPU clocks that only Linux has; this is {sys.platform}")
    try:
        envoy_path()
    except ProcessError as error:
        raise UsageError(str(error)) from None
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.out).close()
    except OSError as error:
        raise UsageError(f"--out: {options.out}: cannot write there: {error.strerror}") from error
    everywhere = frozenset(os.sched_getaffinity(0))
    results = Results(
        command=" ".join([_PROGRAM, *argv]),
        machine=machine.describe(machine.Cores(everywhere, everywhere)),
        rows=stored(options),
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(stoppable(_runs(options, results), InterruptedBenchError))
    finally:
        # What was measured before an interrupt is worth reading too.
        if results.rows:
            results.write(options.out / "peers.json")
            (options.out / "report.md").write_text(report(results), encoding="utf-8")
            print(f"Written: {options.out / 'peers.json'}, report.md, logs")
    return 0


def stored(options: Options) -> list[Row]:
    """Rows of earlier runs into the same folder, which are not made again; those now made otherwise go."""
    path = options.out / "peers.json"
    if not path.exists():
        return []
    try:
        rows = read(path).rows
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--out: {path} holds no results of this bench, and would be overwritten: {error}") from None
    now = {(scenario.name, one.name): settings(options, scenario, one) for scenario, _, one in order(options)}
    return [row for row in rows if now.get((row.scenario, row.contestant), row.settings) == row.settings]


def settings(options: Options, scenario: Scenario, contestant: Contestant) -> str:
    """Fingerprint of a run but for its seed."""
    return fingerprint(scenario, options.requests, contestant, options.epp if contestant is LLM_D_EPP else None)


def order(options: Options) -> Iterator[tuple[Scenario, int, Contestant]]:
    """All runs: every other seed in reverse, so that what changes slowly in the machine favours nobody."""
    for scenario in options.scenarios:
        for seed in options.seeds:
            yield from ((scenario, seed, one) for one in options.contestants[:: 1 if seed % 2 else -1])


async def _runs(options: Options, results: Results) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", file=sys.stderr, flush=True)

    for scenario, seed, contestant in order(options):
        if contestant.name in results.left_out or results.has(scenario.name, seed, contestant.name):
            continue
        workload = scenario.traffic(seed, options.requests)
        folder = _made(options.out / "logs" / f"{scenario.name}-{seed}-{contestant.name}")
        try:
            row = await run(contestant, scenario, workload, folder, epp=options.epp, say=say)
        except (NotAvailable, ProcessError) as error:
            if contestant is POOLPILOT:
                raise
            results.left_out[contestant.name] = str(error)
            say(f"{contestant.name} is left out: {error}")
            continue
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        results.rows.append(replace(row, settings=settings(options, scenario, contestant), at=at))
        results.write(options.out / "peers.json")
        say(_line(row))


def _made(folder: Path) -> Path:
    """Empty: programs of this run append to what they find."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder.absolute()


def _line(row: Row) -> str:
    def ms(value: float | None) -> str:
        return "never" if value is None else f"{value:,.0f} ms"

    errors = f", {row.errors:,} ERRORS" if row.errors else ""
    doubts = f", {'; '.join(row.problems)}" if row.problems else ""
    return (
        f"{row.scenario} {row.seed} {row.contestant:26} {row.requests:,} requests in {row.seconds:.1f} s, "
        f"TTFT mean {ms(row.ttft_mean_ms)}, p99 {ms(row.ttft_p99_ms)}, end to end {ms(row.e2e_mean_ms)}{errors}{doubts}"
    )
