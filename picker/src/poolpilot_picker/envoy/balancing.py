"""Which host Envoy takes: load-balancing policies of the generated clusters."""

from __future__ import annotations

from typing import Any, Final

from poolpilot_picker.envoy.settings import Baseline, FailureMode
from poolpilot_picker.requests import headers

Message = dict[str, Any]
"""One protobuf message of Envoy's API in its JSON form."""

TYPES: Final = "type.googleapis.com/envoy."


def typed(name: str, **fields: Any) -> Message:
    """A message with its type, for the places where Envoy takes any."""
    return {"@type": TYPES + name, **fields}


def override_host(fails: FailureMode) -> Message:
    """The picker's list, first to last; after it least request (open) or nobody (close)."""
    fallback = _least_request() if fails is FailureMode.OPEN else _nothing()
    return {
        "typed_extension_config": {
            "name": "override_host",
            "typed_config": typed(
                "extensions.load_balancing_policies.override_host.v3.OverrideHost",
                override_host_sources=[{"header": headers.DESTINATION}],
                selected_host_key=lb_metadata(headers.SERVED),
                fallback_policy={"policies": [fallback]},
            ),
        }
    }


def baseline(which: Baseline) -> Message:
    """Envoy's own policy of that name."""
    return {Baseline.ROUND_ROBIN: _round_robin, Baseline.LEAST_REQUEST: _least_request}[which]()


def _round_robin() -> Message:
    return {
        "typed_extension_config": {
            "name": "round_robin",
            "typed_config": typed("extensions.load_balancing_policies.round_robin.v3.RoundRobin"),
        }
    }


def _least_request() -> Message:
    return {
        "typed_extension_config": {
            "name": "least_request",
            "typed_config": typed("extensions.load_balancing_policies.least_request.v3.LeastRequest"),
        }
    }


def _nothing() -> Message:
    """A subset policy whose only subset matches nothing: picks no host, the client gets 503."""
    return {
        "typed_extension_config": {
            "name": "nothing",
            "typed_config": typed(
                "extensions.load_balancing_policies.subset.v3.Subset",
                fallback_policy="NO_FALLBACK",
                subset_selectors=[{"keys": ["never"]}],
                subset_lb_policy={"policies": [_least_request()]},
            ),
        }
    }


def lb_metadata(key: str) -> Message:
    """Path of a key in the dynamic metadata that load balancing reads and writes."""
    return {"key": headers.LB_NAMESPACE, "path": [{"key": key}]}
