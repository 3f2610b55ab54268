"""The generated prose: reproducible, of the asked length, and with the statistics of a language."""

import collections
import random

from poolpilot_lab.workload.text import VOCABULARY_SIZE, WORDS_PER_TOKEN, Writer


def test_equal_seed_equal_text() -> None:
    assert Writer().text(random.Random(7), 300) == Writer().text(random.Random(7), 300)
    assert Writer().text(random.Random(7), 300) != Writer().text(random.Random(8), 300)


def test_length_follows_the_tokens_asked_for() -> None:
    writer = Writer()
    for tokens in (1, 2, 10, 1000):
        words = writer.text(random.Random(tokens), tokens).split()
        assert len(words) == max(1, round(tokens * WORDS_PER_TOKEN))


def test_words_are_many_skewed_and_about_as_long_as_english() -> None:
    text = Writer().text(random.Random(1), 20_000)
    words = [word.strip(",.?").lower() for word in text.split()]
    counts = collections.Counter(words)
    assert VOCABULARY_SIZE / 3 < len(counts) <= VOCABULARY_SIZE
    assert 0.02 < counts.most_common(1)[0][1] / len(words) < 0.10
    assert 4.0 < len(text) / len(words) - 1 < 7.0
    assert text[0].isupper()
    assert text.isascii()
