"""What happened to an endpoint during runs, and how soon a policy knew: from the timelines of several draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from poolpilot_lab.sim.measures import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

BIN_S: Final = 5.0
WINDOW_S: Final = 10.0
WITHIN: Final = 0.1
SETTLED_S: Final = 60.0
KNOWN: Final = 0.8
"""Of the way from the old share of requests to the new one: from then on a change counts as known."""


class Detection(NamedTuple):
    """Seconds after an endpoint slowed down, and after it was well again; infinite: never."""

    detected: float
    recovered: float


def _at(figures: dict[str, Any], kind: str) -> tuple[float, int]:
    for at, what, endpoint in figures["timeline"]["changes"]:
        if what == kind:
            return float(at), int(endpoint)
    raise ValueError(f"nothing of kind {kind!r} happened in the run")


def _share(runs: Sequence[dict[str, Any]], kind: str, begin: float, end: float, change: str) -> float:
    """Share of requests that the endpoint of `kind` got from `begin` to `end` seconds after `change`."""
    there = total = 0
    for figures in runs:
        line = figures["timeline"]
        at, _ = _at(figures, change)
        _, endpoint = _at(figures, kind)
        for arrived, placed in zip(line["arrived_s"], line["endpoint"], strict=True):
            if begin <= arrived - at < end:
                total += 1
                there += placed == endpoint
    return there / total if total else math.nan


def detection_s(runs: Sequence[dict[str, Any]]) -> Detection:
    """From a scenario with a `slow` and a `heal`: when the endpoint's share of requests had come most of the way."""
    lasted = min(_at(figures, "heal")[0] - _at(figures, "slow")[0] for figures in runs)
    before = _share(runs, "slow", -30.0, 0.0, "slow")
    during = _share(runs, "slow", -0.5 * lasted, 0.0, "heal")
    return Detection(_reached(runs, "slow", before, during, lasted), _reached(runs, "heal", during, before, lasted))


def _reached(runs: Sequence[dict[str, Any]], change: str, old: float, new: float, lasted: float) -> float:
    begin = 0.0
    while begin < lasted:
        share = _share(runs, "slow", begin, begin + BIN_S, change)
        if not math.isnan(share) and (share - old) * (new - old) >= KNOWN * (new - old) ** 2:
            return begin + BIN_S
        begin += BIN_S
    return math.inf


def failing_share(runs: Sequence[dict[str, Any]]) -> float:
    """Share of requests that ended at the endpoint while it answered errors: each such request is one that failed."""
    lasted = min(_at(figures, "heal")[0] - _at(figures, "fail")[0] for figures in runs)
    return _share(runs, "fail", 0.0, lasted, "fail")


def _around_kill(runs: Sequence[dict[str, Any]]) -> tuple[list[float], list[tuple[float, float]]]:
    """TTFT in ms of all that came before the kill; and of what came then, until the next change: (s since, TTFT)."""
    before: list[float] = []
    after: list[tuple[float, float]] = []
    for figures in runs:
        line = figures["timeline"]
        killed, _ = _at(figures, "kill")
        following = min((at for at, _, _ in line["changes"] if at > killed), default=math.inf)
        for arrived, ttft in zip(line["arrived_s"], line["ttft_ms"], strict=True):
            if arrived < killed:
                before.append(ttft)
            elif arrived < following:
                after.append((arrived - killed, ttft))
    return before, after


def within_s(runs: Sequence[dict[str, Any]], share: float = WITHIN) -> float:
    """Seconds after a kill until the end of the first window with about the TTFT p99 of before; infinite: never."""
    before, after = _around_kill(runs)
    windows: dict[int, list[float]] = {}
    for since, ttft in after:
        windows.setdefault(int(since // WINDOW_S), []).append(ttft)
    usual = quantile(before, 0.99) * (1.0 + share)
    good = [window for window, late in windows.items() if quantile(late, 0.99) <= usual]
    return (min(good) + 1) * WINDOW_S if good else math.inf


def back_to_normal(runs: Sequence[dict[str, Any]]) -> float:
    """TTFT p99 of what came at least SETTLED_S after the kill and before the next change, ÷ that before the kill."""
    before, after = _around_kill(runs)
    late = [ttft for since, ttft in after if since >= SETTLED_S]
    return quantile(late, 0.99) / quantile(before, 0.99) if before and late else math.nan


def lost_before_start(runs: Sequence[dict[str, Any]]) -> int:
    """Requests of all runs of which no token was ever seen."""
    return sum(figures["timeline"]["lost_before_start"] for figures in runs)


def happened(policy: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    """How a policy fared when something happened to an endpoint, in sentences; none where nothing did."""
    kinds = {kind for _, kind, _ in runs[0].get("timeline", {}).get("changes", ())}
    said = []
    if {"slow", "heal"} <= kinds:
        seen = detection_s(runs)
        said.append(
            f"{policy}: endpoint at half speed detected {_after(seen.detected)}, its recovery {_after(seen.recovered)} "
            f"({100 * KNOWN:g} % of the way to its new share of requests)."
        )
    if {"fail", "heal"} <= kinds:
        said.append(f"{policy}: {100 * failing_share(runs):.2g} % of the requests met the failing endpoint.")
    if "kill" in kinds:
        said.append(
            f"{policy}: {lost_before_start(runs)} requests lost that had not started; TTFT p99 within "
            f"{100 * WITHIN:g} % of before {_after(within_s(runs))}, from {SETTLED_S:g} s after on "
            f"{back_to_normal(runs):.2f} × before."
        )
    return said


def _after(seconds: float) -> str:
    return f"after {seconds:.0f} s" if seconds < math.inf else "never"
