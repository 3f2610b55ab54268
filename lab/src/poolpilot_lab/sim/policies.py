"""Everything that can route in the simulation, by name: poolpilot, the baselines, and the references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.baselines.base import strict
from poolpilot_lab.sim.flow_policies import FLOW_POLICIES
from poolpilot_lab.sim.oracle import CentralQueue, Oracle
from poolpilot_lab.sim.pool_router import PoolRouter
from poolpilot_lab.sim.rollout import Rollout
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_lab.sim.variants import ALL, Variant
from poolpilot_picker.config.step_models import GENERIC, StepModel
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishParameters, PredictedFinishPicker

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Accelerator
    from poolpilot_lab.engine.model import Profile as EngineProfile
    from poolpilot_lab.sim.router import Router
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.state.endpoints import EndpointSpec

ORACLE: Final = "oracle"
CENTRAL_QUEUE: Final = "central-queue"
ROLLOUT: Final = "oracle-rollout"
REFERENCES: Final = (ORACLE, CENTRAL_QUEUE)
"""That run beside the baselines. The rollout, which is slow, runs when it is asked for."""


def names() -> list[str]:
    """Every policy, ours first, references last."""
    return [POOLPILOT, *BASELINES, *REFERENCES]


def make_router(name: str, world: World, seed: int, variant: Variant | None = None) -> Router:
    """A router of that name for one run; `variant`: how poolpilot runs, else by the name. Raises KeyError."""
    if name == ORACLE:
        return Oracle(world, seed)
    if name == ROLLOUT:
        return Rollout(world, seed)
    if name == CENTRAL_QUEUE:
        return CentralQueue(world, seed)
    if name in FLOW_POLICIES:
        return FLOW_POLICIES[name].router(world, _default, seed, step_model=lambda _: GENERIC)
    if name in ALL:
        return _poolpilot(world, seed, variant or ALL[name])
    baseline = BASELINES[name]
    return PoolRouter(
        world,
        lambda: baseline.policy(world),
        seed,
        scrape_ms=baseline.scrape_ms,
        first_tokens=baseline.first_tokens,
        sampling=baseline.sampling,
        ejects=False,
    )


def _default(parameters: PredictedFinishParameters | None = None) -> Profile:
    picker = PredictedFinishPicker(parameters or PredictedFinishParameters())
    return Profile("default", picker=("predicted-finish-picker", picker), guard=strict())


def _poolpilot(world: World, seed: int, variant: Variant) -> Router:
    world = variant.world(world)
    models = [_published(profile) for profile in world.fleet]
    if variant.knowledge == "true":
        models = [_true(engine.accelerator) for engine in world.engines(seed)]

    def step_model(spec: EndpointSpec) -> StepModel:
        return GENERIC if variant.knowledge == "generic" else models[int(spec.labels["endpoint"])]

    return PoolRouter(
        world,
        lambda: _default(variant.parameters),
        seed,
        variant=variant,
        first_tokens=variant.first_tokens,
        step_model=step_model,
    )


def _true(accelerator: Accelerator) -> StepModel:
    published = _published(accelerator.profile)
    return msgspec.structs.replace(
        published,
        step_ms=published.step_ms * accelerator.decode_factor,
        sequence_ms=published.sequence_ms * accelerator.decode_factor,
        context_ms=published.context_ms * accelerator.decode_factor,
        token_ms=published.token_ms * accelerator.prefill_factor,
        token2_ms=published.token2_ms * accelerator.prefill_factor,
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
