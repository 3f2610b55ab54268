"""Several workers of one picker in this process: pools that share an account and news through real shared memory."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from core_pools import START, default_policy, spec
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.flow.pool import PoolSettings
from poolpilot_picker.flow.shared_pool import SharedPool
from poolpilot_picker.sharing.memory import Memory
from poolpilot_picker.sharing.peers import Peers
from poolpilot_picker.sharing.telemetry import SharedFeed
from poolpilot_picker.state.endpoints import EndpointTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.flow.pool import Policy
    from poolpilot_picker.state.endpoints import EndpointSpec


class Worker:
    """One of them."""

    def __init__(self, crew: Workers, chair: int, endpoints: Iterable[EndpointSpec], policy: Policy, seed: int) -> None:
        self.chair = chair
        self.peers = Peers(crew.memory, chair, lambda: crew.now)
        table = EndpointTable(sharing=self.peers)
        settings = PoolSettings(receipt_share=0.0)
        self.pool = SharedPool("test", policy, random.Random(seed), settings, table, crew=self.peers)
        self.feed = PoolFeed(self.pool, lambda: crew.now)
        self.peers.bind(self.pool, self.feed)
        self.shared = SharedFeed(self.feed, self.peers)
        self.pool.apply_endpoints(endpoints)

    def in_flight(self) -> list[float]:
        """Requests by slot, of all workers."""
        self.peers.hear()
        return [float(count) for count in self.pool.table.requests]


class Workers:
    """The supervisor's part, and the clock."""

    def __init__(self, count: int, endpoints: int, policy: type[Policy] | None = None) -> None:
        self.memory = Memory.create(count)
        self.now = START
        self._endpoints = [spec(index) for index in range(endpoints)]
        self._policy = policy or default_policy
        self.workers = [self.join() for _ in range(count)]

    def join(self, endpoints: Iterable[EndpointSpec] | None = None) -> Worker:
        """Another one."""
        chair = self.memory.seat()
        assert chair is not None
        return Worker(self, chair, self._endpoints if endpoints is None else endpoints, self._policy(), seed=chair)

    def die(self, worker: Worker) -> None:
        """A worker is killed, and the supervisor notices."""
        self.memory.clear(worker.chair)

    def talk(self) -> None:
        """A moment later everybody has told everything and heard everybody."""
        self.now += 20.0
        for _ in range(2):
            for worker in self.workers:
                worker.peers.hear()

    def close(self) -> None:
        """Gives the file back."""
        os.close(self.memory.fd)
