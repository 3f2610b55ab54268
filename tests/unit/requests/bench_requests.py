"""Prints what reading a request costs, in µs per call: `.venv/bin/python tests/unit/requests/bench_requests.py`."""

from __future__ import annotations

import json
import random
import time
import timeit
from typing import TYPE_CHECKING

from poolpilot_picker.requests import body_use, parse, read_head, rewrite_model
from poolpilot_picker.requests.chain import chain_hashes
from poolpilot_picker.requests.partial import mend
from poolpilot_picker.requests.shapes import CHAT
from poolpilot_picker.requests.tokens import text_units

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "quickly",
    "it",
    "as",
    "was",
    "with",
    "between",
    "by",
    "on",
    "river",
]
HEADERS: list[tuple[str, str | bytes]] = [
    (":method", "POST"),
    (":path", "/v1/chat/completions"),
    (":authority", "models.example"),
    (":scheme", "http"),
    ("user-agent", "bench"),
    ("accept", "application/json"),
    ("content-type", "application/json"),
    ("content-length", "1024"),
    ("authorization", "Bearer abc"),
    ("x-request-id", "4f0c6f1e-8b7e-4b2f-9d0c-3a5f5f0f7c11"),
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-proto", "http"),
]


def cost(call: Callable[[], object]) -> float:
    """CPU time, best of seven runs: what else the machine does only ever adds."""
    timer = timeit.Timer(call, timer=time.process_time)
    number = max(int(0.05 / (min(timer.repeat(3, 50)) / 50 + 1e-9)), 1)
    return min(timer.repeat(7, number)) / number * 1e6


def body(size: int, messages: int) -> bytes:
    rng = random.Random(size)
    text = " ".join(rng.choices(WORDS, k=size // 3))
    share = size // messages
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": text[i * share : (i + 1) * share]} for i in range(messages)
    ]
    return json.dumps({"model": "m", "messages": turns, "stream": True, "max_tokens": 256}).encode()


def row(size: int, messages: int) -> list[float]:
    """What one body costs, step by step and as a whole."""
    head = read_head(HEADERS)
    whole = body(size, messages)
    chunks = [whole[at : at + 65_536] for at in range(0, len(whole), 65_536)]
    cut = whole[: len(whole) * 9 // 10]
    fields = CHAT.decode(whole)
    prompt = b"".join(str(message.content).encode() for message in fields.messages or ())
    return [
        cost(lambda: b"".join(chunks)),
        cost(lambda: CHAT.decode(whole)),
        cost(lambda: text_units(prompt)),
        cost(lambda: chain_hashes(prompt, 1)),
        cost(lambda: parse(head, whole)),
        cost(lambda: mend(cut)),
        cost(lambda: parse(head, cut, complete=False)),
        cost(lambda: rewrite_model(whole, "other")),
    ]


def main() -> None:
    head = read_head(HEADERS)
    print(f"head {cost(lambda: read_head(HEADERS)):.1f}, use {cost(lambda: body_use(head, end_of_stream=False)):.2f}")
    columns = ("body", "messages", "join", "decode", "units", "hash", "parse", "mend", "partial", "rewrite")
    print(" ".join(f"{column:>8}" for column in columns))
    for size, messages in ((1_000, 2), (1_000, 8), (20_000, 8), (400_000, 1), (400_000, 40), (4_000_000, 40)):
        print(f"{size:>8} {messages:>8} " + " ".join(f"{value:8.1f}" for value in row(size, messages)))


if __name__ == "__main__":
    main()
