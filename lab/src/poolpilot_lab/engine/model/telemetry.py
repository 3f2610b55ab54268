"""What an engine counts about itself: the numbers behind its metrics page, in seconds and tokens.

Gauges change only when a step ends, as in vLLM: between steps they are frozen, and an arrival is not seen before the
next step ends.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolpilot_lab.engine.model.sequence import Sequence

TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_TIME_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_TIME_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
ITERATION_BOUNDS = tuple(float(x) for x in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
CHOICES_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_bounds(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `longest`: vLLM's buckets of token counts."""
    bounds: list[float] = []
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * decade > longest:
                return tuple(bounds)
            bounds.append(float(mantissa * decade))
        decade *= 10


class Histogram:
    """Counts per bucket (a value equal to a bound belongs to that bound's bucket) and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float, weight: int = 1) -> None:
        """Adds `weight` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight


@dataclass(slots=True)
class Gauges:
    """State of the engine at the end of the last step."""

    running: int = 0
    waiting_capacity: int = 0
    waiting_deferred: int = 0
    kv_usage: float = 0.0

    @property
    def waiting(self) -> int:
        """Sequences that wait, for whatever reason."""
        return self.waiting_capacity + self.waiting_deferred


@dataclass(slots=True)
class Telemetry:
    """Counters and histograms since the engine started."""

    max_model_len: int
    gauges: Gauges = field(default_factory=Gauges)
    steps: int = 0
    busy_ms: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_TIME_BOUNDS))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_TIME_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_TIME_BOUNDS))
    queue_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_TIME_BOUNDS))
    inference_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_TIME_BOUNDS))
    prefill_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_TIME_BOUNDS))
    decode_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_TIME_BOUNDS))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_BOUNDS))
    request_choices: Histogram = field(default_factory=lambda: Histogram(CHOICES_BOUNDS))
    request_preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTION_BOUNDS))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    request_max_generation_tokens: Histogram = field(init=False)
    request_max_tokens: Histogram = field(init=False)
    request_computed_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        """The buckets of token counts reach up to the context length."""
        bounds = token_bounds(self.max_model_len)
        self.request_prompt_tokens = Histogram(bounds)
        self.request_generation_tokens = Histogram(bounds)
        self.request_max_generation_tokens = Histogram(bounds)
        self.request_max_tokens = Histogram(bounds)
        self.request_computed_tokens = Histogram(bounds)

    def looked_up(self, sequence: Sequence) -> None:
        """At the first admission: how much of the prompt was found in the cache."""
        self.prefix_queries += sequence.prompt_tokens
        self.prefix_hits += sequence.cached_tokens

    def answered(self, sequence: Sequence) -> None:
        """At the first token."""
        self.ttft.observe((sequence.first_token - sequence.arrived) / 1000)
        self.prompt_tokens += sequence.prompt_tokens
        self.prompt_tokens_cached += sequence.cached_tokens
        self.prompt_tokens_computed += sequence.prompt_tokens - sequence.cached_tokens

    def completed(self, sequence: Sequence) -> None:
        """When a sequence ended by itself, at its stop token or its limit."""
        self.finished[sequence.stop_reason] += 1
        decode = sequence.last_token - sequence.first_token
        self.e2e.observe((sequence.finished - sequence.arrived) / 1000)
        self.queue_time.observe((sequence.admitted - sequence.arrived) / 1000)
        self.inference_time.observe((sequence.last_token - sequence.admitted) / 1000)
        self.prefill_time.observe((sequence.first_token - sequence.admitted) / 1000)
        self.decode_time.observe(decode / 1000)
        self.time_per_output_token.observe(decode / 1000 / (sequence.generated - 1) if sequence.generated > 1 else 0.0)
        self.request_prompt_tokens.observe(sequence.prompt_tokens)
        self.request_generation_tokens.observe(sequence.generated)
        self.request_max_generation_tokens.observe(sequence.generated)
        self.request_choices.observe(sequence.choices)
        self.request_preemptions.observe(sequence.preemptions)
        self.request_computed_tokens.observe(sequence.prompt_tokens - sequence.cached_tokens)
        if sequence.max_tokens is not None:
            self.request_max_tokens.observe(sequence.max_tokens)
