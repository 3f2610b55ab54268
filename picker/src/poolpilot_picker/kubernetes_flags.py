"""Flags that say which pool of a Kubernetes cluster is served, and what becomes of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.access import Access, access
from poolpilot_kube.errors import AccessError
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.pool_discovery import Members

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

LISTEN_DEFAULT: Final = "[::]:9002"
MOST_PORTS: Final = 8
"""As an InferencePool may have."""
OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
"""Short enough to be a label's value, which it is on the Services of its pools."""
NAMESPACE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAME_ALLOWED: Final = "at most 63 of a-z, 0-9, - (and . but in namespaces), a letter or digit first and last"


class KubernetesPool(msgspec.Struct, frozen=True):
    """Where a pool is found."""

    access: Access
    namespace: str
    members: Members | None = None
    """Instead of an InferencePool."""


class KubernetesFleet(msgspec.Struct, frozen=True):
    """A Picker, and where its pools are found."""

    access: Access
    namespace: str
    name: str
    pool_namespaces: tuple[str, ...] = ()
    """None: all."""
    operator: str = ""
    """Namespace of the operator whose Services count; empty: any."""


def add_kubernetes_flags(parser: argparse.ArgumentParser) -> None:
    """The flags, by the names that the reference endpoint picker has for them."""
    group = parser.add_argument_group(
        "Kubernetes", "where neither --endpoints nor --endpoints-file is given, --pool-name names an InferencePool"
    )
    group.add_argument(
        "--pool-namespace",
        metavar="NAMESPACE",
        help="namespace of the pool (default: $NAMESPACE, else that of the credentials)",
    )
    group.add_argument(
        "--endpoint-selector", metavar="LABELS", help="label selector of the pods, instead of an InferencePool"
    )
    group.add_argument(
        "--endpoint-target-ports", metavar="PORT,…", help="ports of these pods, each an endpoint of its own"
    )
    group.add_argument(
        "--picker-name",
        metavar="NAME",
        help="serve all pools of this Picker, each on the port that its Service says, instead of one pool",
    )
    group.add_argument("--picker-namespace", metavar="NAMESPACE", help="namespace of the Picker; with --picker-name")
    group.add_argument(
        "--pool-namespaces",
        metavar="NAMESPACE,…",
        help="namespaces of its pools, each watched by itself (default: all, with one watch for the cluster)",
    )
    group.add_argument(
        "--operator-namespace",
        metavar="NAMESPACE",
        help="heed only Services that carry this as label poolpilot.dev/operator; with --picker-name",
    )
    group.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="credentials outside a cluster (default: $KUBECONFIG)"
    )


def kubernetes_fleet(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> KubernetesFleet | None:
    """None where one pool is served. Raises ConfigurationError with every problem."""
    name, namespace, listed = arguments.picker_name, arguments.picker_namespace, arguments.pool_namespaces
    operator = arguments.operator_namespace
    if name is None and namespace is None and listed is None and operator is None:
        return None
    problems = [
        f"--{flag} needs --picker-name: it says where a Picker and its pools are"
        for flag, value in (
            ("picker-namespace", namespace),
            ("pool-namespaces", listed),
            ("operator-namespace", operator),
        )
        if name is None and value is not None
    ]
    if name is not None and namespace is None:
        problems.append("--picker-name needs --picker-namespace: a Picker is known by both")
    problems += [
        f"--{flag} is {value!r}; allowed is the name of an object: {NAME_ALLOWED}"
        for flag, value, pattern in (
            ("picker-name", name, OBJECT_NAME),
            ("picker-namespace", namespace, NAMESPACE_NAME),
            ("operator-namespace", operator, NAMESPACE_NAME),
            *(("pool-namespaces", one, NAMESPACE_NAME) for one in (listed or "").split(",") if listed),
        )
        if value is not None and not pattern.fullmatch(value)
    ]
    if name is not None:
        others = {
            "--pool-name": arguments.pool_name,
            "--pool-namespace": arguments.pool_namespace,
            "--endpoints": arguments.endpoints or None,
            "--endpoints-file": arguments.endpoints_file,
            "--endpoint-selector": arguments.endpoint_selector,
            "--endpoint-target-ports": arguments.endpoint_target_ports,
            "--eds-dir": arguments.eds_dir,
        }
        problems += [
            f"{flag} and --picker-name exclude each other: the pools are those of the Picker"
            for flag, value in others.items()
            if value is not None
        ]
        if arguments.workers > 1 or arguments.recycle_rss_mb is not None:
            flag = "--workers" if arguments.workers > 1 else "--recycle-rss-mb"
            value = arguments.workers if arguments.workers > 1 else arguments.recycle_rss_mb
            problems.append(
                f"{flag} is {value}, but with --picker-name there is one process; more pools than it can take need "
                "another Picker"
            )
        if not arguments.listen.endswith(":0") and arguments.listen != LISTEN_DEFAULT:
            problems.append(
                f"--listen is {arguments.listen!r}; with --picker-name allowed is ADDRESS:0: the Services say the ports"
            )
    if problems:
        raise ConfigurationError(*problems)
    namespaces = tuple(dict.fromkeys(listed.split(","))) if listed else ()
    return KubernetesFleet(_access(arguments, environ), namespace, name, namespaces, operator or "")


def _access(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Access:
    try:
        return access(arguments.kubeconfig, environ)
    except AccessError as error:
        raise ConfigurationError(f"Kubernetes: {error}") from None


def kubernetes_pool(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> KubernetesPool | None:
    """None where the endpoints are said otherwise. Raises ConfigurationError with every problem."""
    given = {
        flag: value
        for flag, value in (
            ("--pool-namespace", arguments.pool_namespace),
            ("--endpoint-selector", arguments.endpoint_selector),
            ("--endpoint-target-ports", arguments.endpoint_target_ports),
            ("--kubeconfig", arguments.kubeconfig),
        )
        if value is not None
    }
    otherwise = [
        flag
        for flag, value in (("--endpoints", arguments.endpoints), ("--endpoints-file", arguments.endpoints_file))
        if value
    ]
    if otherwise:
        if given:
            raise ConfigurationError(
                f"{', '.join(given)} and {otherwise[0]} exclude each other: the endpoints are known"
            )
        return None
    if arguments.pool_name is None and arguments.endpoint_selector is None:
        raise ConfigurationError(
            "give --endpoints, --endpoints-file, or, in Kubernetes, --pool-name or --endpoint-selector: "
            "the picker must know its model servers"
        )
    members = _members(arguments.endpoint_selector, arguments.endpoint_target_ports)
    found = _access(arguments, environ)
    return KubernetesPool(found, arguments.pool_namespace or environ.get("NAMESPACE") or found.namespace, members)


def _members(selector: str | None, ports: str | None) -> Members | None:
    if selector is None and ports is None:
        return None
    if not selector or not ports:
        raise ConfigurationError("--endpoint-selector and --endpoint-target-ports go together")
    numbers = [int(part) if part.isascii() and part.isdecimal() and len(part) < 6 else 0 for part in ports.split(",")]
    if len(numbers) > MOST_PORTS or len(set(numbers)) < len(numbers) or not all(0 < one < 65_536 for one in numbers):
        raise ConfigurationError(
            f"--endpoint-target-ports is {ports!r}; allowed are 1 to {MOST_PORTS} different ports, 1-65535"
        )
    return Members(selector, tuple(numbers))
