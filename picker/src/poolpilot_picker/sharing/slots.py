"""Which slot an endpoint has: agreed between workers, so that a slot number means the same to all of them."""

from __future__ import annotations

import fcntl
import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.sharing.memory import Memory


class SlotBook:
    """The slots of one process. Whoever has an endpoint in its table holds its slot; a slot that nobody holds is free.

    A lock on the shared file keeps two processes from taking one slot. The kernel drops it when its holder dies, and
    the supervisor lets go of what a dead process held.
    """

    def __init__(self, memory: Memory, chair: int) -> None:
        self._memory = memory
        self._chair = chair

    def take(self, key: tuple[str, int]) -> int | None:
        """The slot of an endpoint, by its identity; None where all are held by others."""
        memory = self._memory
        digest = np.frombuffer(hashlib.blake2b(f"{key[0]}\0{key[1]}".encode(), digest_size=16).digest(), np.uint64)
        # Locks of this kind belong to a process, however it came to the file.
        fcntl.lockf(memory.fd, fcntl.LOCK_EX)
        try:
            held = memory.holds.max(axis=0) > 0
            same = np.flatnonzero(held & (memory.digests == digest).all(axis=1))
            if len(same):
                slot = int(same[0])
            else:
                slot = int(held.argmin())
                if held[slot]:
                    return None
                memory.digests[slot] = digest
                memory.generations[slot] += 1
            memory.recent[self._chair, slot] = 0.0
            memory.holds[self._chair, slot] = 1
            return slot
        finally:
            fcntl.lockf(memory.fd, fcntl.LOCK_UN)

    def give_back(self, slot: int) -> None:
        """The endpoint is not in our table any more; our account of it is all zeros."""
        self._memory.holds[self._chair, slot] = 0
