"""Which models each endpoint serves, and which adapters are probably loaded in its GPU slots. Read by every decision.

Three kinds of knowledge: `/v1/models` is the authority on what can be served (registered), the engine's metrics tell
which adapters run now (activity, not residency), and an LRU model of the slots, fed by our own placements, tells what
is resident.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import Floats, Mask
    from poolpilot_picker.state.samples import EngineSample, ServedModels

DEFAULT_SLOTS: Final = 4
"""GPU adapter slots assumed where the engine does not tell."""
MOST_SHARED: Final = 6
"""Requests in flight from which on an adapter is taken to give its GPU slot back as late as with so many."""
THEIRS: Final = 2
"""Requests that an adapter of others is taken to have in flight where it runs."""
_FREED: Final = tuple(2.0 ** (1 - count) for count in range(MOST_SHARED + 1))
"""By an adapter's requests in flight: GPU slots it gives back per length of an answer. Each further one makes it twice
as late: others arrive meanwhile."""
CACHED_MODELS: Final = 4_096
"""Model names whose endpoints are remembered: clients choose the names."""

_NOBODY: Final[frozenset[str]] = frozenset()

_Array = TypeVar("_Array", bound=NDArray[Any])


def _resized(column: _Array, slots: int, fill: float) -> _Array:
    """A copy of the column with another length."""
    resized: Any = np.full(slots, fill, dtype=column.dtype)
    kept = min(slots, len(column))
    resized[:kept] = column[:kept]
    grown: _Array = resized
    return grown


class _Slot:
    """What is known of one endpoint's models."""

    __slots__ = ("active", "ended", "inflight", "most", "queued", "resident", "served", "waiting")

    def __init__(self) -> None:
        self.served: ServedModels | None = None
        self.most: int | None = None
        """GPU slots that the engine told."""
        self.active: tuple[str, ...] = ()
        self.waiting: tuple[str, ...] = ()
        self.resident: OrderedDict[str, None] = OrderedDict()
        """Least recently used first."""
        self.inflight: Counter[str] = Counter()
        """Our requests in flight per adapter, in the order in which the adapters became active: as many as there are
        GPU slots run, the others wait for one."""
        self.ended: set[str] = set()
        """Of which our last request has ended since the engine last told: what it told of them was ours."""
        self.queued: tuple[str, ...] = ()
        """Those that wait."""


class _NameMasks:
    """For each name the slots it applies to, as masks that are updated in place."""

    __slots__ = ("_counts", "_length", "masks")

    def __init__(self) -> None:
        self._length = 0
        self.masks: dict[str, Mask] = {}
        """Only of names that apply somewhere."""
        self._counts: Counter[str] = Counter()

    def resize(self, slots: int) -> None:
        """Follows the number of slots; a slot that goes must have been discarded."""
        self.masks = {name: _resized(mask, slots, False) for name, mask in self.masks.items()}
        self._length = slots

    def of(self, name: str) -> Mask:
        """Slots of a name; not to be written."""
        mask = self.masks.get(name)
        return mask if mask is not None else np.zeros(self._length, dtype=np.bool_)

    def add(self, name: str, slot: int) -> None:
        """The name applies to the slot."""
        mask = self.masks.get(name)
        if mask is None:
            mask = self.masks[name] = np.zeros(self._length, dtype=np.bool_)
        if not mask[slot]:
            mask[slot] = True
            self._counts[name] += 1

    def discard(self, name: str, slot: int) -> None:
        """The name does not apply to the slot any more."""
        mask = self.masks.get(name)
        if mask is not None and mask[slot]:
            mask[slot] = False
            self._counts[name] -= 1
            if not self._counts[name]:
                del self.masks[name], self._counts[name]


class AdapterResidency:
    """Served models as a veto, resident adapters as an expectation. Masks and arrays have one element per slot."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._listed = _NameMasks()
        """Adapters in `/v1/models`."""
        self._active = _NameMasks()
        self._waiting = _NameMasks()
        self._resident = _NameMasks()
        self._inflight = _NameMasks()
        self._serving: dict[str, Mask | None] = {}
        # One element per slot, kept up to date.
        self._busy: Floats = np.zeros(0)
        self._limits: Floats = np.zeros(0)
        self._occupied: Floats = np.zeros(0)
        self._loaded: Floats = np.zeros(0)
        self._until_slot: Floats = np.zeros(0)
        self._deferred: Floats = np.zeros(0)
        self._none: Floats = np.zeros(0)
        self.full = 0
        """How many slots there are whose GPU slots are all in use; 0 most of the time."""
        self._waiting_requests = 0.0
        self._others = False
        """Others place requests too: what engines tell of adapters that are not in flight here is theirs."""
        self._told: Mask = np.zeros(0, dtype=np.bool_)
        self._exports: Mask = np.zeros(0, dtype=np.bool_)

    def resize(self, slots: int) -> None:
        """Follows the number of slots; a slot that goes must have been cleared."""
        known = len(self._slots)
        if slots == known:
            return
        del self._slots[slots:]
        self._slots += [_Slot() for _ in range(slots - known)]
        for masks in (self._listed, self._active, self._waiting, self._resident, self._inflight):
            masks.resize(slots)
        self._busy = _resized(self._busy, slots, 0.0)
        self._limits = _resized(self._limits, slots, DEFAULT_SLOTS)
        self._occupied = _resized(self._occupied, slots, 0.0)
        self._loaded = _resized(self._loaded, slots, 0.0)
        self._until_slot = _resized(self._until_slot, slots, 0.0)
        self._deferred = _resized(self._deferred, slots, 0.0)
        self._none = np.zeros(slots)
        self._told = _resized(self._told, slots, False)
        self._exports = _resized(self._exports, slots, False)
        self._serving.clear()

    def clear(self, slot: int) -> None:
        """The slot changed hands: nothing is known."""
        self.set_served(slot, None)
        self.restarted(slot)
        self._replace(self._inflight, slot, tuple(self._slots[slot].inflight), ())
        self._slots[slot] = _Slot()
        self._queue(slot)
        self._busy[slot] = 0.0
        self._limits[slot] = DEFAULT_SLOTS
        self._told[slot] = self._exports[slot] = False

    def set_others(self, there: bool) -> None:
        """Whether others place requests too."""
        if there != self._others:
            self._others = there
            for slot in range(len(self._slots)):
                self._queue(slot)

    def restarted(self, slot: int) -> None:
        """The engine restarted: its GPU slots are empty; what it serves is read again."""
        known = self._slots[slot]
        known.active = self._replace(self._active, slot, known.active, ())
        known.waiting = self._replace(self._waiting, slot, known.waiting, ())
        self._replace(self._resident, slot, tuple(known.resident), ())
        known.resident.clear()
        self._occupied[slot] = self._loaded[slot] = 0.0
        if self._others:
            self._queue(slot)

    @staticmethod
    def _replace(masks: _NameMasks, slot: int, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
        """Makes the masks say `new` of the slot instead of `old`; returns `new`."""
        if new != old:
            for name in old:
                masks.discard(name, slot)
            for name in new:
                masks.add(name, slot)
        return new

    def set_served(self, slot: int, served: ServedModels | None) -> None:
        """`/v1/models` was read (None: it could not be)."""
        known = self._slots[slot]
        if served == known.served:
            return
        old = tuple(known.served.adapters) if known.served else ()
        self._replace(self._listed, slot, old, tuple(served.adapters) if served else ())
        known.served = served
        self._serving.clear()

    def apply_sample(self, slot: int, sample: EngineSample) -> None:
        """Takes slots, activity and residency from a sample; missing leaves what was known."""
        known = self._slots[slot]
        most, active, waiting = sample.max_adapters, sample.active_adapters, sample.waiting_adapters
        if most is not None and most != known.most:
            known.most = most
            self._told[slot] = True
            self._limits[slot] = max(1, most)
            self._queue(slot)
        if sample.resident_adapters is not None:
            resident = tuple(dict.fromkeys(sample.resident_adapters))
            self._replace(self._resident, slot, tuple(known.resident), resident)
            known.resident = OrderedDict.fromkeys(resident)
            self._loaded[slot] = len(resident)
            self._exports[slot] = True
        if active is not None:
            known.active = self._replace(self._active, slot, known.active, active)
            for name in active:
                if name not in known.resident:
                    self._load(slot, name)
        if waiting is not None:
            known.waiting = self._replace(self._waiting, slot, known.waiting, waiting)
        if active is not None or waiting is not None:
            self._occupied[slot] = len(known.active) + len(known.waiting)
            known.ended.clear()
            if self._others:
                self._queue(slot)

    def _load(self, slot: int, name: str) -> bool:
        known = self._slots[slot]
        resident = known.resident
        cold = name not in resident
        resident[name] = None
        resident.move_to_end(name)
        if cold:
            self._resident.add(name, slot)
        while len(resident) > self._limits[slot]:
            # Engines evict the least recently used adapter that no running request needs.
            running = known.active if self._others else ()
            idle = next(
                (held for held in resident if held not in known.inflight and held != name and held not in running), None
            )
            if idle is None:
                break
            del resident[idle]
            self._resident.discard(idle, slot)
        self._loaded[slot] = len(resident)
        return cold

    def book(self, slot: int, adapter: str) -> bool:
        """A request for `adapter` is placed; True if it must be loaded first."""
        cold = self._load(slot, adapter)
        inflight = self._slots[slot].inflight
        inflight[adapter] += 1
        if inflight[adapter] == 1:
            self._inflight.add(adapter, slot)
        self._busy[slot] = active = len(inflight)
        if self._others or active >= self._limits[slot]:
            self._queue(slot)
        return cold

    def used(self, slot: int, adapter: str) -> bool:
        """Another process has placed a request for `adapter`; True if it must be loaded first."""
        return self._load(slot, adapter)

    def release(self, slot: int, adapter: str) -> None:
        """A booked request ended."""
        inflight = self._slots[slot].inflight
        inflight[adapter] -= 1
        if inflight[adapter] <= 0:
            del inflight[adapter]
            self._inflight.discard(adapter, slot)
            known = self._slots[slot]
            if adapter in known.active or adapter in known.waiting:
                known.ended.add(adapter)
        self._busy[slot] = len(inflight)
        if self._others or self._until_slot[slot]:
            self._queue(slot)

    def _queue(self, slot: int) -> None:
        """Brings up to date who waits for a GPU slot and how long the next one would."""
        known = self._slots[slot]
        inflight, limit = known.inflight, int(self._limits[slot])
        names = list(inflight)
        # Others' adapters: those that run hold slots, those that wait stand behind ours.
        theirs, behind = self._of_others(known) if self._others else (_NOBODY, _NOBODY)
        left = max(0, limit - len(theirs))
        known.queued = tuple(names[left:])
        deferred, until = sum([inflight[name] for name in known.queued]) + len(behind), 0.0
        held = len(theirs) + len(names) + len(behind)
        if held >= limit:
            freed = sum([_FREED[min(inflight[name], MOST_SHARED)] for name in names[:left]])
            freed += _FREED[THEIRS] * min(limit, len(theirs))
            # Where nothing runs, who waits there was told of a moment ago.
            until = (held - limit + 1.0) / freed if freed else 0.0
        self.full += bool(until) - bool(self._until_slot[slot])
        self._waiting_requests += deferred - self._deferred[slot]
        self._until_slot[slot], self._deferred[slot] = until, deferred

    @staticmethod
    def _of_others(known: _Slot) -> tuple[set[str], set[str]]:
        """Adapters that run at an endpoint and that wait there, of those that we have no request for."""
        theirs = set(known.active).difference(known.inflight, known.ended)
        return theirs, set(known.waiting).difference(known.inflight, known.ended, theirs)

    def inflight(self, slot: int) -> dict[str, int]:
        """Our requests in flight per adapter."""
        return dict(self._slots[slot].inflight)

    def is_adapter(self, model: str) -> bool:
        """True when some endpoint lists `model` as an adapter, or runs it as one."""
        return model in self._listed.masks or model in self._active.masks

    def serving(self, model: str) -> Mask | None:
        """Slots that may serve `model`: those that list it, and those whose list is unknown. None: all of them."""
        try:
            return self._serving[model]
        except KeyError:
            pass
        mask: Mask | None = np.array(
            [
                known.served is None or model in known.served.base or model in known.served.adapters
                for known in self._slots
            ],
            dtype=np.bool_,
        )
        if mask is not None and mask.all():
            mask = None
        if len(self._serving) >= CACHED_MODELS:
            self._serving.clear()
        self._serving[model] = mask
        return mask

    def resident_mask(self, adapter: str) -> Mask:
        """Slots that probably hold the adapter in GPU memory. Where others load adapters too, only those where it is in
        use, or whose engine tells what it holds: what is idle is the first to go for theirs."""
        resident = self._resident.of(adapter)
        if not self._others:
            return resident
        used: Mask = resident & (self._inflight.of(adapter) | self._active.of(adapter) | self._exports)
        return used

    def busy_slots(self) -> Floats:
        """Distinct adapters with our requests in flight, per slot, live."""
        return self._busy

    def scarcity(self, adapter: str) -> tuple[Floats, Floats]:
        """What a request for the adapter finds of GPU slots, per slot of the table.

        How long it waits for one, in lengths of an answer: 0 where its adapter runs or a slot is free. And how many
        requests in the mean wait for a slot, where the adapter takes one more: 0 where nobody waits, and the less, the
        more requests of the adapter are in flight there already.
        """
        if not self.full:
            return self._none, self._none
        price = self._waiting_requests / float(self._limits.sum())
        here = self._inflight.masks.get(adapter)
        runs = self._active.masks.get(adapter) if self._others else None
        if here is None and runs is None:
            return self._until_slot, np.full(len(self._slots), price)
        if here is None:
            here = self._inflight.of(adapter)
        until: Floats = np.where(here if runs is None else here | runs, 0.0, self._until_slot)
        taken: Floats = np.full(len(self._slots), price)
        if runs is not None:
            taken[runs] = price / (1.0 + THEIRS)
        for slot in here.nonzero()[0].tolist():
            known = self._slots[slot]
            taken[slot] = price / (1.0 + known.inflight[adapter])
            if adapter in known.queued and (runs is None or not runs[slot]):
                ahead = known.queued.index(adapter) + 1.0
                until[slot] = self._until_slot[slot] * ahead / (len(known.queued) + 1.0)
        return until, taken

    def not_deferred(self, slot: int, waiting: float) -> float:
        """Of so many that the engine says are waiting, those that do not wait for a GPU slot."""
        return max(0.0, waiting - self._deferred.item(slot))

    def loaded_slots(self) -> Floats:
        """Adapters thought to be loaded, per slot, live."""
        return self._loaded

    def adapter_slots(self) -> Floats:
        """GPU adapter slots per endpoint, live."""
        return self._limits

    def active(self, slot: int) -> tuple[str, ...]:
        """Adapters the engine said are running."""
        return self._slots[slot].active

    def waiting(self, slot: int) -> tuple[str, ...]:
        """Adapters the engine said are waiting."""
        return self._slots[slot].waiting

    def resident(self, slot: int) -> tuple[str, ...]:
        """Adapters thought to be loaded, least recently used first."""
        return tuple(self._slots[slot].resident)

    def served(self, slot: int) -> ServedModels | None:
        """What `/v1/models` said, None if unknown."""
        return self._slots[slot].served

    def is_active_mask(self, adapter: str) -> Mask:
        """Slots whose engine said the adapter is running."""
        return self._active.of(adapter)

    def is_waiting_mask(self, adapter: str) -> Mask:
        """Slots whose engine said the adapter is waiting."""
        return self._waiting.of(adapter)

    def told_mask(self) -> Mask:
        """Slots whose engine said how many adapters its GPU memory holds."""
        return self._told

    def room_mask(self) -> Mask:
        """Slots with fewer running and waiting adapters than GPU slots (llm-d's rule)."""
        room: Mask = self._told & (self._occupied < self._limits)
        return room
