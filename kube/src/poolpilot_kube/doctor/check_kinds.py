"""Are the kinds there that poolpilot needs, in a version that it reads?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from poolpilot_kube.doctor.findings import Finding, Level
from poolpilot_kube.names import LEGACY_GROUP, OUR_GROUP, POOL_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.reading import Cluster

BUNDLE: Final = "inference.networking.k8s.io/bundle-version"
OLDEST_BUNDLE: Final = (1, 0)
"""The first that has InferencePool v1."""


def check_kinds(cluster: Cluster) -> Iterator[Finding]:
    """CRDs and their versions."""
    yield from _pools(cluster)
    yield from _ours(cluster)
    yield from _bundle(cluster)


def _pools(cluster: Cluster) -> Iterator[Finding]:
    plural = f"inferencepools.{POOL_GROUP}"
    if f"{plural}/v1" in cluster.served:
        return
    about = f"CustomResourceDefinition {plural}"
    if f"inferencepools.{LEGACY_GROUP}/v1alpha2" in cluster.served:
        yield Finding(
            Level.ERROR,
            "pool-kind-old",
            about,
            f"this cluster has only InferencePools of {LEGACY_GROUP}/v1alpha2, which poolpilot does not read",
            f"install v1.0 or later of the Gateway API Inference Extension, and make the pools in {POOL_GROUP}/v1",
        )
        return
    yield Finding(
        Level.ERROR,
        "pool-kind-missing",
        about,
        "is not there, so there are no pools to serve",
        "install the chart poolpilot, which brings it, or the CRDs of the Gateway API Inference Extension",
    )


def _ours(cluster: Cluster) -> Iterator[Finding]:
    for plural in ("pickers", "loraadapters"):
        name = f"{plural}.{OUR_GROUP}"
        if f"{name}/v1alpha1" in cluster.served:
            continue
        other = cluster.serves(name)
        yield Finding(
            Level.ERROR,
            "own-kind-missing",
            f"CustomResourceDefinition {name}",
            "has no version v1alpha1" if other else "is not there",
            "helm upgrade --install poolpilot-crds charts/poolpilot-crds --take-ownership"
            if other
            else "install the chart poolpilot, or poolpilot-crds",
        )


def _bundle(cluster: Cluster) -> Iterator[Finding]:
    for one in cluster.definitions:
        if one.metadata.name != f"inferencepools.{POOL_GROUP}":
            continue
        said = one.metadata.annotations.get(BUNDLE, "")
        numbers = re.match(r"v(\d+)\.(\d+)", said)
        if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST_BUNDLE:
            yield Finding(
                Level.WARNING,
                "pool-kind-version",
                f"CustomResourceDefinition {one.metadata.name}",
                f"is of release {said} of the Gateway API Inference Extension; v1.0 is the oldest that was tested",
                "upgrade its CRDs",
            )
