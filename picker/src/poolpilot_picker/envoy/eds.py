"""Writes the endpoint file that Envoy watches: fallbacks and retries need it. Off the request's way."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.envoy.settings import EDS_FILE, is_ip
from poolpilot_picker.errors import PoolPilotError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.state.endpoints import EndpointSpec

_ASSIGNMENT: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EdsError(PoolPilotError):
    """The endpoint file could not be written, or lacks an endpoint. Count it and go on: Envoy keeps what it has."""


class EdsWriter:
    """Keeps `directory/eds.json` equal to the wanted endpoints of one pool. Envoy starts only when the file exists.

    The file appears by rename, so that Envoy (which watches the directory) never reads half of it. The caller passes
    what is wanted: on a discovery error it does not call, or passes the last good set; an empty set is an empty pool.
    """

    def __init__(self, directory: str | os.PathLike[str], cluster: str = "pool") -> None:
        self.path = Path(directory) / EDS_FILE
        self._cluster = cluster

    def write(self, endpoints: Iterable[EndpointSpec]) -> bool:
        """Makes the file say `endpoints`; True if it had to be changed.

        Raises EdsError when the directory cannot be written, and after writing the others when an endpoint's host is
        not an IP address (Envoy would refuse the whole file).
        """
        specs = list(endpoints)
        places = sorted({(spec.host, spec.port) for spec in specs if is_ip(spec.host)})
        content = render(self._cluster, places)
        # Not what was written last, but what is there: another program may have replaced it.
        changed = content != self._there()
        if changed:
            self._replace(content)
        named = sorted({spec.address for spec in specs if not is_ip(spec.host)})
        if named:
            raise EdsError(f"endpoints left out of {self.path}, their host is not an IP address: {', '.join(named)}")
        return changed

    def _there(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def _replace(self, content: bytes) -> None:
        # One name per process: two pickers that share a directory by mistake must not mix their halves.
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_bytes(content)
                draft.replace(self.path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise EdsError(f"cannot write the endpoint file {self.path}: {error}") from error


def render(cluster: str, places: Iterable[tuple[str, int]]) -> bytes:
    """The file's content: a DiscoveryResponse with one ClusterLoadAssignment; its version is a digest of the latter."""
    lb_endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}} for host, port in places
    ]
    resource = {"@type": _ASSIGNMENT, "cluster_name": cluster, "endpoints": [{"lb_endpoints": lb_endpoints}]}
    version = hashlib.sha256(msgspec.json.encode(resource)).hexdigest()[:16]
    return msgspec.json.format(msgspec.json.encode({"version_info": version, "resources": [resource]}), indent=1)
