"""What each room of the picker is told of a configuration. Beside app, which tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.config.policies import policy_config
from poolpilot_picker.config.step_models import GENERIC, PROFILES, StepModel, step_model
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.flow.pool import PoolSettings
from poolpilot_picker.reloading import read_text
from poolpilot_picker.requests import NO_RULES, PoolRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.config.settings import PoolPilotSettings
    from poolpilot_picker.state.endpoints import EndpointSpec


def at_start(settings: PoolPilotSettings) -> dict[str, object]:
    """What is read when the picker starts, and not again."""
    telemetry = settings.telemetry
    return {
        "telemetry.busyIntervalMs": telemetry.busy_interval_ms,
        "telemetry.idleIntervalMs": telemetry.idle_interval_ms,
        "telemetry.timeoutMs": telemetry.timeout_ms,
        "limits.maxBodyBytes": settings.limits.max_body_bytes,
        "receipts.keep": settings.receipts.keep,
        "stepModels": settings.step_models,
    }


def pool_settings(config: LoadedConfig) -> PoolSettings:
    """For the pool."""
    settings = config.settings
    return PoolSettings(
        stale_after_ms=settings.telemetry.stale_after_ms,
        observe_share=settings.response_observation.share,
        receipt_share=settings.receipts.share,
        receipts_kept=settings.receipts.keep,
    )


def exchange_settings(config: LoadedConfig, rules: PoolRules = NO_RULES) -> ExchangeSettings:
    """For the exchanges of a pool with these rules."""
    settings = config.settings
    return ExchangeSettings(
        receipt_header=settings.receipts.header,
        strip_headers=settings.strip_request_headers,
        max_body_bytes=settings.limits.max_body_bytes,
        rules=rules,
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
