"""Runs of the same thing, gathered: medians, spreads, and ratios to another picker. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.cases import CASES, GIE_EPP, LLM_D_EPP, NO_PICKER, POOLPILOT, RATES
from poolpilot_lab.bench.cost.gateway import BodyMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolpilot_lab.bench.cost.rows import Row
    from poolpilot_lab.bench.cost.tools import ProbeResult

LEAST_RATE: Final = RATES[1]
"""Below it a run is a handful of requests."""
_PEERS: Final = (GIE_EPP, LLM_D_EPP)
"""The first of them that was measured is what ratios compare with."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Of one figure over the runs."""

    median: float
    lowest: float
    highest: float
    count: int

    @property
    def spread(self) -> float | None:
        """(Highest − lowest) ÷ median; None where the median is 0."""
        return (self.highest - self.lowest) / abs(self.median) if self.median else None


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one contestant in one trial."""

    case: str
    picker: str
    transport: str | None
    body_mode: str | None
    endpoints: int
    concurrency: int | None
    workers: int
    scrape: str | None
    rate: float | None
    """Requests per second of an open loop."""
    rows: tuple[Row, ...]

    @property
    def who(self) -> str:
        """The picker as tables name it."""
        return named(self.picker, self.transport, self.workers)

    @property
    def played(self) -> str:
        """The case as tables name it."""
        if self.rate is not None:
            return f"{self.case}, {self.rate:,g}/s"
        return f"{self.case}, {self.concurrency} at once" if self.concurrency else self.case

    @property
    def order(self) -> int:
        """Of the case."""
        return CASES.index(self.case) if self.case in CASES else len(CASES)

    @property
    def requests(self) -> int:
        """That got an answer, of all runs."""
        return sum(row.requests for row in self.rows)

    @property
    def errors(self) -> int:
        """Of all runs."""
        return sum(row.errors for row in self.rows)

    def stat(self, field: str) -> Stat | None:
        """Of a row's field, over the runs that have it."""
        values = [value for row in self.rows if (value := getattr(row, field)) is not None]
        if not values:
            return None
        return Stat(statistics.median(values), min(values), max(values), len(values))

    def pairs(self, other: Group, field: str) -> list[tuple[float, float]]:
        """(Ours, the other's) of the runs with the same number."""
        theirs = {row.run: getattr(row, field) for row in other.rows}
        return [
            (value, theirs[row.run])
            for row in self.rows
            if (value := getattr(row, field)) is not None and theirs.get(row.run) is not None
        ]

    def like(self, other: Group, **changed: object) -> bool:
        """Whether this is the other one but for these attributes, which have these values."""
        wanted = {name: getattr(other, name) for name in _LOAD_AND_PICKER} | changed
        return all(getattr(self, name) == value for name, value in wanted.items())


_LOAD_AND_PICKER: Final = (
    "case", "picker", "transport", "body_mode", "endpoints", "concurrency", "workers", "scrape", "rate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replies:
    """Reply times of one picker without an Envoy, a result per run."""

    picker: str
    transport: str | None
    workers: int
    results: Sequence[ProbeResult]

    @property
    def who(self) -> str:
        """The picker as tables name it."""
        return named(self.picker, self.transport, self.workers)

    def handed(self, quantile: str) -> float:
        """Until the reply is handed to the picker's socket, median over the runs, ms."""
        return float(statistics.median(getattr(result.handed_ms, quantile) for result in self.results))

    def read(self, quantile: str) -> float:
        """Until the reply is read, the same."""
        return float(statistics.median(getattr(result.reply_ms, quantile) for result in self.results))


def named(picker: str, transport: str | None, workers: int) -> str:
    """A picker as tables name it."""
    if picker == NO_PICKER:
        return "Envoy alone"
    parts = [picker, *([transport] if transport else []), *([f"{workers} workers"] if workers > 1 else [])]
    return " ".join(parts)


def grouped(rows: Iterable[Row]) -> list[Group]:
    """In the order in which they first ran."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (
            row.case, row.picker, row.transport, row.body_mode, row.endpoints, row.concurrency, row.workers, row.scrape,
            _rate(row),
        )  # fmt: skip
        found.setdefault(key, []).append(row)
    return [
        Group(
            case=first.case,
            picker=first.picker,
            transport=first.transport,
            body_mode=first.body_mode,
            endpoints=first.endpoints,
            concurrency=first.concurrency,
            workers=first.workers,
            scrape=first.scrape,
            rate=_rate(first),
            rows=tuple(runs),
        )
        for runs in found.values()
        for first in runs[:1]
    ]


def _rate(row: Row) -> float | None:
    """What an open loop was to send, as a row has only what was answered."""
    if row.case != "latency" or row.rps is None:
        return None
    return min(RATES, key=lambda rate: abs(rate - (row.rps or 0.0)))


def peer_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """Go's picker under the same load, in the only mode it knows; None for itself and where none was measured."""
    if group.picker != POOLPILOT:
        return None
    for peer in _PEERS:
        for other in groups:
            if (
                (other.case, other.picker, other.endpoints, other.concurrency, other.rate)
                == (group.case, peer, group.endpoints, group.concurrency, group.rate)
                and other.body_mode == BodyMode.FULL_DUPLEX
            ):  # fmt: skip
                return other
    return None


def ratio(group: Group, other: Group | None, field: str) -> float | None:
    """Of the medians; None where one is missing."""
    if other is None:
        return None
    mine, its = group.stat(field), other.stat(field)
    return mine.median / its.median if mine is not None and its is not None and its.median else None


def paired(group: Group, other: Group | None, field: str) -> Stat | None:
    """Of the ratios of the runs with the same number: what drifts from run to run is in both."""
    pairs = group.pairs(other, field) if other is not None else []
    ratios = sorted(mine / its for mine, its in pairs if its)
    return Stat(statistics.median(ratios), ratios[0], ratios[-1], len(ratios)) if ratios else None


def against_one(group: Group, groups: Sequence[Group]) -> Group | None:
    """One worker under the load of these several, where there is enough to do for the CPU of a request to mean much."""
    if group.workers == 1 or not (group.case == "short" or (group.rate or 0.0) >= LEAST_RATE):
        return None
    return next((other for other in groups if other.like(group, workers=1)), None)
