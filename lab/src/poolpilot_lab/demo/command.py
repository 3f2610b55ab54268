"""`poolpilot demo`: flags → three runs → tables, `demo.json`, `demo.png`. Exit 0 only if every request succeeded."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from poolpilot_lab.demo.errors import DemoError, InterruptedDemoError, UsageError
from poolpilot_lab.demo.figures import DemoFigures
from poolpilot_lab.demo.picture import Panel, draw
from poolpilot_lab.demo.policies import POLICIES, POOLPILOT, ROUND_ROBIN
from poolpilot_lab.demo.run import RunResult, run_policy
from poolpilot_lab.demo.scenario import ENGINES, QUICK_REQUESTS, REQUESTS, workload_spec
from poolpilot_lab.demo.tables import duration, endpoints_table, policies_table
from poolpilot_lab.interrupts import stoppable
from poolpilot_lab.processes import ProcessError
from poolpilot_lab.workload.sessions import Workload, make_workload
from poolpilot_lab.workload.text import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.client.load import Outcome

_REASONS_SHOWN: Final = 5
_PLAIN_WIDTH: Final = 120
"""Columns where the output is no terminal: wide enough for the tables."""


def main(argv: list[str]) -> int:
    """Runs the demo. 0: everything ran and no request failed; 1: not so; 2: wrong flags; 130: interrupted."""
    console = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
    try:
        return _demo(_arguments(argv), console)
    except (DemoError, ProcessError) as error:
        print(f"poolpilot demo: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, DemoError) else 1


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="poolpilot demo",
        description="The same clients and stand-in engines behind a real Envoy, three times: Envoy's round robin, "
        "Envoy's least request, poolpilot. Writes demo.json and demo.png.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of clients and hidden engine speeds (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for results (default: %(default)s)"
    )
    parser.add_argument("--requests", type=int, metavar="N", help=f"per policy (default: {REQUESTS})")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    arguments = parser.parse_args(argv)
    if arguments.requests is None:
        arguments.requests = QUICK_REQUESTS if arguments.quick else REQUESTS
    if not 1 <= arguments.requests <= 1_000_000:
        raise UsageError(f"--requests: {arguments.requests} is out of range, allowed are 1 to 1000000")
    if arguments.seed < 0:
        raise UsageError(f"--seed: {arguments.seed} is negative, allowed are 0 and above")
    return arguments


def _demo(arguments: argparse.Namespace, console: Console) -> int:
    out: Path = arguments.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise UsageError(f"--out: {arguments.out}: cannot write there: {error.strerror}") from error
    workload = make_workload(workload_spec(arguments.requests, quick=arguments.quick), arguments.seed, Writer())
    console.print(
        f"{workload.requests:,} requests in {len(workload.sessions):,} sessions (seed {workload.seed}), "
        f"{len(ENGINES)} stand-in engines behind one Envoy, {len(POLICIES)} ways to choose between them"
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(stoppable(_runs(workload, out / "demo-logs", console), InterruptedDemoError))
    figures = DemoFigures(workload.seed, {result.policy.name: result.figures for result in results})
    (out / "demo.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _draw(out / "demo.png", results, workload)
    _report(figures, results, out, console, quick=arguments.quick)
    return 0 if figures.errors == 0 else 1


async def _runs(workload: Workload, logs: Path, console: Console) -> list[RunResult]:
    """All policies, one after the other."""
    return [await _run(policy_index, workload, logs, console) for policy_index in range(len(POLICIES))]


async def _run(policy_index: int, workload: Workload, logs: Path, console: Console) -> RunResult:
    policy = POLICIES[policy_index]
    folder = logs / policy.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=4,
        disable=not console.is_terminal,
    )
    with progress:
        title = f"{policy_index + 1}/{len(POLICIES)} {policy.title}"
        bar = progress.add_task(title, total=workload.requests)

        def on_outcome(_: Outcome) -> None:
            progress.advance(bar)

        result = await run_policy(policy, workload, folder, on_outcome)
    console.print(
        f"{title:26} {result.figures.requests - result.figures.errors:,} answers in {result.seconds:.0f} s, "
        f"TTFT p95 {duration(result.figures.ttft_ms.p95)}"
    )
    return result


def _draw(path: Path, results: Sequence[RunResult], workload: Workload) -> None:
    shown = {result.policy.name: result for result in results}
    panels = [_panel(shown[policy.name]) for policy in (ROUND_ROBIN, POOLPILOT)]
    draw(
        path,
        f"The same {workload.requests:,} requests on the same {len(ENGINES)} engines",
        panels,
        [spec.label for spec in ENGINES],
    )


def _panel(result: RunResult) -> Panel:
    figures = result.figures
    subtitle = f"time to first token p95 {duration(figures.ttft_ms.p95)}, end to end p95 {duration(figures.e2e_ms.p95)}"
    return Panel(result.policy.title, subtitle, result.series)


def _report(figures: DemoFigures, results: Sequence[RunResult], out: Path, console: Console, *, quick: bool) -> None:
    console.print()
    console.print(policies_table(figures))
    console.print()
    console.print(endpoints_table(figures, [spec.label for spec in ENGINES]))
    for result in results:
        _report_errors(result, out, console)
    if quick:
        console.print("[yellow]--quick shows that everything works together; its figures mean nothing.[/yellow]")
    else:
        _report_lateness(results, console)
    console.print(f"\nWritten: {out / 'demo.json'}, {out / 'demo.png'} (the picture), {out / 'demo-logs'}\n")
    command = sys.argv[0] if Path(sys.argv[0]).name == "poolpilot" else "poolpilot"
    for line in (
        f"Next: make demo SEED={figures.seed + 1}: other clients, other hidden engine speeds",
        f"      {command} envoy-config --help: the picker behind an Envoy of your own",
        f"      {command} engine --help: engines of another kind, slower or failing, to point it at",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _report_lateness(results: Sequence[RunResult], console: Console) -> None:
    for result in results:
        if result.punctuality.problems:
            console.print(
                f"[yellow]Do not trust the figures of {result.policy.name}, the machine was too slow: "
                f"{'; '.join(result.punctuality.problems)}.[/yellow]"
            )


def _report_errors(result: RunResult, out: Path, console: Console) -> None:
    reasons = Counter(outcome.error for outcome in result.outcomes if outcome.error)
    for reason, count in reasons.most_common(_REASONS_SHOWN):
        console.print(f"[red]{result.policy.name}: {count:,} × {reason}[/red]")
    if reasons:
        console.print(f"Logs of that run: {out / 'demo-logs' / result.policy.name}")
