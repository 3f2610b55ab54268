"""The generated bootstrap: what each setting changes, and which combinations are refused."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from xxhash import xxh64_intdigest

from poolpilot_picker.envoy.balancing import SALT, TURN
from poolpilot_picker.envoy.config import STRIPPED, bootstrap
from poolpilot_picker.envoy.settings import (
    Baseline,
    BodyMode,
    EnvoySettings,
    FailureMode,
    HostPort,
    PodProtocol,
    PoolCluster,
)
from poolpilot_picker.errors import ConfigurationError

TWO = (HostPort("10.0.0.1", 9002), HostPort("10.0.0.1", 9003))


def manager(config: dict[str, Any]) -> dict[str, Any]:
    [listener] = config["static_resources"]["listeners"]
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(config: dict[str, Any]) -> dict[str, Any]:
    [found] = [f for f in manager(config)["http_filters"] if f["name"] == "envoy.filters.http.ext_proc"]
    typed: dict[str, Any] = found["typed_config"]
    return typed


def clusters(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}


def route(config: dict[str, Any]) -> dict[str, Any]:
    [found] = manager(config)["route_config"]["virtual_hosts"][0]["routes"]
    typed: dict[str, Any] = found
    return typed


def fallback(config: dict[str, Any]) -> str:
    policy = clusters(config)["pool"]["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
    kind: str = policy["fallback_policy"]["policies"][0]["typed_extension_config"]["typed_config"]["@type"]
    return kind.rsplit(".", 1)[-1]


def test_the_filter_always_allows_failure_and_the_cluster_decides_whether_the_pool_fails_open() -> None:
    """`failure_mode_allow: false` truncates running responses, so closing is the cluster's task."""
    for mode, fail in product(BodyMode, FailureMode):
        config = bootstrap(EnvoySettings(body_mode=mode, fail=fail))
        assert ext_proc(config)["failure_mode_allow"] is True
        assert fallback(config) == ("LeastRequest" if fail is FailureMode.OPEN else "Subset")


def test_an_unset_failure_mode_closes() -> None:
    assert fallback(bootstrap(EnvoySettings())) == "Subset"


@pytest.mark.parametrize(
    ("mode", "request_body", "response_body", "request_trailers"),
    [
        (BodyMode.BUFFERED_PARTIAL, "BUFFERED_PARTIAL", "NONE", "SKIP"),
        (BodyMode.BUFFERED, "BUFFERED", "NONE", "SKIP"),
        (BodyMode.FULL_DUPLEX, "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "SEND"),
    ],
)
def test_body_modes(mode: BodyMode, request_body: str, response_body: str, request_trailers: str) -> None:
    processing = ext_proc(bootstrap(EnvoySettings(body_mode=mode)))["processing_mode"]
    assert processing["request_body_mode"] == request_body
    assert processing["response_body_mode"] == response_body
    assert processing["request_trailer_mode"] == request_trailers
    assert processing["response_trailer_mode"] == "SEND", "else the picker does not see the end of the exchange"
    assert processing["request_header_mode"] == processing["response_header_mode"] == "SEND"


def test_clients_cannot_bring_the_destination_nor_the_headers_that_pods_trust() -> None:
    for settings in (
        EnvoySettings(),
        EnvoySettings(cluster=PoolCluster.ORIGINAL_DST),
        EnvoySettings(baseline=Baseline.ROUND_ROBIN, endpoints=(HostPort("10.0.0.1", 8000),)),
    ):
        [strip] = manager(bootstrap(settings))["early_header_mutation_extensions"]
        removed = {mutation["remove"] for mutation in strip["typed_config"]["mutations"]}
        assert removed == set(STRIPPED)
        assert {"x-gateway-destination-endpoint", "x-prefiller-host-port", "x-envoy-max-retries"} <= removed


def test_metadata_flows_both_ways_and_the_attributes_are_asked_for() -> None:
    filtered = ext_proc(bootstrap(EnvoySettings()))
    assert filtered["metadata_options"]["receiving_namespaces"] == {"untyped": ["envoy.lb"]}
    assert filtered["metadata_options"]["forwarding_namespaces"] == {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
    assert {"response.code_details", "upstream.address"} <= set(filtered["response_attributes"])


def test_original_dst_reads_the_metadata_and_retries_only_what_cannot_have_started() -> None:
    config = bootstrap(EnvoySettings(cluster=PoolCluster.ORIGINAL_DST, retries=1))
    pool = clusters(config)["pool"]
    assert pool["original_dst_lb_config"]["metadata_key"]["path"] == [{"key": "x-gateway-destination-endpoint"}]
    assert "reset" not in route(config)["route"]["retry_policy"]["retry_on"].split(",")
    assert "eds_cluster_config" not in pool


def test_no_retries_leaves_the_policy_out() -> None:
    assert "retry_policy" not in route(bootstrap(EnvoySettings(retries=0)))["route"]


def test_no_small_limits_anywhere() -> None:
    for name, cluster in clusters(bootstrap(EnvoySettings(max_streams=7777))).items():
        [threshold] = cluster["circuit_breakers"]["thresholds"]
        assert threshold["max_requests"] == threshold["max_connections"] == threshold["max_pending_requests"] == 7777
        assert threshold["max_retries"] >= 1000, name


def test_retries_are_a_share_of_what_is_active() -> None:
    for percent, budget in ((50.0, {"budget_percent": {"value": 50.0}, "min_retry_concurrency": 100}), (0.0, None)):
        config = bootstrap(EnvoySettings(retry_budget_percent=percent))
        [threshold] = clusters(config)["pool"]["circuit_breakers"]["thresholds"]
        assert threshold.get("retry_budget") == budget
        [threshold] = clusters(config)["picker"]["circuit_breakers"]["thresholds"]
        assert "retry_budget" not in threshold


def test_the_picker_may_forbid_retries_and_change_no_other_headers_of_envoy_than_that_takes() -> None:
    assert ext_proc(bootstrap(EnvoySettings()))["mutation_rules"] == {"allow_envoy": True}


def test_times_and_sizes_land_where_they_belong() -> None:
    config = bootstrap(
        EnvoySettings(
            message_timeout_s=0.25,
            max_message_timeout_s=90,
            route_timeout_s=0,
            stream_idle_timeout_s=7200,
            max_body_bytes=1 << 20,
            connect_timeout_s=0.5,
        )
    )
    assert ext_proc(config)["message_timeout"] == "0.25s"
    assert ext_proc(config)["max_message_timeout"] == "90s"
    assert manager(config)["stream_idle_timeout"] == "7200s"
    assert route(config)["request_body_buffer_limit"] == 1 << 20
    assert route(config)["route"]["timeout"] == "0s"
    assert clusters(config)["pool"]["connect_timeout"] == "0.5s"


def test_the_connection_buffer_follows_the_body_limit_down_but_not_up() -> None:
    """The route's limit only raises the listener's."""
    for limit, expected in ((65_536, 65_536), (1 << 20, 1 << 20), (64 << 20, 1 << 20)):
        [listener] = bootstrap(EnvoySettings(max_body_bytes=limit))["static_resources"]["listeners"]
        assert listener["per_connection_buffer_limit_bytes"] == expected


def test_several_pickers_and_names() -> None:
    """Addresses need no resolver; one name is enough to need one."""
    two = bootstrap(EnvoySettings(pickers=(HostPort("10.0.0.1", 9002), HostPort("::1", 9002))))
    picker = clusters(two)["picker"]
    assert picker["type"] == "STATIC"
    assert len(picker["load_assignment"]["endpoints"][0]["lb_endpoints"]) == 2
    named = bootstrap(EnvoySettings(pickers=(HostPort("picker.default.svc", 9002),)))
    assert clusters(named)["picker"]["type"] == "STRICT_DNS"


def turns(settings: EnvoySettings) -> tuple[str, dict[str, Any]] | None:
    """The metadata by which two pickers take turns, and the policy that reads it; None where they do not."""
    config = bootstrap(settings)
    policy, service = clusters(config)["picker"].get("load_balancing_policy"), ext_proc(config)["grpc_service"]
    assert ("initial_metadata" in service) is (policy is not None)
    if policy is None:
        return None
    [metadata] = service["initial_metadata"]
    found: dict[str, Any] = policy["policies"][0]["typed_extension_config"]["typed_config"]
    [hashed] = found["consistent_hashing_lb_config"]["hash_policy"]
    assert hashed["header"]["header_name"] == metadata["key"] == TURN
    return metadata["value"], found


@pytest.mark.parametrize(("turn_ms", "digits"), [(1, "%3f"), (10, "%2f"), (100, "%1f")])
def test_two_pickers_take_turns(turn_ms: int, digits: str) -> None:
    """The odd turns to one and the even ones to the other, whatever stands before the last digit."""
    found = turns(EnvoySettings(pickers=TWO, picker_turn_ms=turn_ms))
    assert found is not None
    value, policy = found
    assert value == f"{SALT}%START_TIME({digits})%"
    assert policy["table_size"] == 2
    [hashed] = policy["consistent_hashing_lb_config"]["hash_policy"]
    rewrite = hashed["header"]["regex_rewrite"]
    for fraction in ("0", "7", "04", "58", "123", "999"):
        key = re.sub(rewrite["pattern"]["regex"], rewrite["substitution"], SALT + fraction)
        assert xxh64_intdigest(key.encode()) % 2 == int(fraction) % 2


def test_nobody_takes_turns_alone_or_among_many_or_where_it_is_not_wanted() -> None:
    assert turns(EnvoySettings()) is None
    assert turns(EnvoySettings(pickers=TWO, picker_turn_ms=0)) is None
    assert turns(EnvoySettings(pickers=(*TWO, HostPort("10.0.0.1", 9004)))) is None


def test_a_turn_that_envoy_cannot_cut_from_a_timestamp_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="picker-turn-ms: 50 is not possible; allowed: 0, 1, 10, 100"):
        bootstrap(EnvoySettings(pickers=TWO, picker_turn_ms=50))


def test_tls_to_the_picker() -> None:
    plain = clusters(bootstrap(EnvoySettings()))["picker"]
    assert "transport_socket" not in plain
    blind = clusters(bootstrap(EnvoySettings(picker_tls=True)))["picker"]["transport_socket"]["typed_config"]
    assert blind["common_tls_context"] == {"alpn_protocols": ["h2"]}
    settings = EnvoySettings(picker_tls=True, picker_ca_file="/etc/ca.pem", picker_server_name="picker.example")
    verified = clusters(bootstrap(settings))["picker"]["transport_socket"]["typed_config"]
    assert verified["sni"] == "picker.example"
    validation = verified["common_tls_context"]["validation_context"]
    assert validation["trusted_ca"] == {"filename": "/etc/ca.pem"}
    assert validation["match_typed_subject_alt_names"] == [
        {"san_type": "DNS", "matcher": {"exact": "picker.example"}},
    ]


@pytest.mark.parametrize("baseline", list(Baseline))
def test_a_baseline_has_no_picker_anywhere(baseline: Baseline) -> None:
    settings = EnvoySettings(baseline=baseline, endpoints=(HostPort("10.0.0.1", 8000), HostPort("10.0.0.2", 8000)))
    config = bootstrap(settings)
    assert set(clusters(config)) == {"pool"}
    assert [f["name"] for f in manager(config)["http_filters"]] == ["envoy.filters.http.router"]
    policy = clusters(config)["pool"]["load_balancing_policy"]["policies"][0]["typed_extension_config"]
    assert policy["name"] == baseline.value.replace("-", "_")


def test_pod_protocols() -> None:
    def options(protocol: PodProtocol) -> dict[str, Any]:
        cluster = clusters(bootstrap(EnvoySettings(pod_protocol=protocol)))["pool"]
        [found] = cluster["typed_extension_protocol_options"].values()
        typed: dict[str, Any] = found
        return typed

    assert options(PodProtocol.HTTP1)["explicit_http_config"] == {"http_protocol_options": {"enable_trailers": True}}
    assert options(PodProtocol.HTTP2)["explicit_http_config"] == {"http2_protocol_options": {}}
    assert set(options(PodProtocol.DOWNSTREAM)["use_downstream_protocol_config"]) == {
        "http_protocol_options",
        "http2_protocol_options",
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cluster": PoolCluster.ORIGINAL_DST, "fail": FailureMode.OPEN}, "fail"),
        ({"cluster": PoolCluster.ORIGINAL_DST, "eds_directory": "/run/eds"}, "eds-dir"),
        ({"endpoints": (HostPort("10.0.0.1", 1),)}, "endpoints"),
        ({"baseline": Baseline.ROUND_ROBIN}, "endpoints"),
        ({"pickers": ()}, "picker"),
        ({"picker_ca_file": "/ca.pem"}, "picker-ca-file"),
        ({"picker_tls": True, "picker_ca_file": "/ca.pem"}, "picker-server-name"),
        ({"picker_tls": True, "picker_ca_file": "ca.pem", "picker_server_name": "a"}, "picker-ca-file"),
        ({"eds_directory": "eds"}, "eds-dir"),
        ({"name": "a b"}, "name"),
        ({"name": "picker"}, "name"),
        ({"message_timeout_s": 0}, "message-timeout"),
        ({"message_timeout_s": float("nan")}, "message-timeout"),
        ({"message_timeout_s": 10, "max_message_timeout_s": 5}, "max-message-timeout"),
        ({"retries": -1}, "retries"),
        ({"retry_budget_percent": 101.0}, "retry-budget: 101 must be between 0 and 100"),
        ({"max_body_bytes": 10}, "max-body-bytes"),
        ({"max_streams": 0}, "max-streams"),
        ({"route_timeout_s": float("inf")}, "route-timeout"),
    ],
)
def test_bad_settings_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        bootstrap(EnvoySettings(**changes))
    assert any(problem.startswith(field) for problem in raised.value.problems), raised.value.problems


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        EnvoySettings(retries=99, max_streams=0, name="").check()
    assert len(raised.value.problems) == 3


def test_clients_and_admin_need_two_addresses() -> None:
    here = HostPort("127.0.0.1", 8081)
    with pytest.raises(ConfigurationError, match="admin: clients are already listened to on port 8081"):
        EnvoySettings(listen=here, admin=here).check()
