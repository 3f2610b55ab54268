"""ORCA load reports in response headers → a partial sample: free feedback with the answers of engines that send them.

Open Request Cost Aggregation (xds.data.orca.v3.OrcaLoadReport): the header `endpoint-load-metrics` holds `TEXT
key=value, …` or `JSON {…}`. vLLM sends it on non-streaming answers to requests with the header
`endpoint-load-metrics-format: TEXT` or `JSON`. A value that cannot be read is no report: never an error of the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.state.samples import EngineSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_NAMED: Final = "named_metrics."
_MAX_BYTES: Final = 8_192


def parse_orca(value: str | bytes, taken_ms: float) -> EngineSample | None:
    """The header's value → sample with running, waiting and KV usage as far as it names them; None: no report in it."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if len(text) > _MAX_BYTES:
        return None
    form, _, body = text.strip().partition(" ")
    match form.upper():
        case "TEXT":
            metrics = _from_text(body)
        case "JSON":
            metrics = _from_json(body)
        case _:
            return None
    usage = _first(metrics, ("kv_cache_usage_perc", "kv_cache_utilization"))
    sample = EngineSample(
        taken_ms=taken_ms,
        running=_first(metrics, ("num_requests_running",)),
        waiting=_first(metrics, ("num_requests_waiting",)),
        kv_usage=None if usage is None else min(1.0, usage),
    )
    known = (sample.running, sample.waiting, sample.kv_usage)
    return sample if any(number is not None for number in known) else None


def _from_text(body: str) -> dict[str, float]:
    """`named_metrics.a=1, b=2` → the named metrics."""
    pairs = (pair.partition("=") for pair in body.split(","))
    return _numbers((name.strip().removeprefix(_NAMED), text.strip()) for name, equals, text in pairs if equals)


def _from_json(body: str) -> dict[str, float]:
    try:
        report = msgspec.json.decode(body.encode("latin-1", "replace"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    named: Any = report.get("named_metrics") if isinstance(report, dict) else None
    return _numbers(named.items()) if isinstance(named, dict) else {}


def _numbers(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Numbers that can be a load: finite, not negative."""
    numbers: dict[str, float] = {}
    for name, given in pairs:
        if isinstance(given, bool):
            continue
        try:
            number = float(given)
        except (TypeError, ValueError, OverflowError):
            continue
        if 0.0 <= number < math.inf:
            numbers[name] = number
    return numbers


def _first(metrics: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)
