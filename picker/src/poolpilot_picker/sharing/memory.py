"""The memory that the workers of one picker share: what lies where. Made by the supervisor, mapped by every worker.

A process sits on a *chair* as long as it lives: it alone writes what belongs to its chair, everybody reads all chairs.
There are more chairs than workers, because a worker that is replaced lives on until its last exchange has ended.

Numbers are float64 or uint64 at multiples of 8 bytes, which processors write in one piece: a reader sees an old or a
new value, never half of one. It may see one row of a booking and not yet the next: an error of one booking, for
microseconds, in sums that are estimates anyway; no lock would pay for that.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from poolpilot_picker.state.columns import LEDGER_ROWS, ROWS, Floats

MOST_ENDPOINTS: Final = 4_096
"""Endpoints, draining ones included, that workers can share."""
CHAIRS_PER_WORKER: Final = 4
_WIDTH: Final = MOST_ENDPOINTS + 8
"""Of a row: an odd number of cache lines (see `new_block`)."""
BUCKET_MS: Final = 100.0
BUCKETS: Final = 32
"""What was booked and released is remembered for BUCKETS × BUCKET_MS."""
STAMP, RELEASED, BOOKED = range(3)
JOURNAL_BYTES: Final = 2**20
"""Of each chair: a second of news under a load that fills a processor, and small enough for its cache."""
_LINE: Final = 8
"""Words of 8 bytes in a cache line: what different processes write often does not share one."""

Words = NDArray[np.uint64]


class Memory:
    """One mapping. Close the file after `attach` if it is not to be handed on."""

    def __init__(self, fd: int, chairs: int, mapping: mmap.mmap) -> None:
        self.fd = fd
        self.chairs = chairs
        self._mapping = mapping
        self._at = 0
        self.epoch: Words = self._words(_LINE)
        """[0] grows when a chair is taken or left."""
        self.taken: Words = self._words(chairs)
        """1 while a process sits there."""
        self.heads: Words = self._words(chairs, _LINE)
        """[chair, 0]: bytes ever written to the chair's journal."""
        self.asks: Words = self._words(chairs, _LINE)
        """[chair, 0]: grows when the process there wants to be told everything again."""
        self.digests: Words = self._words(MOST_ENDPOINTS, 2)
        """Whose slot it is: a digest of the endpoint's identity."""
        self.generations: Words = self._words(MOST_ENDPOINTS)
        """Grows each time a slot gets another endpoint."""
        self.holds: Words = self._words(chairs, MOST_ENDPOINTS)
        """1 where a chair's process has the endpoint of the slot in its table."""
        self.accounts: Floats = self._words(chairs, len(ROWS), _WIDTH).view(np.float64)
        """[chair]: a block, of which the ledger's rows are used; the others are never touched and take no memory."""
        self.recent: Floats = self._words(chairs, MOST_ENDPOINTS, 3, BUCKETS).view(np.float64)
        """[chair, slot]: bucket numbers (STAMP), sequences released and prefill ms booked then."""
        self.journals: NDArray[np.uint8] = self._words(chairs, JOURNAL_BYTES // 8).view(np.uint8)

    def _words(self, *shape: int) -> Words:
        count = int(np.prod(shape))
        words = np.frombuffer(self._mapping, dtype=np.uint64, count=count, offset=8 * self._at).reshape(shape)
        self._at += -(-count // _LINE) * _LINE
        return words

    @classmethod
    def create(cls, workers: int) -> Memory:
        """New memory, all zeros, in a file without a name. Pass `fd` and `chairs` to the workers."""
        chairs = workers * CHAIRS_PER_WORKER
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("poolpilot-workers", 0)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _size(chairs))
        return cls.attach(fd, chairs)

    @classmethod
    def attach(cls, fd: int, chairs: int) -> Memory:
        """The memory behind an inherited file."""
        return cls(fd, chairs, mmap.mmap(fd, _size(chairs)))

    def seat(self) -> int | None:
        """Takes a free chair for a process that is about to start, None if there is none. Only the supervisor may."""
        free = np.flatnonzero(self.taken == 0)
        if not len(free):
            return None
        chair = int(free[0])
        self.taken[chair] = 1
        self.epoch[0] += 1
        return chair

    def clear(self, chair: int) -> None:
        """The process on the chair has ended, however: what it had booked is gone. Only the supervisor may.

        Its journal stays: others may still read it, and who sits there next goes on behind it.
        """
        self.accounts[chair, :LEDGER_ROWS] = 0.0
        self.recent[chair, self.holds[chair] != 0] = 0.0
        self.holds[chair] = 0
        self.taken[chair] = 0
        self.epoch[0] += 1


def _size(chairs: int) -> int:
    words = 0
    for count in (
        _LINE,
        chairs,
        chairs * _LINE,
        chairs * _LINE,
        MOST_ENDPOINTS * 2,
        MOST_ENDPOINTS,
        chairs * MOST_ENDPOINTS,
        chairs * len(ROWS) * _WIDTH,
        chairs * MOST_ENDPOINTS * 3 * BUCKETS,
        chairs * JOURNAL_BYTES // 8,
    ):
        words += -(-count // _LINE) * _LINE
    return 8 * words
