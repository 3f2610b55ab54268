"""What is turned away before it waits: sheddable requests (priority below 0) of a pool that is saturated.

`probabilistic-admitter` and `latency-slo-admitter` of llm-d by formula; `shed: drop` for those that should never wait.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from poolpilot_picker.errors import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.config.flow_plugins import ProbabilisticParameters
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.requests.request import InferenceRequest

MESSAGE = "system saturated, sheddable request dropped"


class Admitter(Protocol):
    """Says of a sheddable request whether it may come in."""

    def admits(self, request: InferenceRequest, pool: Pool, now: float) -> bool:
        """False: it is shed."""
        ...


class ProbabilisticAdmitter:
    """Sheds with probability min(k · saturation^power, 1); saturation = mean of max(waiting ÷ 5, KV use ÷ 0.8)."""

    def __init__(self, parameters: ProbabilisticParameters, draw: Callable[[], float]) -> None:
        self._parameters = parameters
        self._draw = draw

    def admits(self, request: InferenceRequest, pool: Pool, now: float) -> bool:
        """By chance. Endpoints that tell nothing count as idle."""
        parameters, table = self._parameters, pool.table
        mask = table.eligible
        if not mask.any():
            return True
        queue = np.nan_to_num(table.waiting[mask]) / parameters.queue_depth_threshold
        cache = np.nan_to_num(table.kv_usage[mask]) / parameters.kv_cache_util_threshold
        saturation = float(np.maximum(queue, cache).mean())
        return self._draw() >= min(1.0, parameters.k * math.pow(saturation, parameters.power))


class LatencySloAdmitter:
    """Admits what some endpoint is predicted to start within the request's SLO of the first token, or an endpoint that
    is idle or holds next to nothing (2 % of its KV cache). Requests without that SLO are admitted."""

    def admits(self, request: InferenceRequest, pool: Pool, now: float) -> bool:
        """By the predicted time to first token."""
        slo, table = request.slo_ttft_ms, pool.table
        mask = table.eligible
        if slo is None or not mask.any():
            return True
        prompt = float(request.prompt_tokens)
        prefill = (table.token_ms + table.token2_ms * prompt) * prompt
        soon = np.maximum(0.0, table.free_at_ms - now) + prefill <= slo
        free = (table.requests == 0.0) | (table.kv_usage < 0.02)
        return bool(((soon | free) & mask).any())


class SaturationAdmitter:
    """Sheds at a saturation of 1: llm-d's rule without flow control."""

    def __init__(self, saturation: Callable[[Pool, float], float]) -> None:
        self._saturation = saturation

    def admits(self, request: InferenceRequest, pool: Pool, now: float) -> bool:
        """By the pool's detector; while there are no endpoints, all wait alike."""
        return not pool.table.any_wanted or self._saturation(pool, now) < 1.0


def check(admitters: list[Admitter], request: InferenceRequest, pool: Pool, now: float) -> None:
    """Raises TooManyRequests where one of them sheds the request."""
    if request.priority < 0 and not all(one.admits(request, pool, now) for one in admitters):
        raise TooManyRequests(MESSAGE)
