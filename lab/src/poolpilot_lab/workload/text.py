"""Prose without meaning: seeded sentences over a made-up vocabulary, the raw material of every prompt.

Words follow Zipf's law and frequent words are short, so that bytes per token, repetition and hashing behave as with a
natural language, while no text of anybody's is shipped and any length can be had.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCABULARY_SIZE: Final = 4000
WORDS_PER_TOKEN: Final = 0.75
"""English prose under byte-pair encodings with 100,000 entries and more; engines count for themselves."""

_VOCABULARY_SEED: Final = "vocabulary"
_ONSETS: Final = (
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
)
_VOWELS: Final = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS: Final = ("", "", "", "l", "m", "n", "nd", "r", "s", "st", "t")


class Writer:
    """Writes text over one fixed vocabulary. Stateless: whoever calls brings the random source."""

    def __init__(self) -> None:
        self._words = _vocabulary()
        self._cumulative = list(itertools.accumulate(1.0 / (rank + 2.7) for rank in range(len(self._words))))

    def text(self, rng: random.Random, tokens: int) -> str:
        """Sentences of about `tokens` tokens (one word at least)."""
        words = rng.choices(self._words, cum_weights=self._cumulative, k=max(1, round(tokens * WORDS_PER_TOKEN)))
        return " ".join(_sentences(rng, words))


def _sentences(rng: random.Random, words: list[str]) -> Iterator[str]:
    start = 0
    while start < len(words):
        sentence = words[start : start + rng.randint(6, 18)]
        start += len(sentence)
        sentence[0] = sentence[0].capitalize()
        if len(sentence) > 9:
            sentence[len(sentence) // 2] += ","
        sentence[-1] += "." if rng.random() < 0.9 else "?"
        yield " ".join(sentence)


def _vocabulary() -> list[str]:
    """Distinct words, most frequent first: the first hundred have one syllable, later ones two or three."""
    rng = random.Random(_VOCABULARY_SEED)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY_SIZE:
        syllables = 1 if len(words) < 100 else rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        words.setdefault(word)
    return list(words)
