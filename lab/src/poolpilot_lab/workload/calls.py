"""Requests of a simulated workload as the world knows them: lengths, prefix blocks, who asks, what follows. No text.

Generators (`generators`) and trace readers (`traces`) make a `Traffic`; the simulator (`poolpilot_lab.sim`) plays it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence


@dataclass(slots=True, eq=False)
class Call:
    """One request. Lengths in tokens, times in ms.

    blocks: one key per full block of the prompt, and of its answer as far as a later call repeats it; equal keys =
    equal prefix up to and including that block.
    """

    at_ms: float
    """From the start of the run; of a call that follows another: from the end of that one's answer."""
    prompt_tokens: int
    output_tokens: int
    """True length of the answer: no policy is told."""
    blocks: Sequence[int] = ()
    max_tokens: int | None = None
    adapter: str = ""
    tenant: str = ""
    session: str = ""
    priority: int = 0
    choices: int = 1
    """Answers asked for (n)."""
    patience_ms: float = math.inf
    """After which the client leaves. Such calls are load, and in no figure: what they would have seen is not known."""
    label: str = ""
    """Class within the scenario, for figures by class."""
    then: Call | None = None
    """Issued when this one was answered, after its think time; dropped when this one fails."""


@dataclass(slots=True)
class Traffic:
    """What arrives: calls in order of arrival, each the head of its chain of follow-ups."""

    calls: list[Call] = field(repr=False)
    block_tokens: int
    source: str
    """Where lengths and arrivals come from: printed beside every result."""

    def __iter__(self) -> Iterator[Call]:
        """Every call, follow-ups directly behind the one they follow."""
        for head in self.calls:
            call: Call | None = head
            while call is not None:
                yield call
                call = call.then

    @property
    def count(self) -> int:
        """How many requests there are at most."""
        return sum(1 for _ in self)

    @property
    def closed(self) -> bool:
        """Whether arrivals depend on how fast answers come."""
        return any(call.then is not None for call in self.calls)


class Blocks:
    """Hands out block keys that nobody has yet."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._next = itertools.count(1)

    def fresh(self, tokens: int) -> list[int]:
        """Keys of the full blocks of a new text of so many tokens."""
        return list(itertools.islice(self._next, max(0, tokens) // self.block_tokens))

    def prompt(self, head: Sequence[int], tokens: int) -> list[int]:
        """Keys of a prompt of `tokens` tokens in all that begins with the blocks `head`."""
        count = tokens // self.block_tokens
        kept = list(head[:count])
        return kept + list(itertools.islice(self._next, count - len(kept)))


LIMITED_SHARE = 0.5
"""Of the calls that carry `max_tokens`."""


def limit(rng: random.Random, output_tokens: int) -> int | None:
    """`max_tokens` as clients set it: absent in half of the requests, else 1 to 4 times the answer."""
    if rng.random() >= LIMITED_SHARE:
        return None
    return round(output_tokens * rng.uniform(1.0, 4.0))
