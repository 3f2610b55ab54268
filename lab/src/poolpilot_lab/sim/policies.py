"""Everything that can route in the simulation, by name: poolpilot, the baselines, and the references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.baselines.base import strict
from poolpilot_lab.sim.oracle import CentralQueue, Oracle
from poolpilot_lab.sim.pool_router import PoolRouter
from poolpilot_picker.config.step_models import GENERIC, StepModel
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishParameters, PredictedFinishPicker

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Profile as EngineProfile
    from poolpilot_lab.sim.router import Router
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.state.endpoints import EndpointSpec

POOLPILOT: Final = "poolpilot"
ORACLE: Final = "oracle"
CENTRAL_QUEUE: Final = "central-queue"
REFERENCES: Final = (ORACLE, CENTRAL_QUEUE)

Knowledge = Literal["generic", "profile"]
"""What the policy is given of the engines' coefficients: one generic prior for all, or each endpoint's published
profile (never the hidden factors)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How poolpilot is configured in a run."""

    knowledge: Knowledge = "generic"
    first_tokens: bool = False
    """Sees the first token of every answer (response bodies streamed), not of a sample."""
    parameters: PredictedFinishParameters = field(default_factory=PredictedFinishParameters)


def names() -> list[str]:
    """Every policy, ours first, references last."""
    return [POOLPILOT, *BASELINES, *REFERENCES]


def make_router(name: str, world: World, seed: int, variant: Variant | None = None) -> Router:
    """A router of that name for one run. Raises KeyError for an unknown name."""
    if name == ORACLE:
        return Oracle(world, seed)
    if name == CENTRAL_QUEUE:
        return CentralQueue(world, seed)
    if name == POOLPILOT:
        return _poolpilot(world, seed, variant or Variant())
    baseline = BASELINES[name]
    return PoolRouter(
        world,
        lambda: baseline.policy(world),
        seed,
        scrape_ms=baseline.scrape_ms,
        first_tokens=baseline.first_tokens,
    )


def _poolpilot(world: World, seed: int, variant: Variant) -> Router:
    models = [_published(profile) for profile in world.fleet]

    def step_model(spec: EndpointSpec) -> StepModel:
        return GENERIC if variant.knowledge == "generic" else models[int(spec.labels["endpoint"])]

    return PoolRouter(
        world,
        lambda: Profile(
            "default",
            picker=("predicted-finish-picker", PredictedFinishPicker(variant.parameters)),
            guard=strict(),
        ),
        seed,
        first_tokens=variant.first_tokens,
        counts_pickers=True,
        step_model=step_model,
    )


def _published(profile: EngineProfile) -> StepModel:
    return StepModel(
        step_ms=profile.decode_a_ms + profile.step_overhead_ms,
        sequence_ms=profile.decode_b_ms + profile.sequence_overhead_ms,
        context_ms=profile.decode_c_ms,
        token_ms=profile.prefill_b_ms,
        token2_ms=profile.prefill_c_ms,
        kv_tokens=profile.kv_tokens,
    )
