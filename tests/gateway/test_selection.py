"""What decides which pod it is: subset hints, the picker and nobody else; IPv6; two pickers in one chain."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway_envoy import Variant, start_gateway
from gateway_picker import LocalPicker
from gateway_pods import Pod, Pods
from gateway_site import Lane, Site, chat
from poolpilot_picker.envoy.settings import BodyMode, EnvoySettings, HostPort, PoolCluster

MODES = ["partial", "buffered", "duplex"]


# ── subset hints ─────────────────────────────────────────────────────────────


async def test_a_list_as_subset_hint(lane: Lane) -> None:
    allowed = {lane.pods[1].address, lane.pods[2].address}
    done = await asyncio.gather(*(lane.request_without_waiting("subset-list", chat(100)) for _ in range(12)))
    assert {one.response.pod for one in done} == allowed


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_string_as_subset_hint_also_for_requests_without_a_body(lane: Lane, method: str) -> None:
    allowed = [lane.pods[0].address, lane.pods[3].address]
    body = chat(100) if method == "POST" else None
    path = "/v1/chat/completions" if method == "POST" else "/v1/models"
    done = await asyncio.gather(
        *(
            lane.request_without_waiting(
                "subset-string", body, method=method, path=path, headers={"x-subset": ", ".join(allowed)}
            )
            for _ in range(12)
        )
    )
    assert {one.response.pod for one in done} == set(allowed)


async def test_a_hint_of_one_address(lane: Lane) -> None:
    for pod in lane.pods:
        done = await lane.request("subset-string", chat(100), headers={"x-subset": pod.address})
        assert done.response.pod == pod.address


async def test_a_bare_ip_allows_every_port_of_it(lane: Lane) -> None:
    done = await asyncio.gather(
        *(
            lane.request_without_waiting("subset-string", chat(100), headers={"x-subset": "127.0.0.1"})
            for _ in range(16)
        )
    )
    assert len({one.response.pod for one in done}) == len(lane.pods.pods)


@pytest.mark.parametrize("hint", ["10.9.9.9:8000", "127.0.0.1:1", "nonsense"])
async def test_a_hint_that_matches_nothing_is_503(lane: Lane, hint: str) -> None:
    done = await lane.request("subset-string", chat(100), headers={"x-subset": hint})
    assert done.response.status == 503 and done.hits == []
    assert done.response.json()["error"]["message"].startswith("inference error: ServiceUnavailable - ")


async def test_without_a_hint_the_whole_pool_is_allowed(lane: Lane) -> None:
    done = await asyncio.gather(*(lane.request_without_waiting("subset-string", chat(100)) for _ in range(16)))
    assert len({one.response.pod for one in done}) == len(lane.pods.pods)


# ── the client decides nothing ───────────────────────────────────────────────


@pytest.mark.parametrize("mode", [*MODES, *(f"{mode}-original-dst" for mode in MODES), "open"])
async def test_a_client_cannot_name_its_endpoint(lane: Lane, mode: str) -> None:
    wanted, got = lane.pods[0].address, lane.pods[3].address
    forged = {
        "x-gateway-destination-endpoint": wanted,
        "x-gateway-destination-endpoint-subset": wanted,
        "x-gateway-destination-endpoint-served": wanted,
        "x-prefiller-host-port": "10.0.0.1:1",
        "x-data-parallel-host-port": "10.0.0.1:1",
        "x-envoy-max-retries": "50",
    }
    done = await lane.request(mode, chat(100), to=[got], headers=forged)
    assert done.response.pod == got
    [hit] = done.hits
    assert hit.headers["x-gateway-destination-endpoint"] == got
    assert not set(forged) - {"x-gateway-destination-endpoint"} & set(hit.headers)


async def test_the_clients_connection_does_not_matter(lane: Lane) -> None:
    """Many requests from one client address spread over the pool."""
    done = await asyncio.gather(
        *(lane.request_without_waiting("partial", chat(200), script="*=slow.0.2") for _ in range(32))
    )
    counts = Counter(one.response.pod for one in done)
    assert len(counts) == 4 and max(counts.values()) <= 10, counts


# ── two pickers in one filter chain ──────────────────────────────────────────


async def test_the_second_of_two_pickers_decides_and_both_account_for_it(lane: Lane) -> None:
    first, last = lane.pods[0].address, lane.pods[2].address
    lane.site.second.renew([last])
    _tid, connection = await lane.open("two-pickers", chat(1000, stream=True), to=[first], script="*=sse.100.5")
    async with connection:
        response = await connection.read_head()
        assert response.pod == last
        assert lane.picker.in_flight() == {last: 1} and lane.site.second.in_flight() == {last: 1}
        body = b"".join([chunk async for chunk in connection.body_chunks(response)])
    assert response.complete and body.endswith(b"[DONE]\n\n")
    for picker in (lane.picker, lane.site.second):
        await picker.until_idle()
        assert picker.outcomes() == {"served": 1}


async def test_a_refusal_of_the_second_picker_releases_the_first(lane: Lane) -> None:
    lane.site.second.renew([])
    done = await lane.request("two-pickers", chat(1000))
    assert done.response.status == 503 and done.hits == []
    assert lane.picker.outcomes() == {"local_reply": 1}
    [exchange] = lane.picker.exchanges
    assert exchange.details == "poolpilot_rejected-no-endpoints"


@pytest.mark.parametrize("mode", MODES)
async def test_a_gateway_that_takes_no_list_gets_none(lane: Lane, mode: str) -> None:
    """ORIGINAL_DST answers 503 to a list: by itself the default policy names one address."""
    done = await lane.request(f"{mode}-original-dst", chat(100))
    assert done.response.status == 200 and done.response.pod in lane.pods.addresses


# ── IPv6 ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cluster", list(PoolCluster))
async def test_ipv6(site: Site, cluster: PoolCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Addresses in brackets in header and metadata, without them in the endpoint file; also the picker itself."""
    folder = tmp_path_factory.mktemp("ipv6")
    try:
        pods = Pods([await Pod(host="::1").start() for _ in range(2)])
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    picker = await LocalPicker(site.transport, folder / "eds", listen="[::1]:0").start()
    picker.renew(pods.addresses)
    eds = {"eds_directory": str(folder / "eds")} if cluster is PoolCluster.OVERRIDE_HOST else {}
    settings = EnvoySettings(
        pickers=(HostPort("::1", picker.port),), cluster=cluster, body_mode=BodyMode.BUFFERED_PARTIAL, **eds
    )
    gateway = await start_gateway(folder, [Variant("v6", settings)])
    lane = Lane(Site(folder, site.transport, picker, picker, gateway), pods)
    try:
        for pod in pods:
            done = await lane.request("v6", chat(100), to=[pod.address])
            assert done.response.status == 200 and done.response.pod == pod.address
            assert done.hits[0].headers["x-gateway-destination-endpoint"] == f"[::1]:{pod.port}"
        assert picker.outcomes() == {"served": 2} and picker.moved() == 0
        await lane.finish()
    finally:
        await gateway.stop()
        await picker.stop()
        for pod in pods:
            await pod.stop()
