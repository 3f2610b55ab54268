"""One ext_proc stream, sans I/O: messages in, replies out; places the request once and releases it once.

What arrives decides, not configuration: the first message's `protocol_config` tells the body modes; without it the
Endpoint Picker Protocol's full duplex is meant. The table of situations is in the Envoy guide (docs/envoy.md). Messages
in an order that no data plane should send are answered in form, and change nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from poolpilot_picker.errors import RequestRefused, ServiceUnavailable, TooManyRequests
from poolpilot_picker.extproc.account import Account
from poolpilot_picker.extproc.answer_body import AnswerBody, answer_body
from poolpilot_picker.extproc.answered import NO_METADATA, Metadata, status_of, who_answered
from poolpilot_picker.extproc.held_bodies import HeldBodies
from poolpilot_picker.extproc.hints import subset_hint
from poolpilot_picker.extproc.receipts import receipt_mutation
from poolpilot_picker.extproc.replies import (
    CHUNK_BYTES,
    DUPLEX,
    NO_MUTATION,
    WAITED_FOR,
    BodyMode,
    BodyReply,
    Field,
    HeadersReply,
    ModeOverride,
    Mutation,
    PatienceReply,
    Reply,
    StreamedReply,
    TrailersReply,
    body_mode,
    refusal,
    streamed,
)
from poolpilot_picker.flow.holding import QueueOutcome
from poolpilot_picker.flow.outcome import ANSWERED_BY_POD, Outcome
from poolpilot_picker.requests import (
    NO_RULES,
    BodyUse,
    PoolRules,
    RequestHead,
    body_use,
    new_request_id,
    read_head,
)
from poolpilot_picker.requests import headers as names

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement, Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics
    from poolpilot_picker.requests import InferenceRequest

Fields = Sequence[tuple[str, str | bytes]]
Resume = Callable[[bytes, bool], list[Reply]]


class Outlet(Protocol):
    """Of the stream: takes what is said without being asked."""

    def say(self, replies: list[Reply]) -> None:
        """Sends these, in order, behind all that was said before."""
        ...


_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_GO_ON: Final[list[Reply]] = [HeadersReply(request=False)]
"""To response headers, which nothing changes as a rule."""
_NO_BODY: Final = (BodyUse.NONE, BodyUse.UNSEEN)
CANCELLED: Final = "rejected-context-cancelled"
UNKNOWN_HEAD: Final = ((":path", "/"),)
"""A data plane that is configured not to send request headers: nothing is known, so the body is never refused."""


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What configuration decides about every exchange."""

    receipt_header: bool = False
    """Put the receipt into a response header when the client asked for one."""
    clear_route_cache: bool = False
    """For gateways whose routes match on the destination header."""
    strip_headers: tuple[str, ...] = ()
    """Request headers removed besides those that only a picker may set."""
    max_body_bytes: int = 64 * 2**20
    """A full duplex body longer than this is placed on what has arrived; the rest passes through."""
    rules: PoolRules = NO_RULES
    """Priorities and rewrites of the pool."""
    bodies: HeldBodies | None = None
    """What the pool may hold of bodies that arrive or wait; None: as much as comes."""


class Exchange:
    """Follows one HTTP exchange from request headers to the end of its stream. Lists of replies are only to be read."""

    __slots__ = (
        "_account",
        "_chunks",
        "_closed",
        "_echo",
        "_head",
        "_held_bytes",
        "_load_report",
        "_new_id",
        "_reading",
        "_refused",
        "_request_mode",
        "_request_over",
        "_response_mode",
        "_response_over",
        "_response_seen",
        "_resume",
        "_rewrote",
        "_settings",
        "_strip",
        "_subset",
        "_trailers",
        "outlet",
        "passing",
    )

    def __init__(
        self,
        pool: Pool,
        metrics: PickerMetrics,
        settings: ExchangeSettings,
        *,
        new_id: Callable[[], str] = new_request_id,
        clock: Callable[[], float] = time.perf_counter,
        load_report: Callable[[str, str | bytes], None] | None = None,
    ) -> None:
        """`clock` (s) measures how long decisions take; `load_report` gets (address, value) of a pod's load report."""
        self._account = Account(pool, metrics, clock)
        self._settings = settings
        self._new_id = new_id
        self._load_report = load_report
        self._head: RequestHead | None = None
        self._request_mode = self._response_mode = _FULL_DUPLEX
        self._subset: tuple[str, ...] | None = None
        self._strip: Sequence[str] = ()
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._request_over = self._response_over = False  # no further body is expected
        self._echo = False  # full duplex: placed, request chunks pass through
        self._refused = self._closed = self._response_seen = self._rewrote = self._trailers = False
        self._resume: Callable[[], list[Reply]] | None = None
        self.outlet: Outlet | None = None
        """Set by a transport that can say what nothing asked for: without it no request waits in a queue."""
        self._reading: AnswerBody | None = None
        self.passing = False
        """The answer goes back as it comes, unread: a transport need not show the chunks that do not end it."""

    @property
    def placement(self) -> Placement | None:
        """Where the request was placed; None until it is."""
        return self._account.placement

    @property
    def waits(self) -> bool:
        """Its request is in the queue."""
        return self._account.ticket is not None

    def set_modes(self, request: int, response: int) -> None:
        """The body modes of `protocol_config`, which the stream's first message carries."""
        if self._head is None and not self._response_seen:
            self._request_mode, self._response_mode = body_mode(request), body_mode(response)

    # ---- request side

    def request_headers(
        self, fields: Fields, end_of_stream: bool, *, now: float, metadata: Metadata = NO_METADATA
    ) -> list[Reply]:
        """The first message, as a rule. Picks here where no body will come, or none that can be waited for."""
        if self._closed:
            return []
        duplex = self._request_mode in DUPLEX
        if self._head is not None or self._response_seen:
            self._unexpected("request-headers")
            return [] if duplex else [HeadersReply(request=True)]
        self._account.started = now
        head = self._head = read_head(fields, new_id=self._new_id)
        strip = self._settings.strip_headers
        if strip or not head.plain:
            received = dict(fields)
            self._strip = [name for name in (*names.NEVER_FROM_CLIENTS, *strip) if name in received]
        if metadata:
            self._allow(metadata)
        use = body_use(head, end_of_stream=True) if end_of_stream else head.use
        if use not in _NO_BODY and self._request_mode in WAITED_FOR:
            return [] if duplex else [HeadersReply(request=True)]
        # STREAMED sends the headers on before the body comes, and an upgrade's body never ends: pick now.
        self._request_over = end_of_stream
        replies = self._place(b"", complete=False, now=now)
        if replies is not None:
            return replies
        self._echo = duplex
        override = None
        if use is BodyUse.UNSEEN and not duplex and self._request_mode in WAITED_FOR:
            self._request_mode = BodyMode.NONE
            override = ModeOverride(request=BodyMode.NONE, response=self._response_mode)
        return [HeadersReply(request=True, mutation=self._mutation(), mode_override=override)]

    def request_body(
        self, chunk: bytes, end_of_stream: bool, *, now: float, metadata: Metadata = NO_METADATA
    ) -> list[Reply]:
        """One request body message."""
        if self._closed or self._refused:
            return []
        duplex = self._request_mode in DUPLEX
        if self._request_over:
            # Envoy may deliver the end of stream twice for large bodies.
            self._account.metrics.events.labels("duplicate-end-of-stream").inc()
            return [] if duplex else [BodyReply(request=True)]
        if duplex:
            return self._duplex_body(chunk, end_of_stream, now, metadata)
        # BUFFERED: the whole body. BUFFERED_PARTIAL without end of stream: a prefix, and no more.
        self._request_over = end_of_stream or self._request_mode is not BodyMode.STREAMED
        if self._account.placement is not None or self._response_seen:
            return [BodyReply(request=True)]
        if metadata:
            self._allow(metadata)
        head = self._head or self._headless(now)
        # With trailers the end of the stream is theirs, although BUFFERED never sends less than the whole body.
        complete = end_of_stream or self._request_mode is BodyMode.BUFFERED or head.content_length == len(chunk)
        replies = self._place(chunk, complete=complete, now=now, resume=self._body_placed)
        return self._body_placed(chunk, complete) if replies is None else replies

    def _body_placed(self, chunk: bytes, complete: bool) -> list[Reply]:
        if self._held_bytes:
            self._let_go()
        request, body = self._account.request, None
        assert request is not None
        if request.target_model != request.model or request.ceiling is not None:
            body = self._changed(request, chunk, complete)
        length = (("content-length", str(len(body))),) if body is not None else ()
        return [BodyReply(request=True, mutation=self._mutation(length), body=body)]

    def _headless(self, now: float) -> RequestHead:
        self._unexpected("request-body")
        self._account.started = now
        head = self._head = read_head(UNKNOWN_HEAD, new_id=self._new_id)
        head.request_id_made = False  # the client may have sent one that was not shown
        return head

    def _duplex_body(self, chunk: bytes, end_of_stream: bool, now: float, metadata: Metadata) -> list[Reply]:
        self._request_over = end_of_stream
        if self._account.ticket is not None:
            return self._rest_of_body(chunk, now)
        if self._echo:
            return streamed((chunk,), end_of_stream, request=True, whole=self._request_mode is BodyMode.GRPC)
        if self._head is None or self._response_seen:
            # Without headers to answer no pick can be given: the data plane's own policy has it.
            self._unexpected("request-body")
            return streamed((chunk,), end_of_stream, request=True)
        if metadata:
            self._allow(metadata)
        bodies = self._settings.bodies
        if chunk:
            self._chunks.append(chunk)
            self._held_bytes += len(chunk)
            if bodies is not None:
                bodies.hold(len(chunk))
        if not end_of_stream and self._held_bytes < self._settings.max_body_bytes and not (bodies and bodies.full):
            return []
        whole = b"".join(self._chunks)
        replies = self._place(whole, complete=end_of_stream, now=now, resume=self._duplex_placed)
        return self._duplex_placed(whole, end_of_stream) if replies is None else replies

    def _rest_of_body(self, chunk: bytes, now: float) -> list[Reply]:
        """Of a request that is placed on the beginning of its body, and waits."""
        bodies = self._settings.bodies
        too_much = self._held_bytes + len(chunk) > 2 * self._settings.max_body_bytes
        if chunk and (too_much or (bodies is not None and bodies.full)):
            self._account.withdraw(QueueOutcome.EVICTED_OTHER, now)
            large = TooManyRequests("the body is too large to be held any longer")
            self._account.turned_away(self._head, large, now)
            return self._refuse(large)
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if bodies is not None:
            bodies.hold(len(chunk))
        return []

    def _duplex_placed(self, whole: bytes, complete: bool) -> list[Reply]:
        """`whole`: what was there when the request was to be placed; more may have come while it waited."""
        head, end_of_stream = self._head, self._request_over and not self._trailers
        assert head is not None
        chunks = self._chunks
        self._let_go()
        request, body = self._account.request, None
        assert request is not None
        if request.target_model != request.model or request.ceiling is not None:
            body = self._changed(request, whole, complete)
        length: Sequence[Field] = ()
        if body is not None:
            chunks = [body]
            length = (("content-length", str(len(body))),)
        elif head.content_length is not None:
            # The data plane drops it unless it is set again.
            length = (("content-length", str(len(whole) if complete else head.content_length)),)
        self._echo = True
        # There is nothing to pass where only trailers followed the headers.
        passed = streamed(chunks, end_of_stream, request=True) if chunks or end_of_stream else []
        ended = [TrailersReply(request=True)] if self._trailers else []
        return [HeadersReply(request=True, mutation=self._mutation(length)), *passed, *ended]

    def _changed(self, request: InferenceRequest, body: bytes, complete: bool) -> bytes | None:
        """The body with the target model and its tenant's limit in it; None where it stays as it is. Most do: who calls
        asks first whether there is anything to change, which is cheaper than the call."""
        account, changed = self._account, None
        if request.target_model != request.model:
            changed = account.rewritten(body, complete=complete)
        self._rewrote = changed is not None
        if request.ceiling is not None:
            changed = account.lowered(changed or body, complete=complete) or changed
        return changed

    def _let_go(self) -> None:
        """Nothing of the request is held any more."""
        self._chunks = []
        if self._held_bytes and self._settings.bodies is not None:
            self._settings.bodies.hold(-self._held_bytes)
        self._held_bytes = 0

    def request_trailers(self, *, now: float) -> list[Reply]:
        """Request trailers: they end a body whose last chunk did not, or that never came."""
        if self._closed or self._refused:
            return []
        over, self._request_over, self._trailers = self._request_over, True, True
        if self._account.ticket is not None:
            resume = self._resume
            if self._request_mode not in DUPLEX and resume is not None:
                self._resume = lambda: [*resume(), TrailersReply(request=True)]
            return []
        if over or self._head is None or self._account.placement is not None or self._response_seen:
            return [TrailersReply(request=True)]
        if self._request_mode in DUPLEX:
            whole = b"".join(self._chunks)
            replies = self._place(whole, complete=True, now=now, resume=self._duplex_placed)
            return self._duplex_placed(whole, True) if replies is None else replies
        replies = self._place(b"", complete=True, now=now, resume=self._trailers_placed)
        return self._trailers_placed(b"", True) if replies is None else replies

    def _trailers_placed(self, _: bytes, __: bool) -> list[Reply]:
        placement = self._account.placement
        assert placement is not None
        return [TrailersReply(request=True, destination=placement.destination)]

    def _unexpected(self, message: str) -> None:
        self._account.metrics.events.labels(f"unexpected-{message}").inc()

    def _allow(self, metadata: Metadata) -> None:
        """Takes a subset hint; that of the latest message counts."""
        if (hint := subset_hint(metadata)) is not None:
            self._subset = hint

    def _place(self, body: bytes, *, complete: bool, now: float, resume: Resume | None = None) -> list[Reply] | None:
        """None means placed and booked; anything else is all that is to be said now.

        With `resume` the request may have to wait: then `resume(body, complete)` gives what is said when it is placed.
        """
        head, account = self._head, self._account
        assert head is not None
        # Who has nobody to tell later what became of the request cannot wait.
        waiter = self if resume is not None and self.outlet is not None else None
        try:
            rules = self._settings.rules
            account.place(head, body, complete=complete, subset=self._subset, now=now, rules=rules, waiter=waiter)
        except RequestRefused as refused:
            return self._refuse(refused)
        if account.ticket is None:
            return None
        assert resume is not None
        self._resume = partial(resume, body, complete)
        if self._chunks:
            self._chunks = [body]  # once, not twice, for as long as it waits
        if self._request_mode in DUPLEX:
            return []
        if self._settings.bodies is not None:
            self._held_bytes = len(body)
            self._settings.bodies.hold(len(body))
        assert account.pool.flow is not None
        return [PatienceReply(milliseconds=math.ceil(account.pool.flow.patience_ms(account.ticket)))]

    # ---- what a queue tells

    def dispatched(self, placement: Placement, now: float) -> None:
        """The request that waited was placed."""
        self._account.accept(placement)
        self._say_later()

    def _say_later(self) -> None:
        resume, outlet = self._resume, self.outlet
        self._resume = None
        assert resume is not None
        if outlet is not None:
            outlet.say(resume())

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        """The request that waited will not be placed."""
        self._account.turned_away(self._head, refused, now)
        self._resume = None
        if self.outlet is not None:
            self.outlet.say(self._refuse(refused))

    def unplaceable(self, now: float) -> None:
        """Choosing failed by a fault of ours, the exception at hand."""
        account = self._account
        assert account.request is not None
        try:
            placement = account.placed_anywhere(account.request, now)
        except RequestRefused as refused:
            self.turned_away(refused, now)
        else:
            self.dispatched(placement, now)

    def _mutation(self, more: Sequence[Field] = ()) -> Mutation:
        head, placement = self._head, self._account.placement
        assert head is not None
        assert placement is not None
        fields: list[Field] = [(names.DESTINATION, placement.destination), *more]
        if head.request_id_made:
            fields.append((names.REQUEST_ID, head.request_id))
        if placement.once:
            fields.append((names.MAX_RETRIES, "0"))
        if self._rewrote:
            # Nobody could put the client's name back into what is compressed.
            fields.append(("accept-encoding", "identity"))
        return Mutation(
            set_headers=fields,
            remove_headers=self._strip,
            destination=placement.destination,
            clear_route_cache=self._settings.clear_route_cache,
        )

    def _refuse(self, refused: RequestRefused) -> list[Reply]:
        self._refused = True
        self._let_go()
        return [refusal(refused, grpc=self._head is not None and self._head.grpc)]

    def _stop_waiting(self, now: float) -> None:
        """Nobody waits for the request any more: its place in the queue is free at once."""
        self._account.withdraw(QueueOutcome.EVICTED_CONTEXT_CANCELLED, now)
        self._resume = None
        gone = ServiceUnavailable("the client went away while its request waited", dropped_reason=CANCELLED)
        self._account.refused(self._head, gone, now)

    # ---- response side

    def response_headers(
        self,
        fields: Fields,
        end_of_stream: bool,
        *,
        now: float,
        attributes: Mapping[str, Any] = NO_METADATA,
        metadata: Metadata = NO_METADATA,
    ) -> list[Reply]:
        """Response headers, of a pod or of the data plane itself. Not the first token: engines send them before it."""
        if self._closed:
            return []
        if self._account.ticket is not None:
            # The data plane has answered itself while the request waited.
            self._stop_waiting(now)
        self._response_seen, self._response_over, self._reading = True, end_of_stream, None
        self.passing = self._response_mode is _FULL_DUPLEX
        placement = self._account.placement
        if placement is None:
            return _GO_ON
        received = dict(fields)
        status = status_of(received.get(":status"))
        answer = who_answered(status, attributes, metadata, received)
        self._account.answered(placement, status, answer, now)
        report = received.get(names.LOAD_REPORT)
        if report and self._load_report is not None and answer.outcome in ANSWERED_BY_POD:
            self._load_report(answer.address, report)
        override, mutation = None, receipt_mutation(placement) if self._settings.receipt_header else NO_MUTATION
        observed = placement.observe and placement.outcome is Outcome.SERVED
        if (observed or self._rewrote) and not end_of_stream:
            modes = self._request_mode, self._response_mode
            reading = self._reading = answer_body(
                self._account, placement, received, modes, observed=observed, rewrote=self._rewrote
            )
            if reading is not None:
                self.passing, override = False, reading.override
                if override is not None:
                    self._response_mode = override.response
                if reading.unmeasured:
                    mutation = msgspec.structs.replace(mutation, remove_headers=("content-length",))
        if override is None and mutation is NO_MUTATION:
            return _GO_ON
        return [HeadersReply(request=False, mutation=mutation, mode_override=override)]

    def response_body(self, chunk: bytes, end_of_stream: bool, *, now: float) -> list[Reply]:
        """One response body message."""
        if self._closed:
            return []
        reading = self._reading
        if reading is not None:
            reading.watch(chunk, now)
        if end_of_stream:
            self._end_response()
        if reading is not None and reading.renames:
            return reading.renamed(chunk, end_of_stream)
        if self._response_mode in DUPLEX:
            if len(chunk) <= CHUNK_BYTES:
                return [StreamedReply(request=False, chunk=chunk, end_of_stream=end_of_stream)]
            return streamed((chunk,), end_of_stream, request=False, whole=self._response_mode is BodyMode.GRPC)
        return [BodyReply(request=False)]

    def response_trailers(self, *, now: float) -> list[Reply]:
        """Response trailers."""
        if self._closed:
            return []
        kept = self._reading.held_back() if self._reading is not None else []
        self._end_response()
        return [*kept, TrailersReply(request=False)]

    def _end_response(self) -> None:
        self._response_over = True
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.finish()

    # ---- end

    def give_up(self, now: float) -> list[Reply] | None:
        """The picker must end the stream now: what to send before it ends with OK; None where OK would do harm.

        A stream that ends OK lets its exchange go on without the picker: unpicked before the pick, and cut off while a
        full duplex body is under way.
        """
        if self._refused:
            return []
        if self._account.placement is None and not self._response_seen:
            if self._head is None:
                return None
            why = ServiceUnavailable("the picker is shutting down", dropped_reason="rejected-shutting-down")
            self._account.withdraw(QueueOutcome.EVICTED_OTHER, now)
            self._resume = None
            self._account.refused(self._head, why, now)
            return self._refuse(why)
        if self._request_mode in DUPLEX and not self._request_over and self._account.placement is not None:
            return None
        return None if self._response_mode in DUPLEX and not self._response_over else []

    def closed(self, *, now: float) -> None:
        """The stream ended, however it did. Releases the booking; later calls do nothing."""
        if self._account.ticket is not None:
            self._stop_waiting(now)
        self.outlet = None
        self._closed, self.passing = True, False
        self._reading = None
        if self._held_bytes:
            self._let_go()
        self._account.close(now)
