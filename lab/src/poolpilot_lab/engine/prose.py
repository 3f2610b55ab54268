"""The words that the stand-in answers with: plausible, deterministic, one token each for its own tokenizer."""

from __future__ import annotations

import math
from random import Random

import xxhash

_VOCABULARY = """
the of and to in a is that for it as with on be by this are from or at an which but not have has was can will their
one all more other some into these than then its also only new may use used time each when where how what who you we
they he she his her our your my no so if do does did had been being was were would could should about after before
between under over through during while because since until both few many most such same own very just even still back
well first second third last next long short high low large small great good best better right left old young early
late near far open close clear hard easy fast slow full empty free true false main key part side line point place case
fact form kind type level rate value amount number set list group team member person people family child woman man
friend world country city state house home room door table book page paper word name story idea plan goal step way path
road map work job task role effect cause reason result change growth loss gain cost price market trade money bank fund
tax law rule right court power force energy heat light sound water air fire earth sea river lake island field farm food
plant tree seed fruit animal bird fish dog cat horse body head face eye hand foot heart mind brain blood health care
drug test data model method system process unit cell layer node edge graph tree queue cache block token batch memory
server client request answer reply query search index store file log event time clock hour day week month year season
spring summer winter north south east west begin start end stop keep hold give take make build create design write read
send receive move turn run walk stand sit lie see hear feel think know learn teach ask tell say call show find lose win
help need want like love hope seem appear become remain leave return follow lead join meet share serve allow let
"""

STREAM = 65_536
"""Length of the endless text; a power of two."""


def _compose() -> tuple[list[bytes], list[int]]:
    """The endless text as pieces, and the positions where its sentences begin."""
    random = Random(20_481)
    words = list(dict.fromkeys(_VOCABULARY.split()))
    weights = [1 / (rank + 3) for rank in range(len(words))]
    drawn = iter(random.choices(words, weights, k=STREAM))
    pieces: list[bytes] = []
    sentences: list[int] = []
    left = 0
    while len(pieces) < STREAM:
        word = next(drawn)
        if left <= 0:
            if pieces:
                pieces.append(b".")
            sentences.append(len(pieces))
            word = word.capitalize()
            left = random.randint(6, 22)
        pieces.append(f" {word}".encode())
        left -= 1
        if left > 3 and random.random() < 0.06:
            pieces.append(b",")
    return pieces[:STREAM], [start for start in sentences if start < STREAM - 1]


_PIECES, _SENTENCES = _compose()


def answer(key: int, length: int, after_space: bool) -> list[bytes]:
    """`length` pieces of text, one token each, starting at a sentence chosen by `key`.

    after_space: the text before ends where a word may begin (a chat turn), so the first word comes without a space.
    """
    start = _SENTENCES[key % len(_SENTENCES)]
    pieces: list[bytes] = []
    while len(pieces) < length:
        pieces.extend(_PIECES[start : start + length - len(pieces)])
        start = _SENTENCES[0]
    if after_space and pieces:
        pieces[0] = pieces[0].lstrip(b" ")
    return pieces


def natural_length(key: int, median: float, sigma: float) -> int:
    """Tokens that an answer would have if nothing cut it: lognormal, the same for the same request on every engine."""
    uniform = (xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"), 1) + 0.5) / 2**64
    angle = (xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"), 2) + 0.5) / 2**64
    normal = math.sqrt(-2.0 * math.log(uniform)) * math.cos(2.0 * math.pi * angle)
    return max(1, round(median * math.exp(sigma * max(-3.0, min(3.0, normal)))))
