"""How long a step takes, from a profile: the formulas that the scheduler, the limits and the tests share.

All times are milliseconds. A chunk is `(n, p)`: n prompt tokens computed, p tokens of that sequence already cached.
The mixed formula is the one that was validated on measured rows, and it serves every step, pure or mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_lab.engine.model.profiles import Profile


def prefill_alone_ms(profile: Profile, n: int, p: int) -> float:
    """One prefill without anything else in the step, CPU overhead left out."""
    polynomial = profile.prefill_a_ms + profile.prefill_b_ms * n + profile.prefill_c_ms * (n * n + 2 * n * p)
    return max(profile.prefill_floor_ms, polynomial)


def decode_alone_ms(profile: Profile, sequences: int, context_tokens: int) -> float:
    """One decode step without prefill, CPU overhead left out."""
    return profile.decode_a_ms + profile.decode_b_ms * sequences + profile.decode_c_ms * context_tokens


def prefill_part_ms(profile: Profile, tokens: int, attention: int) -> float:
    """What prefill adds to a step: tokens = Σ n, attention = Σ (n² + 2np)."""
    return profile.prefill_b_ms * tokens + profile.prefill_c_ms * attention


def decode_part_ms(profile: Profile, sequences: int, context_tokens: int, chunks: int) -> float:
    """What a step costs before its prefill tokens: weights, decoding sequences, their context and CPU overhead."""
    return decode_alone_ms(profile, sequences, context_tokens) + overhead_ms(profile, sequences + chunks)


def overhead_ms(profile: Profile, scheduled: int) -> float:
    """CPU overhead of a step that so many sequences take part in."""
    return profile.step_overhead_ms + profile.sequence_overhead_ms * scheduled


def mixed_step_ms(
    profile: Profile, sequences: int, context_tokens: int, chunks: Iterable[tuple[int, int]] = ()
) -> float:
    """One step that decodes `sequences` and computes `chunks`."""
    tokens = attention = count = 0
    for n, p in chunks:
        tokens += n
        attention += n * n + 2 * n * p
        count += 1
    return decode_part_ms(profile, sequences, context_tokens, count) + prefill_part_ms(profile, tokens, attention)
