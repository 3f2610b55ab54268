"""One ext_proc stream, sans I/O: messages in, replies out; places the request once and releases it once.

What arrives decides, not configuration: the first message's `protocol_config` tells the body modes; without it the
Endpoint Picker Protocol's full duplex is meant. The table of situations is in the Envoy guide (docs/envoy.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.errors import BadRequest, InternalError, RequestRefused
from poolpilot_picker.extproc.replies import (
    NO_MUTATION,
    BodyMode,
    BodyReply,
    Field,
    HeadersReply,
    ImmediateReply,
    ModeOverride,
    Mutation,
    Reply,
    StreamedReply,
    TrailersReply,
)
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.requests import (
    BodyUse,
    InferenceRequest,
    RequestHead,
    UsageReader,
    body_use,
    error_body,
    new_request_id,
    parse,
    read_head,
    rewrite_model,
)
from poolpilot_picker.requests import headers as names

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement, Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics, RequestHandles

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 62_000
"""Largest body chunk in a full duplex reply (protocol, body replies)."""
BODY_LIMIT: Final = 64 * 2**20
"""A full duplex body longer than this is placed on what has arrived; the rest passes through."""

NEVER_FROM_CLIENTS: Final = (*names.BACKEND_ROUTING, names.SERVED, names.SUBSET)
"""A client's own copies are removed: pods and data plane trust them."""

Metadata = Mapping[str, Mapping[str, Any]]
NO_METADATA: Final[Metadata] = {}


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What configuration decides about every exchange."""

    receipt_header: bool = False
    """Put the receipt into a response header when the client asked for one."""
    clear_route_cache: bool = False
    """Also when only the destination header changed: for gateways whose routes match on it."""
    strip_headers: tuple[str, ...] = ()
    """Request headers removed besides those that only a picker may set."""


class Exchange:
    """Follows one HTTP exchange from request headers to the end of its stream."""

    __slots__ = (
        "_answered",
        "_body_seen",
        "_chunks",
        "_echo",
        "_handles",
        "_head",
        "_held_bytes",
        "_metrics",
        "_new_id",
        "_pool",
        "_reader",
        "_refusal",
        "_refused",
        "_request",
        "_request_mode",
        "_response_mode",
        "_settings",
        "_started",
        "_strip",
        "_subset",
        "placement",
        "response_seen",
    )

    def __init__(
        self,
        pool: Pool,
        metrics: PickerMetrics,
        settings: ExchangeSettings,
        *,
        refusal: Callable[[], RequestRefused | None] = lambda: None,
        new_id: Callable[[], str] = new_request_id,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self._refusal = refusal
        """Why no new request is taken (draining), if so."""
        self._new_id = new_id
        self._head: RequestHead | None = None
        self._request: InferenceRequest | None = None
        self._handles: RequestHandles | None = None
        self._request_mode = BodyMode.FULL_DUPLEX_STREAMED
        self._response_mode = BodyMode.FULL_DUPLEX_STREAMED
        self._subset: tuple[str, ...] | None = None
        self._strip: list[str] = []
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._body_seen = False
        self._answered = False
        """The request headers were answered."""
        self._echo = False
        """Full duplex: placed, request chunks pass through."""
        self._refused = False
        self._started = 0.0
        self._reader: UsageReader | None = None
        self.placement: Placement | None = None
        self.response_seen = False
        """ResponseHeaders was answered: ending the stream OK is safe unless the response body is full duplex."""

    @property
    def safe_to_end(self) -> bool:
        """May the stream be ended with OK now without harm to the exchange?"""
        return self.response_seen and self._response_mode is not BodyMode.FULL_DUPLEX_STREAMED

    # ---- request side

    def request_headers(
        self,
        fields: Sequence[tuple[str, str | bytes]],
        end_of_stream: bool,
        *,
        now: float,
        request_mode: int | None = None,
        response_mode: int | None = None,
        metadata: Metadata = NO_METADATA,
    ) -> list[Reply]:
        """The first message. `*_mode` as of protocol_config, None where it is absent."""
        self._started = now
        if request_mode is not None:
            self._request_mode = BodyMode(request_mode)
        if response_mode is not None:
            self._response_mode = BodyMode(response_mode)
        head = self._head = read_head(fields, new_id=self._new_id)
        received = {name for name, _ in fields}
        self._strip = [name for name in (*NEVER_FROM_CLIENTS, *self._settings.strip_headers) if name in received]
        self._read_subset(metadata)
        refused = self._refusal()
        if refused is not None:
            return self._refuse(refused)
        use = body_use(head, end_of_stream=end_of_stream)
        full_duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED
        unseen = self._request_mode in (BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC)
        if use in (BodyUse.NONE, BodyUse.UNSEEN) or unseen:
            # STREAMED sends the headers on before the body comes, and an upgrade's body never ends: pick now.
            replies = self._place(b"", complete=False, now=now)
            if replies:
                return replies
            self._echo = full_duplex
            override = None
            if use is BodyUse.UNSEEN and not full_duplex and not unseen:
                override = ModeOverride(request=BodyMode.NONE, response=self._response_mode)
            self._answered = True
            return [HeadersReply(request=True, mutation=self._mutation(), mode_override=override)]
        if full_duplex:
            return []
        self._answered = True
        return [HeadersReply(request=True)]

    def request_body(
        self, chunk: bytes, end_of_stream: bool, *, now: float, metadata: Metadata = NO_METADATA
    ) -> list[Reply]:
        """One request body message."""
        if self._refused:
            return []
        if self._body_seen:
            # Envoy may deliver the end of stream twice for large bodies.
            self._metrics.events.labels("duplicate-end-of-stream").inc()
            return []
        self._read_subset(metadata)
        if self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return self._duplex_body(chunk, end_of_stream, now)
        if self.placement is not None:
            self._body_seen = end_of_stream
            return [BodyReply(request=True)]
        # BUFFERED: the whole body. BUFFERED_PARTIAL without end of stream: a prefix, and no more will come.
        self._body_seen = True
        replies = self._place(chunk, complete=end_of_stream, now=now)
        if replies:
            return replies
        body = self._rewritten(chunk, complete=end_of_stream)
        length = (("content-length", str(len(body))),) if body is not None else ()
        return [BodyReply(request=True, mutation=self._mutation(length), body=body)]

    def _duplex_body(self, chunk: bytes, end_of_stream: bool, now: float) -> list[Reply]:
        self._body_seen = end_of_stream
        if self._echo:
            return list(_streamed(True, [chunk], end_of_stream))
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if not end_of_stream and self._held_bytes < BODY_LIMIT:
            return []
        return self._duplex_place(end_of_stream, now)

    def _duplex_place(self, end_of_stream: bool, now: float, *, trailers: bool = False) -> list[Reply]:
        complete = end_of_stream or trailers
        whole = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        replies = self._place(whole, complete=complete, now=now)
        if replies:
            return replies
        body = self._rewritten(whole, complete=complete)
        chunks = self._chunks if body is None else [body]
        length: Sequence[Field] = ()
        if body is not None or (self._head is not None and self._head.content_length is not None and complete):
            length = (("content-length", str(self._held_bytes if body is None else len(body))),)
        self._chunks = []
        self._echo = self._answered = True
        return [
            HeadersReply(request=True, mutation=self._mutation(length)),
            *_streamed(True, chunks, end_of_stream),
        ]

    def request_trailers(self, *, now: float) -> list[Reply]:
        """Request trailers. In full duplex they may be what ends the body."""
        replies: list[Reply] = []
        if self._refused:
            return replies
        if self.placement is None and not self._body_seen and self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            self._body_seen = True
            replies += self._duplex_place(False, now, trailers=True)
            if self._refused:
                return replies
        self._body_seen = True
        return [*replies, TrailersReply(request=True)]

    def _read_subset(self, metadata: Metadata) -> None:
        if self._subset is not None:
            return
        hints = metadata.get(names.SUBSET_NAMESPACE)
        if hints is None or names.SUBSET not in hints:
            return
        value = hints[names.SUBSET]
        entries = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
        self._subset = tuple(entry.strip() for entry in entries if isinstance(entry, str) and entry.strip())

    def _place(self, body: bytes, *, complete: bool, now: float) -> list[Reply]:
        """Parses, places and books. An empty list means placed; anything else is the refusal."""
        head = self._head
        assert head is not None
        try:
            request = parse(head, body, complete=complete, token_scale=self._pool.tokens.scale)
        except BadRequest as refused:
            return self._refuse(refused)
        request.subset = self._subset
        self._request = request
        metrics = self._metrics
        handles = self._handles = metrics.request(request.model, request.target_model, request.tenant, request.priority)
        handles.total.inc()
        handles.size.observe(request.body_bytes)
        try:
            placement = self._pool.place(request, now)
        except RequestRefused as refused:
            metrics.not_picked(request.target_model)
            return self._refuse(refused)
        except Exception:
            log.exception("placing failed", extra={"request_id": request.request_id, "pool": self._pool.name})
            return self._refuse(InternalError("the picker failed to place the request; its log has the details"))
        self.placement = placement
        handles.running.inc()
        handles.input_tokens.observe(request.prompt_tokens)
        handles.cached_tokens.observe(placement.cached_tokens)
        metrics.picked(request.target_model, placement.booking.endpoint.address)
        return []

    def _rewritten(self, body: bytes, *, complete: bool) -> bytes | None:
        """The body with the target model in it, None where it stays as it is (also where only a prefix was seen)."""
        request = self._request
        if request is None or not complete or not request.is_inference or request.target_model == request.model:
            return None
        return rewrite_model(body, request.target_model)

    def _mutation(self, more: Sequence[Field] = ()) -> Mutation:
        head, placement = self._head, self.placement
        assert head is not None
        assert placement is not None
        fields: list[Field] = [(names.DESTINATION, placement.destination), *more]
        if head.request_id_made:
            fields.append((names.REQUEST_ID, head.request_id))
        return Mutation(
            set_headers=fields,
            remove_headers=self._strip,
            destination=placement.destination,
            clear_route_cache=self._settings.clear_route_cache,
        )

    def _refuse(self, refused: RequestRefused) -> list[Reply]:
        self._refused = True
        self._chunks = []
        head, request = self._head, self._request
        self._metrics.refused.labels(self._pool.name, refused.code, refused.dropped_reason or "").inc()
        if request is not None:
            self._metrics.error(request.model, request.target_model, request.tenant, request.priority, refused.code)
        log.info(
            "refused",
            extra={
                "request_id": head.request_id if head else "",
                "pool": self._pool.name,
                "status": refused.status,
                "reason": refused.message,
            },
        )
        fields: list[Field] = [("content-type", "application/json")]
        if refused.dropped_reason:
            fields.append((names.DROPPED_REASON, refused.dropped_reason))
        return [
            ImmediateReply(
                status=refused.status,
                body=error_body(refused),
                set_headers=fields,
                grpc_status=refused.grpc_status if head is not None and head.grpc else None,
                details=f"poolpilot_{refused.dropped_reason or refused.code}",
            )
        ]

    # ---- response side

    def response_headers(
        self,
        fields: Sequence[tuple[str, str | bytes]],
        end_of_stream: bool,
        *,
        now: float,
        attributes: Mapping[str, Any] = NO_METADATA,
        metadata: Metadata = NO_METADATA,
    ) -> list[Reply]:
        """Response headers, of a pod or of the data plane itself. Not the first token: engines send them before it."""
        self.response_seen = True
        placement = self.placement
        if placement is None:
            return [HeadersReply(request=False)]
        received = dict(fields)
        status = _status(received.get(":status"))
        outcome, address, attempts = _who_answered(status, attributes, metadata)
        if address and self._pool.served(placement, address, now, attempts=attempts):
            self._metrics.moved.labels(self._pool.name).inc()
        placement.outcome = outcome
        override = None
        if outcome is Outcome.SERVED and placement.observe and not received.get("content-encoding"):
            override = self._observe(received, end_of_stream)
        return [HeadersReply(request=False, mutation=self._receipt_mutation(placement), mode_override=override)]

    def _observe(self, received: Mapping[str, str | bytes], end_of_stream: bool) -> ModeOverride | None:
        if end_of_stream:
            return None
        content_type = received.get("content-type", "")
        text = content_type if isinstance(content_type, str) else content_type.decode("latin-1")
        self._reader = UsageReader(streamed=text.startswith("text/event-stream"))
        if self._response_mode is not BodyMode.NONE or self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            # Chunks come anyway, or the override would be ignored.
            return None
        return ModeOverride(request=self._request_mode, response=BodyMode.STREAMED)

    def _receipt_mutation(self, placement: Placement) -> Mutation:
        if not self._settings.receipt_header or not placement.request.receipt_wanted or placement.receipt is None:
            return NO_MUTATION
        return Mutation(set_headers=((names.RECEIPT, msgspec.json.encode(placement.receipt).decode()),))

    def response_body(self, chunk: bytes, end_of_stream: bool, *, now: float) -> list[Reply]:
        """One response body message."""
        reader, placement = self._reader, self.placement
        if reader is not None and placement is not None:
            reader.feed(chunk)
            if reader.first_token_seen and not placement.first_token_seen:
                placement.first_token_seen = True
                self._pool.first_token(placement, now)
                if self._handles is not None:
                    self._handles.ttft.observe((now - self._started) / 1000.0)
            if end_of_stream:
                self._finish_reading()
        if self._response_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return list(_streamed(False, [chunk], end_of_stream))
        return [BodyReply(request=False)]

    def _finish_reading(self) -> None:
        """The whole body was seen: what it proves may be learned."""
        reader, placement = self._reader, self.placement
        self._reader = None
        if reader is None or placement is None:
            return
        reader.finish()
        usage = reader.usage
        tokens = usage.completion_tokens if usage is not None else None
        if tokens is None and placement.request.stream and reader.events:
            # No usage in the answer: one content event is about one token.
            tokens = reader.events
        self._pool.usage(placement, usage.prompt_tokens if usage is not None else None, tokens)
        if tokens is not None and self._handles is not None:
            self._handles.output_tokens.observe(tokens)

    def response_trailers(self, *, now: float) -> list[Reply]:
        """Response trailers."""
        self._finish_reading()
        return [TrailersReply(request=False)]

    # ---- end

    def closed(self, *, now: float) -> None:
        """The stream ended, however it did. Releases the booking; later calls do nothing."""
        placement, request, handles = self.placement, self._request, self._handles
        self._chunks = []
        self._reader = None
        if placement is None or request is None or handles is None:
            return
        outcome = placement.outcome or Outcome.ABORTED
        if not self._pool.finish(placement, outcome, now):
            return
        handles.running.dec()
        handles.duration.observe((now - self._started) / 1000.0)
        self._metrics.outcomes.labels(self._pool.name, outcome.value).inc()
        if outcome not in (Outcome.SERVED, Outcome.REJECTED, Outcome.ABORTED, Outcome.UNCONFIRMED):
            self._metrics.error(request.model, request.target_model, request.tenant, request.priority, outcome.value)


def _streamed(request: bool, chunks: Sequence[bytes], end_of_stream: bool) -> list[StreamedReply]:
    """Chunks of at most CHUNK_BYTES; the end of stream on the last; one empty chunk for an empty body."""
    pieces = [
        chunk[start : start + CHUNK_BYTES] if len(chunk) > CHUNK_BYTES else chunk
        for chunk in chunks
        for start in range(0, len(chunk), CHUNK_BYTES)
    ] or [b""]
    last = len(pieces) - 1
    return [
        StreamedReply(request=request, chunk=piece, end_of_stream=end_of_stream and index == last)
        for index, piece in enumerate(pieces)
    ]


def _status(value: str | bytes | None) -> int:
    text = value.decode("latin-1") if isinstance(value, bytes) else value or ""
    return int(text) if text.isdigit() else 0


def _who_answered(status: int, attributes: Mapping[str, Any], metadata: Metadata) -> tuple[Outcome, str, int]:
    """(outcome, address that served or was tried last, attempts) from attributes, else from metadata.

    Only `response.code_details` = `via_upstream` proves that a pod answered; the `…-served` metadata is also set on the
    data plane's own replies.
    """
    details = attributes.get("response.code_details")
    if isinstance(details, str):
        address = str(attributes.get("upstream.address") or "")
        attempts = int(attributes.get("upstream.request_attempt_count") or 1)
        if details == "via_upstream":
            if status >= 500:
                return Outcome.FAILED, address, attempts
            return (Outcome.SERVED if 200 <= status < 300 or status == 101 else Outcome.REJECTED), address, attempts
        # A retry that finds no host left hides how the attempt before it ended, but not where.
        if address and (details.startswith("upstream_reset") or (details == "no_healthy_upstream" and attempts > 1)):
            return Outcome.UNREACHABLE, address, attempts
        if address and "timeout" in details:
            return Outcome.TIMED_OUT, address, attempts
        return Outcome.LOCAL_REPLY, "", attempts
    served = metadata.get(names.LB_NAMESPACE, NO_METADATA).get(names.SERVED)
    address = served if isinstance(served, str) else ""
    # Without attributes a local reply looks like a pod's answer: an error teaches nothing, a success only with a
    # served endpoint named.
    if address and 200 <= status < 300:
        return Outcome.SERVED, address, 1
    return Outcome.UNCONFIRMED, address, 1
