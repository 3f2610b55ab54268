"""Which models each endpoint serves, and which adapters are probably loaded in its GPU slots. Read by every decision.

Three kinds of knowledge: `/v1/models` is the authority on what can be served (registered), the engine's metrics tell which
adapters run now (activity, not residency), and an LRU model of the slots, fed by our own placements, tells what is resident.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import Mask
    from poolpilot_picker.state.samples import EngineSample, ServedModels

DEFAULT_SLOTS: Final = 4
"""GPU adapter slots assumed where the engine does not tell."""


class _Slot:
    """What is known of one endpoint's models."""

    __slots__ = ("active", "inflight", "max_adapters", "resident", "served", "waiting")

    def __init__(self) -> None:
        self.served: ServedModels | None = None
        self.active: tuple[str, ...] = ()
        self.waiting: tuple[str, ...] = ()
        self.max_adapters: int | None = None
        self.resident: OrderedDict[str, None] = OrderedDict()
        self.inflight: Counter[str] = Counter()


class AdapterResidency:
    """Served models as a veto, resident adapters as an expectation. Masks have one element per slot."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._adapters: dict[str, int] = {}
        """Names known to be adapters → number of slots that say so."""
        self._serving: dict[str, Mask] = {}

    def resize(self, slots: int) -> None:
        """Makes room for this many slots."""
        while len(self._slots) < slots:
            self._slots.append(_Slot())
        self._serving.clear()

    def clear(self, slot: int) -> None:
        """The slot changed hands: nothing is known."""
        self._forget_served(slot)
        self._slots[slot] = _Slot()
        self._serving.clear()

    def restarted(self, slot: int) -> None:
        """The engine restarted: its GPU slots are empty; what it serves is read again."""
        known = self._slots[slot]
        known.resident.clear()
        known.active = known.waiting = ()

    def _forget_served(self, slot: int) -> None:
        served = self._slots[slot].served
        for name in served.adapters if served else ():
            self._adapters[name] -= 1
            if not self._adapters[name]:
                del self._adapters[name]

    def set_served(self, slot: int, served: ServedModels | None) -> None:
        """`/v1/models` was read (None: it could not be)."""
        if served == self._slots[slot].served:
            return
        self._forget_served(slot)
        self._slots[slot].served = served
        for name in served.adapters if served else ():
            self._adapters[name] = self._adapters.get(name, 0) + 1
        self._serving.clear()

    def apply_sample(self, slot: int, sample: EngineSample) -> None:
        """Takes slots, activity and residency from a sample; missing leaves what was known."""
        known = self._slots[slot]
        if sample.max_adapters is not None:
            known.max_adapters = sample.max_adapters
        if sample.active_adapters is not None:
            known.active = sample.active_adapters
            for name in sample.active_adapters:
                if name not in known.resident:
                    self._load(known, name)
        if sample.waiting_adapters is not None:
            known.waiting = sample.waiting_adapters
        if sample.resident_adapters is not None:
            known.resident = OrderedDict.fromkeys(sample.resident_adapters)

    def _load(self, known: _Slot, name: str) -> bool:
        cold = name not in known.resident
        known.resident[name] = None
        known.resident.move_to_end(name)
        limit = known.max_adapters or DEFAULT_SLOTS
        while len(known.resident) > limit:
            # Engines evict the least recently used adapter that no running request needs.
            idle = next((held for held in known.resident if not known.inflight[held] and held != name), None)
            if idle is None:
                break
            del known.resident[idle]
        return cold

    def book(self, slot: int, adapter: str) -> bool:
        """A request for `adapter` is placed; True if it must be loaded first."""
        known = self._slots[slot]
        cold = self._load(known, adapter)
        known.inflight[adapter] += 1
        return cold

    def release(self, slot: int, adapter: str) -> None:
        """A booked request ended."""
        inflight = self._slots[slot].inflight
        inflight[adapter] -= 1
        if inflight[adapter] <= 0:
            del inflight[adapter]

    def is_adapter(self, model: str) -> bool:
        """True when some endpoint lists `model` as an adapter, or runs it as one."""
        return model in self._adapters or any(model in known.active for known in self._slots)

    def serving(self, model: str) -> Mask:
        """Slots that may serve `model`: those that list it, and those whose list is unknown."""
        mask = self._serving.get(model)
        if mask is None:
            mask = np.array(
                [
                    known.served is None or model in known.served.base or model in known.served.adapters
                    for known in self._slots
                ],
                dtype=np.bool_,
            )
            if len(self._serving) > 4096:
                self._serving.clear()
            self._serving[model] = mask
        return mask

    def resident_mask(self, adapter: str) -> Mask:
        """Slots that probably hold the adapter in GPU memory."""
        return np.array([adapter in known.resident for known in self._slots], dtype=np.bool_)

    def busy_slots(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Distinct adapters with our requests in flight, per slot."""
        return np.array([float(len(known.inflight)) for known in self._slots])

    def adapter_slots(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """GPU adapter slots per endpoint."""
        return np.array([float(known.max_adapters or DEFAULT_SLOTS) for known in self._slots])

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
        return np.array([adapter in known.active for known in self._slots], dtype=np.bool_)

    def is_waiting_mask(self, adapter: str) -> Mask:
        """Slots whose engine said the adapter is waiting."""
        return np.array([adapter in known.waiting for known in self._slots], dtype=np.bool_)

    def told_mask(self) -> Mask:
        """Slots whose engine said how many adapters its GPU memory holds."""
        return np.array([known.max_adapters is not None for known in self._slots], dtype=np.bool_)

    def room_mask(self) -> Mask:
        """Slots with fewer running and waiting adapters than GPU slots (llm-d's rule)."""
        return np.array(
            [len(known.active) + len(known.waiting) < (known.max_adapters or 0) for known in self._slots], dtype=np.bool_
        )
