"""The stand-in's tokenizer and block keys: deterministic, fast, and not the estimate a picker would make.

A token is a word with the space before it, cut into pieces of at most eight bytes; a punctuation mark; a run of
spaces; or one character of a script that UTF-8 writes in three or more bytes. English prose comes to about 4 bytes
a token, Markdown to 2.7, base64 to 2.9, Chinese to 3, Cyrillic to 5.5: seldom what bytes / 4 says.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PIECE_BYTES = 8
VOCABULARY = 128_000
"""Size of the token ids that `/tokenize` prints."""

_LETTER, _DIGIT, _SPACE, _MARK, _WIDE, _CONTINUATION = range(6)


def _classes() -> NDArray[np.uint8]:
    classes = np.full(256, _MARK, np.uint8)
    for byte in range(256):
        if chr(byte).isascii() and chr(byte).isalpha():
            classes[byte] = _LETTER
        elif chr(byte).isascii() and chr(byte).isdigit():
            classes[byte] = _DIGIT
        elif byte == 0x20:
            classes[byte] = _SPACE
        elif 0x80 <= byte < 0xC0:
            classes[byte] = _CONTINUATION
        elif 0xC0 <= byte < 0xE0:
            classes[byte] = _LETTER
        elif byte >= 0xE0:
            classes[byte] = _WIDE
    return classes


def _starts() -> NDArray[np.bool_]:
    """Whether a byte of class `now` after one of class `before` begins a token, at index `before * 8 + now`."""
    starts = np.zeros(64, np.bool_)
    for before in range(6):
        for now in (_MARK, _WIDE):
            starts[before * 8 + now] = True
        starts[before * 8 + _SPACE] = before != _SPACE
        starts[before * 8 + _LETTER] = before in (_DIGIT, _MARK)
        starts[before * 8 + _DIGIT] = before in (_LETTER, _MARK, _CONTINUATION)
    return starts


_CLASSES = _classes()
_STARTS = _starts()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt: its bytes, and where each token begins in them."""

    data: bytes
    offsets: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.offsets)

    def ids(self) -> list[int]:
        """A stable id per token, below VOCABULARY."""
        bounds = [*self.offsets.tolist(), len(self.data)]
        pieces = (self.data[start:end] for start, end in pairwise(bounds))
        return [xxhash.xxh3_64_intdigest(piece) % VOCABULARY for piece in pieces]


def tokenize(data: bytes) -> Prompt:
    """Cuts UTF-8 text into tokens."""
    if not data:
        return Prompt(data, np.empty(0, np.int64))
    classes = _CLASSES[np.frombuffer(data, np.uint8)]
    pairs = np.empty_like(classes)
    pairs[0] = _MARK * 8
    np.left_shift(classes[:-1], 3, out=pairs[1:])
    pairs |= classes
    starts = _STARTS[pairs]
    starts[0] = True
    # The last space of a run belongs to the word after it.
    spaces = classes == _SPACE
    starts[:-1] |= spaces[:-1] & ~spaces[1:]
    offsets = np.flatnonzero(starts)
    pieces = (np.diff(offsets, append=len(data)) + (PIECE_BYTES - 1)) // PIECE_BYTES
    if int(pieces.max()) > 1:
        first = np.cumsum(pieces) - pieces
        within = np.arange(int(pieces.sum())) - np.repeat(first, pieces)
        offsets = np.repeat(offsets, pieces) + within * PIECE_BYTES
    return Prompt(data, offsets)


def from_ids(ids: Sequence[int]) -> Prompt:
    """A prompt given as token ids: four bytes a token, in a key space of its own."""
    return Prompt(array("I", ids).tobytes(), np.arange(len(ids), dtype=np.int64) * 4)


def root_key(adapter: str | None, salt: str | None) -> int:
    """The parent of every first block: prefixes are shared neither between adapters nor between salts."""
    return xxhash.xxh3_64_intdigest(f"{adapter or ''}\0{salt or ''}".encode())


def block_keys(prompt: Prompt, answer: Sequence[bytes], block_size: int, root: int) -> list[int]:
    """One chained key per full block of the prompt followed by the tokens of `answer` (one piece each)."""
    data, offsets = prompt.data, prompt.offsets
    if answer:
        lengths = np.fromiter(map(len, answer), np.int64, len(answer))
        ends = np.cumsum(lengths) + len(data)
        offsets = np.concatenate((offsets, ends - lengths, ends[-1:]))
        data += b"".join(answer)
    else:
        offsets = np.append(offsets, len(data))
    bounds = offsets[::block_size].tolist()
    keys: list[int] = []
    key = root
    digest = xxhash.xxh3_64_intdigest
    for start, end in pairwise(bounds):
        key = digest(data[start:end], key)
        keys.append(key)
    return keys
