"""Seeded generators of traffic with prefixes and sessions: scenarios S1, S2, S4, S5. Rates in requests/s.

Where a public data set is not at hand, its published statistics are the parameters: each source text says so.
"""

from __future__ import annotations

import itertools
import random

from poolpilot_lab.workload.calls import Blocks, Call, Traffic, limit
from poolpilot_lab.workload.draws import LogNormal, poisson_arrivals, zipf_weights


def stream(seed: int, part: str) -> random.Random:
    """A random source of its own for one part of a workload: a change to one part leaves the others."""
    return random.Random(f"{seed}/{part}")


def shared_prompts(
    rate: float,
    count: int,
    seed: int,
    *,
    groups: int = 150,
    prompts: int = 5,
    system_tokens: int = 6_000,
    question_tokens: int = 1_200,
    output_tokens: int = 1_000,
    block_tokens: int = 64,
) -> Traffic:
    """llm-d's 73-capacity workload: groups with one system prompt each, a few fixed questions in every group."""
    blocks, rng = Blocks(block_tokens), stream(seed, "shared")
    prompt_tokens = system_tokens + question_tokens
    texts: list[list[int]] = []
    for _ in range(groups):
        system = blocks.fresh(system_tokens)
        texts += [blocks.prompt(system, prompt_tokens) for _ in range(prompts)]
    calls = [
        Call(at, prompt_tokens, output_tokens, rng.choice(texts), output_tokens if rng.random() < 0.5 else None)
        for at in poisson_arrivals(stream(seed, "arrivals"), rate, count)
    ]
    source = "llm-d-kv-cache benchmarking/73-capacity: 150 groups × 5 prompts, 6,000 + 1,200 in, 1,000 out"
    return Traffic(calls, block_tokens, source)


def chat(rate: float, count: int, seed: int, *, applications: int = 20, block_tokens: int = 64) -> Traffic:
    """Multi-turn chat, closed loop: a turn follows the end of the last one after a think time."""
    blocks, rng = Blocks(block_tokens), stream(seed, "chat")
    turns = LogNormal(3.0, 0.66, 0.5, 30.0)
    new = LogNormal(19.0, 1.6, 4.0, 4_000.0)
    answer = LogNormal(287.0, 0.6, 8.0, 1_000.0)
    think = LogNormal(45_000.0, 0.8, 5_000.0, 300_000.0)
    systems = [blocks.fresh(1_024) for _ in range(applications)]
    weights = zipf_weights(applications, 1.0)
    sessions: list[list[Call]] = []
    left = count
    while left > 0:
        length = min(left, max(1, turns.whole(rng)))
        left -= length
        text, tokens = rng.choices(systems, weights)[0], 1_024
        session: list[Call] = []
        name = f"session-{len(sessions)}"
        for turn in range(length):
            tokens += new.whole(rng)
            output = answer.whole(rng)
            # The next turn repeats this answer: its blocks are the conversation's.
            text = blocks.prompt(text, tokens + output)
            at = 0.0 if turn == 0 else think.draw(rng)
            session.append(Call(at, tokens, output, text, limit(rng, output), session=name))
            tokens += output
        for call, following in itertools.pairwise(session):
            call.then = following
        sessions.append(session)
    starts = poisson_arrivals(stream(seed, "arrivals"), rate * len(sessions) / count, len(sessions))
    for session, start in zip(sessions, starts, strict=True):
        session[0].at_ms = start
    return Traffic(
        [session[0] for session in sessions],
        block_tokens,
        "generator with published ShareGPT statistics (turns 3/7/13, prompt 19/147, answer 287/623: p50/p90) and the "
        "inference-perf catalogue's think time (45 s, 5 to 300) and 1,000-token system prompts, 20 of them, Zipf 1",
    )


def conversations(rate: float, count: int, seed: int, *, block_tokens: int = 256) -> Traffic:
    """What the Mooncake conversation trace looks like, by its published statistics."""
    blocks, rng = Blocks(block_tokens), stream(seed, "conversations")
    prompt = LogNormal(5_500.0, 1.1, 891.0, 126_000.0)
    growth = LogNormal(900.0, 1.0, 64.0, 30_000.0)
    answer = LogNormal(350.0, 0.45, 1.0, 2_000.0)
    lag = LogNormal(350.0, 1.0, 1.0, 20_000.0)
    everyone = blocks.fresh(512)
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        parent = calls[max(0, len(calls) - lag.whole(rng))] if calls and rng.random() < 0.385 else None
        if parent is not None and parent.prompt_tokens < 120_000:
            tokens = parent.prompt_tokens + growth.whole(rng)
            text = blocks.prompt(parent.blocks, tokens)
        else:
            tokens = prompt.whole(rng)
            text = blocks.prompt(everyone, tokens)
        output = answer.whole(rng)
        calls.append(Call(at, tokens, output, text, limit(rng, output)))
    return Traffic(
        calls,
        block_tokens,
        "generator with the published statistics of the Mooncake conversation trace (lengths, 37 % reusable, reuse "
        "distances); the trace itself: --trace FILE --format mooncake",
    )


def coding(rate: float, count: int, seed: int, *, block_tokens: int = 256) -> Traffic:
    """Code generation by agents: long contexts that grow turn by turn, the next turn soon after the last."""
    blocks, rng = Blocks(block_tokens), stream(seed, "coding")
    context = LogNormal(50_000.0, 0.45, 15_000.0, 100_000.0)
    new = LogNormal(1_300.0, 0.55, 100.0, 8_000.0)
    answer = LogNormal(690.0, 0.55, 50.0, 4_000.0)
    tool = LogNormal(2_000.0, 1.0, 200.0, 30_000.0)
    everyone = blocks.fresh(3_072)
    sessions: list[list[Call]] = []
    left = count
    while left > 0:
        length = min(left, max(2, min(20, round(rng.gauss(6.0, 3.5)))))
        left -= length
        tokens = 3_072 + context.whole(rng)
        text, name = blocks.prompt(everyone, tokens), f"session-{len(sessions)}"
        session: list[Call] = []
        for turn in range(length):
            tokens += new.whole(rng)
            output = answer.whole(rng)
            text = blocks.prompt(text, tokens + output)
            at = 0.0 if turn == 0 else tool.draw(rng)
            session.append(Call(at, tokens, output, text, limit(rng, output), session=name))
            tokens += output
        for call, following in itertools.pairwise(session):
            call.then = following
        sessions.append(session)
    starts = poisson_arrivals(stream(seed, "arrivals"), rate * len(sessions) / count, len(sessions))
    for session, start in zip(sessions, starts, strict=True):
        session[0].at_ms = start
    source = (
        "generator with the figures of llm-d-benchmark's code generation profile (3,000 shared + 15–100 k tokens, 2–20 "
        "turns, 1,500 in and 800 out a turn), sessions arriving at random instead of a fixed concurrency"
    )
    return Traffic([session[0] for session in sessions], block_tokens, source)
