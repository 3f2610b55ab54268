"""A pool with flow control, without exchanges: requests come, wait and end by the clock of the test."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from exchange_desk import Chosen, spec_of
from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import policy_config
from poolpilot_picker.errors import RequestRefused
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool, PoolSettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.instruments.flow_metrics import FlowMetrics
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.routing.registry import build_profile, default_registry

if TYPE_CHECKING:
    from poolpilot_picker.flow.holding import Ticket

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000")


class Client:
    """Waits for one request."""

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self.refused: RequestRefused | None = None
        self.failed = False

    def dispatched(self, placement: Placement, now: float) -> None:
        """It was placed."""
        assert self.placement is None and self.refused is None
        self.placement = placement

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        """It will not be placed."""
        assert self.placement is None and self.refused is None
        self.refused = refused

    def unplaceable(self, now: float) -> None:
        """Choosing failed."""
        self.failed = True


class Stage:
    """A pool with two endpoints that take one request each, unless told otherwise."""

    def __init__(self, addresses: tuple[str, ...] = ADDRESSES, *, predicts: bool = False, **settings: Any) -> None:
        self.now = 1_000.0
        self.policy = Chosen()
        policy = build_profile(load(policy_config("predicted-finish"), default_registry())) if predicts else self.policy
        self.pool = Pool("pool", policy, random.Random(1), PoolSettings(receipt_share=0.0))
        self.pool.apply_endpoints([spec_of(address) for address in addresses])
        self.metrics = PickerMetrics(CollectorRegistry())
        settings = {"room": RoomSettings(max_requests=1, short_reserve=0.0)} | settings
        watching = FlowMetrics(self.metrics, "pool", lambda: self.now)
        self.flow = FlowControl(self.pool, FlowSettings(**settings), watching)
        self.pool.flow = self.flow
        self.kicks = 0
        self.flow.kick = self._kicked

    def _kicked(self) -> None:
        self.kicks += 1

    def submit(
        self, tenant: str = "", *, tokens: int = 100, kind: RequestKind = RequestKind.CHAT, **fields: Any
    ) -> tuple[Client, Placement | Ticket]:
        """A request that comes now; with what became of it at once."""
        request = InferenceRequest(
            request_id="r",
            kind=kind,
            model="m",
            target_model="m",
            tenant=tenant,
            prompt_tokens=tokens,
            body_bytes=4 * tokens,
            **fields,
        )
        client = Client()
        found = self.flow.submit(request, client, self.now)
        if isinstance(found, Placement):
            client.placement = found
        return client, found

    def go(self, tenant: str = "", **fields: Any) -> Client:
        """The same, for who only waits."""
        return self.submit(tenant, **fields)[0]

    def finish(self, client: Client, *, after: float = 10.0, output: float | None = None) -> None:
        """A request ends well, so many ms from now; `output`: tokens, where they were counted."""
        self.now += after
        assert client.placement is not None
        client.placement.output_tokens = output
        assert self.pool.finish(client.placement, Outcome.SERVED, self.now)

    def advance(self, by: float = 0.0) -> None:
        """Time passes, in ms."""
        self.now += by
        self.flow.advance(self.now)

    def value(self, name: str, **labels: str) -> float | None:
        """Of a metric."""
        return self.metrics.registry.get_sample_value(name, labels)


def refusal(stage: Stage, tenant: str = "", **fields: Any) -> RequestRefused:
    """Of a request that is answered at once."""
    with pytest.raises(RequestRefused) as caught:
        stage.go(tenant, **fields)
    return caught.value


def addresses(count: int) -> tuple[str, ...]:
    """Of so many endpoints."""
    return tuple(f"10.0.0.{index + 1}:8000" for index in range(count))


def slot(client: Client) -> int | None:
    """Where it was placed."""
    return None if client.placement is None else client.placement.booking.endpoint.slot


def waits(stage: Stage, client: Client, most: float = 70_000.0, step: float = 20.0) -> float:
    """ms until it was placed or turned away."""
    start = stage.now
    stage.advance(1.0)
    while client.placement is None and client.refused is None and stage.now < start + most:
        stage.advance(step)
    return stage.now - start
