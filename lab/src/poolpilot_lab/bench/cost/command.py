"""`poolpilot bench cost`: flags → trials → rows as they come → report. Exit 0 only if no request failed."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from poolpilot_lab.bench.cost import machine, tools
from poolpilot_lab.bench.cost.cases import CASES, PICKERS, POOLPILOT, TRANSPORTS, Choice, trials
from poolpilot_lab.bench.cost.errors import BenchError, InterruptedBenchError, UsageError
from poolpilot_lab.bench.cost.measure import run_once
from poolpilot_lab.bench.cost.rows import Results
from poolpilot_lab.bench.cost.stage import Stage
from poolpilot_lab.processes import ProcessError, envoy_path

if TYPE_CHECKING:
    from poolpilot_lab.bench.cost.rows import Row

_PROGRAM: Final = "poolpilot bench cost"
POD_PORT: Final = 8000


def main(argv: list[str]) -> int:
    """Runs the bench. 0: all runs were made; 1: not so; 2: wrong flags or a missing program; 130: interrupted."""
    try:
        return _bench(_arguments(argv))
    except BenchError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except ProcessError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 1


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="CPU, memory and latency of endpoint pickers behind a real Envoy, in alternating runs. Writes "
        "results.json (a row per run) and report.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--case", default=",".join(CASES), metavar="NAME,…", help="default: %(default)s")
    add("--pickers", metavar="NAME,…", help=f"of {', '.join(PICKERS)} (default: {POOLPILOT})")
    add("--transport", default="wire", metavar="NAME,…", help="of ours: wire, grpc or both (default: %(default)s)")
    add("--runs", type=int, default=5, metavar="N", help="of each contestant (default: %(default)s)")
    add("--workers", type=int, default=1, metavar="N", help="of ours (default: %(default)s)")
    add("--memory-requests", type=int, default=1_000_000, metavar="N", help="of the case memory (default: %(default)s)")
    add("--pod-port", type=int, default=POD_PORT, metavar="N", help="of the stand-in servers, and the next one")
    add("--quick", action="store_true", help="one short run of each: shows that it works, the figures mean nothing")
    add("--out", type=Path, required=True, metavar="DIR", help="for results and logs")
    return parser.parse_args(argv)


def _list(text: str, flag: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        raise UsageError(
            f"{flag}: {', '.join(map(repr, unknown)) or 'nothing'} is not known; allowed: {', '.join(allowed)}"
        )
    return names


def _range(value: int, flag: str, least: int, most: int) -> int:
    if not least <= value <= most:
        raise UsageError(f"{flag}: {value} is out of range, allowed are {least} to {most}")
    return value


def _choice(arguments: argparse.Namespace) -> Choice:
    return Choice(
        cases=_list(arguments.case, "--case", CASES),
        pickers=_list(arguments.pickers or POOLPILOT, "--pickers", PICKERS),
        transports=_list(arguments.transport, "--transport", TRANSPORTS),
        workers=_range(arguments.workers, "--workers", 1, 64),
        memory_requests=_range(arguments.memory_requests, "--memory-requests", 1_000, 100_000_000),
        quick=arguments.quick,
    )


def _bench(arguments: argparse.Namespace) -> int:
    if sys.platform != "linux":
        raise UsageError(f"the CPU time of processes is read in ways that only Linux has; this is {sys.platform}")
    choice = _choice(arguments)
    runs = 1 if arguments.quick else _range(arguments.runs, "--runs", 1, 100)
    _range(arguments.pod_port, "--pod-port", 1024, 65_534)
    try:
        envoy_path()
    except ProcessError as error:
        raise UsageError(str(error)) from None
    out: Path = arguments.out.resolve()
    results = Results(out / "results.json")
    try:
        out.mkdir(parents=True, exist_ok=True)
        older = results.begin()
    except OSError as error:
        raise UsageError(f"--out: {arguments.out}: cannot write there: {error.strerror}") from error
    if older is not None:
        print(f"Earlier results are now {older}")
    where = machine.cores(os.sched_getaffinity(0))
    print(f"{machine.describe(where)}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stoppable(choice, runs, where, arguments.pod_port, out, results))
    print(f"Written: {results.path}")
    return 0


async def _stoppable(
    choice: Choice, runs: int, where: machine.Cores, pod_port: int, out: Path, results: Results
) -> None:
    """SIGINT and SIGTERM stop what runs and raise InterruptedBenchError."""
    main_task = asyncio.current_task()
    assert main_task is not None
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        main_task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await _all(choice, runs, where, pod_port, out, results)
    except asyncio.CancelledError:
        if not caught:
            raise
        raise InterruptedBenchError(caught[0]) from None


async def _all(choice: Choice, runs: int, where: machine.Cores, pod_port: int, out: Path, results: Results) -> None:
    program = await tools.built()
    logs = out / "logs"
    stage = Stage(program, where, pod_port, logs)
    os.sched_setaffinity(0, where.others)
    generator = tools.Generator(program, logs)
    try:
        await generator.start()
        for trial in trials(choice):
            async with stage.set_for(trial) as entries:
                for run in range(1, (trial.runs or runs) + 1):
                    # Nobody always comes first.
                    turn = (run - 1) % len(entries)
                    for entry in [*entries[turn:], *entries[:turn]]:
                        began = time.monotonic()
                        row, _ = await run_once(trial, entry, generator, run)
                        results.add(row)
                        _tell(row, entry.contestant.name, time.monotonic() - began)
    finally:
        await generator.child.stop(0.0)


def _tell(row: Row, name: str, took: float) -> None:
    figures = [
        f"{value:,.{digits}f} {unit}"
        for value, digits, unit in (
            (row.cpu_us_per_request, 1, "µs"),
            (row.envoy_cpu_us_per_request, 1, "µs Envoy"),
            (row.rps, 0, "/s"),
            (row.p50_ms, 2, "ms p50"),
            (row.p99_ms, 2, "ms p99"),
            (row.idle_cores, 3, "cores idle"),
            (row.refresh_hz, 1, "Hz"),
            (row.rss_mb, 0, "MB"),
        )
        if value is not None
    ]
    errors = f"  {row.errors:,} ERRORS" if row.errors else ""
    print(
        f"{row.case:8}{row.endpoints:5}  run {row.run}  {name:36} {', '.join(figures)}{errors}  [{took:.1f} s]",
        flush=True,
    )
