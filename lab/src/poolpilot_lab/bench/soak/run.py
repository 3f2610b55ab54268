"""Plays a soak: a picker of its own for each port, data planes of every manner on it, and a report of what became."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.bench.cost.pages import MODELS
from poolpilot_lab.bench.soak.behind import play_behind_envoy
from poolpilot_lab.bench.soak.plane import Manner, Plane, Tally
from poolpilot_lab.bench.soak.pods import pods
from poolpilot_lab.bench.soak.scripts import Script, bank
from poolpilot_lab.bench.soak.watch import AdminPages, Memory, complaints, total
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

MANNERS: Final = (
    Manner("wide"),
    Manner("wide, traced", traced=True),
    Manner("changing settings", changes=True),
    Manner("short-lived", lifetime=300),
    Manner("narrow windows", window=3_000, at_once=32),
    Manner("slow reader", window=65_535, pauses=True, at_once=32),
)
WARM_UP: Final = 0.4
"""Share of the exchanges after which memory should be level."""
SETTLE_S: Final = 15.0
STALL_S: Final = 30.0
"""Nothing ended for so long: something hangs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play. `tls`: (certificate, key) of a second picker that takes a tenth of the exchanges."""

    requests: int
    transport: str = "wire"
    seed: int = 1
    broken_share: float = 0.25
    scripts: int = 400
    endpoints: int = 4
    tls: tuple[Path, Path] | None = None
    recycle_rss_mb: int | None = None
    """The picker's flag of that name."""
    behind_envoy: int = 0
    """Further exchanges, by clients of a real Envoy."""


class Part(msgspec.Struct, kw_only=True):
    """What became of the exchanges on one port."""

    name: str
    exchanges: int
    whole: int
    broken_by_client: int
    failed: dict[str, int]
    left: dict[str, float]
    """Metrics that should be 0 after the last exchange and are not."""
    complaints: list[str]
    """Of the picker's log."""
    exit_code: int | None
    seconds: float
    connections: dict[str, int]
    scripts: dict[str, int]
    replies: int
    rss_mb: float
    """At the end. Of all its processes, where it has several."""
    most_rss_mb: float
    processes_replaced: int
    slope_bytes: float
    """Resident memory per exchange after warm-up; NaN in a run too short to tell."""
    samples: list[tuple[int, int]]

    @property
    def clean(self) -> bool:
        """Nothing failed, nothing was lost, nothing is in the log."""
        return not (self.failed or self.left or self.complaints or self.exit_code)


async def soak(plan: Plan, folder: Path) -> list[Part]:
    """Plays it; logs go to `folder`."""
    scripts = bank(plan.seed, plan.scripts, plan.broken_share, MODELS)
    rng = random.Random(plan.seed)
    secured = plan.requests // 10 if plan.tls is not None else 0

    async def directly(tally: Tally, port: int) -> None:
        await _play(tally, scripts, port, rng, tls=False)

    async def over_tls(tally: Tally, port: int) -> None:
        await _play(tally, scripts, port, rng, tls=True)

    async def behind(tally: Tally, port: int) -> None:
        await play_behind_envoy(tally, port, MODELS, plan.broken_share, rng, folder)

    async with pods(plan.endpoints) as addresses:
        parts = [await _part("plain", plan, plan.requests - secured, directly, addresses, folder, None)]
        if secured:
            parts.append(await _part("tls", plan, secured, over_tls, addresses, folder, plan.tls))
        if plan.behind_envoy:
            parts.append(await _part("behind Envoy", plan, plan.behind_envoy, behind, addresses, folder, None))
    return parts


async def _part(
    name: str,
    plan: Plan,
    requests: int,
    play: Callable[[Tally, int], Awaitable[None]],
    addresses: Sequence[str],
    folder: Path,
    tls: tuple[Path, Path] | None,
) -> Part:
    log = folder / f"{name.replace(' ', '-')}.log"
    argv = [
        sys.executable, "-m", "poolpilot_picker",
        "--listen", "127.0.0.1:0",
        "--admin", "127.0.0.1:0",
        "--transport", plan.transport,
        "--endpoints", ",".join(addresses),
        "--log-level", "warning",
        "--print-ready",
    ]  # fmt: skip
    if plan.recycle_rss_mb is not None:
        argv += ["--recycle-rss-mb", str(plan.recycle_rss_mb)]
    if tls is not None:
        argv += ["--tls-cert", str(tls[0]), "--tls-key", str(tls[1])]
    tally = Tally(wanted=requests)
    async with Child(name, argv, log=log, out=log.with_suffix(".out")) as child:
        said = msgspec.json.decode(await child.line(30.0))
        memory = Memory(child.pid, lambda: tally.done)
        watching = asyncio.ensure_future(memory.watch())
        began = time.monotonic()
        await play(tally, said["port"])
        seconds = time.monotonic() - began
        memory.sample()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        # Only now: the metrics page takes memory of its own.
        admin = AdminPages(said["admin_port"])
        left = await admin.left(SETTLE_S)
        replaced = int(total(await admin.metrics(), "poolpilot_worker_restarts_total"))
        exit_code = await child.stop(grace_s=SETTLE_S)
    return Part(
        name=name,
        exchanges=tally.begun,
        whole=tally.whole,
        broken_by_client=tally.broken,
        failed=dict(tally.failed),
        left=left,
        complaints=complaints(log),
        exit_code=exit_code,
        seconds=seconds,
        connections=dict(tally.connections),
        scripts=dict(tally.scripts),
        replies=tally.replies,
        rss_mb=memory.samples[-1][1] / 1e6,
        most_rss_mb=max(rss for _, rss in memory.samples) / 1e6,
        processes_replaced=replaced,
        slope_bytes=memory.slope(int(WARM_UP * requests)),
        samples=memory.samples,
    )


async def _play(tally: Tally, scripts: list[Script], port: int, rng: random.Random, *, tls: bool) -> None:
    """One connection of each manner at a time, until all exchanges are over. Nothing ending for STALL_S ends it too."""
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    players = [asyncio.ensure_future(_player(one, tally, scripts, port, rng, context)) for one in MANNERS]
    everything = asyncio.gather(*players)
    done = -1
    while not everything.done() and tally.done != done:
        done = tally.done
        await asyncio.wait({everything}, timeout=STALL_S)
    if not everything.done():
        everything.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await everything
        tally.failed["no end: nothing happened any more"] += tally.begun - tally.done
        return
    everything.result()


async def _player(
    manner: Manner,
    tally: Tally,
    scripts: list[Script],
    port: int,
    rng: random.Random,
    context: ssl.SSLContext | None,
) -> None:
    loop = asyncio.get_running_loop()
    while tally.wanted > 0:
        over = asyncio.Event()
        transport, _ = await loop.create_connection(
            lambda over=over: Plane(manner, scripts, tally, rng, over.set),
            "127.0.0.1",
            port,
            ssl=context,
        )
        try:
            await over.wait()
        finally:
            transport.abort()
