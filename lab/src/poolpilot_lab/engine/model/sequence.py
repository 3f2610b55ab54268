"""One sequence in an engine: what the caller knows of it, and what the engine does with it."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as ABCSequence


class State(Enum):
    """Where a sequence is. PREEMPTED waits like WAITING, at the head of the queue, and computes everything again."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


UNNAMED = -1
"""Entry of a block table whose contents no other sequence can share."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and the number of tokens it will generate (which nothing outside the engine knows).

    block_hashes: one opaque non-negative key per full block of the prompt, and of the prompt with its output as far as
    the caller can tell; equal key = equal prefix up to and including that block. The caller chains them and puts the
    adapter and the salt in. All times are the engine's milliseconds, -1 before they are known.
    """

    prompt_tokens: int
    output_tokens: int
    block_hashes: ABCSequence[int] = ()
    adapter: str | None = None
    max_tokens: int | None = None
    choices: int = 1
    stop_reason: str = "stop"
    """finished_reason that the metrics count when the sequence ends by itself: stop or length"""
    priority: int = 0
    """lower goes first, where the engine schedules by priority"""
    tag: object = None
    """the caller's own; the engine does not look at it"""

    state: State = State.NEW
    arrived: float = -1.0
    admitted: float = -1.0
    first_token: float = -1.0
    last_token: float = -1.0
    finished: float = -1.0
    cached_tokens: int = 0
    """prompt tokens found in the cache at first admission"""
    computed: int = 0
    """tokens whose keys and values are in the cache"""
    generated: int = 0
    preemptions: int = 0
    deferred: bool = False
    """was passed over because all adapter slots were taken"""
    loaded: bool = False
    """its admission had its adapter loaded"""
    table: list[int] = field(default_factory=list)
    """blocks held, in order: a block hash, or UNNAMED"""

    def twin(self) -> Sequence:
        """A copy that goes on for itself."""
        other = copy(self)
        other.table = list(self.table)
        return other

    @property
    def tokens(self) -> int:
        """Tokens known so far: prompt plus generated."""
        return self.prompt_tokens + self.generated
