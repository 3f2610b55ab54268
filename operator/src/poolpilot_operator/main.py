"""The command line of the operator: flags → options, then one event loop until a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Final

from poolpilot_kube.access import Access, access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import AccessError
from poolpilot_operator.app import Operator, Options
from poolpilot_operator.logs import configure
from poolpilot_operator.shell import serve

_NAMESPACE: Final = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(
        prog="poolpilot-operator",
        description="Runs pickers for InferencePools: reconciles Picker and LoraAdapter objects. Exit codes: 0 stopped "
        "by a signal, 1 could not start or failed, 2 wrong flags.",
    )
    p.add_argument("--version", action="store_true", help="print the version and exit")
    where = p.add_argument_group("where")
    where.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="outside a pod; default $KUBECONFIG, ~/.kube/config"
    )
    where.add_argument(
        "--namespace",
        type=_namespace,
        metavar="NS",
        help="the operator's own: its Lease is here, and its Pickers may serve other namespaces (default: that of the "
        "credentials)",
    )
    where.add_argument(
        "--watch-namespaces",
        type=_namespaces,
        default=(),
        metavar="A,B",
        help="the namespaces to work in (default: all)",
    )
    pickers = p.add_argument_group("pickers")
    pickers.add_argument("--picker-image", default="", metavar="IMAGE", help="of Pickers that name no image")
    pickers.add_argument(
        "--picker-name-default",
        default="default",
        metavar="NAME",
        help="the Picker of pools whose label poolpilot.dev/picker has no value (default: default)",
    )
    pickers.add_argument(
        "--picker-listen",
        default="any",
        choices=("any", "pod-ip"),
        help="where picker pods listen: on every address of the pod (port-forward works), or on its IP only, for pods "
        "that share a network (default any)",
    )
    pickers.add_argument(
        "--picker-user",
        default="fixed",
        choices=("fixed", "assigned"),
        help="whom picker pods run as: 65532, or whoever the cluster gives them, as OpenShift does (default fixed)",
    )
    pickers.add_argument(
        "--prometheus-url", type=_url, default="", metavar="URL", help="for advice from history; none if absent"
    )
    life = p.add_argument_group("operation")
    life.add_argument(
        "--admin-host", default=None, metavar="ADDRESS", help="where the admin port listens (default: all)"
    )
    life.add_argument("--admin-port", type=_port, default=8080, metavar="PORT", help="/healthz, /readyz, /metrics")
    life.add_argument(
        "--leader-election",
        type=_boolean,
        default=True,
        metavar="true|false",
        help="write only while holding a Lease: needed with more than one replica (default true)",
    )
    life.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return p


def main(argv: list[str] | None = None) -> int:
    """Entry point of `poolpilot-operator`."""
    arguments = parser().parse_args(sys.argv[1:] if argv is None else argv)
    if arguments.version:
        from importlib.metadata import version

        sys.stdout.write(f"{version('poolpilot')}\n")
        return 0
    configure(arguments.log_level)
    try:
        found = access(arguments.kubeconfig)
    except AccessError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    if arguments.kubeconfig is not None:
        # kopf's own client reads it from here.
        os.environ["KUBECONFIG"] = str(arguments.kubeconfig)
    return asyncio.run(_run(found, arguments))


async def _run(found: Access, arguments: argparse.Namespace) -> int:
    async with KubeApi(found, user_agent="poolpilot-operator") as api:
        operator = Operator(api, options_of(arguments, found.namespace))
        try:
            return await serve(operator, arguments.admin_host, arguments.admin_port)
        except OSError as error:
            logging.getLogger(__name__).error("--admin-port %s: %s", arguments.admin_port, error)
            return 1


def options_of(arguments: argparse.Namespace, namespace: str) -> Options:
    """`namespace` is that of the credentials."""
    return Options(
        namespace=arguments.namespace or namespace,
        watched=arguments.watch_namespaces,
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.getpid()}_{os.urandom(3).hex()}",
        image=arguments.picker_image,
        default_picker=arguments.picker_name_default,
        listen_host="[$(POD_IP)]" if arguments.picker_listen == "pod-ip" else "[::]",
        assigned_users=arguments.picker_user == "assigned",
        elect=arguments.leader_election,
        prometheus_url=arguments.prometheus_url,
    )


def _namespace(text: str) -> str:
    if not _NAMESPACE.match(text):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is the name of a namespace: a-z, 0-9 and -, at most 63")
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    return tuple(sorted({_namespace(part.strip()) for part in text.split(",") if part.strip()}))


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are true and false")
    return text == "true"


def _url(text: str) -> str:
    if text and not re.match(r"^https?://[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is http:// or https:// with a host")
    return text


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a port from 0 to 65535")
    return port
