"""Telemetry, step 3 of 3 (fetch → find lines → sample): how the names of one engine become an EngineSample.

An engine is data: for each field of the sample a Reading, that is the families it needs and how their series combine.
A new engine is one new file with one `Engine` and one line in this package's `__init__`.

How series combine: an engine with data parallelism has one series per rank (`engine`, `dp_rank`), and these are added
up. Processes of one rank report the same thing again (`pid`, `tp_rank`, `pp_rank`, `moe_ep_rank`): of these the
largest is taken, and so of a series that is on the page twice. NaN, infinite and negative values say nothing: a field
without a usable value is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from poolpilot_picker import compiled
from poolpilot_picker.sources.metric_spec import MetricSpec
from poolpilot_picker.sources.series import Series
from poolpilot_picker.state.samples import HistogramTotals

Found = Mapping[str, list[Series]]

_SAME_RANK: Final = (b"pid=", b"tp_rank=", b"pp_rank=", b"moe_ep_rank=", b"priority=")
_SAME_RANK_LABELS: Final = frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank"})
_COUNTED: Final = ("_total", "_sum", "_count")
"""How names of counters and of a histogram's totals end."""

_MOST_RANKS: Final = 512
"""Series of one family that are told apart by their labels; with more of them, the field is unknown."""

FACTS: Final = ("block_tokens", "kv_capacity_tokens", "prefix_caching", "max_adapters", "max_sequences")
"""Fields that do not change while an engine runs."""


class Reading(msgspec.Struct, frozen=True):
    """The families one field needs and how they combine; the result is None where nothing usable was found."""

    families: tuple[str, ...]
    compute: Callable[[Found], Any]
    alone: Callable[[float], Any] | None = None
    """What the first of the families says where it has one series: the same as `compute`, by a shorter way. None of
    several families: the others are to be looked at."""


class Engine(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One engine's names; equal to itself only.

    Fields in `rarely` (facts, histograms and the counters read with them) need not be asked for on every poll.
    """

    name: str
    readings: Mapping[str, Reading]
    """EngineSample field → reading."""
    path: str = "/metrics"
    models_path: str | None = "/v1/models"
    selects_by_name: bool = False
    """`PATH/?name[]=FAMILY&…` answers with the named families only."""
    rarely: frozenset[str] = frozenset()
    growing: frozenset[str] = frozenset()
    """Families that keep a series for every state they were in; see `sources/growing.py`."""
    needs: str = ""
    """What it must be told so that it shows its metrics, as words behind its name; for the log."""

    def fields(self, everything: bool) -> list[str]:
        """The fields of one poll."""
        return [field for field in self.readings if everything or field not in self.rarely]

    def families(self, everything: bool) -> list[str]:
        """The families of one poll, each once."""
        wanted = (family for field in self.fields(everything) for family in self.readings[field].families)
        return list(dict.fromkeys(wanted))


def total(*names: str | MetricSpec) -> Reading:
    """Sum over the ranks; of several names the first that has a usable value."""
    return _first_of(names, _sum, _usable)


def total_except(name: str, label: str, values: Collection[str]) -> Reading:
    """Sum over the series whose label has none of these values."""

    def compute(found: Found) -> float | None:
        all_of_them = found.get(name, ())
        if len(all_of_them) > _MOST_RANKS:
            return None
        series = [
            one for one in all_of_them if (labels := readable(one)) is not None and labels.get(label) not in values
        ]
        return _sum(series, name)

    return Reading((name,), compute)


def highest(*names: str | MetricSpec) -> Reading:
    """Maximum over the ranks of a share 0..1 (larger is cut to 1)."""
    return _first_of(names, _share, _usable_share)


def latest(*names: str | MetricSpec) -> Reading:
    """The one value, or the largest: for times and settings, which do not add up."""
    return _first_of(names, _largest, _usable)


def whole(value: str | MetricSpec | Reading) -> Reading:
    """A reading, or the largest value of a family, as a positive integer."""
    reading = value if isinstance(value, Reading) else latest(value)
    return Reading(reading.families, lambda found: _positive_int(reading.compute(found)))


def histogram(*names: str) -> Reading:
    """Sum and count of a histogram in seconds, over the ranks; of several names the first that is there."""
    families = tuple(name + suffix for name in names for suffix in ("_sum", "_count"))

    def compute(found: Found) -> HistogramTotals | None:
        for name in names:
            sums, counts = name + "_sum", name + "_count"
            total_s, count = _sum(found.get(sums, ()), sums), _sum(found.get(counts, ()), counts)
            if total_s is not None and count is not None:
                return HistogramTotals(total_s, count)
        return None

    return Reading(families, compute)


def ratio(part: Reading, entire: Reading) -> Reading:
    """`part / entire`, a share 0..1."""

    def compute(found: Found) -> float | None:
        numerator, denominator = part.compute(found), entire.compute(found)
        return None if numerator is None or not denominator else min(1.0, numerator / denominator)

    return Reading(_families(part, entire), compute)


def intervals(seconds: Reading, tokens: Reading, requests: Reading) -> Reading:
    """Time between tokens out of counters of finished requests: decode seconds over tokens behind the first."""

    def compute(found: Found) -> HistogramTotals | None:
        duration, made, answers = seconds.compute(found), tokens.compute(found), requests.compute(found)
        if duration is None or made is None or answers is None:
            return None
        return HistogramTotals(duration, max(0.0, made - answers))

    return Reading(_families(seconds, tokens, requests), compute)


def product(left: Reading, right: Reading) -> Reading:
    """Product of two readings as a positive integer."""

    def compute(found: Found) -> int | None:
        first, second = left.compute(found), right.compute(found)
        return None if first is None or second is None else _positive_int(first * second)

    return Reading(_families(left, right), compute)


def either(*readings: Reading) -> Reading:
    """The first reading that has a value."""

    def compute(found: Found) -> Any:
        return next((value for reading in readings if (value := reading.compute(found)) is not None), None)

    return Reading(_families(*readings), compute)


def add(first: Reading, *more: Reading) -> Reading:
    """Sum of readings; those without a value count for nothing, all without one give None."""

    def compute(found: Found) -> float | None:
        values = [value for reading in (first, *more) if (value := reading.compute(found)) is not None]
        return math.fsum(values) if values else None

    return Reading(_families(first, *more), compute)


def info_label(info: str | MetricSpec, label: str) -> Reading:
    """A positive integer in a label of an info gauge, largest over the series."""
    spec = _spec(info)

    def compute(found: Found) -> int | None:
        return max((number for labels in _infos(found, spec) if (number := label_int(labels, label))), default=None)

    return Reading((spec.name,), compute)


def info_total(info: str | MetricSpec, compute_one: Callable[[Mapping[str, str]], int | None]) -> Reading:
    """A number made of the labels of one series of an info gauge, added over the ranks."""
    spec = _spec(info)

    def compute(found: Found) -> int | None:
        numbers = [number for labels in _infos(found, spec) if (number := compute_one(labels)) is not None]
        return sum(numbers) if numbers else None

    return Reading((spec.name,), compute)


def info_flag(info: str | MetricSpec, label: str) -> Reading:
    """`True` or `False` in a label of an info gauge; True only where every series says so."""
    spec = _spec(info)

    def compute(found: Found) -> bool | None:
        texts = [labels.get(label, "").lower() for labels in _infos(found, spec)]
        flags = [text == "true" for text in texts if text in ("true", "false")]
        return all(flags) if flags else None

    return Reading((spec.name,), compute)


def newest_labels(info: str | MetricSpec, compute: Callable[[Mapping[str, str]], Any]) -> Reading:
    """Something out of the labels of the series with the largest value: for gauges whose value is the time of the
    labels' last update and whose older combinations stay on the page (vLLM's LoRA information)."""

    spec = _spec(info)

    def pick(found: Found) -> Any:
        newest = max(
            (series for series in spec.matching(found.get(spec.name, ())) if not math.isnan(series.value)),
            key=lambda series: series.value,
            default=None,
        )
        if newest is None or (labels := readable(newest)) is None:
            return None
        return compute(labels)

    return Reading((spec.name,), pick)


def names_in(text: str | None) -> tuple[str, ...] | None:
    """`a, b` → ("a", "b"); None stays None."""
    return None if text is None else tuple(name for part in text.split(",") if (name := part.strip()))


def label_int(labels: Mapping[str, str], label: str) -> int | None:
    """A label as positive integer; None if it is absent, `None` or something else."""
    text = labels.get(label)
    return None if text is None else _label_int(text)


def readable(series: Series) -> Mapping[str, str] | None:
    """The labels of a series, None where they cannot be read."""
    try:
        return series.labels
    except ValueError:
        return None


def one_per_rank(series: Sequence[Series], name: str = "") -> list[Series]:
    """Of several series that processes of the same rank report, the largest; the others as they are. `name`: theirs."""
    usable = [one for one in series if 0.0 <= one.value < math.inf]
    if len(usable) < 2:
        return usable
    # Series of one family have the same label names.
    if not any(mark in usable[0].block for mark in _SAME_RANK):
        return usable if len({one.block for one in usable}) == len(usable) else _each_once(usable)
    if len(usable) > _MOST_RANKS:
        return []
    labelled = [(one, labels) for one in usable if (labels := readable(one)) is not None]
    # SGLang with priorities: of a gauge, the series with an empty priority is the aggregate of the others. Of what is
    # counted per request it is one class among them, that of requests without a priority.
    if not name.endswith(_COUNTED) and any(labels.get("priority") == "" for _, labels in labelled):
        labelled = [(one, labels) for one, labels in labelled if not labels.get("priority")]
    ranks: dict[frozenset[tuple[str, str]], Series] = {}
    for one, labels in labelled:
        rank = frozenset(item for item in labels.items() if item[0] not in _SAME_RANK_LABELS)
        known = ranks.get(rank)
        if known is None or known.value < one.value:
            ranks[rank] = one
    return list(ranks.values())


def _each_once(series: list[Series]) -> list[Series]:
    """Of series with the same labels the largest: a page that has one twice does not tell of another rank."""
    largest: dict[bytes, Series] = {}
    for one in series:
        known = largest.get(one.block)
        if known is None or known.value < one.value:
            largest[one.block] = one
    return list(largest.values())


def _first_of(
    names: tuple[str | MetricSpec, ...],
    reduce: Callable[[Sequence[Series], str], float | None],
    alone: Callable[[float], float | None],
) -> Reading:
    """`alone(value)` must be what `reduce` makes of one series."""
    specs = [_spec(name) for name in names]

    def compute(found: Found) -> float | None:
        for spec in specs:
            series = found.get(spec.name)
            if series and (value := reduce(spec.matching(series), spec.name)) is not None:
                return value
        return None

    families = tuple(dict.fromkeys(spec.name for spec in specs))
    return Reading(families, compute, None if specs[0].labels else alone)


def reference_usable(value: float) -> float | None:
    """A value that says something."""
    return value if 0.0 <= value < math.inf else None


def reference_usable_share(value: float) -> float | None:
    """The same of a share, which is cut to 1."""
    return min(1.0, value) if 0.0 <= value < math.inf else None


_usable = reference_usable if compiled.in_force is None else compiled.in_force.usable
_usable_share = reference_usable_share if compiled.in_force is None else compiled.in_force.usable_share


def _sum(series: Sequence[Series], name: str) -> float | None:
    if len(series) == 1:
        return _usable(series[0].value)
    usable = one_per_rank(series, name)
    return math.fsum(one.value for one in usable) if usable else None


def _share(series: Sequence[Series], name: str) -> float | None:
    value = _largest(series, name)
    return None if value is None else min(1.0, value)


def _largest(series: Sequence[Series], _: str) -> float | None:
    if len(series) == 1:
        return _usable(series[0].value)
    return max((one.value for one in series if 0.0 <= one.value < math.inf), default=None)


def _spec(name: str | MetricSpec) -> MetricSpec:
    return name if isinstance(name, MetricSpec) else MetricSpec(name)


def _families(*readings: Reading) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for reading in readings for name in reading.families))


def _infos(found: Found, spec: MetricSpec) -> list[Mapping[str, str]]:
    """Labels of the series of an info gauge, one per rank."""
    series = one_per_rank(spec.matching(found.get(spec.name, ())))
    return [labels for one in series if (labels := readable(one)) is not None]


def _label_int(text: str) -> int | None:
    try:
        return _positive_int(float(text))
    except ValueError:
        return None


def _positive_int(value: float | None) -> int | None:
    return int(value) if value is not None and 1.0 <= value < 2**63 else None
