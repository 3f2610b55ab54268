"""One simulated accelerator: a profile with hidden factors of this very instance, step noise and stalls.

The picker's policy assumes the published formula; the world here deviates from it per instance, so that a policy is
never judged on the formula it believes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from poolpilot_lab.engine.model import step_time

if TYPE_CHECKING:
    from poolpilot_lab.engine.model.profiles import Profile
    from poolpilot_lab.engine.model.step_tables import StepTable

CLIP = 2.0


@dataclass(frozen=True, slots=True)
class Variation:
    """How far an instance strays from its profile.

    sigma: standard deviation of the logarithm of the two hidden speed factors (prefill, decode), clipped at 2 sigma.
    step_noise: standard deviation of the logarithm of each step's duration, mean one.
    stall_every_ms / stall_ms: mean gap between stalls and mean length of one, both exponential; 0 means none.
    """

    sigma: float = 0.0
    step_noise: float = 0.0
    stall_every_ms: float = 0.0
    stall_ms: float = 0.0


class Accelerator:
    """Durations of steps on one instance; all randomness comes from `seed`."""

    __slots__ = (
        *("_next_stall", "_random", "_variation"),
        *("decode_factor", "prefill_factor", "profile", "ranks", "slow", "table"),
    )

    def __init__(
        self, profile: Profile, variation: Variation | None = None, seed: int = 0, table: StepTable | None = None
    ) -> None:
        """table: what steps really take, where the profile is only a fit."""
        self.profile = profile
        self.table = table
        self.ranks = 1
        """Data-parallel ranks that share the sequences and wait for each other in every step."""
        self.slow = 1.0
        """Multiplies every step from the next one on: an injected slow-down."""
        self._variation = variation or Variation()
        self._random = Random(seed)
        self.prefill_factor = self._draw_factor()
        self.decode_factor = self._draw_factor()
        self._next_stall = self._draw_gap(0.0)

    def calm(self) -> Accelerator:
        """The same without noise and stalls."""
        other = Accelerator(self.profile, table=self.table)
        other.prefill_factor, other.decode_factor = self.prefill_factor, self.decode_factor
        other.slow, other.ranks = self.slow, self.ranks
        return other

    def _draw_factor(self) -> float:
        # Drawn even when sigma is 0, so that the noise of a seed does not depend on sigma.
        normal = self._random.gauss(0.0, 1.0)
        return math.exp(self._variation.sigma * max(-CLIP, min(CLIP, normal)))

    def _draw_gap(self, now: float) -> float:
        if self._variation.stall_every_ms <= 0:
            return math.inf
        return now + self._random.expovariate(1.0 / self._variation.stall_every_ms)

    def noise(self, steps: int) -> float:
        """Factor of one step, or of the sum of `steps` steps, mean one."""
        sigma = self._variation.step_noise
        if sigma <= 0:
            return self.slow
        sigma /= math.sqrt(steps)
        return self.slow * math.exp(self._random.gauss(0.0, sigma) - sigma * sigma / 2)

    def stall(self, now: float) -> float:
        """Milliseconds by which a step that begins at `now` is held up; draws the next stall when one is due."""
        if now < self._next_stall:
            return 0.0
        self._next_stall = self._draw_gap(now)
        return self._random.expovariate(1.0 / self._variation.stall_ms) if self._variation.stall_ms > 0 else 0.0

    def step_ms(self, sequences: int, context_tokens: int, chunks: int, tokens: int, attention: int) -> float:
        """Duration of a step without noise: arguments as in `step_time`."""
        duration = self.decode_ms(sequences, context_tokens, chunks)
        return duration + self.prefill_ms(tokens, attention) if tokens else duration

    def decode_ms(self, sequences: int, context_tokens: int, chunks: int) -> float:
        """Of a step, without noise: all but its prefill tokens."""
        profile = self.profile
        if self.ranks > 1 and sequences:
            # The fullest of the ranks sets the step: what is expected of sequences spread at random.
            mean = sequences / self.ranks
            most = min(sequences, math.ceil(mean + math.sqrt(mean)))
            context_tokens, sequences = context_tokens * most // sequences, most
        alone = step_time.decode_alone_ms(profile, sequences, context_tokens)
        if self.table is not None:
            alone *= self.table.decode(sequences, context_tokens)
        return self.decode_factor * (alone + step_time.overhead_ms(profile, sequences + chunks))

    def prefill_ms(self, tokens: int, attention: int) -> float:
        """Of a step, without noise: what its prefill tokens add."""
        part = self.prefill_factor * step_time.prefill_part_ms(self.profile, tokens, attention)
        return part if self.table is None else part * self.table.prefill(tokens)

    def growth_ms(self, sequences: int, context_tokens: int, steps: int) -> float:
        """By how much each step of a pure decode run of `steps` steps is longer than the one before it, in the mean."""
        if self.table is None:
            return self.decode_factor * self.profile.decode_c_ms * sequences
        grown = (steps - 1) * sequences
        return (self.decode_ms(sequences, context_tokens + grown, 0) - self.decode_ms(sequences, context_tokens, 0)) / (
            steps - 1
        )
