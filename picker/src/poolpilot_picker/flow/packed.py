"""Placements as one process tells the others of them: packed one behind the other, and taken in. Beside the pool.

A placement is 56 bytes (`_TOLD`), 16 for each block of its prefix, and its names; numbers lie as they do in memory,
since who reads them is a process on the same machine. `ReferencePacked` and `reference_take_in` are the reference of
what `compiled/_packed.pyx` does in the same way.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from poolpilot_picker import compiled
from poolpilot_picker.requests.request import PrefixChain

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.learners import Lesson
    from poolpilot_picker.state.endpoints import Endpoint
    from poolpilot_picker.state.prefix import PrefixIndex

_TOLD: Final = struct.Struct("=QddddIIII")
"""Generation of the slot; work ms, predicted TTFT ms, cached tokens, load of the adapter ms; slot, number of blocks,
bytes of the adapter's name and of the routing key."""

Taught = tuple[int, float, float, int, float]
"""Slot; sums of work ms, of predicted TTFTs, how many of those, sum of cached tokens: as in a `Lesson`."""
Named = tuple[int, str, float, str]
"""Slot, adapter, its predicted load in ms, routing key; "" where there is none."""


class Packed(Protocol):
    """Placements that are still to be told. Times in ms."""

    wanted: bool
    """Somebody is there to be told; at first nobody is."""

    @property
    def told_ms(self) -> float:
        """When placements were told last."""
        ...

    def __len__(self) -> int:
        """Bytes."""
        ...

    def read_with(self, index: Any) -> None:
        """The pool's prefix index, which has mostly just read the chain of what is told. Before anything is."""
        ...

    def placed(
        self,
        slot: int,
        chain: PrefixChain,
        lesson: Lesson | None,
        adapter: str,
        adapter_ms: float,
        routing_key: str,
        now: float,
    ) -> None:
        """Adds a placement, and tells all if that is due. `adapter_ms`: predicted load of the adapter, if it is cold.

        What cannot be told (a name that is no text, numbers out of range) is left out, and said to `fault`.
        """
        ...

    def tell(self, now: float) -> None:
        """Tells all that there are, if any."""
        ...

    def take(self) -> bytes:
        """All of them, oldest first; none are left."""
        ...


def packed(
    generations: memoryview,
    together_ms: float,
    most: int,
    write: Callable[[bytes], None],
    fault: Callable[[], None],
) -> Packed:
    """Nothing yet, by the core in force. `generations`: of the slots, as they are at any time.

    What was told less than `together_ms` ago waits for more, but not for more than `most` bytes. `write` tells them;
    `fault` is called while what could not be told is handled as an exception.
    """
    core = compiled.in_force
    kind = ReferencePacked if core is None else core.packed
    return kind(generations, together_ms, most, write, fault)


def take_in(
    told: bytes, index: Any, slots: list[Endpoint | None], generations: memoryview
) -> tuple[list[Taught], list[Named]]:
    """Adds to the index what was placed elsewhere, for slots that have the same endpoint here.

    Returns what the learners are to be told, one for each slot, and what has a name, in order. Raises ValueError for
    what is no packed placements.
    """
    core = compiled.in_force
    return (reference_take_in if core is None else core.take_in)(told, index, slots, generations)


class ReferencePacked:
    """The packing in Python."""

    def __init__(
        self,
        generations: memoryview,
        together_ms: float,
        most: int,
        write: Callable[[bytes], None],
        fault: Callable[[], None],
    ) -> None:
        self._generations = generations
        self._together_ms = together_ms
        self._most = most
        self._write = write
        self._fault = fault
        self._bytes = bytearray()
        self.told_ms = -math.inf
        self.wanted = False

    def __len__(self) -> int:
        return len(self._bytes)

    def read_with(self, index: Any) -> None:
        """As `Packed.read_with`: this reads chains by itself."""

    def placed(
        self,
        slot: int,
        chain: PrefixChain,
        lesson: Lesson | None,
        adapter: str,
        adapter_ms: float,
        routing_key: str,
        now: float,
    ) -> None:
        """As `Packed.placed`."""
        if not self.wanted:
            return
        try:
            self._add(slot, chain, lesson, adapter, adapter_ms, routing_key)
        except Exception:
            # It is booked: what the others do not hear of it must not cost the request.
            self._fault()
            return
        if now - self.told_ms >= self._together_ms or len(self._bytes) >= self._most:
            self.tell(now)

    def tell(self, now: float) -> None:
        """As `Packed.tell`."""
        if self._bytes:
            self.told_ms = now
            self._write(self.take())

    def _add(
        self, slot: int, chain: PrefixChain, lesson: Lesson | None, adapter: str, adapter_ms: float, routing_key: str
    ) -> None:
        generation = self._generations[slot]
        work_ms, ttft_ms, cached = (lesson.work_ms, lesson.ttft_ms, lesson.cached) if lesson else (0.0, 0.0, 0.0)
        blocks, name, key = len(chain.hashes), adapter.encode(), routing_key.encode()
        head = _TOLD.pack(generation, work_ms, ttft_ms, cached, adapter_ms, slot, blocks, len(name), len(key))
        whole = struct.pack(f"={blocks}Q{blocks}d", *chain.hashes, *chain.ends[:blocks])
        self._bytes += head + whole + name + key + bytes(-len(name + key) % 8)

    def take(self) -> bytes:
        """As `Packed.take`."""
        told, self._bytes = bytes(self._bytes), bytearray()
        return told


def reference_take_in(
    told: bytes, index: PrefixIndex, slots: list[Endpoint | None], generations: memoryview
) -> tuple[list[Taught], list[Named]]:
    """`take_in` in Python."""
    taught: dict[int, Taught] = {}
    named: list[Named] = []
    at = 0
    while at < len(told):
        if len(told) - at < _TOLD.size:
            raise ValueError(f"{len(told) - at} bytes are no placement")
        generation, work_ms, ttft_ms, cached, adapter_ms, slot, blocks, name, key = _TOLD.unpack_from(told, at)
        at += _TOLD.size
        names, end = at + 16 * blocks, at + 16 * blocks + -(-(name + key) // 8) * 8
        if end > len(told):
            raise ValueError(f"a placement of {blocks} blocks ends after {len(told) - at} bytes")
        if slot < len(slots) and slots[slot] is not None and generation == generations[slot]:
            numbers = struct.unpack_from(f"={blocks}Q{blocks}d", told, at)
            index.insert(PrefixChain(hashes=numbers[:blocks], ends=numbers[blocks:]), slot)
            _, *before = taught.get(slot, (slot, 0.0, 0.0, 0, 0.0))
            more = (work_ms, max(0.0, ttft_ms), int(ttft_ms > 0.0), cached)
            taught[slot] = (slot, *(one + other for one, other in zip(before, more, strict=True)))
            if name or key:
                text = told[names : names + name + key]
                named.append((slot, text[:name].decode(), adapter_ms, text[name:].decode()))
        at = end
    return [taught[slot] for slot in sorted(taught)], named
