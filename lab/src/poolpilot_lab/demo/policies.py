"""The three ways from client to engine that are compared, as Envoy configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_picker.envoy.settings import Baseline, EnvoySettings, HostPort

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to choose an endpoint. `baseline` is Envoy's own; None asks the picker."""

    name: str
    title: str
    baseline: Baseline | None


ROUND_ROBIN: Final = Policy("round-robin", "Envoy's round robin", Baseline.ROUND_ROBIN)
LEAST_REQUEST: Final = Policy("least-request", "Envoy's least request", Baseline.LEAST_REQUEST)
POOLPILOT: Final = Policy("poolpilot", "poolpilot", None)
POLICIES: Final = (ROUND_ROBIN, LEAST_REQUEST, POOLPILOT)


def envoy_settings(
    policy: Policy,
    listen: HostPort,
    admin: HostPort,
    picker: HostPort,
    eds_directory: Path,
    endpoints: Sequence[HostPort],
) -> EnvoySettings:
    """Envoy for one policy; with defaults as `poolpilot envoy-config` prints them."""
    if policy.baseline is not None:
        return EnvoySettings(listen=listen, admin=admin, baseline=policy.baseline, endpoints=tuple(endpoints))
    return EnvoySettings(listen=listen, admin=admin, pickers=(picker,), eds_directory=str(eds_directory))
