"""What one exchange does to pool and metrics: its request is placed once, followed, and released once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import BadRequest, InternalError, RequestRefused
from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.outcome import AGAINST_ENDPOINT, Outcome
from poolpilot_picker.requests import NO_RULES, InferenceRequest, RequestHead, Usage, limit_tokens, parse, rewrite_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.extproc.answered import Answer
    from poolpilot_picker.flow.holding import QueueOutcome, Waiter
    from poolpilot_picker.flow.pool import Placement, Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics, RequestHandles
    from poolpilot_picker.requests import PoolRules, Rewritten

log = logging.getLogger(__name__)

NO_USAGE: Final = Usage()
_ABORTED: Final = Outcome.ABORTED
_SERVED: Final = Outcome.SERVED


class Account:
    """Of one exchange. `placement` is None until `place` has succeeded, and stays after `close`."""

    __slots__ = (
        "_clock",
        "_handles",
        "_over",
        "_status",
        "_usage",
        "metrics",
        "placement",
        "pool",
        "request",
        "started",
        "ticket",
    )

    def __init__(self, pool: Pool, metrics: PickerMetrics, clock: Callable[[], float]) -> None:
        self.pool = pool
        self.metrics = metrics
        self._clock = clock
        self._handles: RequestHandles | None = None
        self._status = 0
        self._over = False
        self._usage = NO_USAGE
        self.request: InferenceRequest | None = None
        self.placement: Placement | None = None
        self.ticket: Ticket | None = None
        """Set while the request waits in the queue."""
        self.started = 0.0
        """When the request came, ms."""

    def place(
        self,
        head: RequestHead,
        body: bytes,
        *,
        complete: bool,
        subset: tuple[str, ...] | None,
        now: float,
        rules: PoolRules = NO_RULES,
        waiter: Waiter | None = None,
    ) -> None:
        """Parses, places and books. Raises RequestRefused, counted and logged; `complete` as for `requests.parse`.

        Where flow control is on and there is a `waiter`, the request may have to wait: `ticket` is set then, and
        `accept` or `turned_away` is told what became of it.
        """
        metrics, pool = self.metrics, self.pool
        try:
            if rules.rewrites:
                request = self._rewriting(head, body, complete, rules, now)
            else:
                request = parse(head, body, complete=complete, token_scale=pool.tokens.scale)
        except BadRequest as refused:
            self.refused(head, refused, now)
            raise
        except Exception:
            request = self._unread(head, body, now)
        if subset is not None:
            request.subset = subset
        if pool.flow is not None:
            request.client_retries, request.idempotency_key = head.client_retries, head.idempotency_key
            if not head.request_id_made:
                request.client_id = head.request_id
        if request.objective:
            request.priority = rules.priority(request.objective)
        self.request = request
        handles = self._handles = metrics.request(request.model, request.target_model, request.tenant, request.priority)
        handles.total.value += 1
        handles.size.observe(request.body_bytes)
        began = self._clock()
        flow = pool.flow
        try:
            try:
                if flow is None or waiter is None:
                    placement = pool.place(request, now)
                else:
                    found = flow.submit(request, waiter, now)
                    if isinstance(found, Ticket):
                        self.ticket = found
                        return
                    placement = found
            except RequestRefused:
                raise
            except Exception:
                placement = self.placed_anywhere(request, now)
        except RequestRefused as refused:
            metrics.not_picked(request.target_model)
            self.refused(head, refused, now)
            raise
        metrics.decision.observe(self._clock() - began)
        self.placement = placement
        handles.running.value += 1
        spec = placement.booking.endpoint.spec
        metrics.picked(request.target_model, spec.name or spec.host, spec.port)

    def accept(self, placement: Placement) -> None:
        """The request that waited was placed."""
        request, handles = self.request, self._handles
        assert request is not None
        assert handles is not None
        self.ticket, self.placement = None, placement
        handles.running.value += 1
        spec = placement.booking.endpoint.spec
        self.metrics.picked(request.target_model, spec.name or spec.host, spec.port)

    def turned_away(self, head: RequestHead | None, refused: RequestRefused, now: float) -> None:
        """The request that waited will not be placed."""
        self.ticket = None
        if self.request is not None:
            self.metrics.not_picked(self.request.target_model)
        self.refused(head, refused, now)

    def withdraw(self, outcome: QueueOutcome, now: float) -> None:
        """Nobody waits for the request any more."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None and self.pool.flow is not None:
            self.pool.flow.withdraw(ticket, outcome, now)

    def _rewriting(
        self, head: RequestHead, body: bytes, complete: bool, rules: PoolRules, now: float
    ) -> InferenceRequest:
        """Parses by the rules of the pool's InferenceModelRewrites."""
        chosen: list[Rewritten] = []

        def target_of(model: str) -> str:
            made = rules.rewrite(model, head.routing_key)
            if made is None:
                return ""
            chosen.append(made)
            return made.target

        request = parse(head, body, complete=complete, target_of=target_of, token_scale=self.pool.tokens.scale)
        for one in chosen:
            self.metrics.rewritten(one.rule, request.model, one.target)
        if not chosen and request.body_bytes and rules.rewrite(request.model, head.routing_key) is not None:
            # Of a body of which only the beginning was seen, or that is no JSON, nothing can be changed.
            self.metrics.events.labels("model-not-rewritten").inc()
            if count := self.metrics.seldom.due("model-not-rewritten", now):
                log.warning(
                    "a rule rewrites the model, but the body is no JSON or was not seen whole: it goes on as it is",
                    extra={"request_id": head.request_id, "pool": self.pool.name, "times": count},
                )
        return request

    def _unread(self, head: RequestHead, body: bytes, now: float) -> InferenceRequest:
        """Where reading a request has failed by a fault of ours: what the headers tell, to be placed by load."""
        self._fault("parsing-failed", "reading the body failed: placed by load", head.request_id, now)
        return InferenceRequest(
            request_id=head.request_id,
            path=head.path,
            tenant=head.tenant,
            body_bytes=len(body),
            complete=False,
            receipt_wanted=head.receipt_wanted,
        )

    def _fault(self, kind: str, sentence: str, request_id: str, now: float) -> None:
        """A fault of ours that must not cost the request: counted, and logged once a minute."""
        self.metrics.events.labels(kind).inc()
        if count := self.metrics.seldom.due(kind, now):
            log.exception(sentence, extra={"request_id": request_id, "pool": self.pool.name, "times": count})

    def placed_anywhere(self, request: InferenceRequest, now: float) -> Placement:
        """Places somewhere, where choosing has failed by a fault of ours.

        A fault in prediction or bookkeeping says nothing against the request or the engines: served by an endpoint
        taken at random it costs time, answered 500 it is lost, and every later one like it too.
        """
        self._fault("placing-failed", "choosing failed: placed at random", request.request_id, now)
        try:
            return self.pool.place_anywhere(request, now)
        except RequestRefused:
            raise
        except Exception as error:
            raise InternalError("the picker failed to place the request; its log has the details") from error

    def rewritten(self, body: bytes, *, complete: bool) -> bytes | None:
        """The body with the target model in it, None where it stays as it is (also where only a prefix was seen)."""
        request = self.request
        assert request is not None
        if request.target_model == request.model or not complete or not request.is_inference:
            return None
        return rewrite_model(body, request.target_model)

    def lowered(self, body: bytes, *, complete: bool) -> bytes | None:
        """The body with its tenant's limit on the output in it, None where it stays as it is."""
        request = self.request
        assert request is not None
        if request.ceiling is None or not complete:
            return None
        return limit_tokens(body, request.kind, request.ceiling)

    def refused(self, head: RequestHead | None, refused: RequestRefused, now: float) -> None:
        """Counts a refusal, and logs it: the first of its kind in a minute for operators, the rest at level debug."""
        metrics, request = self.metrics, self.request
        metrics.refused.labels(self.pool.name, refused.code, refused.dropped_reason or "").inc()
        if request is not None:
            metrics.error(request.model, request.target_model, request.tenant, request.priority, refused.code)
        else:
            metrics.error("", "", head.tenant if head is not None else "", 0, refused.code)
        count = metrics.seldom.due(f"{self.pool.name} {refused.code} {refused.dropped_reason}", now)
        log.log(
            logging.INFO if count else logging.DEBUG,
            "refused",
            extra={
                "request_id": head.request_id if head is not None else "",
                "pool": self.pool.name,
                "status": refused.status,
                # What is wrong with a body is told in the client's words, and these are not for the log.
                "reason": refused.code if isinstance(refused, BadRequest) else refused.message,
                "field": refused.param,
                "times": count or 1,
            },
        )

    def answered(self, placement: Placement, status: int, answer: Answer, now: float) -> None:
        """The response headers tell who answered: the booking moves there. The last answer counts."""
        outcome, address, attempts = answer
        if attempts > 1 and self.pool.flow is not None:
            self.pool.flow.retried(attempts)
        if (
            address
            and address != placement.booking.endpoint.address
            and self.pool.served(placement, address, now, attempts=attempts)
        ):
            self.metrics.moved.labels(self.pool.name).inc()
        self.pool.answered(placement, outcome, now)
        self._status = status

    def first_token(self, placement: Placement, now: float) -> None:
        """The first token was seen in the response."""
        placement.first_token_seen = True
        self.pool.first_token(placement, now)
        if self._handles is not None:
            self.metrics.first_token(self._handles, (now - self.started) / 1000.0)

    def usage(self, placement: Placement, usage: Usage) -> None:
        """What the whole response told of its tokens."""
        self._usage = usage
        self.pool.usage(placement, usage.prompt_tokens, usage.completion_tokens)

    def close(self, now: float) -> None:
        """Releases the booking, once; nothing happens where there is none."""
        placement, request, handles, metrics = self.placement, self.request, self._handles, self.metrics
        if self.pool.flow is not None and request is not None and not self._over:
            self._over = True
            if placement is None or placement.outcome is not _SERVED:
                self.pool.flow.unserved(request, now)
        if placement is None or request is None or handles is None:
            return
        outcome = placement.outcome or _ABORTED
        if not self.pool.finish(placement, outcome, now):
            return
        handles.running.value -= 1
        usage = self._usage
        handles.input_tokens.observe(request.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens)
        handles.cached_tokens.observe(placement.cached_tokens if usage.cached_tokens is None else usage.cached_tokens)
        if usage.completion_tokens is not None:
            metrics.output(handles, usage.completion_tokens)
        handles.duration.observe((now - self.started) / 1000.0)
        metrics.ended(self.pool.name, outcome)
        if outcome is _SERVED:
            return
        code = ""
        if outcome in AGAINST_ENDPOINT:
            code = "ModelServerError"
        elif outcome is Outcome.LOCAL_REPLY and self._status >= 500:
            code = "DataPlaneError"
        if code:
            metrics.error(request.model, request.target_model, request.tenant, request.priority, code)
