"""Turns a bootstrap into YAML with a short comment at every choice that is not obvious."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml

from poolpilot_picker.envoy.settings import Baseline, BodyMode, EnvoySettings, FailureMode, PoolCluster

if TYPE_CHECKING:
    from poolpilot_picker.envoy.balancing import Message

_ALWAYS: Final = {
    "per_connection_buffer_limit_bytes": "the limit for prompts is request_body_buffer_limit",
    "typed_config.stream_idle_timeout": "the default of 300 s also cuts requests that wait for a first token",
    "early_header_mutation_extensions": "headers that a client must not bring",
    "request_body_buffer_limit": "room for the longest prompt",
    "route.timeout": "0 s: none; the default of 15 s cuts long generations",
    "clusters.circuit_breakers": "the default of 1024 requests is too small: streams live as long as exchanges",
    "common_http_protocol_options.idle_timeout": "below the keep-alive of the servers (uvicorn: 5 s)",
}

_PICKER: Final = {
    "retry_back_off": "with a dead picker the default back-off costs seconds",
    "health_checks": "a picker that hangs or drains gets no new requests while another is healthy",
    "allow_mode_override": "the picker may ask to see the chunks of some responses, or to skip a body",
    "failure_mode_allow": "false would truncate the responses in progress when a picker dies",
    "message_timeout": "for one answer of the picker; the default is 200 ms",
    "max_message_timeout": "how long a request may wait in the picker's queue",
    "forwarding_namespaces": "the endpoint that served, and subset hints, to the picker",
    "receiving_namespaces": "else the picker's dynamic metadata is dropped",
    "response_attributes": "which pod answered, and whether one did",
}

_EDS: Final = {
    "retry_policy": "a retry takes the next address of the picker's list",
    "retry_host_predicate": "acts on picks of the fallback policy only",
    "path_config_source": "the picker writes this file (--eds-dir); Envoy starts only when it exists",
    "override_host_sources": "one source only: two would be concatenated",
}

_ORIGINAL_DST: Final = {
    "retry_policy": "goes to the same address again",
    "original_dst_lb_config": "metadata, not the header: a client cannot set it",
}

_BODY_MODES: Final = {
    BodyMode.BUFFERED_PARTIAL: "above the buffer limit the picker decides on the beginning of the body",
    BodyMode.BUFFERED: "above the buffer limit the client gets 413",
    BodyMode.FULL_DUPLEX: "no time-out while the picker decides, and no fail open once a body is on its way",
}

_FAILS: Final = {
    FailureMode.OPEN: "while no picker answers, Envoy chooses by itself",
    FailureMode.CLOSE: "while no picker answers, none is chosen: 503",
}


def to_yaml(settings: EnvoySettings, config: Message) -> str:
    """`config` as YAML; reads back equal to `config`."""
    text = yaml.safe_dump(config, sort_keys=False, width=1_000_000)
    return "\n".join([*_heading(settings), *_annotate(text.splitlines(), _comments(settings))]) + "\n"


def _heading(settings: EnvoySettings) -> list[str]:
    if settings.baseline is not None:
        return [f"# Envoy balances {len(settings.endpoints)} endpoints by {settings.baseline.value}, without a picker."]
    reached = ", ".join(f"{picker.host} port {picker.port}" for picker in settings.pickers)
    return [
        f"# Envoy asks the picker at {reached} where each request should go.",
        f"# Pool cluster {settings.cluster.value}, body mode {settings.body_mode.value}, fails {settings.fails.value}.",
    ]


def _comments(settings: EnvoySettings) -> dict[str, str]:
    if settings.baseline is not None:
        policy = (
            "Envoy's own policy" if settings.baseline is Baseline.ROUND_ROBIN else "two at random, the less busy one"
        )
        return {**_ALWAYS, "load_balancing_policy": policy}
    common = {**_ALWAYS, **_PICKER, "request_body_mode": _BODY_MODES[settings.body_mode]}
    if settings.cluster is PoolCluster.ORIGINAL_DST:
        return {**common, **_ORIGINAL_DST}
    return {**common, **_EDS, "fallback_policy": _FAILS[settings.fails]}


def _annotate(lines: list[str], comments: dict[str, str]) -> list[str]:
    """Appends each comment to the first line whose dotted path of keys ends with the comment's key."""
    waiting = dict(comments)
    path: list[tuple[int, str]] = []
    annotated = []
    for line in lines:
        content = line.lstrip(" ")
        depth = len(line) - len(content)
        while content.startswith("- "):
            content = content[2:]
            depth += 2
        key, colon, _ = content.partition(":")
        if colon and not key.startswith(("'", '"')):
            while path and path[-1][0] >= depth:
                path.pop()
            path.append((depth, key))
            dotted = "." + ".".join(name for _, name in path)
            found = next((wanted for wanted in waiting if dotted.endswith("." + wanted)), None)
            if found is not None:
                line = f"{line}  # {waiting.pop(found)}"
        annotated.append(line)
    return annotated
