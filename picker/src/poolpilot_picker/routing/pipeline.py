"""Filters, then weighted scores, then the picker: how a configured profile turns a view into an order of endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from poolpilot_picker.errors import NoEndpoints, RequestRefused, TooManyRequests
from poolpilot_picker.routing.plugins.order import best_first
from poolpilot_picker.routing.view import KeyObserver, UnscoredPicker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.routing.view import DecisionView, Filter, Observer, Picker, Scorer
    from poolpilot_picker.state.endpoints import Endpoint, Floats, Mask

LOG_EVERY_MS: Final = 60_000.0


class Named(NamedTuple):
    """A plugin instance under its configured name."""

    name: str
    plugin: object


class PluginGuard:
    """Remembers which plugins failed. A failing plugin is left out of a decision; it never costs a request.

    `failures`: plugin name → failed calls, shared with whoever exports it. `log` is called with a sentence at most once
    a minute for each plugin.
    """

    def __init__(
        self, failures: dict[str, int] | None = None, log: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self.failures: dict[str, int] = {} if failures is None else failures
        self._log = log
        self._logged_ms: dict[str, float] = {}

    def failed(self, name: str, call: str, reason: object, now: float) -> None:
        """Counts one failed call, `reason` an exception or a sentence."""
        count = self.failures[name] = self.failures.get(name, 0) + 1
        if now - self._logged_ms.get(name, -np.inf) < LOG_EVERY_MS:
            return
        self._logged_ms[name] = now
        what = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
        self._log(f"plugin {name} was left out of a decision: {call} failed with {what} ({count} times so far)")


class Profile:
    """One configured pipeline for one pool: its plugins may keep state by slot.

    The scores of all scorers are clamped to [0, 1], weighted and summed; the weights are not normalised.
    """

    def __init__(
        self,
        name: str,
        *,
        filters: Sequence[tuple[str, Filter]] = (),
        scorers: Sequence[tuple[str, Scorer, float]] = (),
        picker: tuple[str, Picker],
        observers: Sequence[tuple[str, Observer]] = (),
        guard: PluginGuard | None = None,
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker_name, self.picker = picker
        self.weighs_waits: bool = getattr(self.picker, "weighs_waits", False)
        """Sent to where it would wait, a request goes there on purpose."""
        self.observers = tuple(observers)
        self._fixed = [(name, one) for name, one in self.filters if getattr(one, "fixed", False)]
        self.parts = bool(self._fixed)
        """Not every endpoint is meant for every request: `restrict` says which are."""
        self._key_observers = [(name, one) for name, one in self.observers if isinstance(one, KeyObserver)]
        self.guard = guard or PluginGuard()
        decides = self.picker
        self._alone: UnscoredPicker | None = None
        if not self.filters and not self.scorers and isinstance(decides, UnscoredPicker):
            self._alone = decides

    def decide(self, view: DecisionView) -> list[int]:
        """Slots in order of preference, the first to be booked; never empty, only candidates of `view.mask`.

        Raises:
            NoEndpoints: the view has no candidate to begin with.
            TooManyRequests: a configured filter left none.
            RequestRefused: a plugin refused the request on purpose.
        """
        if self._alone is not None:
            return self._pick_alone(view, self._alone)
        _some(view.mask)
        self._filter(view, self.filters)
        candidates = view.mask.nonzero()[0]
        sums = np.zeros(len(candidates))
        for name, scorer, weight in self.scorers:
            score = self._score(view, name, scorer)
            if score is None:
                continue
            clamped = np.minimum(np.maximum(score[candidates], 0.0), 1.0)
            if np.isnan(clamped.sum()):
                self.guard.failed(name, "score()", "NaN for a candidate", view.now)
                continue
            view.terms[name] = score
            sums += weight * clamped
        total = np.full(len(view.mask), -np.inf)
        total[candidates] = sums
        return self._pick(view, total)

    def restrict(self, view: DecisionView) -> None:
        """Leaves the endpoints that are meant for the request, by filters that go by labels: before anybody asks which
        of them are well or have room. Raises TooManyRequests: there are none."""
        self._filter(view, self._fixed)

    def _filter(self, view: DecisionView, filters: Sequence[tuple[str, Filter]]) -> None:
        for name, chosen_filter in filters:
            kept = self._kept(view, name, chosen_filter)
            if kept is None:
                continue
            view.keep(kept, name)
            if not view.mask.any():
                raise TooManyRequests("no endpoints available for the given request")

    def placed(self, view: DecisionView, slot: int) -> None:
        """Tells the plugins that want to know where the request was booked."""
        for name, observer in self.observers:
            try:
                observer.placed(view, slot)
            except Exception as error:
                self.guard.failed(name, "placed()", error, view.now)

    @property
    def remembers_keys(self) -> bool:
        """Some plugin keeps state by routing key."""
        return bool(self._key_observers)

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Tells the plugins that keep state by routing key what another process has booked."""
        for name, observer in self._key_observers:
            try:
                observer.placed_elsewhere(routing_key, endpoint, now)
            except Exception as error:
                self.guard.failed(name, "placed_elsewhere()", error, now)

    def _kept(self, view: DecisionView, name: str, plugin: Filter) -> Mask | None:
        try:
            kept = np.asarray(plugin.filter(view))
        except RequestRefused:
            raise
        except Exception as error:
            self.guard.failed(name, "filter()", error, view.now)
            return None
        if kept.shape != view.mask.shape or kept.dtype != np.bool_:
            wrong = f"an array of {kept.dtype} with shape {kept.shape} instead of bool with {view.mask.shape}"
            self.guard.failed(name, "filter()", wrong, view.now)
            return None
        return kept

    def _score(self, view: DecisionView, name: str, plugin: Scorer) -> Floats | None:
        try:
            score = np.asarray(plugin.score(view), dtype=np.float64)
        except RequestRefused:
            raise
        except Exception as error:
            self.guard.failed(name, "score()", error, view.now)
            return None
        if score.shape != view.mask.shape:
            wrong = f"an array with shape {score.shape} instead of {view.mask.shape}"
            self.guard.failed(name, "score()", wrong, view.now)
            return None
        return score

    def _pick_alone(self, view: DecisionView, picker: UnscoredPicker) -> list[int]:
        """Asks a picker that decides alone."""
        mask = view.mask
        try:
            picked = picker.pick_unscored(view)
            if len(picked) == 1 and 0 <= picked[0] < len(mask) and mask[picked[0]]:
                return picked
        except RequestRefused:
            raise
        except Exception as error:
            _some(mask)
            self.guard.failed(self.picker_name, "pick()", error, view.now)
            return best_first(_none_preferred(mask), mask, 1, view.rng)
        _some(mask)
        return self._checked(view, picked) or best_first(_none_preferred(mask), mask, 1, view.rng)

    def _pick(self, view: DecisionView, total: Floats) -> list[int]:
        """Asks the picker."""
        try:
            # A copy: what a picker does to the scores must not reach the fallback below.
            picked = self.picker.pick(view, total.copy())
        except RequestRefused:
            raise
        except Exception as error:
            self.guard.failed(self.picker_name, "pick()", error, view.now)
            return best_first(total, view.mask, 1, view.rng)
        return self._checked(view, picked) or best_first(total, view.mask, 1, view.rng)

    def _checked(self, view: DecisionView, picked: list[int]) -> list[int]:
        """What a picker returned, each slot once; empty, and counted as a failure, where that is no choice."""
        mask = view.mask
        try:
            slots = list(dict.fromkeys(map(int, picked)))
        except Exception as error:
            self.guard.failed(self.picker_name, "pick()", error, view.now)
        else:
            strays = [slot for slot in slots if not (0 <= slot < len(mask) and mask[slot])]
            if slots and not strays:
                return slots
            wrong = f"slots {slots[:8]}, of which {strays[:8]} are no candidates" if slots else "no slot"
            self.guard.failed(self.picker_name, "pick()", wrong, view.now)
        return []


def _some(mask: Mask) -> None:
    """Raises NoEndpoints where there is no candidate."""
    if not mask.any():
        raise NoEndpoints("failed to find endpoint candidates for serving the request")


def _none_preferred(mask: Mask) -> Floats:
    """What `Picker.pick` gets where nothing was scored."""
    scores: Floats = np.where(mask, 0.0, -np.inf)
    return scores
