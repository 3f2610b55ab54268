"""The command line of the picker: flags → options, then one event loop until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import uvloop
from prometheus_client import disable_created_metrics

from poolpilot_picker.app import Options, Picker
from poolpilot_picker.config.policies import DEFAULT_POLICY, POLICIES
from poolpilot_picker.config.seat import MOST_WORKERS, Seat
from poolpilot_picker.errors import ConfigurationError, StartError
from poolpilot_picker.extproc.listener import TransportName
from poolpilot_picker.flag_files import token_of
from poolpilot_picker.fleet import FleetPicker
from poolpilot_picker.instruments.logs import configure
from poolpilot_picker.kubernetes_flags import (
    LISTEN_DEFAULT,
    add_kubernetes_flags,
    kubernetes_fleet,
    kubernetes_pool,
)
from poolpilot_picker.sources.endpoint_list import parse_endpoint_flag
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.tls_files import TlsSource
from poolpilot_picker.workers.process import LEAVE
from poolpilot_picker.workers.supervisor import Supervisor, SupervisorOptions, WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

MOST_SECONDS: Final = 86_400
MOST_PORT: Final = 65_535


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(
        prog="poolpilot-picker",
        description="Endpoint picker for LLM requests: an Envoy ext_proc server. Exit codes: 0 stopped by a signal, "
        "1 could not start, 2 wrong flags or configuration.",
    )
    p.add_argument("--version", action="store_true", help="print the version and exit")
    data = p.add_argument_group("data port")
    data.add_argument(
        "--listen",
        default=LISTEN_DEFAULT,
        metavar="ADDR:PORT",
        help="ext_proc and gRPC health (default [::]:9002; port 0 chooses one)",
    )
    data.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help="picker processes that share their state, on the port of --listen and the N - 1 behind it (port 0: each "
        "chooses one); Envoy must spread the streams over them: poolpilot envoy-config --picker-workers N (default 1)",
    )
    data.add_argument("--seat", help=argparse.SUPPRESS)
    data.add_argument(
        "--recycle-rss-mb",
        type=_megabytes,
        metavar="MB",
        help="replace a picker process with more resident memory than this by a new one, without failing a request; it "
        "begins without what the old one has learned (default: never)",
    )
    data.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain; with --tls-key the port speaks TLS"
    )
    data.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM private key")
    data.add_argument(
        "--transport",
        default=TransportName.WIRE.value,
        choices=[name.value for name in TransportName],
        help="what serves the port: a lean implementation for this one service, or the gRPC library (default wire)",
    )
    data.add_argument("--client-ca", type=Path, metavar="FILE", help="PEM CA of the client certificates to ask for")
    pool = p.add_argument_group("pool")
    pool.add_argument(
        "--pool-name",
        metavar="NAME",
        help="the InferencePool; with --endpoints or --endpoints-file a name for metrics and health (default: default)",
    )
    pool.add_argument("--endpoints", default="", metavar="IP:PORT,…", help="the model servers")
    pool.add_argument("--endpoints-file", type=Path, metavar="FILE", help="YAML list of endpoints, watched")
    pool.add_argument(
        "--engine",
        default="vllm",
        choices=sorted(BUILTIN),
        help="engine type of endpoints that name none (default vllm)",
    )
    pool.add_argument(
        "--engine-api-key-file", type=Path, metavar="FILE", help="bearer token for the engines' /metrics and /v1/models"
    )
    pool.add_argument("--engine-api-key-env", metavar="NAME", help="the same, from an environment variable")
    pool.add_argument("--eds-dir", type=Path, metavar="DIR", help="keep DIR/eds.json for Envoy's override_host cluster")
    add_kubernetes_flags(p)
    policy = p.add_argument_group("policy")
    policy.add_argument("--config-file", type=Path, metavar="FILE", help="EndpointPickerConfig, watched")
    policy.add_argument(
        "--policy",
        default=DEFAULT_POLICY,
        choices=POLICIES,
        help=f"a ready-made configuration (default {DEFAULT_POLICY})",
    )
    policy.add_argument("--seed", type=int, help="seed of random ties, for reproducible tests")
    life = p.add_argument_group("operation")
    life.add_argument(
        "--admin",
        default="[::]:9090",
        metavar="ADDR:PORT",
        help="metrics, health and debug pages over HTTP (default [::]:9090)",
    )
    life.add_argument(
        "--shutdown-notice",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="after SIGTERM, how long to say not ready but take new streams, so that data planes notice (default 0)",
    )
    life.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long open exchanges may go on after that; a second signal ends them at once (default 30)",
    )
    life.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    life.add_argument("--print-ready", action="store_true", help="print one JSON line with the chosen ports when ready")
    return p


def options_of(arguments: argparse.Namespace) -> Options:
    """Checks the flags that argparse cannot. Raises ConfigurationError with every problem."""
    problems: list[str] = []
    if arguments.endpoints and arguments.endpoints_file is not None:
        problems.append("--endpoints and --endpoints-file exclude each other")
    if arguments.config_file is not None and arguments.policy != DEFAULT_POLICY:
        problems.append("--config-file and --policy exclude each other: a file says itself which policy it is")
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        problems.append("--tls-cert and --tls-key go together")
    if arguments.client_ca is not None and arguments.tls_cert is None:
        problems.append("--client-ca needs --tls-cert and --tls-key")
    if arguments.pool_name is not None and not arguments.pool_name.strip():
        problems.append(f"--pool-name is {arguments.pool_name!r}; allowed is any name that is not empty")
    if arguments.eds_dir is not None and not arguments.eds_dir.is_dir():
        problems.append(f"--eds-dir {arguments.eds_dir}: no such directory")
    problems += _port_problems(arguments)
    problems += [
        f"--{flag} {file}: no such file"
        for flag, file in (("endpoints-file", arguments.endpoints_file), ("config-file", arguments.config_file))
        if file is not None and not file.exists()
    ]
    problems += [
        f"--{flag} is {value!r}; allowed is ADDRESS:PORT, IPv6 in brackets, port 0-65535"
        for flag, value in (("listen", arguments.listen), ("admin", arguments.admin))
        if _host_port(value) is None
    ]
    endpoints, kubernetes, fleet, token, tls = [], None, None, None, None
    try:
        fleet = kubernetes_fleet(arguments)
        if fleet is None:
            kubernetes = kubernetes_pool(arguments)
        if arguments.endpoints:
            endpoints = parse_endpoint_flag(arguments.endpoints, engine=arguments.engine)
        token = token_of(arguments.engine_api_key_file, arguments.engine_api_key_env)
        if arguments.tls_cert is not None and arguments.tls_key is not None:
            tls = TlsSource(arguments.tls_cert, arguments.tls_key, arguments.client_ca)
    except ConfigurationError as error:
        problems += error.problems
    if problems:
        raise ConfigurationError(*problems)
    admin = _host_port(arguments.admin)
    assert admin is not None
    return Options(
        listen=arguments.listen,
        admin=admin,
        pool=arguments.pool_name or "default",
        endpoints=tuple(endpoints),
        endpoints_file=arguments.endpoints_file,
        kubernetes=kubernetes,
        fleet=fleet,
        engine=arguments.engine,
        config_file=arguments.config_file,
        policy=arguments.policy,
        eds_dir=arguments.eds_dir,
        notice_s=arguments.shutdown_notice,
        drain_s=arguments.drain_timeout,
        engine_token=token,
        tls=tls,
        transport=TransportName(arguments.transport),
        seed=arguments.seed,
        seat=seat_of(arguments),
    )


def seat_of(arguments: argparse.Namespace) -> Seat | None:
    """Which worker this is; only a supervisor says so."""
    return msgspec.json.decode(arguments.seat, type=Seat) if arguments.seat is not None else None


def _port_problems(arguments: argparse.Namespace) -> list[str]:
    """Data ports that there are not, or that the admin port would take."""
    listen, admin, workers = _host_port(arguments.listen), _host_port(arguments.admin), arguments.workers
    if listen is None or admin is None or listen[1] == 0:
        return []
    last = listen[1] + workers - 1
    if last > MOST_PORT:
        return [f"--listen is {arguments.listen!r} with --workers {workers}: the last port would be {last}"]
    if workers == 1 and admin == listen:
        return [f"--admin is {arguments.admin!r}, as --listen; it needs another port"]
    if workers > 1 and listen[1] <= admin[1] <= last:
        return [f"--admin is {arguments.admin!r}, but --workers {workers} need ports {listen[1]} to {last}"]
    return []


def _host_port(text: str) -> tuple[str, int] | None:
    host, colon, port = text.rpartition(":")
    if not host.strip("[]") or not colon or not port.isascii() or not port.isdigit() or int(port) > MOST_PORT:
        return None
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        return None
    return host.strip("[]"), int(port)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number of seconds from 0 to {MOST_SECONDS}")
    return seconds


def _megabytes(text: str) -> int:
    megabytes = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not megabytes:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number of megabytes from 1 to 99999999")
    return megabytes


def _workers(text: str) -> int:
    workers = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= workers <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number of workers from 1 to {MOST_WORKERS}")
    return workers


async def serve(options: Options, *, print_ready: bool) -> None:
    """Runs a picker until SIGTERM or SIGINT; a second signal ends the drain at once."""
    # A second series beside each counter, only to say when it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    picker = Picker(options) if options.fleet is None else FleetPicker(options)
    loop = asyncio.get_running_loop()
    stopping, replaced = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if replaced.is_set():
            # What was to take its time now has as much as a drain has.
            replaced.clear()
            loop.call_later(options.drain_s, picker.hurry)
        elif stopping.is_set():
            log.warning("another signal: open exchanges are given up", extra={"open_streams": picker.streams})
            picker.hurry()
        stopping.set()

    def on_replaced() -> None:
        if not stopping.is_set():
            replaced.set()
            stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if options.seat is not None:
        loop.add_signal_handler(LEAVE, on_replaced)
        _watch_supervisor(loop, on_signal)
    await picker.start()
    # What is alive now stays alive: the collector need not look at it again. Young objects that stay (first pages of
    # many endpoints) take 0.25 ms a thousand.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 100, 50)
    # Threads read files and write the metrics page: they must not hold the loop up for 5 ms at a time.
    sys.setswitchinterval(0.001)
    ready = {**picker.ready_line(), "pid": os.getpid()}
    log.info("ready", extra={**ready, "profile": picker.config.profile.describe()})
    if print_ready:
        _print_ready(ready)
    await stopping.wait()
    seconds = None if replaced.is_set() else options.drain_s
    log.info("draining", extra={"open_streams": picker.streams, "seconds": seconds})
    await picker.stop(replaced=replaced.is_set())
    log.info("stopped")


def _watch_supervisor(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """A worker's standard input ends with its supervisor: then nobody would start it again or stop it."""
    source = sys.stdin.fileno()

    def on_input() -> None:
        if not os.read(source, 4096):
            loop.remove_reader(source)
            log.error("the supervisor is gone")
            stop()

    loop.add_reader(source, on_input)


async def supervise(options: SupervisorOptions, *, print_ready: bool) -> None:
    """Runs workers until SIGTERM or SIGINT; a second signal ends their drain at once."""
    supervisor = Supervisor(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.renew)
    await supervisor.start()
    if not supervisor.stopping:
        ready = {**supervisor.ready_line(), "pid": os.getpid()}
        log.info("ready", extra=ready)
        if print_ready:
            _print_ready(ready)
    await supervisor.wait()
    log.info("stopped")


def _print_ready(ready: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()


def _fail(problems: tuple[str, ...], code: int) -> int:
    for problem in problems:
        sys.stderr.write(f"poolpilot-picker: {problem}\n")
    return code


def main(argv: list[str]) -> int:
    """Runs the picker; returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.version:
        from importlib.metadata import version

        sys.stdout.write(version("poolpilot") + "\n")
        return 0
    try:
        seat = seat_of(arguments)
        configure(arguments.log_level, {"worker": seat.index} if seat is not None else None)
        options = options_of(arguments)
        if seat is None and (arguments.workers > 1 or arguments.recycle_rss_mb is not None):
            workers = SupervisorOptions(
                workers=arguments.workers,
                listen=options.listen,
                admin=options.admin,
                argv=tuple(argv),
                recycle_bytes=(arguments.recycle_rss_mb or 0) * 10**6 or None,
            )
            uvloop.run(supervise(workers, print_ready=arguments.print_ready))
        else:
            uvloop.run(serve(options, print_ready=arguments.print_ready))
    except ConfigurationError as error:
        return _fail(error.problems, error.exit_code)
    except WorkerStartError as error:
        # Wrong flags and files are found by the worker too, and it has said so.
        wrong = ConfigurationError.exit_code
        return _fail((str(error),), wrong if error.worker_exit_code == wrong else error.exit_code)
    except StartError as error:
        return _fail((str(error),), error.exit_code)
    return 0


def console() -> NoReturn:
    """`python -m poolpilot_picker`."""
    sys.exit(main(sys.argv[1:]))
