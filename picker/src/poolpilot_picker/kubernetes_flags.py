"""Flags that say which pool of a Kubernetes cluster is served, and what becomes of them."""

from __future__ import annotations

import os
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

MOST_PORTS: Final = 8
"""As an InferencePool may have."""


class KubernetesPool(msgspec.Struct, frozen=True):
    """Where a pool is found."""

    access: Access
    namespace: str
    members: Members | None = None
    """Instead of an InferencePool."""


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
        "--kubeconfig", type=Path, metavar="FILE", help="credentials outside a cluster (default: $KUBECONFIG)"
    )


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
    try:
        found = access(arguments.kubeconfig, environ)
    except AccessError as error:
        raise ConfigurationError(f"Kubernetes: {error}") from None
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
