"""The simulated world: which engines there are, what of them is hidden from the policies, how late telemetry comes.

Nothing here is known to a policy unless telemetry tells it. Times in ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from poolpilot_lab.engine.model import PROFILES, Accelerator, Engine, EngineSettings, Profile, Variation
from poolpilot_lab.engine.model.step_tables import step_tables

if TYPE_CHECKING:
    from poolpilot_lab.sim.flow_autoscaler import Scaling

IDENTICAL = Variation(sigma=0.0, step_noise=0.1, stall_every_ms=120_000.0, stall_ms=150.0)
"""Identical hardware: only step noise and stalls."""
HIDDEN = replace(IDENTICAL, sigma=0.262)
"""Hidden speeds: prefill and decode factors of each endpoint lognormal with σ 0.262 (±26 %), clipped at 2σ."""
EXACT = Variation()
"""The published coefficients, no noise: what limits assume of every engine."""

MAX_MODEL_LEN = 300_000
"""No trace has a longer request; which model would take it is not the question here."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to one endpoint during a run.

    slow: every step takes `factor` times as long. fail: it answers every new request with an error within `factor` ms.
    heal: both end. kill: it is gone, with all that runs there, and discovery says so `factor` ms later. drain:
    discovery takes it off, what runs there ends well. start: it joins, cold (it was not there from the start).
    """

    at_share: float
    """When, as a share of the time until the last arrival."""
    kind: Literal["slow", "fail", "heal", "kill", "drain", "start"]
    endpoint: int
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Special:
    """What one endpoint's engine does otherwise. None of it is told to a policy but by telemetry."""

    endpoint: int
    prefix_caching: bool = True
    tokens_per_step: float = 1.0
    """Speculative decoding: tokens that a step yields in the mean."""
    step_factor: float = 1.0
    """And what drafting adds to each step."""
    ranks: int = 1
    """Data-parallel attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything but the traffic and the policy."""

    fleet: tuple[Profile, ...]
    """One profile per endpoint, those that start later included."""
    block_tokens: int = 64
    variation: Variation = HIDDEN
    tables: bool = True
    """Steps take what tables say, where there are any: no policy believes in the very formula of the world."""
    max_loras: int = 0
    lora_load_ms: float = 500.0
    adapters: tuple[str, ...] = ()
    """Registered at every endpoint."""
    changes: tuple[Change, ...] = ()
    pickers: int = 1
    """Pickers that share nothing; requests are spread over them at random."""
    scrape_ms: float | None = None
    """Between two readings of an endpoint; None: as the policy's own default is in life."""
    telemetry_delay_ms: float = 50.0
    """From the reading of an endpoint's state until a policy sees it."""
    dispatch_ms: float = 2.0
    """From the pick until the engine has the request: the picker's own latency and one hop."""
    notice_ms: float = 1.0
    """From a token or an end at the engine until the picker sees it."""
    token_bias: float = 0.15
    """σ of the logarithm of the estimator's bias, one for all requests of a run, learned from usage."""
    token_noise: float = 0.08
    """σ of the logarithm of the token estimate of one prompt."""
    specials: tuple[Special, ...] = ()
    priority_scheduling: bool = False
    misjudged: tuple[float, float] = (0.0, 1.0)
    """(share of the prompts, factor by which the picker's token estimate is off for them): text it does not know."""
    scaling: Scaling | None = None
    """An autoscaler starts and ends endpoints; those behind its first ones are there when it asks for them."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def engines(self, seed: int) -> list[Engine]:
        """The engines of one hidden draw."""
        draw = random.Random(f"{seed}/world")
        special = {one.endpoint: one for one in self.specials}
        return [
            self._engine(profile, draw.getrandbits(48), special.get(endpoint, Special(endpoint)))
            for endpoint, profile in enumerate(self.fleet)
        ]

    def tokens_per_step(self, endpoint: int) -> float:
        """Of an endpoint's decode steps."""
        return next((one.tokens_per_step for one in self.specials if one.endpoint == endpoint), 1.0)

    def _engine(self, profile: Profile, seed: int, special: Special) -> Engine:
        settings = EngineSettings(
            num_gpu_blocks=special.ranks * profile.kv_tokens // self.block_tokens + 1,
            block_size=self.block_tokens,
            max_num_seqs=self.max_num_seqs * special.ranks,
            enable_prefix_caching=special.prefix_caching,
            priority_scheduling=self.priority_scheduling,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            max_loras=self.max_loras,
            lora_load_ms=self.lora_load_ms,
        )
        tabulated = self.tables and profile == PROFILES.get(profile.id)
        table = step_tables().get(profile.id) if tabulated else None
        accelerator = Accelerator(profile, self.variation, seed, table)
        accelerator.ranks = special.ranks
        accelerator.decode_factor *= special.step_factor
        engine = Engine(settings, accelerator)
        engine.tells_tokens = False
        return engine

    def starts_later(self, endpoint: int) -> bool:
        """Whether the endpoint joins during the run."""
        if self.scaling is not None and endpoint >= self.scaling.first:
            return True
        return any(change.kind == "start" and change.endpoint == endpoint for change in self.changes)


@dataclass(frozen=True, slots=True)
class Slo:
    """What counts as good: the request's TTFT and its time per output token are both within."""

    ttft_ms: float = 2_000.0
    tpot_ms: float = 50.0
    by_label: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(ttft_ms, tpot_ms) of classes that differ."""

    def of(self, label: str) -> tuple[float, float]:
        """(ttft_ms, tpot_ms) of a class."""
        return self.by_label.get(label, (self.ttft_ms, self.tpot_ms))
