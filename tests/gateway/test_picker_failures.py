"""A picker that is killed, hangs or restarts: what clients see, per body mode, failure policy and gateway setting.

`MODE-open` and `MODE-close` are generated configurations; `MODE-hard` is the same with `failure_mode_allow: false`, as
some gateways hard-wire it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gateway_client import Http1
from gateway_envoy import Variant, fail_hard, start_gateway
from gateway_pods import Pods, sse_events
from gateway_program import ProgramPicker
from gateway_site import chat
from gateway_stage import MODES, PATIENCE_S, WHOLE, Counts, Stage, rest, stage_variants, under_load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("failures")
    pickers = [ProgramPicker(folder, pods.addresses, transport, name=name) for name in ("alone", "left", "right")]
    pickers.append(ProgramPicker(folder, pods.addresses, transport, name="single", writes_endpoints=False))
    await asyncio.gather(*(picker.start() for picker in pickers))
    gateway = await start_gateway(folder, stage_variants(folder, *(picker.port for picker in pickers)))
    yield Stage(gateway, *pickers)
    await gateway.stop()
    for picker in pickers:
        await picker.child.stop(grace_s=1)


@pytest_asyncio.fixture(loop_scope="session")
async def stage(running: Stage) -> AsyncIterator[Stage]:
    """All pickers run and answer, at the beginning and, with nothing booked, at the end."""
    yield running
    for picker in running.pickers:
        picker.child.resume()
        if not picker.child.running:
            await picker.start()
        await picker.settled()
    for variant in ("partial-close", "partial-close-pair", "partial-original-dst"):
        await until_ok(running, variant)


async def until_ok(stage: Stage, variant: str) -> None:
    """Envoy has found its picker again."""
    deadline = time.monotonic() + 10
    while (await stage.post(variant)).status != 200:
        assert time.monotonic() < deadline, f"{variant} does not recover"
        await asyncio.sleep(0.05)


# ── killed ───────────────────────────────────────────────────────────────────

NOBODY = {
    ("partial", "open"): 200,
    ("buffered", "open"): 200,
    ("duplex", "open"): 500,
    ("partial", "close"): 503,
    ("buffered", "close"): 503,
    ("duplex", "close"): 500,
    ("partial", "original-dst"): 503,
    ("buffered", "original-dst"): 503,
    ("duplex", "original-dst"): 500,
    ("partial", "hard"): 500,
    ("buffered", "hard"): 500,
    ("duplex", "hard"): 500,
}
"""Status of a POST while nobody listens where the picker should be."""


async def test_nobody_listens(stage: Stage) -> None:
    await stage.alone.kill()
    await stage.single.kill()
    got = {key: (await stage.post("-".join(key))).status for key in NOBODY}
    assert got == NOBODY


NOBODY_WITHOUT_A_BODY = {"open": 200, "close": 503, "hard": 500}


async def test_nobody_listens_to_requests_without_a_body(stage: Stage) -> None:
    """These fail open in full duplex too: nothing has been sent to the picker that Envoy could not send again."""
    await stage.alone.kill()
    for mode in MODES:
        got = {}
        for kind in NOBODY_WITHOUT_A_BODY:
            async with await Http1.connect(stage.gateway.ports[f"{mode}-{kind}"]) as connection:
                got[kind] = (await connection.request("GET", "/v1/models", body=None)).status
        assert got == NOBODY_WITHOUT_A_BODY, mode


async def test_a_large_body_fails_open_too(stage: Stage) -> None:
    await stage.alone.kill()
    for mode in ("partial", "buffered"):
        response = await stage.post(f"{mode}-open", body=chat(5_000_000))
        assert response.status == 200 and response.json()["length"] == 5_000_000


async def test_a_client_cannot_name_its_endpoint_while_nobody_listens(stage: Stage, pods: Pods) -> None:
    """The gateway strips what the client brings: only then is failing open safe."""
    await stage.alone.kill()
    forged = {"x-gateway-destination-endpoint": pods[3].address, "x-prefiller-host-port": "10.0.0.1:1"}
    sent = {**forged, "x-tid": "forged"}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.post("partial-open", "*=slow.0.1", headers=sent)) for _ in range(12)]
    assert len({task.result().pod for task in tasks}) > 1
    for hit in pods.hits("forged"):
        assert not forged.keys() & hit.headers.keys()


async def test_it_comes_back(stage: Stage) -> None:
    await stage.alone.kill()
    assert (await stage.post("partial-close")).status == 503
    await stage.alone.start()
    await until_ok(stage, "partial-close")
    assert [(await stage.post(f"{mode}-close")).status for mode in MODES] == [200, 200, 200]


INTACT = {
    ("partial", "open"): True,
    ("buffered", "open"): True,
    ("partial", "close"): True,
    ("buffered", "close"): True,
    ("partial", "original-dst"): True,
    ("buffered", "original-dst"): True,
    ("duplex", "open"): False,
    ("duplex", "close"): False,
    ("duplex", "original-dst"): False,
    ("partial", "hard"): False,
    ("buffered", "hard"): False,
    ("duplex", "hard"): False,
}
"""Whether an answer in progress survives a picker that is killed."""


async def test_killed_in_mid_response(stage: Stage) -> None:
    begun = {key: await stage.streaming("-".join(key)) for key in INTACT}
    await stage.alone.kill()
    await stage.single.kill()
    bodies = await asyncio.gather(*(rest(*one) for one in begun.values()))
    assert dict(zip(begun, [body == WHOLE for body in bodies], strict=True)) == INTACT
    assert dict(zip(begun, [response.complete for _, response in begun.values()], strict=True)) == INTACT


# ── hung ─────────────────────────────────────────────────────────────────────

HUNG = {
    ("partial", "open"): 200,
    ("buffered", "open"): 200,
    ("partial", "close"): 503,
    ("buffered", "close"): 503,
    ("partial", "original-dst"): 503,
    ("buffered", "original-dst"): 503,
    ("partial", "hard"): 504,
    ("buffered", "hard"): 504,
}


async def test_it_hangs(stage: Stage) -> None:
    """It holds its sockets and answers nobody: the message time-out ends the wait."""
    stage.alone.child.pause()
    stage.single.child.pause()
    answers = await asyncio.gather(*(stage.post("-".join(key)) for key in HUNG))
    assert dict(zip(HUNG, [answer.status for answer in answers], strict=True)) == HUNG


async def test_in_full_duplex_requests_wait_for_a_hung_picker(stage: Stage) -> None:
    """No time-out runs there: the request is answered when the picker wakes up."""
    stage.alone.child.pause()
    waiting = [asyncio.ensure_future(stage.post(f"duplex-{kind}")) for kind in ("open", "close", "hard")]
    done, _ = await asyncio.wait(waiting, timeout=3 * PATIENCE_S)
    assert not done
    stage.alone.child.resume()
    assert [response.status for response in await asyncio.gather(*waiting)] == [200, 200, 200]


async def test_it_hangs_in_mid_response(stage: Stage) -> None:
    variants = [f"{mode}-{kind}" for mode in ("partial", "buffered") for kind in ("open", "close", "original-dst")]
    begun = [await stage.streaming(variant) for variant in variants]
    for picker in stage.pickers:
        picker.child.pause()
    bodies = await asyncio.gather(*(rest(*one) for one in begun))
    assert [body == WHOLE for body in bodies] == [True] * len(variants)
    assert [response.complete for _, response in begun] == [True] * len(variants)


async def test_it_hangs_before_the_response_headers(stage: Stage) -> None:
    """The pod's answer is there, the picker does not look at it: after the message time-out it passes."""
    waiting = [asyncio.ensure_future(stage.post(f"partial-{kind}", "*=slow.0.4")) for kind in ("close", "hard")]
    await stage.alone.until_metric("poolpilot_endpoint_inflight", lambda booked: booked == 2)
    stage.alone.child.pause()
    close, hard = await asyncio.gather(*waiting)
    assert close.status == 200 and close.pod
    assert hard.status == 504 and not hard.pod


# ── under load ───────────────────────────────────────────────────────────────


REFUSED = {"close": "503", "hard": "500"}
"""What clients get while nobody listens."""


async def short_stream(stage: Stage, variant: str) -> str:
    """What a client got: a status, and `truncated` for a 200 that was cut off."""
    response = await stage.post(variant, "*=sse.10.10")
    whole = response.complete and response.body == b"".join(sse_events(10))
    return str(response.status) if response.status != 200 or whole else "truncated"


async def until_seen(got: Counts, wanted: dict[str, str]) -> None:
    """Waits until the clients of each variant have got what is wanted of it."""
    deadline = time.monotonic() + 20
    while any(not got[variant][said] for variant, said in wanted.items()):
        assert time.monotonic() < deadline, got
        await asyncio.sleep(0.02)


async def test_killed_and_restarted_under_load(stage: Stage) -> None:
    """Open: no request is lost. Close: refused while there is no picker, never cut off. The rest: what it costs."""

    async def crash(got: Counts) -> None:
        await stage.alone.kill()
        # Down until each variant has shown what that means: a client whose answer was cut off takes a while to notice.
        await until_seen(
            got, {f"{mode}-{kind}": said for mode in ("partial", "buffered") for kind, said in REFUSED.items()}
        )
        await stage.alone.start()

    variants = [f"{mode}-{kind}" for mode in ("partial", "buffered") for kind in ("open", "close", "hard")]
    got = await under_load(partial(short_stream, stage), [*variants, "duplex-open"], crash)
    for mode in ("partial", "buffered"):
        assert set(got[f"{mode}-open"]) == {"200"}, got
        assert set(got[f"{mode}-close"]) == {"200", "503"}, got
        assert {"200", "500"} <= set(got[f"{mode}-hard"]) <= {"200", "500", "truncated"}, got
    assert {"200"} <= set(got["duplex-open"]) <= {"200", "500", "truncated"}, got


async def test_hung_under_load(stage: Stage) -> None:
    async def hang(got: Counts) -> None:
        stage.alone.child.pause()
        await asyncio.sleep(2 * PATIENCE_S)
        await until_seen(got, {"partial-close": "503"})
        stage.alone.child.resume()

    variants = ["partial-open", "buffered-open", "partial-close", "duplex-close"]
    got = await under_load(partial(short_stream, stage), variants, hang)
    for variant in ("partial-open", "buffered-open", "duplex-close"):
        assert set(got[variant]) == {"200"}, got
    assert set(got["partial-close"]) == {"200", "503"}, got


async def test_one_of_two_stops_gracefully_under_load(stage: Stage) -> None:
    """Drained and replaced, one after the other: no request fails, in any mode, also where the pool fails close."""

    async def roll(_: Counts) -> None:
        for picker in (stage.left, stage.right):
            assert await picker.child.stop(grace_s=15) == 0
            await picker.start()
            await stage.until_seen_healthy("pair", 2)

    variants = [f"{kind}-pair" for kind in ("partial-close", "buffered-close", "duplex-close", "partial-hard")]
    got = await under_load(partial(short_stream, stage), variants, roll)
    assert {variant: set(counts) for variant, counts in got.items()} == {variant: {"200"} for variant in variants}, got


async def test_one_of_two_is_killed_under_load(stage: Stage) -> None:
    async def crash(_: Counts) -> None:
        await stage.left.kill()
        await asyncio.sleep(0.5)

    got = await under_load(partial(short_stream, stage), ["partial-open-pair", "buffered-open-pair"], crash)
    assert all(set(counts) == {"200"} for counts in got.values()), got


async def test_after_the_death_of_one_the_other_does_the_work(stage: Stage) -> None:
    """Also in a pool that fails close: only what the dead picker was deciding is refused."""
    await stage.left.kill()
    statuses = Counter([(await stage.post("partial-close-pair")).status for _ in range(40)])
    assert statuses == {200: 40}


@pytest.mark.parametrize("mode", ["partial", "buffered"])
async def test_the_end_of_the_drain_leaves_answers_whole(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path: Path, mode: str
) -> None:
    """Longer than the drain time: the picker ends the stream with OK and the answer goes on without it."""
    picker = await ProgramPicker(tmp_path, pods.addresses, transport, drain_s=0.2).start()
    gateway = await start_gateway(tmp_path, [Variant(mode, picker.envoy(body_mode=MODES[mode]), fail_hard)])
    stage = Stage(gateway, picker, picker, picker, picker)
    try:
        begun = [await stage.streaming(mode) for _ in range(10)]
        assert await picker.child.stop(grace_s=15) == 0
        bodies = await asyncio.gather(*(rest(*one) for one in begun))
        assert [body == WHOLE for body in bodies] == [True] * 10
    finally:
        await gateway.stop()
        await picker.child.stop(grace_s=0)
