"""What a bench leaves in its folder, and what it says meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import msgspec

from poolpilot_lab.bench.cost.groups import Replies
from poolpilot_lab.bench.cost.plots import draw
from poolpilot_lab.bench.cost.report import Context, report
from poolpilot_lab.bench.cost.rows import Results
from poolpilot_lab.bench.cost.tools import LoadResult, ProbeResult

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.bench.cost.machine import Machine
    from poolpilot_lab.bench.cost.measure import Measured
    from poolpilot_lab.bench.cost.rows import Row


class Detail(msgspec.Struct, kw_only=True):
    """What a row has no place for; one line of details.jsonl per row, in the same order."""

    contestant: str
    case: str
    run: int
    seconds: float
    """That the run took, with waking and warming up."""
    load_average: float
    """Over the last minute, of the whole machine, when it ended."""
    clients: LoadResult | None
    """What the load generator saw. `late_p99_ms` says how late it was itself."""
    reply: ProbeResult | None
    """Of the picker without an Envoy, where that was asked."""
    worker_shares: tuple[float, ...]
    """Of the streams, by worker, where there are several."""


class Outputs:
    """results.json and details.jsonl grow with every run; report.md and plots are written at the end."""

    def __init__(self, folder: Path, machine: Machine, command: str) -> None:
        """OSError if the folder cannot be written to."""
        self._folder = folder
        self._results = Results(folder / "results.json")
        self._details = folder / "details.jsonl"
        self._machine = machine
        self._command = command
        self._began = time.monotonic()
        self._notes: list[str] = []
        self._replies: dict[tuple[str, str | None, int], list[ProbeResult]] = {}
        self._shares: list[float] = []
        self._loads: list[float] = [machine.load_average[0]]
        older = self._results.begin()
        self._details.write_bytes(b"")
        if older is not None:
            print(f"Earlier results are now {older}")
        apart = f"the picker has {machine.picker_core}"
        print(f"{machine.processor}, {machine.cores} cores; {apart}; load average {machine.load_average[0]:.2f}")

    def note(self, sentence: str) -> None:
        """Something the reader must know."""
        if sentence not in self._notes:
            self._notes.append(sentence)
            print(sentence, flush=True)

    def add(self, measured: Measured, contestant: str, seconds: float) -> None:
        """Keeps a run and says what it was."""
        row, clients = measured.row, measured.clients
        self._results.add(row)
        load = os.getloadavg()[0]
        self._loads.append(load)
        detail = Detail(
            contestant=contestant,
            case=row.case,
            run=row.run,
            seconds=seconds,
            load_average=load,
            clients=clients,
            reply=measured.reply,
            worker_shares=measured.shares,
        )
        with self._details.open("ab") as file:
            file.write(msgspec.json.encode(detail) + b"\n")
        print(line(row, contestant, seconds), flush=True)
        if measured.shares:
            self._shares.append(max(measured.shares) * len(measured.shares))
        if measured.reply is not None:
            self._replies.setdefault((row.picker, row.transport, row.workers), []).append(measured.reply)
        if clients is not None and clients.errors:
            for reason, count in clients.reasons.items():
                self.note(f"{row.case}, {contestant}, run {row.run}: {count:,} × {reason}")

    def finish(self) -> None:
        """Report and plots of what there is."""
        rows = self._results.rows
        if not rows:
            return
        context = Context(
            self._machine,
            self._command,
            time.monotonic() - self._began,
            max(self._loads),
            tuple(self._notes),
            [Replies(*who, replies) for who, replies in self._replies.items()],
            statistics.median(self._shares) if self._shares else None,
        )
        plots = draw(rows, self._folder)
        target = self._folder / "report.md"
        target.write_text(report(rows, context, plots), encoding="utf-8")
        print(f"Written: {self._results.path}, {target}, {self._details.name}{''.join(f', {plot}' for plot in plots)}")


def line(row: Row, contestant: str, seconds: float) -> str:
    """One run, for the screen."""
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
            (row.slope_bytes_per_request, 1, "B/request"),
        )
        if value is not None
    ]
    errors = f"  {row.errors:,} ERRORS" if row.errors else ""
    played = f"{row.case:8}{row.endpoints:5}{row.concurrency or '-':>5}  run {row.run}"
    return f"{played}  {contestant:36} {', '.join(figures)}{errors}  [{seconds:.1f} s]"
