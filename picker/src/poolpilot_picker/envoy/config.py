"""Builds the bootstrap of an Envoy that asks the picker: settings → plain dicts, no I/O.

Every choice here was tested against a real Envoy (tests/gateway); docs/envoy.md explains them to users.
"""

from __future__ import annotations

from typing import Final

from poolpilot_picker.envoy.balancing import TYPES, Message, baseline, in_turns, lb_metadata, override_host, turn, typed
from poolpilot_picker.envoy.settings import (
    BodyMode,
    EnvoySettings,
    HostPort,
    PodProtocol,
    PoolCluster,
    is_ip,
)
from poolpilot_picker.requests import headers

_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""Also the name under which every endpoint picker answers gRPC health."""

STRIPPED: Final = (
    headers.DESTINATION,
    headers.SERVED,
    headers.SUBSET,
    *headers.BACKEND_ROUTING,
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-hedge-on-per-try-timeout",
)
"""Headers a client may not bring: they would choose its endpoint whenever the picker is away, or raise its retries."""

LEAST_RETRIES: Final = 100
"""Retries at a time that no budget forbids: a pool with little to do may lose a pod without losing a request."""

_BODY_MODES: Final = {
    BodyMode.BUFFERED_PARTIAL: "BUFFERED_PARTIAL",
    BodyMode.BUFFERED: "BUFFERED",
    BodyMode.FULL_DUPLEX: "FULL_DUPLEX_STREAMED",
}

_NOT_TWICE: Final[Message] = {
    "retry_host_predicate": [
        {
            "name": "previous_hosts",
            "typed_config": {"@type": TYPES + "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    "host_selection_retry_max_attempts": 5,
}
"""Part of a retry policy: choose another host than those already tried."""

_ACCESS_LOG_FIELDS: Final = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "endpoint": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
}


def bootstrap(settings: EnvoySettings) -> Message:
    """A complete bootstrap for one listener and one pool; ConfigurationError if the settings do not fit together."""
    settings.check()
    clusters = [_pool(settings)] if settings.baseline else [_picker(settings), _pool(settings)]
    return {
        "node": {"id": "gateway", "cluster": "gateway"},
        **({"admin": {"address": _address(settings.admin)}} if settings.admin else {}),
        "static_resources": {"listeners": [_listener(settings)], "clusters": clusters},
    }


def _duration(seconds: float) -> str:
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def _address(where: HostPort) -> Message:
    address: Message = {"address": where.host, "port_value": where.port}
    if where.host == "::":
        # Without it all addresses of IPv6 only.
        address["ipv4_compat"] = True
    return {"socket_address": address}


# ── the client's side ────────────────────────────────────────────────────────


def _listener(settings: EnvoySettings) -> Message:
    manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=settings.name,
        stream_idle_timeout=_duration(settings.stream_idle_timeout_s),
        upgrade_configs=[{"upgrade_type": "websocket"}],
        http_protocol_options={"enable_trailers": True},
        early_header_mutation_extensions=[
            {
                "name": "strip",
                "typed_config": typed(
                    "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    mutations=[{"remove": name} for name in STRIPPED],
                ),
            }
        ],
        route_config={
            "name": settings.name,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route(settings)]}],
        },
        http_filters=[
            *([] if settings.baseline else [_external_processor(settings)]),
            {"name": "envoy.filters.http.router", "typed_config": typed("extensions.filters.http.router.v3.Router")},
        ],
        **({"access_log": [_access_log(settings.access_log)]} if settings.access_log else {}),
    )
    return {
        "name": settings.name,
        "address": _address(settings.listen),
        # The route's limit only raises this one, and full duplex chunks grow with it.
        "per_connection_buffer_limit_bytes": min(1 << 20, settings.max_body_bytes),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _access_log(path: str) -> Message:
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": typed(
            "extensions.access_loggers.file.v3.FileAccessLog",
            path={"stdout": "/dev/stdout", "stderr": "/dev/stderr"}.get(path, path),
            log_format={"json_format": dict(_ACCESS_LOG_FIELDS)},
        ),
    }


def _route(settings: EnvoySettings) -> Message:
    action: Message = {"cluster": settings.name, "timeout": _duration(settings.route_timeout_s)}
    if settings.retries:
        action["retry_policy"] = _retry_policy(settings)
    return {
        "match": {"prefix": "/"},
        "request_body_buffer_limit": settings.max_body_bytes,
        "route": action,
    }


def _retry_policy(settings: EnvoySettings) -> Message:
    if settings.cluster is PoolCluster.ORIGINAL_DST and settings.baseline is None:
        # Every retry goes to the same address: only what cannot have started there is worth repeating.
        return {"retry_on": "connect-failure,refused-stream", "num_retries": settings.retries}
    return {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": settings.retries,
        **_NOT_TWICE,
    }


# ── the picker's side ────────────────────────────────────────────────────────


def _take_turns(settings: EnvoySettings) -> bool:
    """What Envoy has to say at a time stays together: divided, both pickers wake up for it, and Envoy for each of them.

    Not with more than two: who needs those has too much for one, and that is who would get everything for a while.
    """
    return len(settings.pickers) == 2 and settings.picker_turn_ms > 0


def _external_processor(settings: EnvoySettings) -> Message:
    duplex = settings.body_mode is BodyMode.FULL_DUPLEX
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": typed(
            "extensions.filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={
                "envoy_grpc": {"cluster_name": settings.picker_cluster},
                "retry_policy": {
                    # cancelled: what a gRPC server answers to streams that reach it while it shuts down.
                    "retry_on": "connect-failure,refused-stream,reset,unavailable,cancelled",
                    "num_retries": 3,
                    "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.05s"},
                    # Without it every other retry goes to the dead one of two pickers again.
                    **_NOT_TWICE,
                },
                **({"initial_metadata": [turn(settings.picker_turn_ms)]} if _take_turns(settings) else {}),
            },
            processing_mode={
                "request_header_mode": "SEND",
                "request_body_mode": _BODY_MODES[settings.body_mode],
                "request_trailer_mode": "SEND" if duplex else "SKIP",
                "response_header_mode": "SEND",
                "response_body_mode": "FULL_DUPLEX_STREAMED" if duplex else "NONE",
                "response_trailer_mode": "SEND",
            },
            allow_mode_override=True,
            failure_mode_allow=True,
            # Its word on retries (x-envoy-max-retries); all else stays forbidden that is by default.
            mutation_rules={"allow_envoy": True},
            message_timeout=_duration(settings.message_timeout_s),
            max_message_timeout=_duration(settings.max_message_timeout_s),
            request_attributes=["xds.cluster_name", "xds.route_name"],
            response_attributes=["response.code_details", "upstream.address", "upstream.request_attempt_count"],
            metadata_options={
                "forwarding_namespaces": {"untyped": [headers.LB_NAMESPACE, headers.SUBSET_NAMESPACE]},
                "receiving_namespaces": {"untyped": [headers.LB_NAMESPACE]},
            },
        ),
    }


def _picker(settings: EnvoySettings) -> Message:
    return {
        "name": settings.picker_cluster,
        "type": _discovery(settings.pickers),
        "connect_timeout": "1s",
        "circuit_breakers": _no_small_limits(settings.max_streams, retries=settings.max_streams),
        **({"load_balancing_policy": {"policies": [in_turns()]}} if _take_turns(settings) else {}),
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={
                    "http2_protocol_options": {"connection_keepalive": {"interval": "30s", "timeout": "5s"}}
                },
            )
        },
        **({"health_checks": [_health_check(settings.picker_health_s)]} if settings.picker_health_s else {}),
        **({"transport_socket": _tls(settings)} if settings.picker_tls else {}),
        "load_assignment": _assignment(settings.picker_cluster, settings.pickers),
    }


def _health_check(interval_s: float) -> Message:
    """Steers requests to the pickers that say they serve; when none does, Envoy tries them all (panic threshold)."""
    return {
        "timeout": _duration(min(interval_s, 1.0)),
        "interval": _duration(interval_s),
        "no_traffic_interval": _duration(interval_s),
        "unhealthy_interval": _duration(interval_s / 4),
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": EXT_PROC_SERVICE},
    }


def _tls(settings: EnvoySettings) -> Message:
    name = settings.picker_server_name
    context: Message = {"alpn_protocols": ["h2"]}
    if settings.picker_ca_file:
        context["validation_context"] = {
            "trusted_ca": {"filename": settings.picker_ca_file},
            "match_typed_subject_alt_names": [
                {
                    "san_type": "IP_ADDRESS" if is_ip(name or "") else "DNS",
                    "matcher": {"exact": name},
                }
            ],
        }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context=context,
            **({"sni": name} if name and not is_ip(name) else {}),
        ),
    }


# ── the pods' side ───────────────────────────────────────────────────────────


def _pool(settings: EnvoySettings) -> Message:
    common: Message = {
        "connect_timeout": _duration(settings.connect_timeout_s),
        "circuit_breakers": _no_small_limits(settings.max_streams, retries=1000, budget=settings.retry_budget_percent),
        "typed_extension_protocol_options": {_HTTP_OPTIONS: _pod_protocol(settings)},
    }
    if settings.baseline is not None:
        policy = baseline(settings.baseline)
        return {
            "name": settings.name,
            "type": _discovery(settings.endpoints),
            **common,
            "load_balancing_policy": {"policies": [policy]},
            "load_assignment": _assignment(settings.name, settings.endpoints),
        }
    if settings.cluster is PoolCluster.ORIGINAL_DST:
        return {
            "name": settings.name,
            "type": "ORIGINAL_DST",
            **common,
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"metadata_key": lb_metadata(headers.DESTINATION)},
        }
    return {
        "name": settings.name,
        "type": "EDS",
        **common,
        "eds_cluster_config": {
            "service_name": settings.name,
            "eds_config": {
                "path_config_source": {
                    "path": settings.eds_path,
                    "watched_directory": {"path": settings.eds_directory},
                }
            },
        },
        "load_balancing_policy": {"policies": [override_host(settings.fails)]},
    }


def _pod_protocol(settings: EnvoySettings) -> Message:
    http1: Message = {"enable_trailers": True}
    protocol: Message
    match settings.pod_protocol:
        case PodProtocol.HTTP1:
            protocol = {"explicit_http_config": {"http_protocol_options": http1}}
        case PodProtocol.HTTP2:
            protocol = {"explicit_http_config": {"http2_protocol_options": {}}}
        case PodProtocol.DOWNSTREAM:
            protocol = {
                "use_downstream_protocol_config": {"http_protocol_options": http1, "http2_protocol_options": {}}
            }
    return typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        **protocol,
        common_http_protocol_options={"idle_timeout": _duration(settings.pod_idle_timeout_s)},
    )


def _no_small_limits(streams: int, *, retries: int, budget: float = 0.0) -> Message:
    limits: Message = {
        "max_connections": streams,
        "max_pending_requests": streams,
        "max_requests": streams,
        "max_retries": retries,
    }
    if budget:
        # Where it stands, max_retries does not count.
        limits["retry_budget"] = {"budget_percent": {"value": budget}, "min_retry_concurrency": LEAST_RETRIES}
    return {"thresholds": [limits]}


def _discovery(addresses: tuple[HostPort, ...]) -> str:
    return "STATIC" if all(where.is_ip for where in addresses) else "STRICT_DNS"


def _assignment(cluster: str, addresses: tuple[HostPort, ...]) -> Message:
    endpoints = [{"endpoint": {"address": _address(where)}} for where in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}
