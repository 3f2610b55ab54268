"""Scorers by what an endpoint holds, formulas of llm-d-router 0.10: prefix cache, adapters; spread of cold requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType
from poolpilot_picker.routing.plugins.order import SlotNumbers
from poolpilot_picker.routing.plugins.telemetry import prefix_ratio

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

_SCORER: Final = frozenset({PluginKind.SCORER})
_ONE_INDEX: Final = {"prefixMatchInfoProducerName": "there is one prefix index"}


class PrefixCacheParameters(Struct, frozen=True, rename="camel"):
    """Of prefix-cache-scorer."""

    match_length_weight: Annotated[
        float,
        Meta(ge=0, le=1, description="share of the score that counts matched tokens instead of the matched share"),
    ] = 0.0
    match_length_scale_tokens: Annotated[int, Meta(gt=0, description="matched tokens that count in full")] = 8192


class PrefixCacheScorer:
    """Predicted share of the prompt in the endpoint's prefix cache. Without a prompt to match, 0 for all."""

    def __init__(self, parameters: PrefixCacheParameters | None = None) -> None:
        self._parameters = parameters or PrefixCacheParameters()

    def score(self, view: DecisionView) -> Floats:
        """w · min(1, matched tokens ÷ scale)² + (1 − w) · matched ÷ total."""
        ratio = prefix_ratio(view)
        weight = self._parameters.match_length_weight
        if not weight:
            return ratio
        length = np.minimum(1.0, view.cached_tokens / self._parameters.match_length_scale_tokens)
        return weight * length * length + (1.0 - weight) * ratio


class LoraAffinityScorer:
    """Whether the model asked for is an adapter that runs there. Base models have no special case.

    An endpoint that never told of adapter slots scores like the median of those that did.
    """

    ACTIVE: Final = 1.0
    ROOM: Final = 0.8
    WAITING: Final = 0.6
    FULL: Final = 0.0

    def __init__(self, parameters: NoParameters | None = None) -> None:
        pass

    def score(self, view: DecisionView) -> Floats:
        """1.0 running, else 0.8 with a slot free, else 0.6 waiting, else 0.0."""
        slots = len(view.mask)
        adapter, adapters = view.request.target_model, view.adapters
        score = np.select(
            [
                adapters.is_active_mask(adapter)[:slots],
                adapters.room_mask()[:slots],
                adapters.is_waiting_mask(adapter)[:slots],
            ],
            [self.ACTIVE, self.ROOM, self.WAITING],
            self.FULL,
        )
        told = adapters.told_mask()[:slots]
        peers = score[told & view.mask]
        return score if told.all() or not len(peers) else np.where(told, score, np.median(peers))


class NoHitLruParameters(Struct, frozen=True, rename="camel"):
    """Of no-hit-lru-scorer."""

    lru_size: Annotated[int, Meta(gt=0, description="endpoints remembered")] = 1024


class NoHitLruScorer:
    """Spreads requests that no cache knows: to the endpoint that got such a request the longest ago.

    While any candidate holds some of the prompt, all score 0.5.
    """

    def __init__(self, parameters: NoHitLruParameters | None = None) -> None:
        self._size = (parameters or NoHitLruParameters()).lru_size
        self._turns = 0
        self._last = SlotNumbers()
        """Turn of each endpoint's last cold request, 0 = none."""

    def score(self, view: DecisionView) -> Floats:
        """From 1 (never used, or longest ago) down to 0 (last used) in equal steps."""
        score = np.full(len(view.mask), 0.5)
        if not _is_cold(view):
            return score
        candidates = view.mask.nonzero()[0]
        order = candidates[np.argsort(self._last.of(view.table)[candidates], kind="stable")]
        score[order] = np.linspace(1.0, 0.0, len(order)) if len(order) > 1 else 1.0
        return score

    def placed(self, view: DecisionView, slot: int) -> None:
        """Remembers where a cold request went."""
        if not _is_cold(view):
            return
        last = self._last.of(view.table)
        self._turns += 1
        last[slot] = self._turns
        used = last.nonzero()[0]
        if len(used) > self._size:
            last[used[last[used].argmin()]] = 0.0


def _is_cold(view: DecisionView) -> bool:
    return not (view.cached_tokens[view.mask] > 0).any()


TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="prefix-cache-scorer",
        kinds=_SCORER,
        parameters=PrefixCacheParameters,
        summary="predicted share of the prompt in the endpoint's prefix cache",
        build=PrefixCacheScorer,
        unused_parameters=_ONE_INDEX,
    ),
    PluginType(
        name="lora-affinity-scorer",
        kinds=_SCORER,
        parameters=NoParameters,
        summary="whether the adapter asked for runs there, or a slot is free",
        build=LoraAffinityScorer,
    ),
    PluginType(
        name="no-hit-lru-scorer",
        kinds=_SCORER,
        parameters=NoHitLruParameters,
        summary="spreads requests that no cache knows, longest unused first",
        build=NoHitLruScorer,
        unused_parameters={
            **_ONE_INDEX,
            "prefixPluginType": "there is one prefix index",
            "prefixPluginName": "there is one prefix index",
        },
    ),
)
