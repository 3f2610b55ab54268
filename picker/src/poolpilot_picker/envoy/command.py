"""`poolpilot envoy-config`: prints the Envoy configuration that puts the picker in front of a pool."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from poolpilot_picker.config.seat import MOST_WORKERS
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.render import to_yaml
from poolpilot_picker.envoy.settings import (
    DEFAULT_EDS_DIRECTORY,
    MOST_PORT,
    TURNS_MS,
    Baseline,
    BodyMode,
    EnvoySettings,
    FailureMode,
    HostPort,
    PodProtocol,
    PoolCluster,
)
from poolpilot_picker.errors import ConfigurationError

_PROGRAM = "poolpilot envoy-config"


def main(argv: list[str]) -> int:
    """Runs the command; exit code 0, 2 on wrong flags, 1 when the file cannot be written."""
    arguments = _parser().parse_args(argv)
    try:
        settings = settings_of(arguments)
        text = to_yaml(settings, bootstrap(settings))
    except ConfigurationError as error:
        for problem in error.problems:
            sys.stderr.write(f"{_PROGRAM}: {problem}\n")
        sys.stderr.write(f"{_PROGRAM} --help lists the flags.\n")
        return 2
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(arguments.out).write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"{_PROGRAM}: out: cannot write {arguments.out}: {error.strerror}\n")
        return 1
    return 0


def settings_of(arguments: argparse.Namespace) -> EnvoySettings:
    """Settings from parsed flags; ConfigurationError names the flag whose value is wrong."""
    defaults = EnvoySettings()
    baseline = Baseline(arguments.without_picker) if arguments.without_picker else None
    if baseline is not None:
        needless = [flag for flag in _PICKER_FLAGS if getattr(arguments, flag.replace("-", "_")) not in (None, False)]
        if needless:
            flags = ", ".join(f"--{flag}" for flag in needless)
            raise ConfigurationError(f"without-picker: {flags} would have no effect; leave {_them(needless)} out")
    return EnvoySettings(
        name=arguments.name,
        listen=HostPort.parse(arguments.listen, "listen"),
        admin=None if arguments.admin == "off" else HostPort.parse(arguments.admin, "admin"),
        access_log=arguments.access_log,
        pickers=_workers(_addresses(arguments.picker, "picker") or defaults.pickers, arguments.picker_workers),
        picker_tls=arguments.picker_tls,
        picker_ca_file=arguments.picker_ca_file,
        picker_server_name=arguments.picker_server_name,
        picker_health_s=_or(arguments.picker_health, defaults.picker_health_s),
        picker_turn_ms=defaults.picker_turn_ms if arguments.picker_turn_ms is None else arguments.picker_turn_ms,
        body_mode=BodyMode(arguments.body_mode or defaults.body_mode),
        fail=FailureMode(arguments.fail) if arguments.fail else None,
        message_timeout_s=_or(arguments.message_timeout, defaults.message_timeout_s),
        max_message_timeout_s=_or(arguments.max_message_timeout, defaults.max_message_timeout_s),
        cluster=PoolCluster(arguments.cluster or defaults.cluster),
        eds_directory=arguments.eds_dir or defaults.eds_directory,
        pod_protocol=PodProtocol(arguments.pod_protocol),
        connect_timeout_s=arguments.connect_timeout,
        pod_idle_timeout_s=arguments.pod_idle_timeout,
        retries=arguments.retries,
        retry_budget_percent=arguments.retry_budget,
        route_timeout_s=arguments.route_timeout,
        stream_idle_timeout_s=arguments.stream_idle_timeout,
        max_body_bytes=arguments.max_body_bytes,
        max_streams=arguments.max_streams,
        baseline=baseline,
        endpoints=_addresses(arguments.endpoints, "endpoints"),
    )


_PICKER_FLAGS = (
    "picker",
    "picker-workers",
    "picker-tls",
    "picker-ca-file",
    "picker-server-name",
    "picker-health",
    "picker-turn-ms",
    "body-mode",
    "fail",
    "message-timeout",
    "max-message-timeout",
    "cluster",
    "eds-dir",
)
"""Flags that only matter with a picker. Their default is None or False, so that a given one is seen."""


def _them(flags: list[str]) -> str:
    return "it" if len(flags) == 1 else "them"


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


def _addresses(given: list[str] | None, field: str) -> tuple[HostPort, ...]:
    texts = [text.strip() for value in given or () for text in value.split(",")]
    return tuple(HostPort.parse(text, field) for text in texts)


def _workers(pickers: tuple[HostPort, ...], workers: int | None) -> tuple[HostPort, ...]:
    """One host for each worker: Envoy sends all streams to a host over one connection, which one process accepts."""
    if workers is None:
        return pickers
    if not 1 <= workers <= MOST_WORKERS:
        raise ConfigurationError(f"picker-workers: {workers} must be between 1 and {MOST_WORKERS}")
    for port in (picker.port for picker in pickers):
        if port + workers - 1 > MOST_PORT:
            raise ConfigurationError(
                f"picker-workers: {workers} workers behind port {port} would need port {port + workers - 1}"
            )
    return tuple(HostPort(picker.host, picker.port + index) for picker in pickers for index in range(workers))


def _parser() -> argparse.ArgumentParser:
    defaults = EnvoySettings()
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--out", metavar="FILE", help="write there instead of to standard output")
    add("--name", default=defaults.name, help="of the pool: its cluster and its endpoint file (default: %(default)s)")
    add("--listen", default="0.0.0.0:8081", metavar="IP:PORT", help="for clients (default: %(default)s)")
    add("--admin", default="127.0.0.1:19000", metavar="IP:PORT|off", help="Envoy's own page (default: %(default)s)")
    add("--access-log", metavar="FILE|stdout|stderr", help="one JSON line per request (default: none)")

    group = parser.add_argument_group("the picker")
    add = group.add_argument
    add(
        "--picker",
        action="append",
        metavar="HOST:PORT",
        help="its address; a comma list or repeated for several (default: 127.0.0.1:9002)",
    )
    add(
        "--picker-workers",
        type=int,
        metavar="N",
        help="worker processes of each, on the port given and those behind it: its own --workers (default: 1)",
    )
    add("--picker-tls", action="store_true", help="speak TLS to it, without verification unless a CA is given")
    add("--picker-ca-file", metavar="FILE", help="verify its certificate with this CA, as Envoy sees the file")
    add("--picker-server-name", metavar="NAME", help="SNI, and the name its certificate must carry")
    add(
        "--picker-health",
        type=float,
        metavar="S",
        help=f"between two gRPC health checks of it; 0 = none (default: {defaults.picker_health_s:g})",
    )
    add(
        "--picker-turn-ms",
        type=int,
        metavar="|".join(map(str, TURNS_MS)),
        help="where there are two pickers or workers, all requests that begin within so many ms go to the same one: "
        "saves processor time; less, or 0 (each request to the next one), when one processor is not enough "
        f"(default: {defaults.picker_turn_ms})",
    )
    add(
        "--body-mode",
        choices=[mode.value for mode in BodyMode],
        help="how the picker sees request bodies (default: buffered-partial)",
    )
    add(
        "--fail",
        choices=[mode.value for mode in FailureMode],
        help="while no picker answers: open = Envoy chooses by itself, close = 503 (default: close)",
    )
    add(
        "--message-timeout",
        type=float,
        metavar="S",
        help=f"for one answer of the picker (default: {defaults.message_timeout_s:g})",
    )
    add(
        "--max-message-timeout",
        type=float,
        metavar="S",
        help=f"longest wait in the queue that the picker may ask for (default: {defaults.max_message_timeout_s:g})",
    )
    add(
        "--without-picker",
        choices=[baseline.value for baseline in Baseline],
        help="Envoy balances --endpoints by itself: something to compare with",
    )

    group = parser.add_argument_group("the pods")
    add = group.add_argument
    add(
        "--cluster",
        choices=[cluster.value for cluster in PoolCluster],
        help="override-host: endpoint file, fallbacks and retries; original-dst: just the address picked "
        "(default: override-host)",
    )
    add(
        "--eds-dir",
        metavar="DIR",
        help=f"where the picker writes the endpoint file (default: {DEFAULT_EDS_DIRECTORY})",
    )
    add("--endpoints", action="append", metavar="HOST:PORT,…", help="only with --without-picker")
    add(
        "--pod-protocol",
        choices=[protocol.value for protocol in PodProtocol],
        default=defaults.pod_protocol.value,
        help="http2 for gRPC servers; downstream = what the client spoke (default: %(default)s)",
    )
    for flag, default, text in (
        ("--connect-timeout", defaults.connect_timeout_s, "to a pod"),
        ("--pod-idle-timeout", defaults.pod_idle_timeout_s, "of an unused connection; below the servers' keep-alive"),
        ("--route-timeout", defaults.route_timeout_s, "for a whole response; 0 = none"),
        ("--stream-idle-timeout", defaults.stream_idle_timeout_s, "without a byte in either direction; 0 = none"),
    ):
        add(flag, type=float, default=default, metavar="S", help=f"{text} (default: {default:g})")
    add(
        "--retry-budget",
        type=float,
        default=defaults.retry_budget_percent,
        metavar="PERCENT",
        help="of the pool's active requests that may be retries at a time; 0 = no such bound (default: %(default)g)",
    )
    for name, number, text in (
        ("--retries", defaults.retries, "per request, before the first byte of its answer"),
        ("--max-body-bytes", defaults.max_body_bytes, "of a request body held in Envoy"),
        ("--max-streams", defaults.max_streams, "exchanges at a time"),
    ):
        add(name, type=int, default=number, metavar="N", help=f"{text} (default: {number})")
    return parser
