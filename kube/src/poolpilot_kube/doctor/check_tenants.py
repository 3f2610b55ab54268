"""Who says which tenant a request is of? Where flow control is on, that decides who waits and who pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from poolpilot_kube.doctor.check_envoy_gateway import calls, gateways_of, removed
from poolpilot_kube.doctor.check_pools import picker_of
from poolpilot_kube.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import Picker, Policy
    from poolpilot_kube.doctor.reading import Cluster

TENANT: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""Headers that name the tenant; the first that a request has counts."""
_GATE: Final = "flowControl"
_ALIKE: Final = "global-strict-fairness-policy"
"""With this fairness policy there are no tenants."""


def check_tenants(cluster: Cluster) -> Iterator[Finding]:
    """Of each Picker whose configuration turns flow control on."""
    held = [picker for picker in cluster.pickers if tells_tenants_apart(picker.spec.config.inline)]
    called = [(policy, picker_of(pool, cluster)) for policy, _, pool in calls(cluster)] if held else []
    for picker in held:
        policies = [policy for policy, asked in called if asked is picker]
        for policy in policies:
            yield from _open(policy, picker, cluster)
        if not policies:
            yield Finding(
                Level.INFO,
                "tenant-header",
                _named(picker),
                f"flow control is on, and the header {TENANT[0]} says whose a request is: a client that can set it "
                "chooses its tenant anew for each request",
                "let a filter in front of the picker overwrite it from the caller's credentials (docs/flow-control.md)",
            )


def tells_tenants_apart(config: str | None) -> bool:
    """Whether an EndpointPickerConfig turns flow control on, with tenants; False for what is no configuration."""
    try:
        given = yaml.safe_load(config or "")
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return False
    if not isinstance(given, dict):
        return False
    gates = given.get("featureGates")
    said = [str(one) for one in gates if str(one).partition("=")[0] == _GATE] if isinstance(gates, list) else []
    if not said or said[-1].partition("=")[2] == "false":
        return False
    section = _mapping(given.get("flowControl"))
    bands = [section.get("defaultPriorityBand"), *(section.get("priorityBands") or ())]
    bands += [section["defaultNegativePriorityBand"]] if "defaultNegativePriorityBand" in section else []
    limits = _mapping(_mapping(given.get("poolpilot")).get("flowControl")).get("tenants")
    return bool(limits) or any(_mapping(band).get("fairnessPolicyRef") != _ALIKE for band in bands)


def _mapping(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _open(policy: Policy, picker: Picker, cluster: Cluster) -> Iterator[Finding]:
    """Nothing can be said where what removes headers may not be read."""
    if not cluster.knows("clienttrafficpolicies.gateway.envoyproxy.io"):
        return
    gateways = gateways_of(policy, cluster)
    clients = [one for one in cluster.clients if one.spec.targets("Gateway") & gateways]
    open_headers = [name for name in TENANT if not any(name in removed(one) for one in clients)]
    if open_headers:
        yield Finding(
            Level.WARNING,
            "tenant-header",
            f"EnvoyExtensionPolicy {policy.metadata.namespace}/{policy.metadata.name}",
            f"{_named(picker)} has flow control on, and clients choose their tenant themselves by the header "
            f"{' or '.join(open_headers)}: nothing removes what they send",
            "add them to headers.earlyRequestHeaders.remove of a ClientTrafficPolicy for the Gateway, and set "
            f"{TENANT[0]} from the caller's credentials (SecurityPolicy, jwt.providers[].claimToHeaders)",
        )


def _named(picker: Picker) -> str:
    return f"Picker {picker.metadata.namespace}/{picker.metadata.name}"
