"""The step in progress, or a run of pure decode steps in closed form, and what completed steps brought.

In a run every step is longer than the one before by the same amount: each sequence has one token more of context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolpilot_lab.engine.model.sequence import Sequence


@dataclass(slots=True)
class Outcome:
    """What the steps since the last `settle` brought."""

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    """sequences that gained tokens, and how many; a sequence can occur more than once; none unless `tells_tokens`"""
    first_tokens: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class Flight:
    """The step, or the run of pure decode steps, in progress."""

    start: float
    steps: int
    first_ms: float
    growth_ms: float
    tokens: int
    """tokens computed in each step"""
    decoding: list[Sequence]
    chunks: list[tuple[Sequence, int]]
    planned_blocks: bool = True
    """whether the sequences already hold the blocks for the first step; a run takes those of later steps as it goes"""

    def offset(self, steps: int) -> float:
        """Milliseconds from the start to the end of the given number of steps."""
        return steps * self.first_ms + self.growth_ms * steps * (steps - 1) / 2

    @property
    def end(self) -> float:
        return self.start + self.offset(self.steps)

    def ended_by(self, now: float) -> int:
        """How many steps have ended at `now`."""
        # The end of a run that was settled in parts differs in the last bits from the one that `plan` announced.
        if now >= self.end - 1e-6:
            return self.steps
        elapsed = now - self.start
        half = self.growth_ms / 2
        linear = self.first_ms - half
        if half > 1e-12 * self.first_ms:
            ended = int((math.sqrt(linear * linear + 4 * half * elapsed) - linear) / (2 * half))
        else:
            ended = int(elapsed / self.first_ms)
        return max(0, min(ended, self.steps - 1))


def run_length(decoding: list[Sequence], steps: int, block_size: int, free_blocks: int) -> int:
    """For how many of `steps` the batch stays the same: until the first sequence ends or the blocks run out."""
    steps = min(steps, min(sequence.output_tokens - sequence.generated for sequence in decoding))
    while steps > 1:
        blocks = sum(-(-(sequence.computed + steps) // block_size) - len(sequence.table) for sequence in decoding)
        if blocks <= free_blocks:
            break
        steps //= 2
    return max(1, steps)
