"""Seeded generators of single requests: scenarios S3, S6 to S13 and poisson-mix. Rates in requests/s.

Where a public data set is not at hand, its published statistics are the parameters: each source text says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.workload.calls import Blocks, Call, Traffic, limit
from poolpilot_lab.workload.draws import LogNormal, gamma_arrivals, poisson_arrivals, zipf_weights
from poolpilot_lab.workload.generators import stream

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

_CHAT_PROMPT = LogNormal(300.0, 0.8, 16.0, 4_000.0)
_CHAT_ANSWER = LogNormal(180.0, 0.8, 8.0, 2_000.0)


def short_long(
    rate: float,
    count: int,
    seed: int,
    *,
    long_share: float = 0.3,
    short: tuple[int, int] = (20, 100),
    long: tuple[int, int] = (500, 2_000),
    prompts: tuple[int, int] = (200, 2_000),
    block_tokens: int = 64,
) -> Traffic:
    """The Poisson mix: 70 % short and 30 % long answers, all prompts new."""
    blocks, rng = Blocks(block_tokens), stream(seed, "mix")
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        is_long = rng.random() < long_share
        tokens, output = rng.randint(*prompts), rng.randint(*(long if is_long else short))
        label = "long" if is_long else "short"
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), label=label))
    source = "generator: 70 % of 20–100 and 30 % of 500–2,000 output tokens, prompts 200–2,000"
    return Traffic(calls, block_tokens, source)


def uniform(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """Equal requests at equal distances: where a balancer has nothing to decide."""
    blocks = Blocks(block_tokens)
    calls = [Call(1000.0 * n / rate, 512, 128, blocks.fresh(512), None) for n in range(count)]
    return Traffic(calls, block_tokens, "equal requests (512 in, 128 out) at equal distances")


def reasoning(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """Reasoning: short prompts, very long answers."""
    blocks, rng = Blocks(block_tokens), stream(seed, "reasoning")
    answer, shared = LogNormal(6_500.0, 0.65, 500.0, 32_000.0), blocks.fresh(250)
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        output = answer.whole(rng)
        calls.append(Call(at, 1_250, output, blocks.prompt(shared, 1_250), limit(rng, output)))
    source = "generator with the inference-perf catalogue's reasoning profile (250 + 1,000 in, 8,000 out, 500–32,000)"
    return Traffic(calls, block_tokens, source)


def bimodal(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """Chat with a tenth of heavy jobs: half of them 30,000-token prompts, half 8,000-token answers, in bursts."""
    blocks, rng = Blocks(block_tokens), stream(seed, "bimodal")
    heavy_count = count // 10
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), 0.9 * rate, count - heavy_count):
        tokens, output = _CHAT_PROMPT.whole(rng), _CHAT_ANSWER.whole(rng)
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), tenant="chat", label="chat"))
    for at in gamma_arrivals(stream(seed, "heavy"), 0.1 * rate, heavy_count, 2.0):
        is_prompt = rng.random() < 0.5
        tokens = rng.randint(28_000, 32_000) if is_prompt else rng.randint(200, 1_000)
        output = rng.randint(100, 500) if is_prompt else rng.randint(6_000, 10_000)
        label = "long-prompt" if is_prompt else "long-answer"
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), tenant="batch", label=label))
    calls.sort(key=lambda call: call.at_ms)
    source = "generator: 90 % chat, 5 % of 30,000-token prompts, 5 % of 8,000-token answers, these two in bursts (CV 2)"
    return Traffic(calls, block_tokens, source)


def tenants(rate: float, count: int, seed: int, *, block_tokens: int = 64) -> Traffic:
    """Twenty tenants by Zipf's law, each with its own prompts; one sends ten times as much in the middle third."""
    blocks, rng = Blocks(block_tokens), stream(seed, "tenants")
    names = [f"tenant-{number:02}" for number in range(20)]
    weights = zipf_weights(20, 1.0)
    noisy = 9
    systems = [blocks.fresh(rng.randint(256, 2_048)) for _ in names]
    factors = [rng.uniform(0.5, 2.0) for _ in names]
    arrivals = _modulated(stream(seed, "arrivals"), rate, count, (1.0, 1.0 + 9.0 * weights[noisy], 1.0))
    calls: list[Call] = []
    for at, part in arrivals:
        shares = list(weights)
        if part == 1:
            shares[noisy] *= 10.0
        number = rng.choices(range(20), shares)[0]
        system = systems[number]
        tokens = len(system) * block_tokens + round(_CHAT_PROMPT.whole(rng) * factors[number])
        output = max(4, round(_CHAT_ANSWER.whole(rng) * factors[number]))
        text = blocks.prompt(system, tokens)
        calls.append(Call(at, tokens, output, text, limit(rng, output), tenant=names[number]))
    source = "generator: 20 tenants, Zipf 1, one of them × 10 in the middle third; chat lengths × 0.5–2 by tenant"
    return Traffic(calls, block_tokens, source)


def adapters(
    rate: float, count: int, seed: int, *, number: int = 100, zipf: float = 1.0, block_tokens: int = 64
) -> Traffic:
    """LoRA adapters by Zipf's law, prompts all new."""
    blocks, rng = Blocks(block_tokens), stream(seed, "adapters")
    names, weights = adapter_names(number), zipf_weights(number, zipf)
    answer = LogNormal(120.0, 0.7, 8.0, 1_000.0)
    calls: list[Call] = []
    for at in poisson_arrivals(stream(seed, "arrivals"), rate, count):
        tokens, output = rng.randint(100, 1_000), answer.whole(rng)
        adapter = rng.choices(names, weights)[0]
        calls.append(Call(at, tokens, output, blocks.fresh(tokens), limit(rng, output), adapter=adapter))
    return Traffic(calls, block_tokens, f"generator: {number} adapters, Zipf {zipf:g}; loads of 500 ms")


def adapter_names(number: int) -> tuple[str, ...]:
    """Names of the adapters, most popular first."""
    return tuple(f"adapter-{index:04}" for index in range(number))


def applications(
    rate: float,
    count: int,
    seed: int,
    *,
    prompts: int = 40,
    system_tokens: int = 1_024,
    sheddable: float = 0.0,
    bursts: bool = False,
    block_tokens: int = 64,
) -> Traffic:
    """Requests to applications with a common system prompt each, some popular. The base of S9 to S13.

    sheddable: share of requests of low priority. bursts: five times the rate in every second half minute, CV 2.
    """
    blocks, rng = Blocks(block_tokens), stream(seed, "applications")
    systems = [blocks.fresh(system_tokens) for _ in range(prompts)]
    question = LogNormal(600.0, 0.8, 16.0, 6_000.0)
    source = (
        f"generator: {prompts} system prompts of {system_tokens:,} tokens, questions of 600, answers of 180 (medians)"
    )
    if bursts:
        times = _bursts(stream(seed, "arrivals"), rate, count)
        source += "; 1:5 rate ladder in steps of 30 s, gamma gaps with CV 2"
    else:
        times = poisson_arrivals(stream(seed, "arrivals"), rate, count)
    calls: list[Call] = []
    for at in times:
        tokens, output = system_tokens + question.whole(rng), _CHAT_ANSWER.whole(rng)
        system = systems[min(prompts - 1, int(prompts * rng.random() ** 2))]
        call = Call(at, tokens, output, blocks.prompt(system, tokens), limit(rng, output))
        if sheddable:
            low = rng.random() < sheddable
            call.label, call.priority = ("sheddable", -1) if low else ("critical", 1)
        calls.append(call)
    return Traffic(calls, block_tokens, source)


def _modulated(rng: random.Random, rate: float, count: int, parts: tuple[float, ...]) -> list[tuple[float, int]]:
    """(time, part): Poisson arrivals whose rate changes in equal parts of time; `parts`: relative rates."""
    span = count / rate * 1000.0 / len(parts)
    arrivals: list[tuple[float, int]] = []
    for number, relative in enumerate(parts):
        here = round(count * relative / sum(parts))
        times = sorted(rng.uniform(0.0, span) for _ in range(here))
        arrivals += [(number * span + time, number) for time in times]
    return arrivals


def _bursts(rng: random.Random, rate: float, count: int, step_ms: float = 30_000.0) -> list[float]:
    """Steps of `step_ms` that alternate between one and five parts of the rate, with bursts inside."""
    low = rate / 3.0
    times: list[float] = []
    begin, fast = 0.0, False
    while len(times) < count:
        at = begin
        for gap in _gaps(rng, 5.0 * low if fast else low):
            at += gap
            if at >= begin + step_ms or len(times) == count:
                break
            times.append(at)
        begin, fast = begin + step_ms, not fast
    return times


def _gaps(rng: random.Random, per_second: float, cv: float = 2.0) -> Iterator[float]:
    shape = 1.0 / (cv * cv)
    while True:
        yield rng.gammavariate(shape, 1000.0 / per_second / shape)
