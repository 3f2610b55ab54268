"""One endpoint's telemetry: what to ask, what its answers mean, what to tell the sink. Timing is the plans' matter."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.asking import CORE, asking
from poolpilot_picker.sources.cadence import Plan
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.growing import Asked, asked_for, grown
from poolpilot_picker.sources.http import check_status, slash_redirect
from poolpilot_picker.sources.http_response import Response
from poolpilot_picker.sources.page_reader import PageReader
from poolpilot_picker.sources.restart import RestartDetector
from poolpilot_picker.sources.served_models import parse_served_models
from poolpilot_picker.sources.stats import EndpointHealth
from poolpilot_picker.sources.strange_pages import what_it_has

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_picker.sources.credentials import BearerToken
    from poolpilot_picker.sources.engines.mapping import Engine
    from poolpilot_picker.sources.exposition import Page, Turns
    from poolpilot_picker.sources.http import Client, Limits
    from poolpilot_picker.sources.http_response import Answer
    from poolpilot_picker.sources.surroundings import Surroundings
    from poolpilot_picker.state.endpoints import EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels

log: Final = logging.getLogger(__name__)

METRICS_PORT_LABEL: Final = "poolpilot.dev/metrics-port"
"""Label of an endpoint whose metrics are on another port than its API (Triton: 8002)."""

_ACCEPT_TEXT: Final = "text/plain;version=0.0.4;q=1,text/*;q=0.5,*/*;q=0.1"
# Answers to a selective scrape that say "not this way" rather than "not now".
_NOT_SELECTIVE: Final = frozenset(
    {ErrorKind.NOT_FOUND, ErrorKind.REDIRECT, ErrorKind.HTTP_STATUS, ErrorKind.CONTENT, ErrorKind.NO_FAMILIES}
)
_NOT_SHOWN: Final = frozenset({ErrorKind.NOT_FOUND, ErrorKind.NO_FAMILIES})
"""What an engine answers that was not told to show its metrics."""
_LONGEST_TURN_S: Final = 0.002
"""What one turn of a search is counted as at most: more is a process that was not given the processor."""
_Result = TypeVar("_Result")
_UNKNOWN_MODELS: Final = frozenset(
    {ErrorKind.UNAUTHORIZED, ErrorKind.NOT_FOUND, ErrorKind.REDIRECT, ErrorKind.CONTENT, ErrorKind.TOO_LARGE}
)


class _Pending(NamedTuple):
    """A page whose reading goes on elsewhere."""

    turns: Turns[tuple[EngineSample, Page]]
    began: float
    everything: bool


class EndpointWatch:
    """Reads one endpoint. `read_metrics` and `read_models` may run beside each other, each not beside itself.

    `poll` is the short way of `read_metrics`, for what nearly every poll is: a page like the last one, over the kept
    connection. It needs neither a task nor a timer of its own.
    """

    def __init__(self, spec: EndpointSpec, engine: Engine, around: Surroundings) -> None:
        now = around.now()
        cadence = around.settings.cadence
        self.spec = spec
        self.closed = False
        self.metrics_plan = Plan(cadence, now, around.rng)
        self.models_plan = Plan(cadence, now, around.rng) if engine.models_path else None
        self.models_moved = False
        """A page has changed when the models are to be read; whoever queues the plans resets it."""
        self.load = 0.0
        """Running and waiting by the newest sample."""
        self._around = around
        self._engine = engine
        self._growing = Asked.OFTEN
        self._reader = PageReader(engine)
        self._client = around.connect(spec.host, metrics_port(spec, around.settings.port))
        self._models_client = around.connect(spec.host, spec.port)
        self._path = around.settings.path or engine.path
        self._selective_from = now if engine.selects_by_name else float("inf")
        self._asking = asking(engine, self._path)
        self._everything_due = now
        self._last: EngineSample | None = None
        self._kept: dict[str, Any] = {}
        """What the last poll that asked for everything told of fields that the others do not ask for."""
        self._missing = 0
        self._good_type: str | None = None
        self._began = 0.0
        self._everything = False
        self._ended: Callable[[EndpointWatch, bool], None] | None = None
        """Of the poll that is under way: when it began, what it asked for, and who is told of its end."""
        self._pending: _Pending | None = None
        self._plain_headers = {"Accept": _ACCEPT_TEXT}
        self._restart = RestartDetector()
        self._models: ServedModels | None = None
        self._models_told = False
        self.health = around.stats.endpoints.setdefault(spec.address, EndpointHealth())

    def close(self) -> None:
        """The endpoint is not wanted any more; running reads end without effect."""
        self.closed = True
        self._client.close()
        self._models_client.close()

    def trusted(self, plan: Plan) -> bool:
        """Nothing speaks against an answer in time. A model list is not asked for with trust before the first page."""
        return plan.failures == 0 and (
            plan is self.metrics_plan or (self._last is not None and self.metrics_plan.failures == 0)
        )

    def poll(self, began: float, ended: Callable[[EndpointWatch, bool], None]) -> bool:
        """Begins a poll at `began`; False if it must be `read_metrics`, for there is no connection.

        `ended(self, again)` is called when it has ended, at the latest by `give_up`; `again`: it needs `read_metrics`
        to be completed.
        """
        around = self._around
        everything = self._wants_everything(began)
        target = self._asking.selective[everything] if began >= self._selective_from else self._path
        self._began, self._everything, self._ended = began, everything, ended
        headers = self._plain_headers if around.token is None else self._headers(around.token)
        if self._client.begin(target, headers, around.settings.limits, self._answered):
            return True
        self._ended = None
        return False

    def give_up(self) -> None:
        """The poll has used up its time."""
        detail = f"no complete answer within {self._around.settings.limits.timeout_ms:g} ms"
        self._client.close(FetchError(ErrorKind.TIMEOUT, detail))

    def _answered(self, outcome: Answer | FetchError) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None
        began, again = self._began, False
        try:
            again = not self.closed and not self._took(outcome, began, self._everything)
        except Exception:
            self.fault(self.metrics_plan, began)
        ended(self, again)

    def _took(self, outcome: Answer | FetchError, began: float, everything: bool) -> bool:
        """Takes the answer if it is a plain one."""
        if isinstance(outcome, FetchError):
            if outcome.unheard and outcome.kind is ErrorKind.RESET:
                return False  # the server has closed the kept connection in the meantime
            if began >= self._selective_from and self._could_ask_less(outcome):
                return False
            self._failed(self.metrics_plan, began, outcome)
            return True
        if outcome.status != 200:
            return False
        if outcome.headers.get("content-type", "text/plain") == self._good_type:
            again = self._reader.again(outcome.buffer, outcome.start, outcome.end, began, everything)
            if again is not None:
                self._succeeded(again[0], again[1], began, everything)
                return True
        turns = self._read(Response(outcome.status, outcome.headers, outcome.body), began, everything)
        try:
            next(turns)
        except StopIteration as end:
            sample, page = end.value
            self._succeeded(sample, page, began, everything)
            return True
        except FetchError:
            return False
        self._pending = _Pending(turns, began, everything)
        return False

    def fault(self, plan: Plan, began: float) -> None:
        """A fault of ours or of the sink costs this one read."""
        log.exception("reading %s", self.spec.address)
        self._around.stats.error(ErrorKind.INTERNAL)
        plan.failed(began, self._around.now())
        self.models_moved = True

    async def read_metrics(self) -> None:
        """One poll, and the plan for the next."""
        pending, self._pending = self._pending, None
        began = self._around.now()
        everything = self._wants_everything(began)
        try:
            if pending is not None:
                began, everything = pending.began, pending.everything
                sample, page = await self._in_turns(pending.turns)
            else:
                sample, page = await self._fetch_page(began, everything)
        except FetchError as error:
            self._failed(self.metrics_plan, began, error)
            return
        if not self.closed:
            self._succeeded(sample, page, began, everything)

    def _wants_everything(self, now: float) -> bool:
        return self._last is None or self.metrics_plan.failures > 0 or now >= self._everything_due

    def _succeeded(self, sample: EngineSample, page: Page, began: float, everything: bool) -> None:
        around, plan, health = self._around, self.metrics_plan, self.health
        recovered = plan.failures > 0
        self.load = (sample.running or 0.0) + (sample.waiting or 0.0)
        cadence = around.settings.cadence
        busy = self.load > 0.0 or around.in_flight(self.spec) > 0
        plan.succeeded(began, cadence.fast_ms if busy else cadence.slow_ms)
        if everything:
            self._everything_due = began + cadence.everything_ms
        if recovered:
            log.info("telemetry of %s is back", self.spec.address)
            if self.models_plan is not None:
                self.models_plan.hasten(around.now())
                self.models_moved = True
        if page.changed is None or self._missing:
            self._remark(page)
        health.last_success_ms, health.failing_since_ms, health.reason = began, None, None
        around.stats.samples += 1
        self._deliver(sample, page, everything)

    async def read_models(self) -> None:
        """One read of the model list, and the plan for the next."""
        around, plan, path = self._around, self.models_plan, self._engine.models_path
        if plan is None or path is None:
            return
        began = around.now()
        try:
            response = await self._get(self._models_client, path, "application/json", around.settings.models_limits)
            check_status(response)
            models: ServedModels | None = parse_served_models(response.body)
        except FetchError as error:
            if self.closed:
                return
            around.stats.error(error.kind)
            plan.failed(began, around.now())
            if error.kind in _UNKNOWN_MODELS:
                pause = around.settings.cadence.models_ms * (6.0 if error.kind is ErrorKind.NOT_FOUND else 1.0)
                plan.due_ms = max(plan.due_ms, began + pause)
                self._tell_models(None)
            return
        if self.closed:
            return
        plan.succeeded(began, around.settings.cadence.models_ms)
        self._tell_models(models)

    def _tell_models(self, models: ServedModels | None) -> None:
        if models != self._models or not self._models_told:
            self._models, self._models_told = models, True
            self._around.sink.on_served_models(self.spec, models)

    def _failed(self, plan: Plan, began: float, error: FetchError) -> None:
        if self.closed:
            return
        around = self._around
        self.models_moved = True  # to the lane of those that are not trusted
        since = plan.failed(began, around.now())
        around.stats.error(error.kind)
        if self.health.reason != error.kind:
            needs = self._engine.needs
            hint = f" ({self._engine.name} {needs})" if needs and error.kind in _NOT_SHOWN else ""
            log.warning("telemetry of %s cannot be read: %s%s", self.spec.address, error, hint)
        self.health.failing_since_ms, self.health.reason = since, error.kind
        around.sink.on_unreachable(self.spec, error.kind, since)

    def _remark(self, page: Page) -> None:
        stats = self._around.stats
        if page.changed is None:
            stats.remark("malformed_line", page.malformed)
            stats.remark("truncated", int(page.truncated))
            self._missing = sum(
                not any(family in page.series for family in reading.families)
                for field in CORE
                if (reading := self._engine.readings.get(field)) is not None
            )
            if self._growing is Asked.OFTEN and (family := grown(self._engine, page.series)) is not None:
                every_s = self._around.settings.cadence.everything_ms / 1000.0
                log.info("%s has many series of %s: read every %g s from now on", self.spec.address, family, every_s)
                stats.remark("many_series")
                self._ask_for_growing(Asked.RARELY)
        if self._missing:
            stats.remark("missing_family", self._missing)

    def _could_ask_less(self, error: FetchError) -> bool:
        """The answer to a selective poll is too large, perhaps for families that need not be asked for."""
        return error.kind is ErrorKind.TOO_LARGE and bool(self._engine.growing) and self._growing is not Asked.NEVER

    def _ask_for_growing(self, how: Asked) -> None:
        engine = asked_for(self._engine, how)
        self._growing = how
        self._asking = asking(engine, self._path)
        self._reader = PageReader(engine)
        self._reader.keep(self._kept)

    def _deliver(self, sample: EngineSample, page: Page, everything: bool) -> None:
        """Hands on the sample, with facts of an earlier one where this poll did not ask for them."""
        around = self._around
        # Half of a page may hold half of the ranks, whose sum is less than it was.
        whole = not page.malformed and not page.truncated
        if whole and (why := self._restart.observe(sample, self._asking.counters[everything])) is not None:
            log.info("engine %s was restarted: %s", self.spec.address, why)
            around.stats.restarts += 1
            self._kept = {}
            self._reader.keep(self._kept)
            if self._growing is not Asked.OFTEN:
                self._ask_for_growing(Asked.OFTEN)
            if not everything:
                for field in self._asking.rarely:
                    setattr(sample, field, None)
                self._everything_due = around.now()
                self.metrics_plan.hasten(around.now())
            if self._engine.selects_by_name:
                self._selective_from = around.now()
            around.sink.on_restart(self.spec)
            # What it serves now is told again whatever it is; until then the old list is nearer the truth than none.
            self._models_told = False
            if self.models_plan is not None:
                self.models_plan.hasten(around.now())
                self.models_moved = True
        if everything:
            facts: dict[str, Any] = {
                field: value for field in self._asking.rarely if (value := getattr(sample, field)) is not None
            }
            if facts != self._kept:
                self._kept = facts
                self._reader.keep(facts)
        self._last = sample
        around.sink.on_sample(self.spec, sample)

    async def _fetch_page(self, began: float, everything: bool) -> tuple[EngineSample, Page]:
        """The page in the cheapest way that this endpoint answers."""
        if began >= self._selective_from:
            try:
                return await self._read_page(self._asking.selective[everything], began, everything)
            except FetchError as error:
                if self._could_ask_less(error):
                    return await self._read_less(error, began, everything)
                if error.kind not in _NOT_SELECTIVE:
                    raise
            # Remembered only once the whole page could be read: an engine that is starting answers neither way.
            result = await self._read_page(self._path, began, everything)
            self._selective_from = began + self._around.settings.cadence.reselect_ms
            self._around.stats.remark("selective_fallback")
            return result
        return await self._read_page(self._path, began, everything)

    async def _read_less(self, error: FetchError, began: float, everything: bool) -> tuple[EngineSample, Page]:
        """The page without families that grow; they are not asked for any more if that is what helps."""
        before = self._growing
        self._ask_for_growing(Asked.NEVER)
        try:
            result = await self._read_page(self._asking.selective[everything], began, everything)
        except FetchError:
            self._ask_for_growing(before)
            raise
        families = ", ".join(sorted(self._engine.growing))
        log.warning("%s: %s; not asked for %s until it restarts", self.spec.address, error, families)
        self._around.stats.remark("too_many_series")
        return result

    async def _read_page(self, target: str, began: float, everything: bool) -> tuple[EngineSample, Page]:
        response = await self._get(self._client, target, _ACCEPT_TEXT, self._around.settings.limits)
        if (moved := slash_redirect(response, target)) is not None:
            response = await self._get(self._client, moved, _ACCEPT_TEXT, self._around.settings.limits)
            if response.status == 200 and target == self._path:
                self._path = moved
        check_status(response)
        return await self._in_turns(self._read(response, began, everything))

    def _read(self, response: Response, began: float, everything: bool) -> Turns[tuple[EngineSample, Page]]:
        """What the page of a good answer tells, in turns. Raises FetchError."""
        content_type = response.headers.get("content-type", "text/plain")
        if content_type != self._good_type:
            plain = content_type.split(";")[0].strip().lower()
            if plain == "text/html" or not plain.startswith(("text/", "application/openmetrics-text")):
                raise FetchError(ErrorKind.CONTENT, f"content-type {plain[:80]!r} is not a metrics page")
            self._good_type = content_type
        if (coding := response.headers.get("content-encoding", "identity")) != "identity":
            # We ask for none. What would have to be unpacked may be any size.
            raise FetchError(ErrorKind.CONTENT, f"content-encoding {coding[:80]!r} was not asked for")
        sample, page = yield from self._reader.steps(response.body, began, everything=everything)
        core = self._asking.core
        if not page.series or (core and core.isdisjoint(page.series)):
            detail = f"none of the families of engine {self._engine.name}"
            if self.health.reason is not ErrorKind.NO_FAMILIES:  # else it has been said
                detail += f"; {what_it_has(response.body, self._engine)}"
            raise FetchError(ErrorKind.NO_FAMILIES, detail)
        return sample, page

    async def _in_turns(self, turns: Turns[_Result]) -> _Result:
        """Drives work that takes long, letting others go first after each turn."""
        # One page at a time: when hundreds of first answers arrive together, the loop must not be held by all of them.
        # Those that find nobody searching would all go in one turn of the loop, so each waits for the next first.
        now, meter = self._around.now, self._around.meter
        async with self._around.searching:
            while True:
                await asyncio.sleep(0)
                began = now()
                try:
                    next(turns)
                except StopIteration as end:
                    result: _Result = end.value
                    return result
                finally:
                    meter.busy_s += min((now() - began) / 1000.0, _LONGEST_TURN_S)

    def _headers(self, token: BearerToken) -> Mapping[str, str]:
        return {**self._plain_headers, "Authorization": token.header()}

    async def _get(self, client: Client, target: str, accept: str, limits: Limits) -> Response:
        token = self._around.token
        headers = {"Accept": accept}
        if token is None:
            return await client.get(target, headers, limits)
        response = await client.get(target, {**headers, "Authorization": token.header()}, limits)
        if response.status in (401, 403) and token.reload():
            response = await client.get(target, {**headers, "Authorization": token.header()}, limits)
        return response


def metrics_port(spec: EndpointSpec, configured: int | None) -> int:
    """The port of the endpoint's metrics page. Raises ConfigurationError where its label is no port."""
    text = spec.labels.get(METRICS_PORT_LABEL)
    if text is None:
        return configured or spec.port
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigurationError(
            f"endpoint {spec.address}: label {METRICS_PORT_LABEL} is {text!r}; a port from 1 to 65535 is allowed"
        )
    return int(text)
