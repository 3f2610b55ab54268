"""What one decision may read, and what it leaves for the receipt. Made per request, valid in one synchronous call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from poolpilot_picker.state.load import LoadEstimate

if TYPE_CHECKING:
    import random

    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.cost_model import Cost
    from poolpilot_picker.state.adapters import AdapterResidency
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable, Floats, Mask


class DecisionView:
    """The request, the live state and who is still a candidate. All arrays have one element per slot of the table.

    Filters narrow `mask`; scorers and pickers must only look at slots whose mask is True. `terms` and `excluded` are
    the receipt: name → value per slot, and what removed a slot.
    """

    __slots__ = (
        "_load",
        "_removed",
        "adapter",
        "adapters",
        "cached_tokens",
        "cost",
        "expected_output",
        "expected_rest",
        "hit_share",
        "indexed_tokens",
        "mask",
        "now",
        "pickers",
        "request",
        "rng",
        "stale_after_ms",
        "table",
        "terms",
    )

    def __init__(
        self,
        *,
        request: InferenceRequest,
        table: EndpointTable,
        now: float,
        mask: Mask,
        cached_tokens: Floats,
        adapters: AdapterResidency,
        rng: random.Random,
        load: LoadEstimate | None = None,
        stale_after_ms: float = 10_000.0,
        pickers: int = 1,
        adapter: str = "",
        expected_output: float = 300.0,
        expected_rest: float = 300.0,
        hit_share: float = 0.0,
        indexed_tokens: Floats | None = None,
    ) -> None:
        self.request = request
        self.table = table
        self.now = now
        self.mask = mask
        self.cached_tokens = cached_tokens
        """Prompt tokens predicted to be in each endpoint's prefix cache, at most prompt_tokens."""
        self._load = load
        self.stale_after_ms = stale_after_ms
        self.pickers = pickers
        self.adapters = adapters
        self.rng = rng
        self.adapter = adapter
        """The adapter asked for, empty for a base model."""
        self.expected_output = expected_output
        """Tokens per sequence, learned, at most max_tokens."""
        self.expected_rest = expected_rest
        """Tokens still to come of an average sequence in flight."""
        self.hit_share = hit_share
        """Share of prompt tokens that lately were found in the cache: what an evicted token is worth."""
        self.indexed_tokens: Floats = np.zeros(len(mask)) if indexed_tokens is None else indexed_tokens
        """Prefix tokens thought resident per slot."""
        self.cost: Cost | None = None
        """Set by the predicted-finish policy; the booking takes its forecast from here."""
        self.terms: dict[str, Floats] = {}
        self._removed: list[tuple[Mask, str]] = []

    @property
    def load_made(self) -> bool:
        """True when `load` was asked for already."""
        return self._load is not None

    @property
    def load(self) -> LoadEstimate:
        """How loaded each endpoint is; made when first asked for."""
        load = self._load
        if load is None:
            load = self._load = LoadEstimate(self.table, self.now, self.stale_after_ms, self.pickers)
        return load

    def keep(self, kept: Mask, because: str) -> None:
        """Narrows the candidates to `mask & kept` and remembers what removed the others."""
        before = self.mask
        self.mask = before & kept
        self._removed.append((before & ~kept, because))

    @property
    def excluded(self) -> dict[int, str]:
        """Slot → what removed it."""
        return {int(slot): because for removed, because in self._removed for slot in removed.nonzero()[0]}


@runtime_checkable
class Filter(Protocol):
    """Removes candidates."""

    def filter(self, view: DecisionView) -> Mask:
        """Which slots may stay; ANDed with `view.mask`. Returning none ends the request with 429."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Rates candidates."""

    def score(self, view: DecisionView) -> Floats:
        """A number in [0, 1] per slot, higher is better; values outside are clamped."""
        ...


@runtime_checkable
class Picker(Protocol):
    """Chooses among candidates."""

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots in order of preference, at least one; later ones are fallbacks. `scores` is Σ weight × score."""
        ...


@runtime_checkable
class UnscoredPicker(Picker, Protocol):
    """A picker that decides alone. Asked in this way where there is neither a filter nor a scorer."""

    def pick_unscored(self, view: DecisionView) -> list[int]:
        """As `pick` with a score of 0 for all."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A plugin that wants to know what was chosen (the no-hit-lru scorer, session bindings)."""

    def placed(self, view: DecisionView, slot: int) -> None:
        """Called in the same synchronous step as the booking."""
        ...


@runtime_checkable
class KeyObserver(Protocol):
    """An observer that keeps state by routing key, and is told what other processes of the picker have placed."""

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Another process has booked a request with this key there."""
        ...
