"""Advice from what engines did of late. Pure: numbers in, sentences out; a number that is not known gives none.

Thresholds are rules of thumb, wide enough that advice does not change with every hour.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

FULL: Final = 0.85
"""Share of the KV cache that the busiest twentieth of the time may use before more endpoints are advised."""
IDLE: Final = 0.3
AIM: Final = 0.7
QUEUED: Final = 1.0
"""Waiting sequences of an endpoint, likewise."""
PREEMPTED: Final = 0.01
"""Share of requests."""
UNEVEN: Final = 10.0
"""p99 over p50 of the time between tokens."""


class Facts(msgspec.Struct, frozen=True):
    """Of a pool's engines over the window; None is not known."""

    endpoints: float | None = None
    """Engines that were heard lately."""
    kv_p95: float | None = None
    """Of the mean use of their KV caches, 0 to 1."""
    waiting_p95: float | None = None
    """Of waiting sequences, for each engine."""
    requests_s: float | None = None
    preemptions_s: float | None = None
    prefix_queries_s: float | None = None
    """Tokens looked up in prefix caches."""
    output_p50: float | None = None
    """Tokens of an answer."""
    output_p90: float | None = None
    between_tokens_p50_s: float | None = None
    between_tokens_p99_s: float | None = None


class Advice(msgspec.Struct, frozen=True):
    """One line of a status."""

    topic: str
    message: str


def advice(facts: Facts, window: str) -> list[Advice]:
    """By topic. `window` is how far back facts go, for people."""
    found = [_replicas(facts, window), _lengths(facts, window)]
    if facts.requests_s:
        found += [_prefix_caching(facts, window), _sequences(facts, window), _token_budget(facts, window)]
    return sorted((one for one in found if one is not None), key=lambda one: one.topic)


def _replicas(facts: Facts, window: str) -> Advice | None:
    count, kv, waiting = facts.endpoints, facts.kv_p95, facts.waiting_p95
    if not count or kv is None or waiting is None:
        return None
    busy = (
        f"in the busiest 5 % of {window}, KV caches were {kv:.0%} full and {waiting:.1f} requests waited at each engine"
    )
    if kv > FULL or waiting > QUEUED:
        wanted = max(math.ceil(count * kv / AIM), math.ceil(count * (1.0 + min(waiting, 4.0) / 4.0)), int(count) + 1)
        return Advice("Replicas", f"{wanted:.0f} engines instead of {count:.0f}: {busy}")
    if kv < IDLE and waiting < QUEUED / 10 and count > 1:
        wanted = max(1, math.ceil(count * kv / AIM))
        if wanted < count:
            return Advice("Replicas", f"{wanted:.0f} engines would do instead of {count:.0f}: {busy}")
    return None


def _lengths(facts: Facts, window: str) -> Advice | None:
    if facts.output_p50 is None or facts.output_p90 is None:
        return None
    text = (
        f"half of the answers of {window} had at most {facts.output_p50:.0f} tokens, nine of ten {facts.output_p90:.0f}"
    )
    return Advice("OutputLength", text)


def _prefix_caching(facts: Facts, window: str) -> Advice | None:
    if facts.prefix_queries_s is None or facts.prefix_queries_s > 0:
        return None
    text = f"no engine looked into a prefix cache in {window}: vLLM needs --enable-prefix-caching"
    return Advice("PrefixCaching", text)


def _sequences(facts: Facts, window: str) -> Advice | None:
    requests = facts.requests_s or 0.0
    if facts.preemptions_s is not None and facts.preemptions_s > PREEMPTED * requests:
        share = facts.preemptions_s / requests
        text = f"{share:.0%} of requests were preempted in {window}: lower --max-num-seqs, or give KV caches more room"
        return Advice("MaxNumSeqs", text)
    if facts.waiting_p95 is not None and facts.kv_p95 is not None and facts.waiting_p95 > QUEUED and facts.kv_p95 < 0.5:
        text = f"requests waited while KV caches were at most {facts.kv_p95:.0%} full: raise --max-num-seqs"
        return Advice("MaxNumSeqs", text)
    return None


def _token_budget(facts: Facts, window: str) -> Advice | None:
    half, most = facts.between_tokens_p50_s, facts.between_tokens_p99_s
    if not half or most is None or most < UNEVEN * half:
        return None
    text = (
        f"one token of a hundred took {most * 1000:.0f} ms in {window}, half of them {half * 1000:.0f}: prefills stall "
        "decodes; enable chunked prefill, or lower --max-num-batched-tokens"
    )
    return Advice("TokenBudget", text)
