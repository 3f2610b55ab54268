"""An exchange on a small pool, messages by hand: a clock that tests move, a policy that answers what they say."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry

from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.replies import BodyMode, HeadersReply, ImmediateReply, Mutation, StreamedReply
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.headers import DESTINATION
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolpilot_picker.extproc.replies import Reply
    from poolpilot_picker.routing.view import DecisionView

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")
CHAT_PATH = "/v1/chat/completions"

NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX, GRPC = BodyMode

VIA_UPSTREAM = {"response.code_details": "via_upstream", "upstream.request_attempt_count": 1.0}


def chat(text: str = "Tell me of the sea", model: str = "m", **more: Any) -> bytes:
    """A chat body."""
    return msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": text}], **more})


class Chosen:
    """A policy that answers the candidates in the order of their slots, or fails as told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0
        self.weighs_waits = False

    parts = False

    def restrict(self, view: DecisionView) -> None:
        """Every endpoint is for everybody."""

    def decide(self, view: DecisionView) -> list[int]:
        """Slots in order."""
        self.calls += 1
        if self.error is not None:
            raise self.error
        slots: list[int] = view.mask.nonzero()[0].tolist()
        return slots

    def placed(self, view: DecisionView, slot: int) -> None:
        """Nothing to remember."""


class Desk:
    """One exchange at a time on a pool that stays: `renew` starts the next."""

    def __init__(
        self,
        request_mode: int | None = None,
        response_mode: int | None = None,
        *,
        addresses: Iterable[str] = ADDRESSES,
        settings: ExchangeSettings | None = None,
        observe: bool = False,
    ) -> None:
        self.now = 1_000.0
        self.seconds = 0.0
        self.load_reports: list[tuple[str, str | bytes]] = []
        self.policy = Chosen()
        self.metrics = PickerMetrics(CollectorRegistry())
        self.pool = Pool("pool", self.policy, random.Random(1), PoolSettings(receipt_share=0.0))
        self.pool.apply_endpoints([spec_of(address) for address in addresses])
        self.pool._wants_observation = lambda request: observe and request.is_inference  # type: ignore[method-assign]
        self._modes = None if request_mode is None else (request_mode, NONE if response_mode is None else response_mode)
        self._settings = settings or ExchangeSettings()
        self.renew()

    def renew(self) -> Exchange:
        """The next exchange."""
        self.exchange = Exchange(
            self.pool,
            self.metrics,
            self._settings,
            new_id=lambda: "made-id",
            clock=lambda: self.seconds,
            load_report=lambda address, value: self.load_reports.append((address, value)),
        )
        if self._modes is not None:
            self.exchange.set_modes(*self._modes)
        return self.exchange

    # ── messages ─────────────────────────────────────────────────────────────

    def headers(
        self,
        path: str = CHAT_PATH,
        *,
        end: bool = False,
        method: str = "POST",
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: str | bytes,
    ) -> list[Reply]:
        """RequestHeaders; `_` in names of fields stands for `-`. JSON and a request id unless told otherwise."""
        named = {"content-type": "application/json", "x-request-id": "r-1"}
        named |= {name.replace("_", "-"): value for name, value in fields.items()}  # type: ignore[misc]
        received = [(":method", method), (":path", path), *((name, value) for name, value in named.items() if value)]
        return self.exchange.request_headers(received, end, now=self.now, metadata=metadata or {})

    def body(
        self, chunk: bytes, *, end: bool = True, metadata: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[Reply]:
        """RequestBody."""
        return self.exchange.request_body(chunk, end, now=self.now, metadata=metadata or {})

    def trailers(self) -> list[Reply]:
        """RequestTrailers."""
        return self.exchange.request_trailers(now=self.now)

    def answer(
        self,
        status: str | bytes = "200",
        *,
        end: bool = False,
        attributes: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        address: str = "",
        **fields: str | bytes,
    ) -> list[Reply]:
        """ResponseHeaders, of the pod at `address` unless `attributes` say otherwise."""
        if attributes is None:
            attributes = {**VIA_UPSTREAM, "upstream.address": address or self.destination.split(",")[0]}
        named: dict[str, str | bytes] = {":status": status, "content-type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in fields.items()}
        return self.exchange.response_headers(
            list(named.items()), end, now=self.now, attributes=attributes, metadata=metadata or {}
        )

    def answer_body(self, chunk: bytes, *, end: bool = False) -> list[Reply]:
        """ResponseBody."""
        return self.exchange.response_body(chunk, end, now=self.now)

    def answer_trailers(self) -> list[Reply]:
        """ResponseTrailers."""
        return self.exchange.response_trailers(now=self.now)

    def close(self) -> None:
        """The stream ends."""
        self.exchange.closed(now=self.now)

    # ── what tests look at ───────────────────────────────────────────────────

    @property
    def destination(self) -> str:
        """Where the exchange was placed; empty if it was not."""
        return self.exchange.placement.destination if self.exchange.placement is not None else ""

    def in_flight(self) -> dict[str, int]:
        """Requests booked, by address, zeros left out."""
        table = self.pool.table
        return {one.address: int(table.requests[one.slot]) for one in table if table.requests[one.slot]}

    def settled(self) -> None:
        """Every booking is gone, and nothing of it stays behind."""
        table = self.pool.table
        for column in ("inflight", "requests", "prompt_tokens", "expected_tokens", "uncached_tokens", "started_sum_ms"):
            assert not getattr(table, column).any(), f"{column}: {getattr(table, column)}"
        assert len(self.pool.ledger) == 0
        assert self.value("llm_d_epp_request_running", summed=True) == 0

    def learned(self) -> dict[str, int]:
        """What the learners took, zeros left out."""
        return {name: count for name, count in self.pool.learning_counts().items() if count}

    def outcomes(self) -> dict[str, int]:
        """How placed exchanges ended."""
        return self.by_label("poolpilot_exchanges_total", "outcome")

    def events(self) -> dict[str, int]:
        """Rare events."""
        return self.by_label("poolpilot_events_total", "kind")

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """A counter's values by one label, zeros left out."""
        return {
            sample.labels[label]: int(sample.value)
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }

    def value(self, name: str, *, summed: bool = False, **labels: str) -> float:
        """A sample's value; 0 where there is none. `summed`: over all label sets."""
        values = [
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and (summed or labels.items() <= sample.labels.items())
        ]
        return sum(values)


def spec_of(address: str) -> EndpointSpec:
    """The endpoint at `ip:port`."""
    host, _, port = address.rpartition(":")
    return EndpointSpec(host=host.strip("[]"), port=int(port))


def set_headers(mutation: Mutation) -> dict[str, str]:
    """Headers that a mutation sets, each once."""
    fields = dict(mutation.set_headers)
    assert len(fields) == len(mutation.set_headers)
    return fields


def picked(reply: Reply) -> str:
    """The destination of a reply, which says it in header and metadata alike."""
    assert not isinstance(reply, StreamedReply | ImmediateReply), reply
    mutation = reply.mutation if not hasattr(reply, "destination") else None
    if mutation is None:
        return str(reply.destination)
    assert set_headers(mutation).get(DESTINATION, "") == mutation.destination
    return mutation.destination


def refused(replies: list[Reply]) -> ImmediateReply:
    """The one reply of a refusal."""
    [reply] = replies
    assert isinstance(reply, ImmediateReply), reply
    return reply


def message_of(reply: ImmediateReply) -> str:
    """The text of its OpenAI error object."""
    return str(msgspec.json.decode(reply.body)["error"]["message"])


def joined(replies: list[Reply], *, request: bool) -> tuple[bytes, bool]:
    """(bytes, end of stream) of the chunks among full duplex replies; the end is said at most once, by the last."""
    chunks = [reply for reply in replies if isinstance(reply, StreamedReply) and reply.request is request]
    assert not any(chunk.end_of_stream for chunk in chunks[:-1])
    return b"".join(chunk.chunk for chunk in chunks), bool(chunks) and chunks[-1].end_of_stream


def plain(replies: list[Reply]) -> bool:
    """One answer that changes nothing."""
    [reply] = replies
    if isinstance(reply, HeadersReply):
        return reply.mutation == Mutation() and reply.mode_override is None
    return reply == type(reply)(request=reply.request)  # type: ignore[call-arg, union-attr]
