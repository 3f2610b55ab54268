"""One Envoy with several pickers to lose: the configurations of the failure tests, and what their clients do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from gateway_client import JSON, Headers, Http1, Response
from gateway_envoy import Gateway, Variant, fail_hard
from gateway_pods import sse_events
from gateway_site import chat
from poolpilot_picker.envoy.settings import BodyMode, EnvoySettings, FailureMode, HostPort, PoolCluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gateway_program import ProgramPicker

MODES = {"partial": BodyMode.BUFFERED_PARTIAL, "buffered": BodyMode.BUFFERED, "duplex": BodyMode.FULL_DUPLEX}
EVENTS = 60
WHOLE = b"".join(sse_events(EVENTS))
PATIENCE_S = 0.5
"""Message time-out of all variants."""


class Stage:
    """One Envoy and the pickers it knows: `alone`, the pair `left` and `right`, and `single` that names one address."""

    def __init__(self, gateway: Gateway, *pickers: ProgramPicker) -> None:
        self.gateway = gateway
        self.alone, self.left, self.right, self.single = self.pickers = pickers

    async def post(
        self, variant: str, script: str = "*=ok", *, body: bytes | None = None, headers: Headers | None = None
    ) -> Response:
        """One exchange."""
        async with await Http1.connect(self.gateway.ports[variant]) as connection:
            sent = {**(headers or {}), "x-pod": script}
            return await connection.request(headers=sent, body=body or chat(2_000, stream=True))

    async def streaming(self, variant: str) -> tuple[Http1, Response]:
        """A streamed answer that has begun: EVENTS events in about EVENTS × 10 ms."""
        connection = await Http1.connect(self.gateway.ports[variant])
        body = chat(2_000, stream=True)
        connection.send_head(
            "POST", "/v1/chat/completions", {**JSON, "x-pod": f"*=sse.{EVENTS}.10", "content-length": str(len(body))}
        )
        connection.writer.write(body)
        response = await connection.read_head()
        assert response.status == 200, response
        return connection, response

    async def until_seen_healthy(self, cluster: str, count: int) -> None:
        """So many pickers have each answered two more health checks of Envoy's, and count as healthy."""
        deadline = time.monotonic() + 20
        healthy, answered = f"cluster.{cluster}.membership_healthy", f"cluster.{cluster}.health_check.success"
        before = (await self.gateway.stats(answered))[answered]
        while True:
            stats = await self.gateway.stats(f"cluster.{cluster}.")
            if stats[healthy] == count and stats[answered] >= before + 2 * count:
                return
            assert time.monotonic() < deadline, f"{cluster}: not {count} healthy pickers"
            await asyncio.sleep(0.05)


Counts = dict[str, Counter[str]]
"""What clients got, by variant."""


async def under_load(
    post: Callable[[str], Awaitable[str]], variants: Sequence[str], meanwhile: Callable[[Counts], Awaitable[object]]
) -> Counts:
    """Keeps two clients per variant busy until `meanwhile` is done, and ten answers of each variant before and after.

    `post(variant)` is one exchange and says what the client got; `meanwhile` is given the counts as they grow.
    """
    got: Counts = {variant: Counter() for variant in variants}
    running = True

    async def client(variant: str) -> None:
        while running:
            got[variant][await post(variant)] += 1

    async def more(count: int = 10) -> None:
        wanted = {variant: counts.total() + count for variant, counts in got.items()}
        deadline = time.monotonic() + 20
        while any(got[variant].total() < least for variant, least in wanted.items()):
            assert time.monotonic() < deadline, got
            await asyncio.sleep(0.02)

    clients = [asyncio.ensure_future(client(variant)) for variant in variants for _ in range(2)]
    await more()
    await meanwhile(got)
    await more()
    running = False
    await asyncio.gather(*clients)
    return got


async def rest(connection: Http1, response: Response) -> bytes:
    """What is left of a streamed answer."""
    async with connection:
        return b"".join([chunk async for chunk in connection.body_chunks(response)])


def stage_variants(folder: Path, alone: int, left: int, right: int, single: int) -> list[Variant]:
    variants = []
    for name, mode in MODES.items():
        for fail in FailureMode:
            settings = EnvoySettings(
                pickers=(HostPort("127.0.0.1", alone),),
                eds_directory=str(folder / "eds"),
                body_mode=mode,
                fail=fail,
                message_timeout_s=PATIENCE_S,
            )
            variants.append(Variant(f"{name}-{fail.value}", settings))
            pair = EnvoySettings(
                pickers=(HostPort("127.0.0.1", left), HostPort("127.0.0.1", right)),
                picker_cluster="pair",
                eds_directory=str(folder / "eds"),
                body_mode=mode,
                fail=fail,
                message_timeout_s=PATIENCE_S,
            )
            variants.append(Variant(f"{name}-{fail.value}-pair", pair))
        variants.append(Variant(f"{name}-hard", settings, fail_hard))
        variants.append(Variant(f"{name}-hard-pair", pair, fail_hard))
        original_dst = EnvoySettings(
            pickers=(HostPort("127.0.0.1", single),),
            picker_cluster="single",
            cluster=PoolCluster.ORIGINAL_DST,
            body_mode=mode,
            message_timeout_s=PATIENCE_S,
        )
        variants.append(Variant(f"{name}-original-dst", original_dst))
    return variants
