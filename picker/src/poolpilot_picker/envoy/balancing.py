"""Which host Envoy takes: load-balancing policies of the generated clusters."""

from __future__ import annotations

from typing import Any, Final

from poolpilot_picker.envoy.settings import Baseline, FailureMode
from poolpilot_picker.requests import headers

TURN: Final = "x-poolpilot-turn"
"""Metadata of a stream to one of two pickers: the time at which its request began, as digits behind SALT."""
SALT: Final = "turn-13-"
"""With it, the xxHash64 of every odd digit is odd, and of every even digit even."""
_DIGITS: Final = {1: 3, 10: 2, 100: 1}
"""Of a second's fraction, by the length of a turn in ms."""

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


def turn(turn_ms: int) -> Message:
    """The metadata."""
    return {"key": TURN, "value": f"{SALT}%START_TIME(%{_DIGITS[turn_ms]}f)%"}


def in_turns() -> Message:
    """Two hosts, each for one turn; a retry, or an unhealthy host, gets the other one.

    A Maglev table of as many places as hosts has each host once, and a hash falls on its remainder: only the last digit
    of the time counts, and whether that is odd.
    """
    header = {
        "header_name": TURN,
        "regex_rewrite": {"pattern": {"regex": rf"^({SALT})\d*(\d)$"}, "substitution": r"\1\2"},
    }
    return {
        "typed_extension_config": {
            "name": "maglev",
            "typed_config": typed(
                "extensions.load_balancing_policies.maglev.v3.Maglev",
                table_size=2,
                consistent_hashing_lb_config={"hash_policy": [{"header": header}]},
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
