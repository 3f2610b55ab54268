"""What one run gives: a row of `peers.json`. Pure, but for the file."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from poolpilot_lab.bench.cost.machine import Machine
from poolpilot_lab.bench.files import write_whole
from poolpilot_lab.demo.figures import lasted_s, percentiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from poolpilot_lab.client.load import Outcome


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant on one scenario and seed. Times in ms.

    Percentiles are over all requests, the smallest value that so many do not exceed; a failed request took for ever.
    Null: nothing was measured, or the percentile falls on a failed request. Means are of the answered requests.
    """

    scenario: str
    contestant: str
    seed: int
    requests: int
    errors: int
    seconds: float
    """From the first request sent to the last answer."""
    rps: float
    """Answers by `seconds`."""
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    e2e_mean_ms: float | None
    e2e_p99_ms: float | None
    tpot_p99_ms: float | None
    router_cpu_us_per_request: float | None
    """CPU time of everything between client and engine while requests ran (Envoy and picker, or the router)."""
    picker_cpu_us_per_request: float | None
    """The picker's part; null where there is none."""
    shares: dict[str, float]
    """Of the answers, by engine."""
    cached_share: float
    """Prompt tokens that engines had in their prefix caches."""
    output_tokens: int
    """Of all answers: equal for all contestants of a seed that answered everything."""
    problems: list[str] = []
    """Why the figures should not be trusted."""
    reasons: dict[str, int] = {}
    """Of the errors."""
    settings: str = ""
    """Fingerprint of what was run: a stored row with another one is not of this comparison."""
    at: str = ""
    """When it ended, UTC."""


class Results(msgspec.Struct, kw_only=True):
    """Everything in `peers.json`."""

    command: str
    machine: Machine
    left_out: dict[str, str] = {}
    """Contestants that could not be installed, built or started, and why."""
    rows: list[Row] = []

    def has(self, scenario: str, seed: int, contestant: str) -> bool:
        """Whether this run has been made."""
        return any((row.scenario, row.seed, row.contestant) == (scenario, seed, contestant) for row in self.rows)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read(path: Path) -> Results:
    """The results of a file; msgspec.ValidationError if it holds none."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def fingerprint(*settings: object) -> str:
    """Of what makes up a run, as plain data."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]


def row(
    scenario: str,
    contestant: str,
    seed: int,
    outcomes: Sequence[Outcome],
    engines: Sequence[str],
    *,
    router_cpu_s: float,
    picker_cpu_s: float | None,
    cached_share: float,
    problems: Sequence[str] = (),
) -> Row:
    """Figures of one run: its outcomes, CPU seconds of router and picker while they came about."""
    good = [outcome for outcome in outcomes if not outcome.error]
    never = [math.inf] * (len(outcomes) - len(good))
    ttft = [outcome.ttft_ms for outcome in good]
    e2e = [outcome.e2e_ms for outcome in good]
    tpot = [outcome.tpot_ms for outcome in good if outcome.tpot_ms is not None]
    late = percentiles(ttft + never)
    answered = Counter(outcome.endpoint for outcome in good)
    seconds = lasted_s(outcomes)
    return Row(
        scenario=scenario,
        contestant=contestant,
        seed=seed,
        requests=len(outcomes),
        errors=len(never),
        seconds=round(seconds, 3),
        rps=round(len(good) / seconds, 3) if seconds > 0 else 0.0,
        ttft_mean_ms=_mean(ttft),
        ttft_p50_ms=late.p50,
        ttft_p99_ms=late.p99,
        e2e_mean_ms=_mean(e2e),
        e2e_p99_ms=percentiles(e2e + never).p99,
        tpot_p99_ms=percentiles(tpot + never).p99,
        router_cpu_us_per_request=_each(router_cpu_s, len(good)),
        picker_cpu_us_per_request=None if picker_cpu_s is None else _each(picker_cpu_s, len(good)),
        shares={name: round(answered[name] / max(1, len(good)), 4) for name in engines},
        cached_share=round(cached_share, 4),
        output_tokens=sum(outcome.output_tokens for outcome in good),
        problems=list(problems),
        reasons=dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
    )


def _each(seconds: float, requests: int) -> float | None:
    return round(seconds * 1e6 / requests, 1) if requests else None


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 3) if values else None
