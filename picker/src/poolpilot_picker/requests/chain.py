"""Prompt bytes → PrefixChain: what a prompt shares with earlier ones, as hashes of growing blocks. Used by `parse`.

Block i starts at a place that depends on i alone, so equal beginnings give equal hashes whatever follows. Blocks are
256 bytes (about 64 tokens) up to 64 KiB; from there on each quadrupling of the position is cut into 192 blocks, so that
a block is at most 1/64 of what stands before it. Hence at most 1,024 hashes for any prompt: 832 for 4 MiB (about a
million tokens), and nothing beyond 16 MiB takes part.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh64_intdigest

from poolpilot_picker import compiled
from poolpilot_picker.requests.request import NO_PREFIX, PrefixChain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

_SHORT: Final = 256
"""Characters of names whose seed is remembered."""


def chain_seed(target_model: str, adapter: str, cache_salt: str, extra_key: bytes = b"") -> int:
    """Where a chain starts. Hashed one after the other, so that no two of these can run into each other.

    `extra_key` is what SGLang parts its cache by besides, as the client wrote it.
    """
    if len(target_model) + len(adapter) + len(cache_salt) > _SHORT:
        seed = _seed(target_model, adapter, cache_salt)
    else:
        seed = _known_seed(target_model, adapter, cache_salt)
    return xxh64_intdigest(extra_key, seed) if extra_key else seed


def _seed(target_model: str, adapter: str, cache_salt: str) -> int:
    seed = xxh64_intdigest(target_model.encode("utf-8", "replace"))
    seed = xxh64_intdigest(adapter.encode("utf-8", "replace"), seed)
    return xxh64_intdigest(cache_salt.encode("utf-8", "replace"), seed)


_known_seed: Final = lru_cache(maxsize=1_024)(_seed)


def reference_chain_hashes(prompt: bytes, seed: int) -> list[int]:
    """`chain_hashes` in Python."""
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


def reference_even_chain(prompt: bytes, seed: int, most: float) -> tuple[list[int], list[float]]:
    """(hashes, ends) of the full blocks of a prompt whose bytes have `most` tokens to share evenly."""
    hashes = reference_chain_hashes(prompt, seed)
    blocks = len(hashes)
    rate = most / len(prompt) if prompt else 0.0
    if blocks <= len(_FEW):
        return hashes, [min(place * rate, most) for place in _FEW[:blocks]]
    return hashes, np.minimum(BLOCK_ENDS[:blocks] * rate, most).tolist()


chain_hashes: Callable[[bytes, int], list[int]] = reference_chain_hashes
"""Hash of every full block, each seeded by the hash before it."""
even_chain: Callable[[bytes, int, float], tuple[list[int], list[float]]] = reference_even_chain
if compiled.in_force is not None:
    _blocks = compiled.in_force.blocks(SEGMENTS)
    chain_hashes, even_chain = _blocks.hashes, _blocks.chain


def prefix_chain(prompt: bytes, seed: int, *, tokens: float, marks: Sequence[tuple[int, float]] = ()) -> PrefixChain:
    """The chain of a prompt of `tokens` estimated tokens.

    `marks` are (byte position, tokens) of what is much longer for the engine than its few bytes here: images, audio.
    The rest of the tokens is spread evenly over the bytes.
    """
    most = max(tokens - 1.0, 0.0)
    if not marks:
        hashes, even = even_chain(prompt, seed, most)
        return PrefixChain(hashes, even) if hashes else NO_PREFIX
    hashes = chain_hashes(prompt, seed)
    if not hashes:
        return NO_PREFIX
    places = BLOCK_ENDS[: len(hashes)]
    ends = places * (max(most - sum(weight for _, weight in marks), 0.0) / len(prompt))
    for position, weight in marks:
        ends[places.searchsorted(position) :] += weight
    return PrefixChain(hashes, np.minimum(ends, most).tolist())


def settled(chain: PrefixChain, length: int) -> PrefixChain:
    """The blocks of a cut prompt of `length` bytes that the whole prompt has too."""
    blocks = int(BLOCK_ENDS.searchsorted(length - UNSETTLED, side="right"))
    if blocks >= len(chain.hashes):
        return chain
    return PrefixChain(hashes=chain.hashes[:blocks], ends=chain.ends[:blocks])
