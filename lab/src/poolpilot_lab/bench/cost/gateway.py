"""Envoy in front of a picker: the generated configuration, in the body modes that are compared. One worker."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from poolpilot_lab.processes import Child, envoy, envoy_is_ready, free_ports
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.render import to_yaml
from poolpilot_picker.envoy.settings import Baseline, EnvoySettings, HostPort, PoolCluster
from poolpilot_picker.envoy.settings import BodyMode as RequestBody

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HOST = "127.0.0.1"


class BodyMode(StrEnum):
    """What of bodies passes through the picker."""

    FULL_DUPLEX = "full-duplex"
    """Both bodies, chunk by chunk: the only mode that Go's pickers know."""
    NONE = "none"
    """The request's body chunk by chunk, nothing of the response's."""
    BUFFERED = "buffered"
    """The request's body in one piece, nothing of the response's but where the picker asks for it (1 %)."""


_REQUEST_BODY = {
    BodyMode.FULL_DUPLEX: RequestBody.FULL_DUPLEX,
    BodyMode.NONE: RequestBody.FULL_DUPLEX,
    BodyMode.BUFFERED: RequestBody.BUFFERED_PARTIAL,
}


class Gateway:
    """One Envoy. Pods are reached by ORIGINAL_DST with every picker: Go's need it, and the comparison a single kind."""

    def __init__(self, child: Child, address: str, admin_port: int) -> None:
        self.child = child
        self.address = address
        self._admin_port = admin_port

    async def start(self) -> None:
        """Ready when it listens."""
        await self.child.start().ready(envoy_is_ready(self._admin_port), 60.0)


def gateway(folder: Path, name: str, picker_ports: Sequence[int], mode: BodyMode) -> Gateway:
    """Not started."""
    listen, admin = _free()
    settings = EnvoySettings(
        listen=listen,
        admin=admin,
        pickers=tuple(HostPort(_HOST, port) for port in picker_ports),
        # Go's picker answers health checks on another port, so nobody is checked.
        picker_health_s=0.0,
        body_mode=_REQUEST_BODY[mode],
        cluster=PoolCluster.ORIGINAL_DST,
        retries=0,
    )
    config = bootstrap(settings)
    if mode is BodyMode.NONE:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"][0]["typed_config"]["processing_mode"]["response_body_mode"] = "NONE"
    return _written(folder, name, settings, to_yaml(settings, config))


def direct(folder: Path, name: str, endpoints: Sequence[str]) -> Gateway:
    """Envoy alone, its own round robin: what there is without a picker. Not started."""
    listen, admin = _free()
    pods = tuple(HostPort.parse(endpoint, "endpoint") for endpoint in endpoints)
    settings = EnvoySettings(listen=listen, admin=admin, baseline=Baseline.ROUND_ROBIN, endpoints=pods, retries=0)
    return _written(folder, name, settings, to_yaml(settings, bootstrap(settings)))


def _free() -> tuple[HostPort, HostPort]:
    listen, admin = free_ports(2)
    return HostPort(_HOST, listen), HostPort(_HOST, admin)


def _written(folder: Path, name: str, settings: EnvoySettings, text: str) -> Gateway:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.yaml"
    config.write_text(text, encoding="utf-8")
    assert settings.admin is not None
    child = envoy(config, log=folder / f"{name}.log", name=name)
    return Gateway(child, f"{settings.listen.host}:{settings.listen.port}", settings.admin.port)
