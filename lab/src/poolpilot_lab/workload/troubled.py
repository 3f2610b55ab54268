"""Requests to applications (`streams`) with what makes trouble: the traffic of the harms (`sim/harms.py`)."""

from __future__ import annotations

from poolpilot_lab.workload.calls import Traffic, limit
from poolpilot_lab.workload.generators import stream
from poolpilot_lab.workload.streams import applications


def troubled(
    rate: float,
    count: int,
    seed: int,
    *,
    long_answers: float = 0.0,
    impatient: float = 0.0,
    several: float = 0.0,
    urgent: float = 0.0,
    longer: float = 1.0,
    block_tokens: int = 64,
) -> Traffic:
    """Shares of the calls: answers of 6,000 to 10,000 tokens; clients that leave within 8 s; four answers asked for;
    high priority. longer: factor on every answer."""
    traffic = applications(rate, count, seed, block_tokens=block_tokens)
    rng = stream(seed, "trouble")
    for call in traffic.calls:
        if longer != 1.0:
            call.output_tokens = max(1, round(longer * call.output_tokens))
            call.max_tokens = limit(rng, call.output_tokens)
        if rng.random() < long_answers:
            call.output_tokens = rng.randint(6_000, 10_000)
            call.max_tokens = limit(rng, call.output_tokens)
            call.label = "long-answer"
        if rng.random() < impatient:
            call.patience_ms = rng.uniform(200.0, 8_000.0)
        if rng.random() < several:
            call.choices = 4
        if rng.random() < urgent:
            call.priority, call.label = 1, "urgent"
    return Traffic(traffic.calls, block_tokens, f"{traffic.source}; with trouble made on purpose")
