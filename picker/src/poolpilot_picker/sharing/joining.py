"""How a picker process joins its peers, and keeps up with them while no request makes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from poolpilot_picker.flow.shared_pool import SharedPool
from poolpilot_picker.sharing.memory import Memory
from poolpilot_picker.sharing.peers import Peers
from poolpilot_picker.sharing.telemetry import SharedFeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.config.seat import Seat
    from poolpilot_picker.feed import PoolFeed
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics

KEEP_UP_S: Final = 0.05
"""Requests bring a process up to date by themselves; without any, this is how old its knowledge gets."""


def peers_of(seat: Seat | None, now: Callable[[], float]) -> Peers | None:
    """The peers of a worker; None for a process that shares nothing."""
    if seat is None or seat.chair is None:
        return None
    return Peers(Memory.attach(seat.memory_fd, seat.chairs), seat.chair, now)


def share(peers: Peers | None, pool: Pool, feed: PoolFeed) -> SharedFeed | None:
    """Ties peers, pool and feed together; returns the sink for telemetry that all shall have."""
    if peers is None or not isinstance(pool, SharedPool):
        return None
    peers.bind(pool, feed)
    return SharedFeed(feed, peers)


async def keep_up(peers: Peers, shared: SharedFeed | None, metrics: PickerMetrics) -> None:
    """Takes in news until cancelled, answers who asks, and counts what was lost."""
    lost = faults = 0
    while True:
        await asyncio.sleep(KEEP_UP_S)
        peers.hear()
        if shared is not None:
            shared.answer()
        if peers.lost > lost:
            metrics.events.labels("worker-news-lost").inc(peers.lost - lost)
            lost = peers.lost
        if peers.faults > faults:
            metrics.events.labels("worker-news-failed").inc(peers.faults - faults)
            faults = peers.faults
