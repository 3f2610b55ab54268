"""Seeded generators of traffic in which some stand in others' way: the scenarios of the table `flow`.

Pairs of them differ in one thing at the same total load: one tenant with ten shares beside nineteen with one each, or a
part of the work that comes as prompts of 30,000 tokens. Rates in requests/s.
"""

from __future__ import annotations

import math
from dataclasses import replace

from poolpilot_lab.workload.calls import Blocks, Call, Traffic, limit
from poolpilot_lab.workload.draws import LogNormal, gamma_arrivals, poisson_arrivals
from poolpilot_lab.workload.generators import stream

_PROMPT = LogNormal(300.0, 0.8, 16.0, 4_000.0)
_ANSWER = LogNormal(180.0, 0.8, 8.0, 2_000.0)
_SYSTEM_TOKENS = 512
_LONG = (28_000, 32_000)


def shares(
    rate: float,
    count: int,
    seed: int,
    *,
    weights: tuple[float, ...] = (1.0,) * 20,
    block_tokens: int = 64,
) -> Traffic:
    """Tenants alike in what they send, each with a system prompt of its own; `weights`: how much of it. Who sends more
    than the least is a bully, all the rest are others."""
    blocks, rng = Blocks(block_tokens), stream(seed, "shares")
    systems = [blocks.fresh(_SYSTEM_TOKENS) for _ in weights]
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        number = rng.choices(range(len(weights)), weights)[0]
        tokens, output = _SYSTEM_TOKENS + _PROMPT.whole(rng), _ANSWER.whole(rng)
        text = blocks.prompt(systems[number], tokens)
        label = "bully" if weights[number] > min(weights) else "others"
        calls.append(Call(at, tokens, output, text, limit(rng, output), tenant=f"tenant-{number:02}", label=label))
    told = f"one with {max(weights):g} shares" if max(weights) > min(weights) else "equal shares"
    return Traffic(calls, block_tokens, f"generator: {len(weights)} tenants, {told}; chat lengths")


def flood(
    rate: float, count: int, seed: int, *, long_share: float = 0.0, tenants: int = 10, block_tokens: int = 64
) -> Traffic:
    """Chat of some tenants; `long_share` of all requests are prompts of 30,000 tokens of one more tenant, in bursts."""
    blocks, rng = Blocks(block_tokens), stream(seed, "flood")
    long_count = round(long_share * count)
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), (1.0 - long_share) * rate, count - long_count):
        tokens, output = _PROMPT.whole(rng), _ANSWER.whole(rng)
        tenant = f"tenant-{rng.randrange(tenants):02}"
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), tenant=tenant, label="short"))
    if long_count:
        for at in gamma_arrivals(stream(seed, "long"), long_share * rate, long_count, 2.0):
            tokens, output = rng.randint(*_LONG), rng.randint(100, 500)
            text = blocks.fresh(tokens)
            calls.append(Call(at, tokens, output, text, limit(rng, output), tenant="flood", label="flood"))
    calls.sort(key=lambda call: call.at_ms)
    source = f"generator: chat of {tenants} tenants"
    if long_count:
        source += f", {100 * long_share:g} % of 30,000-token prompts of one more, in bursts (CV 2)"
    return Traffic(calls, block_tokens, source)


def ramp(
    rate: float,
    count: int,
    seed: int,
    *,
    low: float = 0.5,
    high: float = 2.0,
    begin_s: float = 30.0,
    ramp_s: float = 90.0,
    settled_s: float = 180.0,
    block_tokens: int = 64,
) -> Traffic:
    """Chat at `low` of the rate, that grows to `high` of it within `ramp_s` and stays there. Called before, during
    and after: by when the growth begins, and when the pool should have followed."""
    steady = flood(rate, count, seed, block_tokens=block_tokens)
    calls = []
    for call in steady.calls:
        at = _ramped(call.at_ms / 1000.0, low, high, begin_s, ramp_s)
        label = "before" if at < begin_s else "during" if at < settled_s else "settled"
        calls.append(replace(call, at_ms=1000.0 * at, label=label))
    return Traffic(calls, block_tokens, f"{steady.source}; {low:g} of the rate, from {begin_s:g} s on {high:g} of it")


def _ramped(mean: float, low: float, high: float, begin: float, length: float) -> float:
    """When so many requests have come as in `mean` seconds at the whole rate."""
    left = mean - low * begin
    if left <= 0.0:
        return mean / low
    grown = 0.5 * (low + high) * length
    if left >= grown:
        return begin + length + (left - grown) / high
    slope = (high - low) / length
    return begin + (math.sqrt(low * low + 2.0 * slope * left) - low) / slope


def prefill_bound(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """New prompts of very different lengths and short answers: engines are busy with prompts, and wait in turn."""
    blocks, rng = Blocks(block_tokens), stream(seed, "prefill")
    prompt, answer = LogNormal(3_000.0, 1.2, 64.0, 60_000.0), LogNormal(60.0, 0.6, 8.0, 300.0)
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        tokens, output = prompt.whole(rng), answer.whole(rng)
        label = "short" if tokens <= 2_048 else "long"
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), label=label))
    source = "generator: prompts of 64 to 60,000 tokens (median 3,000, sigma 1.2), answers of 60, nothing shared"
    return Traffic(calls, block_tokens, source)


def adversary(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """Who would starve: a tenant whose prompts are long, and one of the lowest priority that is not sheddable, beside
    a stream of urgent requests and an attacker who takes another name for each short request."""
    blocks, rng = Blocks(block_tokens), stream(seed, "adversary")
    calls: list[Call] = []
    for number, at in enumerate(poisson_arrivals(stream(seed, "arrivals"), rate, count)):
        kind = rng.choices(("urgent", "names", "background", "long"), (0.4, 0.4, 0.18, 0.02))[0]
        tokens, output = _PROMPT.whole(rng), _ANSWER.whole(rng)
        tenant, priority = kind, 1
        if kind == "names":
            tenant = f"name-{number}"
        elif kind == "background":
            priority = 0
        elif kind == "long":
            tokens, output = rng.randint(*_LONG), rng.randint(100, 500)
        calls.append(
            Call(
                at,
                tokens,
                output,
                blocks.fresh(tokens),
                limit(rng, output),
                tenant=tenant,
                priority=priority,
                label=kind,
            )
        )
    source = (
        "generator: 40 % urgent, 40 % of an attacker with a new name for each request, 18 % of the lowest priority "
        "that is not sheddable, 2 % of 30,000-token prompts"
    )
    return Traffic(calls, block_tokens, source)
