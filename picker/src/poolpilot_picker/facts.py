"""What admin says of the process: facts for metrics, detail for readiness. Beside app and fleet, which have it all."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from poolpilot_picker.admin.page import ProcessFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.background import Background
    from poolpilot_picker.configuring import Configuration
    from poolpilot_picker.sources.discovery import DiscoveryStatus
    from poolpilot_picker.sources.stats import TelemetryStats
    from poolpilot_picker.tls_files import TlsSource


def process_facts(
    configuration: Configuration,
    stats: TelemetryStats,
    *,
    streams_open: int,
    streams_ended: Mapping[str, int],
    discovery_failures: int,
    tls: TlsSource | None = None,
    held: tuple[int, int] = (0, 0),
) -> ProcessFacts:
    """Copies: the page is written in a thread. `held`: bytes of bodies, and how many there may be."""
    return ProcessFacts(
        version=version("poolpilot"),
        streams_open=streams_open,
        streams_ended=dict(streams_ended),
        config_reloads=configuration.reloads,
        config_refusals=configuration.refused,
        plugin_failures=dict(configuration.guard.failures),
        telemetry_errors=dict(stats.errors),
        telemetry_remarks=dict(stats.remarks),
        telemetry_polls=stats.polls,
        telemetry_busy_s=stats.busy_s,
        telemetry_overdue_ms=stats.overdue_ms,
        engine_restarts=stats.restarts,
        discovery_failures=discovery_failures,
        held_bytes=held,
        tls_loads=None if tls is None else (tls.reloads, tls.refused),
    )


def process_detail(
    configuration: Configuration,
    background: Background,
    discovery: DiscoveryStatus | None,
    *,
    in_force: str,
    draining: bool,
    tls: TlsSource | None,
) -> dict[str, str]:
    """Of readiness: what a person should look at. `in_force`: what stays so while discovery has problems."""
    detail: dict[str, str] = {}
    if draining:
        detail["draining"] = "shutting down: no new streams are taken"
    if discovery is not None and (not discovery.ready or discovery.problems):
        first = in_force if discovery.ready else discovery.missing
        detail["discovery"] = f"{first}: {'; '.join(discovery.problems)}".removesuffix(": ")
    if configuration.detail:
        detail["configuration"] = configuration.detail
    if tls is not None and tls.problem:
        detail["certificates"] = tls.problem
    if background.dead:
        detail["faults"] = f"ended by a fault, see the log: {', '.join(background.dead)}"
    return detail
