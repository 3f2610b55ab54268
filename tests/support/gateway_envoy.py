"""A real Envoy made of generated configurations: each variant is a listener, so that one start serves many tests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from poolpilot_lab.processes import Child, envoy, envoy_is_ready, free_ports
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.settings import EnvoySettings, HostPort

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Message = dict[str, Any]
TYPES = "type.googleapis.com/envoy."
EDS_RESOURCE = "pool"
"""Resource name in the endpoint files that pickers write."""


@dataclass(frozen=True)
class Variant:
    """One generated configuration. `change` may alter its listener's connection manager, as a gateway would."""

    name: str
    settings: EnvoySettings
    change: Callable[[Message], None] = field(default=lambda manager: None)


def manager_of(listener: Message) -> Message:
    """The listener's connection manager."""
    found: Message = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc_of(manager: Message) -> Message:
    """The first external processor's configuration."""
    found: Message = next(f for f in manager["http_filters"] if f["name"].startswith("envoy.filters.http.ext_proc"))
    return found


def route_of(manager: Message) -> Message:
    """The generated route."""
    found: Message = manager["route_config"]["virtual_hosts"][0]["routes"][0]
    return found


def before_picker(*filters: Message) -> Callable[[Message], None]:
    """Filters in front of the picker."""
    return lambda manager: manager["http_filters"].__setitem__(slice(0, 0), list(filters))


def behind_picker(*filters: Message) -> Callable[[Message], None]:
    """Filters between the picker and the router."""
    return lambda manager: manager["http_filters"].__setitem__(slice(-1, -1), list(filters))


def fail_hard(manager: Message) -> None:
    """`failure_mode_allow: false`, as some gateways hard-wire it."""
    ext_proc_of(manager)["typed_config"]["failure_mode_allow"] = False


def local_rate_limit(tokens: int = 1) -> Message:
    """Lets `tokens` requests through, then answers 429 for ever."""
    return {
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": TYPES + "extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "limit",
            "token_bucket": {"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "86400s"},
            "filter_enabled": {"default_value": {"numerator": 100}},
            "filter_enforced": {"default_value": {"numerator": 100}},
        },
    }


def header_to_metadata(header: str, namespace: str, key: str) -> Message:
    """Copies a request header into dynamic metadata as a string."""
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": TYPES + "extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                {
                    "header": header,
                    "on_header_present": {"metadata_namespace": namespace, "key": key, "type": "STRING"},
                }
            ],
        },
    }


def set_metadata(namespace: str, value: Message) -> Message:
    """Puts fixed dynamic metadata on every request."""
    return {
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": TYPES + "extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": namespace, "value": value}],
        },
    }


def forbid_path(prefix: str) -> Message:
    """403 for paths that begin so."""
    deny = {
        "permissions": [{"url_path": {"path": {"prefix": prefix}}}],
        "principals": [{"any": True}],
    }
    return {
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": TYPES + "extensions.filters.http.rbac.v3.RBAC",
            "rules": {"action": "DENY", "policies": {"forbidden": deny}},
        },
    }


@dataclass
class Gateway:
    """A running Envoy. `ports` maps a variant's name to the port it listens on."""

    child: Child
    admin: int
    ports: dict[str, int]
    config: Message

    def users_of(self, endpoint_file: Path) -> list[str]:
        """Clusters that take their endpoints from this file."""
        return [
            cluster["name"]
            for cluster in self.config["static_resources"]["clusters"]
            if "eds_cluster_config" in cluster
            and cluster["eds_cluster_config"]["eds_config"]["path_config_source"]["path"] == str(endpoint_file)
        ]

    async def stats(self, *words: str) -> dict[str, int]:
        """Counters and gauges whose name contains every word."""
        entries = json.loads(await self._admin_page("/stats?format=json"))["stats"]
        return {
            entry["name"]: entry["value"]
            for entry in entries
            if "name" in entry and "value" in entry and all(word in entry["name"] for word in words)
        }

    async def hosts(self) -> dict[str, set[str]]:
        """Addresses that each cluster knows now."""
        statuses = json.loads(await self._admin_page("/clusters?format=json"))["cluster_statuses"]
        return {
            status["name"]: {_join(**host["address"]["socket_address"]) for host in status.get("host_statuses", ())}
            for status in statuses
        }

    async def _admin_page(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        raw = await reader.read()
        writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        return _dechunk(body) if b"chunked" in head else body

    async def stop(self) -> None:
        """Ends the process."""
        await self.child.stop(grace_s=0)


def _join(address: str, port_value: int) -> str:
    return f"[{address}]:{port_value}" if ":" in address else f"{address}:{port_value}"


def _dechunk(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(rest[:length])
        body = rest[length + 2 :] if length else b""
    return b"".join(pieces)


def combine(variants: list[Variant], admin: int) -> tuple[Message, dict[str, int]]:
    """One bootstrap with a listener for each variant; returns it and the listeners' ports."""
    ports = dict(zip([variant.name for variant in variants], free_ports(len(variants)), strict=True))
    whole: Message = {}
    clusters: dict[str, Message] = {}
    listeners = []
    for variant in variants:
        listen = HostPort("127.0.0.1", ports[variant.name])
        settings = msgspec.structs.replace(
            variant.settings, name=variant.name, listen=listen, admin=HostPort("127.0.0.1", admin)
        )
        whole = bootstrap(settings)
        [listener] = whole["static_resources"]["listeners"]
        variant.change(manager_of(listener))
        listeners.append(listener)
        for cluster in whole["static_resources"]["clusters"]:
            if "eds_cluster_config" in cluster:
                cluster["eds_cluster_config"]["service_name"] = EDS_RESOURCE
            known = clusters.setdefault(cluster["name"], cluster)
            assert known == cluster, f"two different clusters are called {cluster['name']}"
    whole["static_resources"] = {"listeners": listeners, "clusters": list(clusters.values())}
    return whole, ports


async def start_gateway(folder: Path, variants: list[Variant], name: str = "envoy") -> Gateway:
    """Writes the combined configuration and starts Envoy with it."""
    [admin] = free_ports(1)
    config, ports = combine(variants, admin)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config, indent=1))
    child = envoy(path, log=folder / f"{name}.log", name=name).start()
    await child.ready(envoy_is_ready(admin))
    return Gateway(child, admin, ports, config)
