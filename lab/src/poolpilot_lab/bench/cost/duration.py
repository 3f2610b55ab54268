"""How long a bench will take: said before it begins. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost import pick
from poolpilot_lab.bench.cost.cases import CHUNK_MS, CHUNKS, POOLPILOT, trials
from poolpilot_lab.bench.cost.measure import SETTLE_S

if TYPE_CHECKING:
    from poolpilot_lab.bench.cost.cases import Choice, Trial
    from poolpilot_lab.bench.cost.tools import LoadSpec

_START_S: Final = 1.5
"""Of a picker of ours and an Envoy."""
_START_GO_S: Final = 5.0
"""Of Go's, with its control plane."""
_START_GO_ENDPOINT_S: Final = 0.02
_REQUESTS_PER_S: Final = 5_000.0
"""What a load that is bounded by its number of requests may reach; machines differ most here."""
_PICK_S: Final = 1.2


def expected_s(choice: Choice) -> float:
    """Seconds on a machine that is otherwise idle; builds not included."""
    total = sum(_trial_s(trial, choice.runs) for trial in trials(choice))
    if "pick" in choice.cases and POOLPILOT in choice.pickers:
        total += choice.runs * _PICK_S * len(pick.ENDPOINTS)
    return total


def _trial_s(trial: Trial, runs: int) -> float:
    start = sum(
        _START_S if one.picker == POOLPILOT else _START_GO_S + _START_GO_ENDPOINT_S * trial.endpoints
        for one in trial.contestants
    )
    turn = SETTLE_S + trial.idle_s
    for load, times in ((trial.warm, 1), (trial.load, trial.segments)):
        if load is not None:
            turn += times * _load_s(load, trial.segments)
    if trial.load is not None and trial.probes:
        turn += trial.probes / trial.load.rate
    return start + (trial.runs or runs) * len(trial.contestants) * turn


def _load_s(load: LoadSpec, segments: int) -> float:
    if load.seconds:
        return load.seconds
    if load.prompt.stream:
        return (load.stagger_ms + CHUNKS * CHUNK_MS) / 1000.0
    return load.requests / segments / _REQUESTS_PER_S
