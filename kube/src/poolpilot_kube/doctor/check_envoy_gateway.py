"""Envoy Gateway: do its policies use the picker as they should? What was tested: docs/gateways.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from poolpilot_kube.doctor.check_pools import about, picker_of
from poolpilot_kube.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import ExtProc, Policy, Pool
    from poolpilot_kube.doctor.reading import Cluster
    from poolpilot_kube.objects import Key

DESTINATION: Final = "x-gateway-destination-endpoint"
_SHORTEST_S: Final = 1.0
_DEFAULT_S: Final = 0.2
_LEAST_BUFFER: Final = 2**20
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_UNITS_BYTES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def check_envoy_gateway(cluster: Cluster) -> Iterator[Finding]:
    """Every EnvoyExtensionPolicy that calls a pool's picker Service, and what has to go with it."""
    for policy, processor, pool in calls(cluster):
        yield from _processor(policy, processor, pool, cluster)
        yield from _companions(policy, cluster)
    for policy in cluster.extensions:
        yield from _refused(policy)


def calls(cluster: Cluster) -> Iterator[tuple[Policy, ExtProc, Pool]]:
    """What of EnvoyExtensionPolicies calls the picker of a pool."""
    pools = {
        (pool.metadata.namespace, pool.spec.endpoint_picker_ref.name): pool
        for pool in cluster.pools
        if pool.spec.endpoint_picker_ref is not None and picker_of(pool, cluster) is not None
    }
    for policy in cluster.extensions:
        for processor in policy.spec.ext_proc:
            pool = _pool_of(policy, processor, pools)
            if pool is not None:
                yield policy, processor, pool


def gateways_of(policy: Policy, cluster: Cluster) -> set[str]:
    """Names of the Gateways that a policy is for, also by its routes."""
    routes = policy.spec.targets("HTTPRoute")
    return policy.spec.targets("Gateway") | {
        parent.name
        for route in cluster.routes
        if route.metadata.namespace == policy.metadata.namespace and route.metadata.name in routes
        for parent in route.spec.parent_refs
    }


def removed(policy: Policy) -> set[str]:
    """Headers that a ClientTrafficPolicy removes or sets before any filter sees them, in lower case."""
    early = policy.spec.headers.get("earlyRequestHeaders", {})
    return {str(one).lower() for one in early.get("remove", [])} | {
        str(one.get("name", "")).lower() for one in early.get("set", [])
    }


def _pool_of(policy: Policy, processor: ExtProc, pools: dict[Key, Pool]) -> Pool | None:
    for reference in processor.backend_refs:
        found = pools.get((reference.namespace or policy.metadata.namespace, reference.name))
        if reference.kind == "Service" and found is not None:
            return found
    return None


def _named(policy: Policy) -> str:
    return f"EnvoyExtensionPolicy {policy.metadata.namespace}/{policy.metadata.name}"


def _processor(policy: Policy, processor: ExtProc, pool: Pool, cluster: Cluster) -> Iterator[Finding]:
    name, mode = _named(policy), processor.processing_mode
    body = mode.request.body if mode.request is not None else ""
    if body in {"", "None"}:
        yield Finding(
            Level.ERROR,
            "request-body",
            name,
            "does not show request bodies to the picker, which then knows neither model nor prompt",
            "set extProc[].processingMode.request.body: Buffered",
        )
    elif body == "FullDuplexStreamed":
        yield Finding(
            Level.WARNING,
            "full-duplex",
            name,
            "processes bodies in full duplex: no time-out while the picker decides, and it cannot fail open",
            "set extProc[].processingMode.request.body: Buffered",
        )
    if mode.response is not None and mode.response.body not in {"", "None"}:
        yield Finding(
            Level.WARNING,
            "response-body",
            name,
            f"shows response bodies to the picker ({mode.response.body}): one message for each output token",
            "set extProc[].processingMode.response: {}",
        )
    if mode.response is None:
        yield Finding(
            Level.ERROR,
            "response-headers",
            name,
            "does not show response headers to the picker, which then does not know who answered and when it ended",
            "set extProc[].processingMode.response: {}",
        )
    if not mode.allow_mode_override:
        yield Finding(
            Level.WARNING,
            "mode-override",
            name,
            "does not let the picker change the mode: upgrades and gRPC hang, and lengths of answers are not learned",
            "set extProc[].processingMode.allowModeOverride: true",
        )
    timeout = _seconds(processor.message_timeout) if processor.message_timeout else _DEFAULT_S
    if timeout < _SHORTEST_S:
        yield Finding(
            Level.WARNING,
            "message-timeout",
            name,
            f"gives the picker {timeout:g} s for an answer; requests that wait in its queue fail with 504",
            "set extProc[].messageTimeout: 5s",
        )
    picker = picker_of(pool, cluster)
    if picker is not None and picker.spec.tls.mode != "Disabled":
        yield Finding(
            Level.ERROR,
            "picker-tls",
            name,
            f"calls the picker of {about(pool)} without TLS, which Picker {picker.metadata.name} "
            f"expects (tls.mode {picker.spec.tls.mode})",
            "set spec.tls.mode: Disabled in the Picker, or call it through a Backend with TLS",
        )


def _companions(policy: Policy, cluster: Cluster) -> Iterator[Finding]:
    """The policies that must be there for the same route and gateway."""
    namespace = policy.metadata.namespace
    routes, gateways = policy.spec.targets("HTTPRoute"), gateways_of(policy, cluster)
    if cluster.knows("backendtrafficpolicies.gateway.envoyproxy.io") and not any(
        _overrides(one) and (one.spec.targets("HTTPRoute") & routes or one.spec.targets("Gateway") & gateways)
        for one in cluster.backends
        if one.metadata.namespace == namespace
    ):
        yield Finding(
            Level.ERROR,
            "pick-ignored",
            _named(policy),
            "no BackendTrafficPolicy makes Envoy follow the picker: requests go round robin, with status 200",
            f"add a BackendTrafficPolicy for the same route with loadBalancer.endpointOverride.extractFrom: "
            f"[{{header: {DESTINATION}}}]",
        )
    if not cluster.knows("clienttrafficpolicies.gateway.envoyproxy.io"):
        return
    clients = [one for one in cluster.clients if one.spec.targets("Gateway") & gateways]
    if not any(DESTINATION in removed(one) for one in clients):
        yield Finding(
            Level.ERROR,
            "destination-header",
            _named(policy),
            f"clients can choose any pod by the header {DESTINATION}: nothing removes it",
            f"add a ClientTrafficPolicy for the Gateway with headers.earlyRequestHeaders.remove: [{DESTINATION}]",
        )
    if not any(_buffer(one) >= _LEAST_BUFFER for one in clients):
        yield Finding(
            Level.WARNING,
            "body-limit",
            _named(policy),
            "prompts above the gateway's body limit (32 KiB unless it is raised) are answered with 413",
            "set connection.bufferLimit: 32Mi in a ClientTrafficPolicy for the Gateway",
        )


def _refused(policy: Policy) -> Iterator[Finding]:
    for ancestor in policy.status.ancestors:
        for condition in ancestor.conditions:
            if condition.type == "Accepted" and condition.status == "False":
                yield Finding(
                    Level.ERROR,
                    "policy-refused",
                    _named(policy),
                    f"Envoy Gateway does not accept it: {condition.reason}: {condition.message}",
                    "",
                )


def _overrides(policy: Policy) -> bool:
    sources: Any = policy.spec.load_balancer.get("endpointOverride", {}).get("extractFrom", [])
    return any(str(one.get("header", "")).lower() == DESTINATION for one in sources)


def _buffer(policy: Policy) -> float:
    text = str(policy.spec.connection.get("bufferLimit", "0"))
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?i?)", text)
    return float(found[1]) * _UNITS_BYTES.get(found[2], 1) if found is not None else 0.0


def _seconds(text: str) -> float:
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text))
