"""What each room of the picker is told of a configuration. Beside app, which tells them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.config.policies import policy_config
from poolpilot_picker.config.step_models import GENERIC, PROFILES, StepModel, step_model
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.pool import PoolSettings
from poolpilot_picker.flow.queue import BandSettings, QueueSettings
from poolpilot_picker.flow.registry import admitter_of, detector_of
from poolpilot_picker.flow.retries import RetrySettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.tenants import TenantLimits
from poolpilot_picker.learning.breaker import EjectionSettings
from poolpilot_picker.reloading import read_text
from poolpilot_picker.requests import NO_RULES, PoolRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolpilot_picker.config.flow_section import BandPlan
    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.config.settings import EjectionSection, PoolPilotSettings, TenantSettings
    from poolpilot_picker.extproc.held_bodies import HeldBodies
    from poolpilot_picker.state.endpoints import EndpointSpec


def at_start(config: LoadedConfig) -> dict[str, object]:
    """What is read when the picker starts, and not again."""
    settings = config.settings
    telemetry = settings.telemetry
    return {
        "telemetry.busyIntervalMs": telemetry.busy_interval_ms,
        "telemetry.idleIntervalMs": telemetry.idle_interval_ms,
        "telemetry.timeoutMs": telemetry.timeout_ms,
        "limits.maxBodyBytes": settings.limits.max_body_bytes,
        "limits.heldBodyBytes": settings.limits.held_body_bytes,
        "receipts.keep": settings.receipts.keep,
        "stepModels": settings.step_models,
        "ejection": settings.ejection,
        "flowControl": (config.flow, settings.flow_control if config.flow is not None else None),
    }


def pool_settings(config: LoadedConfig) -> PoolSettings:
    """For the pool."""
    settings = config.settings
    return PoolSettings(
        stale_after_ms=settings.telemetry.stale_after_ms,
        observe_share=settings.response_observation.share,
        receipt_share=settings.receipts.share,
        receipts_kept=settings.receipts.keep,
        ejection=_ejection(settings.ejection),
    )


def _ejection(section: EjectionSection) -> EjectionSettings:
    return EjectionSettings(
        most_share=section.most_share,
        consecutive=section.consecutive_failures,
        share=section.failure_share,
        least=section.failure_answers,
        slow_factor=section.slow_factor,
        first_ms=section.first_ms,
        most_ms=section.most_ms,
        trial_ms=section.trial_ms,
        trials=section.trial_requests,
    )


def exchange_settings(
    config: LoadedConfig, rules: PoolRules = NO_RULES, bodies: HeldBodies | None = None
) -> ExchangeSettings:
    """For the exchanges of a pool with these rules, which count in `bodies` what they hold."""
    settings = config.settings
    if config.flow is not None and settings.flow_control.priorities:
        named = {**settings.flow_control.priorities, **rules.priorities}
        rules = msgspec.structs.replace(rules, priorities=named)
    return ExchangeSettings(
        receipt_header=settings.receipts.header,
        strip_headers=settings.strip_request_headers,
        max_body_bytes=settings.limits.max_body_bytes,
        rules=rules,
        bodies=bodies,
    )


BUDGET_SHARE: Final = 0.8
"""Of the time that the gateway waits, a request may wait so much: the picker answers before the gateway does."""


def flow_settings(
    config: LoadedConfig, draw: Callable[[], float], pickers: int = 1, held_bytes: int | None = None
) -> FlowSettings:
    """For the flow control of a pool, whose requests come to so many pickers that do not share queue and budgets.
    `held_bytes`: of bodies that this one may hold."""
    plan, ours = config.flow, config.settings.flow_control
    assert plan is not None
    ttls = {int(priority): ttl for priority, ttl in ours.ttl_ms.items()}

    def band(priority: int | None, of: BandPlan) -> BandSettings:
        return BandSettings(
            max_requests=math.ceil(of.max_requests / pickers),
            max_bytes=math.ceil(of.max_bytes / pickers),
            ttl_ms=None if priority is None else ttls.get(priority),
            ageing_ms=ours.ageing_ms,
            fairness=of.fairness,
            ordering=of.ordering,
        )

    def others(priority: int) -> BandPlan:
        return plan.negative_band if priority < 0 and plan.negative_band is not None else plan.default_band

    bands = {priority: band(priority, of) for priority, of in plan.bands.items()}
    bands |= {priority: band(priority, others(priority)) for priority in ttls if priority not in bands}
    tenants = {name: _limits(one).divided(pickers) for name, one in ours.tenants.items()}
    default = _limits(ours.default_tenant).divided(pickers)
    weights = {name: one.weight / default.weight for name, one in tenants.items()}
    return FlowSettings(
        queue=QueueSettings(
            max_requests=None if plan.max_requests is None else math.ceil(plan.max_requests / pickers),
            max_bytes=held_bytes if plan.max_bytes is None else math.ceil(plan.max_bytes / pickers),
            ttl_ms=plan.ttl_ms,
            no_endpoint_ttl_ms=plan.no_endpoint_ttl_ms,
            most_ttl_ms=BUDGET_SHARE * ours.gateway_timeout_ms,
            default_band=band(None, plan.default_band),
            negative_band=None if plan.negative_band is None else band(None, plan.negative_band),
            bands=bands,
            weights=weights,
            program_aware=plan.program_aware,
        ),
        room=RoomSettings(
            start_within_ms=ours.start_within_ms,
            kv_share=ours.kv_share,
            max_requests=ours.endpoint_requests,
            max_tokens=ours.endpoint_tokens,
            short_tokens=ours.short_tokens,
            short_reserve=ours.short_reserve,
            sheddable_share=ours.sheddable_share,
        ),
        retries=RetrySettings(share=ours.retry_share, burst=ours.retry_burst),
        default_tenant=default,
        tenants=tenants,
        detector=None if plan.detector is None else detector_of(plan.detector),
        ceiling=plan.ceiling,
        admitters=tuple(admitter_of(name, parameters, draw) for name, parameters in plan.admitters),
        drop_sheddable=ours.sheddable == "drop",
        gateway_ms=ours.gateway_timeout_ms,
    )


def _limits(tenant: TenantSettings) -> TenantLimits:
    return TenantLimits(
        tokens=tenant.tokens,
        window_ms=1000.0 * tenant.window_seconds,
        active_sequences=tenant.active_sequences,
        queue_share=tenant.queue_share,
        max_tokens=tenant.max_tokens,
        clamp=tenant.max_tokens_beyond == "clamp",
        weight=tenant.weight,
    )


def step_models(settings: PoolPilotSettings) -> Callable[[EndpointSpec], StepModel]:
    """For the endpoints: which step model each has."""
    models = {**PROFILES, **settings.step_models.profiles}
    prior = settings.step_models.prior or GENERIC
    return lambda spec: step_model(spec.labels, models, prior)


def config_text(file: Path | None, policy: str) -> tuple[str, str]:
    """The file's text or the ready-made policy's, with its name in messages. Raises ConfigurationError."""
    if file is None:
        return policy_config(policy), f"policy {policy}"
    return read_text(file), str(file)
