"""What one decision may read, and what it leaves for the receipt. Made per request, valid in one synchronous call."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask
from poolpilot_picker.state.homes import Home
from poolpilot_picker.state.load import LoadEstimate

if TYPE_CHECKING:
    from poolpilot_picker.routing.cost_model import Cost  # noqa: TC004  (imports this module)
    from poolpilot_picker.state.endpoints import Endpoint


class DecisionView(msgspec.Struct, kw_only=True, eq=False):
    """The request, the live state and who is still a candidate. All arrays have one element per slot of the table.

    Filters narrow `mask`; scorers and pickers must only look at slots whose mask is True. `terms` and `excluded` are
    the receipt: name → value per slot, and what removed a slot.
    """

    request: InferenceRequest
    table: EndpointTable
    now: float
    mask: Mask
    cached_tokens: Floats
    """Prompt tokens predicted to be in each endpoint's prefix cache, at most prompt_tokens."""
    home: Home | None = None
    """Where others have probably sent such prompts; None where there are no others."""
    indexed_tokens: Floats
    """Prefix tokens thought resident per slot."""
    adapters: AdapterResidency
    rng: random.Random
    stale_after_ms: float = 10_000.0
    adapter: str = ""
    """The adapter asked for, empty for a base model."""
    adapter_home: tuple[int, float] = (-1, 0.0)
    """Where others have probably made it warm, and how likely; slot −1: there are no others."""
    expected_output: float = 300.0
    """Tokens per sequence, learned, at most max_tokens."""
    expected_rest: float = 300.0
    """Tokens still to come of an average sequence in flight."""
    hit_share: float = 0.0
    """Share of prompt tokens that lately were found in the cache."""
    reuse: Floats | None = None
    """How likely what each endpoint would evict next is asked for again, per slot; None: 1 everywhere."""
    lent: Floats | None = None
    """Share of the mean load that an endpoint is taken to have at least, per slot; None: 0 everywhere."""
    cost: Cost | None = None
    """Set by the predicted-finish policy; the booking takes its forecast from here."""
    terms: dict[str, Floats] = {}
    estimated: LoadEstimate | None = None
    """What `load` returns, once it was asked for."""
    removed: list[tuple[Mask, str]] = []
    """What `keep` was told: the slots that went, and why."""

    @property
    def load(self) -> LoadEstimate:
        """How loaded each endpoint is, as it was told; made when first asked for."""
        load = self.estimated
        if load is None:
            load = self.estimated = LoadEstimate(self.table, self.now, self.stale_after_ms)
        return load

    @property
    def expected_load(self) -> LoadEstimate:
        """How loaded each endpoint probably is by now; made whenever asked for."""
        return LoadEstimate(self.table, self.now, self.stale_after_ms, expected=True)

    @property
    def likely_tokens(self) -> Floats:
        """Prompt tokens that each endpoint is likely to have cached: known, and hoped for."""
        home = self.home
        if home is None or home.tokens <= 0.0:
            return self.cached_tokens
        likely = self.cached_tokens.copy()
        likely[home.slot] += home.tokens
        return likely

    def keep(self, kept: Mask, because: str) -> None:
        """Narrows the candidates to `mask & kept` and remembers what removed the others."""
        before = self.mask
        self.mask = before & kept
        self.removed.append((before & ~kept, because))

    @property
    def excluded(self) -> dict[int, str]:
        """Slot → what removed it."""
        return {int(slot): because for removed, because in self.removed for slot in removed.nonzero()[0]}


@runtime_checkable
class Filter(Protocol):
    """Removes candidates. One whose attribute `fixed` is true goes by what an endpoint is for, not by how it is now:
    it is asked before anybody asks who is well and has room."""

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
