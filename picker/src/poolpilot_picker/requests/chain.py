"""Prompt bytes → PrefixChain: what a prompt shares with earlier ones, as hashes of growing blocks. Used by `parse`.

Block i starts at a place that depends on i alone, so equal beginnings give equal hashes whatever follows. Blocks are
256 bytes (about 64 tokens) up to 64 KiB; from there on each quadrupling of the position is cut into 192 blocks, so that
a block is at most 1/64 of what stands before it. Hence at most 1,024 hashes for any prompt: 832 for 4 MiB (about a
million tokens), and nothing beyond 16 MiB takes part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh64_intdigest

from poolpilot_picker.requests.request import NO_PREFIX, PrefixChain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BLOCK_BYTES: Final = 256
"""Smallest block. Smaller ones would not pay: 64 tokens are computed in the time of one decode step."""

SEGMENTS: Final[tuple[tuple[int, int, int], ...]] = (
    (0, 1 << 16, BLOCK_BYTES),
    *(((1 << 16) << (2 * i), (1 << 16) << (2 * i + 2), BLOCK_BYTES << (2 * i + 2)) for i in range(4)),
)
"""(first byte, byte after the last, block size) of each stretch of equal blocks."""


def _block_ends() -> NDArray[np.float64]:
    ends = [at + size for start, stop, size in SEGMENTS for at in range(start, stop, size)]
    return np.array(ends, dtype=np.float64)


BLOCK_ENDS: Final = _block_ends()
"""Byte position at which block i ends."""

UNSETTLED: Final = 64
"""Last bytes of a cut prompt that may turn out otherwise: half of a role's name, brackets closed too early."""

MAX_BLOCKS: Final = len(BLOCK_ENDS)

_FEW: Final = tuple(BLOCK_ENDS[:48].tolist())
"""For so few blocks a list is made faster without numpy."""


def chain_seed(target_model: str, adapter: str, cache_salt: str) -> int:
    """Where a chain starts. Hashed one after the other, so that no two triples can run into each other."""
    seed = xxh64_intdigest(target_model.encode("utf-8", "replace"))
    seed = xxh64_intdigest(adapter.encode("utf-8", "replace"), seed)
    return xxh64_intdigest(cache_salt.encode("utf-8", "replace"), seed)


def chain_hashes(prompt: bytes, seed: int) -> list[int]:
    """Hash of every full block, each seeded by the hash before it."""
    hashes: list[int] = []
    append = hashes.append
    digest = xxh64_intdigest
    length = len(prompt)
    for start, stop, size in SEGMENTS:
        for at in range(start, min(stop, length) - size + 1, size):
            seed = digest(prompt[at : at + size], seed)
            append(seed)
        if length < stop:
            break
    return hashes


def prefix_chain(prompt: bytes, seed: int, *, tokens: float, marks: Sequence[tuple[int, float]] = ()) -> PrefixChain:
    """The chain of a prompt of `tokens` estimated tokens.

    `marks` are (byte position, tokens) of what is much longer for the engine than its few bytes here: images, audio.
    The rest of the tokens is spread evenly over the bytes.
    """
    hashes = chain_hashes(prompt, seed)
    if not hashes:
        return NO_PREFIX
    blocks = len(hashes)
    most = max(tokens - 1.0, 0.0)
    if not marks and blocks <= len(_FEW):
        rate = most / len(prompt)
        return PrefixChain(hashes=hashes, ends=[place * rate for place in _FEW[:blocks]])
    places = BLOCK_ENDS[:blocks]
    ends = places * (max(most - sum(weight for _, weight in marks), 0.0) / len(prompt))
    for position, weight in marks:
        ends[places.searchsorted(position) :] += weight
    return PrefixChain(hashes=hashes, ends=np.minimum(ends, most).tolist())


def settled(chain: PrefixChain, length: int) -> PrefixChain:
    """The blocks of a cut prompt of `length` bytes that the whole prompt has too."""
    blocks = int(BLOCK_ENDS.searchsorted(length - UNSETTLED, side="right"))
    if blocks >= len(chain.hashes):
        return chain
    return PrefixChain(hashes=chain.hashes[:blocks], ends=chain.ends[:blocks])
