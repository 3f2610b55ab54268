"""The picker as the gateway tests run it: in this process, to look into its state, or as a program to kill."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import DEFAULT_POLICY, policy_config
from poolpilot_picker.envoy.eds import EdsWriter
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.grpc_transport import GrpcTransport
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.extproc.wire.transport import WireTransport
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from poolpilot_picker.extproc.replies import Reply
    from poolpilot_picker.flow.pool import Policy
    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.view import DecisionView

TRANSPORTS: dict[str, Callable[..., Any]] = {"grpc": GrpcTransport, "wire": WireTransport}
"""Every transport runs the whole suite."""

PICK = "pick:"


def pick(*addresses: str) -> dict[str, str]:
    """Request headers that make a `Steered` policy answer these addresses, in this order."""
    return {"x-poolpilot-routing-key": PICK + " ".join(addresses)}


class Steered:
    """The real policy, except for requests whose routing key names the endpoints: see `pick`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    parts = False

    def restrict(self, view: DecisionView) -> None:
        """Every endpoint is for everybody."""

    def decide(self, view: DecisionView) -> list[int]:
        """Slots in order."""
        key = view.request.routing_key
        addresses = key.removeprefix(PICK).split() if key.startswith(PICK) else []
        named = [endpoint.slot for endpoint in map(view.table.find, addresses) if endpoint is not None]
        return named or self._policy.decide(view)

    def placed(self, view: DecisionView, slot: int) -> None:
        """Tells the real policy."""
        self._policy.placed(view, slot)


class Watched(Exchange):
    """An exchange that remembers which messages it got."""

    __slots__ = ("attempts", "details", "fields", "seen")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seen: list[str] = []
        self.fields: dict[str, str] = {}
        self.attempts = 0
        self.details = ""

    def request_headers(self, fields: Any, end_of_stream: bool, **more: Any) -> list[Reply]:
        self.seen.append("request_headers")
        self.fields = {name: value if isinstance(value, str) else value.decode("latin-1") for name, value in fields}
        return super().request_headers(fields, end_of_stream, **more)

    def request_body(self, chunk: bytes, end_of_stream: bool, **more: Any) -> list[Reply]:
        self.seen.append("request_body")
        return super().request_body(chunk, end_of_stream, **more)

    def request_trailers(self, **more: Any) -> list[Reply]:
        self.seen.append("request_trailers")
        return super().request_trailers(**more)

    def response_headers(self, *arguments: Any, **more: Any) -> list[Reply]:
        self.seen.append("response_headers")
        attributes = more.get("attributes", {})
        self.attempts = int(attributes.get("upstream.request_attempt_count") or 0)
        self.details = str(attributes.get("response.code_details"))
        return super().response_headers(*arguments, **more)

    def response_body(self, chunk: bytes, end_of_stream: bool, **more: Any) -> list[Reply]:
        self.seen.append("response_body")
        return super().response_body(chunk, end_of_stream, **more)

    def response_trailers(self, **more: Any) -> list[Reply]:
        self.seen.append("response_trailers")
        return super().response_trailers(**more)

    def closed(self, **more: Any) -> None:
        super().closed(**more)
        self.seen.append("end")


class LocalPicker:
    """A picker in this process: real transport, exchange, pool and policy; endpoints given by hand; no telemetry.

    `renew` gives it a new pool, so that tests do not learn from each other.
    """

    def __init__(self, transport: str, eds_directory: Path, listen: str = "127.0.0.1:0") -> None:
        self.eds = EdsWriter(eds_directory)
        self.exchanges: list[Watched] = []
        self._transport = TRANSPORTS[transport](ListenerSettings(address=listen), self._exchange, now_ms)
        self.renew([])

    async def start(self) -> LocalPicker:
        """Listens on `port`."""
        await self._transport.start()
        await self._transport.set_serving(serving=True)
        return self

    async def stop(self) -> None:
        """Ends every stream."""
        await self._transport.drain(0)

    @property
    def port(self) -> int:
        """Of the external processor."""
        port: int = self._transport.port
        return port

    def _exchange(self) -> Exchange:
        exchange = Watched(self.pool, self.metrics, ExchangeSettings())
        self.exchanges.append(exchange)
        return exchange

    def renew(
        self,
        addresses: Sequence[str],
        *,
        observe: bool = False,
        pool: PoolSettings | None = None,
        in_eds: Iterable[str] | None = None,
    ) -> bool:
        """A new pool of these endpoints; True if the endpoint file changed.

        `observe`: watch the body of every inference response, or of none. `in_eds`: what Envoy is told, if it differs.
        """
        config = load(policy_config(DEFAULT_POLICY), default_registry())
        self.metrics = PickerMetrics(CollectorRegistry())
        self.pool = Pool("pool", Steered(build_profile(config)), random.Random(1), pool)
        self.exchanges.clear()
        self.pool.apply_endpoints(map(_spec, addresses))

        def wanted(request: InferenceRequest) -> bool:
            return observe and request.is_inference

        self.pool._wants_observation = wanted  # type: ignore[method-assign]
        return self.eds.write([_spec(address) for address in (addresses if in_eds is None else in_eds)])

    def set_endpoints(self, addresses: Iterable[str]) -> bool:
        """Discovery has changed its mind: the pool stays, its endpoints change; True if the endpoint file changed."""
        specs = [_spec(address) for address in addresses]
        self.pool.apply_endpoints(specs)
        return self.eds.write(specs)

    # ── what tests look at ───────────────────────────────────────────────────

    def in_flight(self) -> dict[str, int]:
        """Requests booked, by address, zeros left out."""
        table = self.pool.table
        return {e.address: int(table.requests[e.slot]) for e in table if table.requests[e.slot]}

    def failing(self) -> set[str]:
        """Addresses with a failure against them."""
        table = self.pool.table
        # Penalties are brought up to date by the next decision; here there may be none.
        self.pool._learners.refresh_penalties(now_ms())
        return {e.address for e in table if table.failure_ms[e.slot] > 0}

    def learned(self) -> dict[str, int]:
        """What was learned from answers, zeros left out."""
        counts = self.pool.learning_counts()
        return {name: count for name, count in counts.items() if count and name != "failing_endpoints"}

    def outcomes(self) -> Counter[str]:
        """How the placed exchanges that have ended did end."""
        samples = next(iter(self.metrics.outcomes.collect())).samples
        return Counter({s.labels["outcome"]: int(s.value) for s in samples if s.name.endswith("_total") and s.value})

    def moved(self) -> int:
        """Bookings that moved to another endpoint."""
        samples = next(iter(self.metrics.moved.collect())).samples
        return sum(int(s.value) for s in samples if s.name.endswith("_total"))

    def messages(self, tid: str) -> list[list[str]]:
        """The messages of each stream whose request had this `x-tid`."""
        return [exchange.seen for exchange in self.exchanges if exchange.fields.get("x-tid") == tid]

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
        """Waits for a condition on the state; AssertionError tells the state when it does not come true."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}; in flight: {self.in_flight()}"
            await asyncio.sleep(0.005)

    async def until_idle(self) -> None:
        """Waits until no stream is open."""
        await self.until(lambda: self._transport.streams == 0, "every stream has ended")

    async def settled(self) -> None:
        """Waits until no stream is open, then checks that every booking is gone."""
        await self.until_idle()
        table = self.pool.table
        for column in ("inflight", "requests", "prompt_tokens", "expected_tokens"):
            values = getattr(table, column)
            assert not values.any(), f"{column} is not back at 0: {values}"


def now_ms() -> float:
    """The clock handed to the transport."""
    return time.monotonic() * 1000.0


def _spec(address: str) -> EndpointSpec:
    host, _, port = address.rpartition(":")
    return EndpointSpec(host=host.strip("[]"), port=int(port))
