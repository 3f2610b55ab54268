"""Does a route lead to every served pool, and what do gateways say of it? Istio and Envoy AI Gateway in particular."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_kube.doctor.check_pools import about, picker_of
from poolpilot_kube.doctor.findings import Finding, Level
from poolpilot_kube.doctor.reading import AI_GATEWAY, ISTIO
from poolpilot_kube.names import POOL_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import HttpRoute, Pool
    from poolpilot_kube.doctor.reading import Cluster
    from poolpilot_kube.objects import Key

BODY_MODE: Final = "aigateway.envoyproxy.io/processing-body-mode"


def check_gateways(cluster: Cluster) -> Iterator[Finding]:
    """Routes, parents, and settings by gateway."""
    pools = {pool.key: pool for pool in cluster.pools}
    routed: set[Key] = set()
    for route in cluster.routes:
        for key in _pools_of(route):
            routed.add(key)
            if key not in pools and (not cluster.namespaces or key[0] in cluster.namespaces):
                yield Finding(
                    Level.ERROR,
                    "route-without-pool",
                    f"HTTPRoute {route.metadata.namespace}/{route.metadata.name}",
                    f"leads to the InferencePool {'/'.join(key)}, which is not there",
                    "make the pool, or correct the backendRef",
                )
    for pool in cluster.pools:
        yield from _parents(pool)
        if picker_of(pool, cluster) is None:
            continue
        if cluster.serves("httproutes.gateway.networking.k8s.io") and pool.key not in routed:
            yield from _unrouted(pool, cluster)
        if cluster.serves(f"aigatewayroutes.{AI_GATEWAY}"):
            yield from _ai_gateway(pool)
        if cluster.serves(f"destinationrules.{ISTIO}") and pool.key in routed:
            yield from _istio(pool, cluster)


def _pools_of(route: HttpRoute) -> Iterator[Key]:
    for rule in route.spec.rules:
        for one in rule.backend_refs:
            if one.group == POOL_GROUP and one.kind == "InferencePool":
                yield (one.namespace or route.metadata.namespace, one.name)


def _parents(pool: Pool) -> Iterator[Finding]:
    for parent in pool.status.parents:
        for condition in parent.conditions:
            if condition.status == "False":
                yield Finding(
                    Level.WARNING,
                    "gateway-says",
                    about(pool),
                    f"gateway {parent.parent_ref.name} says it is not {condition.type}: "
                    f"{condition.reason}: {condition.message}",
                    "",
                )


def _unrouted(pool: Pool, cluster: Cluster) -> Iterator[Finding]:
    reference = pool.spec.endpoint_picker_ref
    called = {
        (one.namespace or policy.metadata.namespace, one.name)
        for policy in cluster.extensions
        for processor in policy.spec.ext_proc
        for one in processor.backend_refs
    }
    if reference is not None and (pool.metadata.namespace, reference.name) not in called:
        yield Finding(
            Level.INFO,
            "pool-not-routed",
            about(pool),
            "no HTTPRoute leads to it, and no EnvoyExtensionPolicy calls its picker",
            "docs/gateways.md says what each gateway needs",
        )


def _ai_gateway(pool: Pool) -> Iterator[Finding]:
    if pool.metadata.annotations.get(BODY_MODE) == "buffered":
        yield Finding(
            Level.WARNING,
            "ai-gateway-body-mode",
            about(pool),
            "Envoy AI Gateway buffers its response bodies too: streamed answers reach clients when they are complete",
            f"kubectl annotate inferencepool {pool.metadata.name} -n {pool.metadata.namespace} {BODY_MODE}-",
        )
    reference = pool.spec.endpoint_picker_ref
    if reference is not None and reference.failure_mode == "FailOpen":
        yield Finding(
            Level.INFO,
            "ai-gateway-fail-open",
            about(pool),
            "Envoy AI Gateway does not honour failureMode FailOpen: while no picker answers, requests fail",
            "",
        )


def _istio(pool: Pool, cluster: Cluster) -> Iterator[Finding]:
    picker, reference = picker_of(pool, cluster), pool.spec.endpoint_picker_ref
    if picker is None or reference is None or picker.spec.tls.mode == "Disabled":
        return
    short = f"{reference.name}.{pool.metadata.namespace}"
    hosts = {rule.spec.host for rule in cluster.rules}
    local = {rule.spec.host for rule in cluster.rules if rule.metadata.namespace == pool.metadata.namespace}
    full = any(host == short or host.startswith(f"{short}.svc") for host in hosts)
    if not full and reference.name not in local and cluster.knows(f"destinationrules.{ISTIO}"):
        yield Finding(
            Level.WARNING,
            "istio-destination-rule",
            about(pool),
            f"the picker speaks TLS with a certificate of its own, and no DestinationRule tells Istio for {short}",
            "value gateways.istio of the chart poolpilot makes one",
        )
