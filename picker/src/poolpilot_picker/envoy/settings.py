"""What a generated Envoy configuration depends on, and which combinations make sense. Checked before rendering."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import Final

import msgspec

from poolpilot_picker.errors import ConfigurationError

DEFAULT_EDS_DIRECTORY: Final = "/run/poolpilot/eds"
EDS_FILE: Final = "eds.json"
MAX_PATH: Final = 4096
MOST_PORT: Final = 65_535
TURNS_MS: Final = (0, 1, 10, 100)
"""How long one of two pickers may get all new streams: what Envoy can cut from a timestamp; 0: one stream."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


class PoolCluster(StrEnum):
    """How Envoy turns the picker's answer into a connection."""

    OVERRIDE_HOST = "override-host"
    """Endpoints from a file the picker writes: ordered fallbacks, retries on another endpoint, fail open or close."""
    ORIGINAL_DST = "original-dst"
    """No endpoint list in Envoy: exactly the address picked, always fails closed, retries go to the same address."""


class BodyMode(StrEnum):
    """How the request body reaches the picker."""

    BUFFERED_PARTIAL = "buffered-partial"
    BUFFERED = "buffered"
    FULL_DUPLEX = "full-duplex"
    """Both directions, as the Endpoint Picker Protocol asks for; the last resort."""


class FailureMode(StrEnum):
    """What happens to requests while no picker answers."""

    OPEN = "open"
    CLOSE = "close"


class PodProtocol(StrEnum):
    """What Envoy speaks to the pods."""

    HTTP1 = "http1"
    HTTP2 = "http2"
    DOWNSTREAM = "downstream"
    """What the client spoke; for pods that understand both."""


class Baseline(StrEnum):
    """Envoy's own balancing, without a picker."""

    ROUND_ROBIN = "round-robin"
    LEAST_REQUEST = "least-request"


class HostPort(msgspec.Struct, frozen=True):
    """One socket address. `host` is an IP address (IPv6 without brackets) or a DNS name."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, field: str) -> HostPort:
        """Reads `host:port` or `[v6]:port`; ConfigurationError names `field`, the value and what is allowed."""
        host, separator, digits = text.rpartition(":")
        wrong = ConfigurationError(f"{field}: {text!r} is not an address; write IP:PORT, [IPV6]:PORT or NAME:PORT")
        if not separator or not digits.isascii() or not digits.isdigit():
            raise wrong
        if not 0 < int(digits) <= MOST_PORT:
            raise ConfigurationError(f"{field}: the port of {text!r} must be between 1 and 65535")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not is_ip(host) or ":" not in host:
                raise wrong
        elif ":" in host or not (is_ip(host) or _is_dns_name(host)):
            raise wrong
        return cls(host, int(digits))

    @property
    def is_ip(self) -> bool:
        """False for a DNS name."""
        return is_ip(self.host)


def is_ip(host: str) -> bool:
    """Whether `host` is a literal IP address (no brackets)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_dns_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    # A name whose last label is a number is a mistyped IPv4 address, never a host.
    return len(host) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


class EnvoySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that varies between two generated configurations. Times in seconds, sizes in bytes; 0 s = no limit.

    Call `check()` before rendering; `fail=None` means close, as in an InferencePool without a failureMode.
    """

    name: str = "pool"
    """Of the pool: names the listener, its cluster and the resource in the endpoint file."""
    listen: HostPort = HostPort("0.0.0.0", 8081)  # noqa: S104 - a gateway listens to everybody
    admin: HostPort | None = HostPort("127.0.0.1", 19000)
    access_log: str | None = None

    # The picker
    pickers: tuple[HostPort, ...] = (HostPort("127.0.0.1", 9002),)
    picker_cluster: str = "picker"
    picker_tls: bool = False
    picker_ca_file: str | None = None
    picker_server_name: str | None = None
    picker_health_s: float = 1.0
    """Between two health checks of a picker, 0 for none."""
    picker_turn_ms: int = 100
    """One of TURNS_MS: where there are two pickers, streams that begin within one go to the same, then to the other."""
    body_mode: BodyMode = BodyMode.BUFFERED_PARTIAL
    fail: FailureMode | None = None
    message_timeout_s: float = 5.0
    max_message_timeout_s: float = 600.0

    # The pods
    cluster: PoolCluster = PoolCluster.OVERRIDE_HOST
    eds_directory: str = DEFAULT_EDS_DIRECTORY
    pod_protocol: PodProtocol = PodProtocol.HTTP1
    connect_timeout_s: float = 1.0
    pod_idle_timeout_s: float = 4.0
    retries: int = 2
    retry_budget_percent: float = 50.0
    """Of the pool's active requests that may be retries at a time (LEAST_RETRIES always may); 0: no such bound."""
    route_timeout_s: float = 0.0
    stream_idle_timeout_s: float = 3600.0
    max_body_bytes: int = 32 << 20
    max_streams: int = 100_000

    # Without a picker
    baseline: Baseline | None = None
    endpoints: tuple[HostPort, ...] = ()

    @property
    def fails(self) -> FailureMode:
        """The failure mode in force."""
        return self.fail or FailureMode.CLOSE

    @property
    def eds_path(self) -> str:
        """The endpoint file Envoy watches."""
        return f"{self.eds_directory.rstrip('/')}/{EDS_FILE}"

    def check(self) -> None:
        """Raises ConfigurationError with one sentence per problem."""
        problems = [*self._names(), *self._numbers(), *self._combinations()]
        if problems:
            raise ConfigurationError(*problems)

    def _names(self) -> list[str]:
        problems = [
            f"{field}: {value!r} is not a name; use letters, digits, '.', '_' and '-', at most 253 characters"
            for field, value in (("name", self.name), ("picker-cluster", self.picker_cluster))
            if not _NAME.fullmatch(value)
        ]
        if self.name == self.picker_cluster:
            problems.append(f"name: {self.name!r} is the name of the picker's cluster; the pool needs another")
        for field, path in (("eds-dir", self.eds_directory), ("picker-ca-file", self.picker_ca_file)):
            if path is not None and (not path.startswith("/") or len(path) > MAX_PATH):
                problems.append(f"{field}: {path!r} must be an absolute path: Envoy may run in another directory")
        return problems

    def _numbers(self) -> list[str]:
        problems = []
        bounds: tuple[tuple[str, float, float, float], ...] = (
            ("message-timeout", self.message_timeout_s, 0.001, 86_400),
            ("max-message-timeout", self.max_message_timeout_s, 0.001, 86_400),
            ("picker-health", self.picker_health_s, 0, 3_600),
            ("connect-timeout", self.connect_timeout_s, 0.001, 3_600),
            ("pod-idle-timeout", self.pod_idle_timeout_s, 0, 86_400),
            ("route-timeout", self.route_timeout_s, 0, 2_592_000),
            ("stream-idle-timeout", self.stream_idle_timeout_s, 0, 2_592_000),
            ("retries", self.retries, 0, 10),
            ("retry-budget", self.retry_budget_percent, 0, 100),
            ("max-body-bytes", self.max_body_bytes, 1_024, 1 << 31),
            ("max-streams", self.max_streams, 1, 1 << 31),
        )
        for field, value, least, most in bounds:
            if not least <= value <= most:
                problems.append(f"{field}: {value:.12g} must be between {least:.12g} and {most:.12g}")
        if self.picker_turn_ms not in TURNS_MS:
            allowed = ", ".join(map(str, TURNS_MS))
            problems.append(f"picker-turn-ms: {self.picker_turn_ms} is not possible; allowed: {allowed}")
        if self.max_message_timeout_s < self.message_timeout_s:
            problems.append(
                f"max-message-timeout: {self.max_message_timeout_s:g} s must not be below "
                f"message-timeout, {self.message_timeout_s:g} s"
            )
        return problems

    def _combinations(self) -> list[str]:
        problems = []
        if self.baseline is not None:
            if not self.endpoints:
                problems.append("endpoints: without a picker, Envoy needs the endpoints: add --endpoints IP:PORT,…")
            return problems
        if self.endpoints:
            problems.append(
                "endpoints: with a picker, Envoy learns the endpoints from the picker; give them to the picker, "
                "or add --without-picker round-robin or least-request"
            )
        if self.admin == self.listen and self.listen.port:
            problems.append(f"admin: clients are already listened to on port {self.listen.port}; it needs another port")
        if not self.pickers:
            problems.append("picker: at least one address is needed, IP:PORT or NAME:PORT")
        if self.cluster is PoolCluster.ORIGINAL_DST and self.fail is FailureMode.OPEN:
            problems.append(
                "fail: an original-dst cluster has no endpoint list to fall back to, so it cannot fail open; "
                "use --fail close or --cluster override-host"
            )
        if self.cluster is PoolCluster.ORIGINAL_DST and self.eds_directory != DEFAULT_EDS_DIRECTORY:
            problems.append("eds-dir: an original-dst cluster reads no endpoint file; leave the flag out")
        if not self.picker_tls and (self.picker_ca_file or self.picker_server_name):
            problems.append("picker-ca-file, picker-server-name: they need --picker-tls")
        if self.picker_ca_file and not self.picker_server_name:
            problems.append(
                "picker-server-name: needed with --picker-ca-file, else any certificate of that authority would do"
            )
        return problems
