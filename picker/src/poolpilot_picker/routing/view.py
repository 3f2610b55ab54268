"""What one decision may read, and what it leaves behind for the receipt. Made per request, valid within one synchronous call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import random

    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.state.adapters import AdapterResidency
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask
    from poolpilot_picker.state.load import LoadEstimate


class DecisionView:
    """The request, the live state and who is still a candidate. All arrays have one element per slot of the table.

    Filters narrow `mask`; scorers and pickers must only look at slots whose mask is True. `terms` and `excluded` are the
    receipt: name → value per slot, and name of what removed a slot.
    """

    __slots__ = ("adapters", "cached_tokens", "excluded", "load", "mask", "now", "request", "rng", "table", "terms")

    def __init__(
        self,
        *,
        request: InferenceRequest,
        table: EndpointTable,
        now: float,
        mask: Mask,
        cached_tokens: Floats,
        load: LoadEstimate,
        adapters: AdapterResidency,
        rng: random.Random,
    ) -> None:
        self.request = request
        self.table = table
        self.now = now
        self.mask = mask
        self.cached_tokens = cached_tokens
        """Prompt tokens predicted to be in each endpoint's prefix cache, at most prompt_tokens."""
        self.load = load
        self.adapters = adapters
        self.rng = rng
        self.terms: dict[str, Floats] = {}
        self.excluded: dict[int, str] = {}

    def keep(self, kept: Mask, because: str) -> None:
        """Narrows the candidates to `mask & kept` and remembers what removed the others."""
        for slot in (self.mask & ~kept).nonzero()[0]:
            self.excluded[int(slot)] = because
        self.mask = self.mask & kept


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
class Observer(Protocol):
    """A plugin that wants to know what was chosen (the no-hit-lru scorer, session bindings)."""

    def placed(self, view: DecisionView, slot: int) -> None:
        """Called in the same synchronous step as the booking."""
        ...
