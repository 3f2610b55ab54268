"""Which cached blocks will be asked for again: what an eviction truly costs. Known to references only.

Of a conversation that goes on, the next turn is known; of anything else, that it was asked for twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.workload.calls import Call

SAMPLED: Final = 24
"""Blocks that are looked at of those that a placement would evict."""


class Outlook:
    """Told of every call when it arrives."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = defaultdict(int)
        self._coming: dict[int, int] = defaultdict(int)
        self._announced: dict[Call, None] = {}

    def arrived(self, call: Call) -> None:
        """Its blocks are used once more, and those of what follows it are expected."""
        if self._announced.pop(call, call) is None:
            for key in call.blocks:
                left = self._coming[key] - 1
                if left:
                    self._coming[key] = left
                else:
                    del self._coming[key]
        elif call.then is None:
            for key in call.blocks:
                self._uses[key] += 1
        following = call.then
        if following is not None:
            self._announced[following] = None
            for key in following.blocks:
                self._coming[key] += 1

    def is_wanted(self, key: int) -> bool:
        """Whether somebody will ask for it, as far as one can know."""
        return key in self._coming or self._uses.get(key, 0) > 1

    def lost_blocks(self, engine: Engine, count: int, own: set[int], others: Iterable[Engine]) -> float:
        """Wanted blocks, held nowhere else, that go when `count` blocks are allocated; `own`: of the request itself."""
        evicted = engine.blocks.next_evicted(count)
        if not evicted:
            return 0.0
        elsewhere = [other.blocks for other in others if other is not engine]
        stride = -(-len(evicted) // SAMPLED)
        looked = evicted[::stride]
        lost = sum(
            1
            for key in looked
            if key not in own and self.is_wanted(key) and not any(key in blocks for blocks in elsewhere)
        )
        return lost * len(evicted) / len(looked)
