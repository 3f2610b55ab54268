"""What other pickers have probably put where: each beginning of a prompt has a home among the endpoints.

Asked before a decision where others place requests too (further replicas of the picker, which tell each other nothing).
All of them find the same home, so what one of them has sent there is in the cache when another one asks.

The home is the endpoint of the highest random weight (Thaler and Ravishankar, "Using name-based mappings to increase
hit rates", 1998): when endpoints come and go, only their own prompts move. It steers and does not decide: what is hoped
to be cached there lowers the predicted prefill, as far as such hopes have come true by the engines' own counters.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from xxhash import xxh64_intdigest

from poolpilot_picker import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from poolpilot_picker.requests.request import PrefixChain
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable, Floats, Mask
    from poolpilot_picker.state.samples import EngineSample

LEAST_OTHERS: Final = 0.05
"""Share of the pool's sequences that must be others'. Less is a few stray requests, or the sample of a moment."""
LEAST_TRUST: Final = 0.1
"""Hope that never goes: where nobody tries, nobody sees that it would come true again. A tenth moves little."""
LEAST_TOKENS: Final = 20_000.0
"""Prompt tokens of the engines from which on what they found is compared with what was expected."""
FORGET_TOKENS: Final = 2_000_000.0
"""So many prompt tokens back, evidence counts for 1/e of what is new."""


class Home(NamedTuple):
    """Where a prompt is at home."""

    slot: int
    raw_tokens: float
    """Further tokens that others would have left in the cache there if all went by homes and nothing were evicted."""
    tokens: float
    """The same as far as it is trusted: added to what we know to be cached there."""


class Homes:
    """The homes of one pool's prompts, and what they are worth."""

    __slots__ = (
        "_find",
        "_generation",
        "_hits",
        "_last",
        "_predicted",
        "_prompts",
        "_queried",
        "_salts",
        "_slots",
        "_table",
        "others",
    )

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        core = compiled.in_force
        self._find: Callable[..., int] = reference_home if core is None else core.home
        self._generation = -1
        self._slots: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._salts: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self.others = 0.0
        """Share of the pool's sequences that others have placed, 0 where it is next to nothing."""
        self._last: dict[Endpoint, tuple[float, float]] = {}
        """Counters of found and queried prompt tokens, as they were told last."""
        self._hits = self._queried = 0.0
        """Prompt tokens that the engines found and looked for."""
        self._predicted = self._prompts = 0.0
        """Of our own placements: prompt tokens that were to be found, homes trusted in full, and all."""

    @property
    def trust(self) -> float:
        """Share of expected hits that came true, LEAST_TRUST to 1; 1 until something is known."""
        if self._queried < LEAST_TOKENS or self._predicted <= 0.0 or self._prompts <= 0.0:
            return 1.0
        found, expected = self._hits / self._queried, self._predicted / self._prompts
        return min(1.0, max(LEAST_TRUST, found / expected))

    def sampled(self, endpoint: Endpoint, sample: EngineSample, stale_after_ms: float) -> None:
        """A sample that told more than gauges was applied to the table: every few seconds of each endpoint."""
        table = self._table
        # What an endpoint told that says nothing any more is no evidence of anybody.
        weight = table.mean_weight * (table.load_ms >= sample.taken_ms - stale_after_ms)
        theirs, ours = float(table.foreign_mean.dot(weight)), float(table.own_mean.dot(weight))
        share = theirs / (theirs + ours) if theirs > 0.0 else 0.0
        # Who is there stays until half as much is left: else a share near the bound would come and go.
        self.others = share if share >= (0.5 * LEAST_OTHERS if self.others else LEAST_OTHERS) else 0.0
        queried = sample.cache_queried_tokens if sample.cache_queried_tokens is not None else sample.prompt_tokens
        if sample.cached_prompt_tokens is None or queried is None:
            return
        found = sample.cached_prompt_tokens
        found_before, queried_before = self._last.get(endpoint, (found, queried))
        self._last[endpoint] = found, queried
        if self.others == 0.0 or not (found >= found_before and queried > queried_before):
            return
        kept = max(0.0, 1.0 - (queried - queried_before) / FORGET_TOKENS)
        self._hits = kept * self._hits + found - found_before
        self._queried = kept * self._queried + queried - queried_before

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone, or its counters begin again."""
        self._last.pop(endpoint, None)

    def of(self, chain: PrefixChain, prompt_tokens: float, cached: Floats, serving: Mask | None = None) -> Home | None:
        """The home of a prompt of which each slot is known to hold so much; None: nobody else places anything here.

        `serving`: slots that serve its model, None: all of them.
        """
        slots, salts = self._among(serving)
        if len(slots) < 2 or not chain.hashes:
            return None
        slot = self._find(cached, slots, salts, chain.hashes, chain.ends)
        more = self.others * max(0.0, prompt_tokens - 1.0 - float(cached[slot]))
        return Home(slot, more, self.trust * more)

    def of_adapter(self, name: str, cached: Floats, serving: Mask | None = None) -> tuple[int, float]:
        """(slot, how likely others have made the adapter warm there), (-1, 0.0) where nobody else places anything."""
        slots, salts = self._among(serving)
        if len(slots) < 2:
            return -1, 0.0
        key = xxh64_intdigest(name.encode("utf-8", "replace"))
        return self._find(cached, slots, salts, (key,), (math.inf,)), self.others

    def _among(self, serving: Mask | None) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """Slots and salts of the endpoints that may be a home: none where there are no others."""
        if self._generation != self._table.generation:
            self._list_endpoints()
        if self.others == 0.0:
            return self._slots[:0], self._salts[:0]
        if serving is None:
            return self._slots, self._salts
        kept = serving[self._slots]
        return self._slots[kept], self._salts[kept]

    def placed(self, slot: int, prompt_tokens: float, cached_tokens: float, home: Home | None) -> None:
        """A prompt was placed, of which so much is known to be cached there."""
        if home is None or prompt_tokens <= 0.0:
            return
        kept = max(0.0, 1.0 - prompt_tokens / FORGET_TOKENS)
        self._prompts = kept * self._prompts + prompt_tokens
        self._predicted = kept * self._predicted + cached_tokens + (home.raw_tokens if home.slot == slot else 0.0)

    def _list_endpoints(self) -> None:
        wanted = list(self._table.wanted())
        self._slots = np.array([endpoint.slot for endpoint in wanted], dtype=np.intp)
        salts = [xxh64_intdigest(endpoint.address.encode()) for endpoint in wanted]
        self._salts = np.array(salts, dtype=np.uint64)
        self._generation = self._table.generation


def reference_home(
    cached: Floats,
    slots: NDArray[np.intp],
    salts: NDArray[np.uint64],
    hashes: Sequence[int],
    ends: Sequence[float],
) -> int:
    """The slot among `slots` where a prompt of these blocks is at home; `compiled/_homes.pyx` does the same.

    `salts`: of each endpoint, the same in every picker. `cached`: tokens of the prompt that each slot is known to hold.
    """
    # What most endpoints hold is common to many prompts, as a system prompt of all is. What comes after it tells them
    # apart.
    known = np.sort(cached[slots])
    block = bisect_right(ends, float(known[(len(known) - 1) // 2]))
    # The mixing is that of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    mixed = salts ^ np.uint64(hashes[min(block, len(hashes) - 1)] & 0xFFFF_FFFF_FFFF_FFFF)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(slots[int((mixed ^ (mixed >> np.uint64(31))).argmax())])
