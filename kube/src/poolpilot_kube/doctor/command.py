"""`poolpilot doctor`: reads a cluster, runs all checks, prints what to change."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_kube.access import access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.doctor.check_envoy_gateway import check_envoy_gateway
from poolpilot_kube.doctor.check_gateways import check_gateways
from poolpilot_kube.doctor.check_kinds import check_kinds
from poolpilot_kube.doctor.check_pickers import check_pickers
from poolpilot_kube.doctor.check_pools import check_pools
from poolpilot_kube.doctor.check_services import check_services
from poolpilot_kube.doctor.check_tenants import check_tenants
from poolpilot_kube.doctor.findings import Report, as_json, as_text, report
from poolpilot_kube.doctor.reading import Cluster, read, seen
from poolpilot_kube.errors import AccessError, KubeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_kube.access import Access

CHECKS: Final = (
    check_kinds,
    check_pools,
    check_services,
    check_pickers,
    check_tenants,
    check_envoy_gateway,
    check_gateways,
)
_PROGRAM: Final = "poolpilot doctor"
_UNKNOWN: Final = 3
"""Exit code: nothing is known."""


def main(argv: list[str]) -> int:
    """Exit codes: 0 no errors, 1 errors found, 2 wrong flags, 3 the cluster could not be read."""
    given = _parser().parse_args(argv)
    namespaces = [one.strip() for one in (given.namespace or "").split(",") if one.strip()]
    if given.all_namespaces and namespaces:
        sys.stderr.write(f"{_PROGRAM}: --namespace and --all-namespaces exclude each other\n")
        return 2
    try:
        found = access(given.kubeconfig)
        made = asyncio.run(examined(found, namespaces))
    except AccessError as error:
        sys.stderr.write(f"{_PROGRAM}: no credentials: {error}\n")
        return _UNKNOWN
    except KubeError as error:
        sys.stderr.write(f"{_PROGRAM}: the cluster cannot be read: {error}\n")
        return _UNKNOWN
    sys.stdout.write(as_json(made) if given.output == "json" else as_text(made))
    return 1 if made.errors else 0


async def examined(found: Access, namespaces: Sequence[str] = ()) -> Report:
    """Everything that the checks say. Raises KubeError where the cluster cannot be read."""
    async with KubeApi(found, user_agent="poolpilot-doctor") as api:
        return diagnosis(await read(api, namespaces))


def diagnosis(cluster: Cluster) -> Report:
    """What all checks say of it."""
    return report([*cluster.problems, *(finding for check in CHECKS for finding in check(cluster))], seen(cluster))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Looks at the pools, pickers, Services and gateway settings of a cluster, and says what to change. "
        "It only reads. Exit codes: 0 no errors, 1 errors found, 2 wrong flags, 3 the cluster could not be read.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="credentials (default: a pod's own, $KUBECONFIG, ~/.kube/config)",
    )
    add("-n", "--namespace", metavar="A,B", help="look only there (default: everywhere)")
    add("-A", "--all-namespaces", action="store_true", help="look everywhere; the default")
    add("-o", "--output", choices=["text", "json"], default="text", help="(default: %(default)s)")
    return parser
