"""`poolpilot bench cost`: flags → trials → rows as they come → report."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from poolpilot_lab.bench.cost import machine
from poolpilot_lab.bench.cost.cases import (
    CASES,
    GIE_EPP,
    LLM_D_EPP,
    PICKERS,
    POOLPILOT,
    TRANSPORTS,
    Choice,
)
from poolpilot_lab.bench.cost.duration import expected_s
from poolpilot_lab.bench.cost.outputs import Outputs
from poolpilot_lab.bench.cost.play import Play
from poolpilot_lab.bench.cost.tools import addresses
from poolpilot_lab.bench.errors import BenchError, InterruptedBenchError, UsageError
from poolpilot_lab.bench.flags import check_epp, names, whole
from poolpilot_lab.interrupts import stoppable
from poolpilot_lab.processes import ProcessError, envoy_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAM: Final = "poolpilot bench cost"
_POD_PORT: Final = 8000


def main(argv: list[str]) -> int:
    """Runs the bench. 0: all runs were made; 1: one failed; 2: wrong flags or a missing program; 130: interrupted."""
    try:
        return _bench(_arguments(argv), argv)
    except (BenchError, ProcessError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BenchError) else 1


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="CPU, memory and latency of endpoint pickers behind a real Envoy, in alternating runs. Writes "
        "results.json (one row per run), report.md, plots, and details.jsonl (what clients saw, load average).",
        epilog="Needs Linux, an Envoy, and Go to build the stand-in servers and the load generator.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="for results and logs; earlier results are put aside")
    add("--case", default=",".join(CASES), metavar="NAME,…", help="default: %(default)s")
    add(
        "--pickers",
        metavar="NAME,…",
        help=f"default: {POOLPILOT}, {GIE_EPP} where it can be built, {LLM_D_EPP} with --epp",
    )
    add("--epp", type=Path, metavar="PATH", help=f"binary of Go's endpoint picker of llm-d-router, for {LLM_D_EPP}")
    add("--transport", default=TRANSPORTS[0], metavar="NAME,…", help="of ours: wire, grpc or both (default: wire)")
    add("--workers", type=int, default=1, metavar="N", help="of ours; above 1, compared with 1 (default: 1)")
    add("--runs", type=int, default=5, metavar="N", help="of each contestant; of memory there is one (default: 5)")
    add("--memory-requests", type=int, default=1_000_000, metavar="N", help="of the case memory (default: %(default)s)")
    add(
        "--pod-port",
        type=int,
        default=_POD_PORT,
        metavar="N",
        help="of the stand-in servers on 127.0.1.1 and on; the next port too (default: %(default)s)",
    )
    add("--quick", action="store_true", help="one short run of each: shows that it works, the figures mean nothing")
    return parser.parse_args(argv)


def choice_of(arguments: argparse.Namespace) -> Choice:
    """The flags' meaning; UsageError names the flag, the value and what is allowed."""
    pickers = arguments.pickers
    if pickers is None:
        pickers = ",".join([POOLPILOT, GIE_EPP, *([LLM_D_EPP] if arguments.epp else [])])
    choice = Choice(
        cases=names("--case", arguments.case, CASES),
        pickers=names("--pickers", pickers, PICKERS),
        transports=names("--transport", arguments.transport, TRANSPORTS),
        workers=whole("--workers", arguments.workers, 1, 64),
        memory_requests=whole("--memory-requests", arguments.memory_requests, 1_000, 100_000_000),
        runs=1 if arguments.quick else whole("--runs", arguments.runs, 1, 100),
        quick=arguments.quick,
        pod_port=whole("--pod-port", arguments.pod_port, 1_024, 65_534),
        epp=arguments.epp,
        strict=arguments.pickers is not None,
    )
    check_epp(choice.epp, "--pickers", choice.pickers, LLM_D_EPP)
    return choice


def _bench(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    if sys.platform != "linux":
        raise UsageError(f"the CPU time of processes is read in ways that only Linux has; this is {sys.platform}")
    choice = choice_of(arguments)
    try:
        envoy_path()
    except ProcessError as error:
        raise UsageError(str(error)) from None
    for address in (*addresses(1, choice.pod_port), *addresses(1, choice.pod_port + 1)):
        _must_be_free(address)
    out: Path = arguments.out.resolve()
    cores = machine.cores(os.sched_getaffinity(0), choice.workers)
    try:
        out.mkdir(parents=True, exist_ok=True)
        outputs = Outputs(out, machine.describe(cores), " ".join([_PROGRAM, *argv]))
    except OSError as error:
        raise UsageError(f"--out: {arguments.out}: cannot write there: {error.strerror}") from error
    print(f"About {max(1, round(expected_s(choice) / 60))} minutes on a machine that does nothing else", flush=True)
    play = Play(choice, cores, out / "logs", outputs.add, outputs.note)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(stoppable(play.run(), InterruptedBenchError))
    finally:
        # What was measured before an interrupt is worth reading too.
        outputs.finish()
    return 0


def _must_be_free(address: str) -> None:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise UsageError(f"--pod-port: the stand-in servers need {address}: {error.strerror}") from error
