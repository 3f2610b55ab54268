"""One endpoint's telemetry: what to ask, what its answers mean, what to tell the sink. Timing is the plans' matter."""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.cadence import Cadence, Plan
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.sources.engines.mapping import FACTS, Engine, PageReader
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http import Client, Limits
from poolpilot_picker.sources.restart import RestartDetector
from poolpilot_picker.sources.served_models import parse_served_models
from poolpilot_picker.sources.stats import EndpointHealth, TelemetryStats

if TYPE_CHECKING:
    from poolpilot_picker.sources.exposition import Page
    from poolpilot_picker.sources.http_response import Response
    from poolpilot_picker.state.endpoints import EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels

log: Final = logging.getLogger(__name__)

METRICS_PORT_LABEL: Final = "poolpilot.dev/metrics-port"
"""Label of an endpoint whose metrics are on another port than its API (Triton: 8002)."""

_ACCEPT_TEXT: Final = "text/plain;version=0.0.4;q=1,text/*;q=0.5,*/*;q=0.1"
_CORE: Final = ("running", "waiting", "kv_usage")
# Answers to a selective scrape that say "not this way" rather than "not now".
_NOT_SELECTIVE: Final = frozenset(
    {ErrorKind.NOT_FOUND, ErrorKind.REDIRECT, ErrorKind.HTTP_STATUS, ErrorKind.CONTENT, ErrorKind.NO_FAMILIES}
)
_UNKNOWN_MODELS: Final = frozenset(
    {ErrorKind.UNAUTHORIZED, ErrorKind.NOT_FOUND, ErrorKind.REDIRECT, ErrorKind.CONTENT, ErrorKind.TOO_LARGE}
)


class TelemetrySink(Protocol):
    """Where telemetry goes. Calls come from the event loop's thread, in the order of the readings of one endpoint."""

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves: at first, when it changes, after a restart. None: not known (no list, no access)."""

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before: caches and adapters are gone. Comes before its first sample."""

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Telemetry could not be read, since that time; after every failed read. `reason.down`: nothing listens."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How endpoints are read."""

    cadence: Cadence = Cadence()
    limits: Limits = Limits()
    models_limits: Limits = Limits(timeout_ms=2_000.0, max_bytes=2**20)
    path: str | None = None
    """Instead of the engine's own path of its metrics page."""
    port: int | None = None
    """Instead of the endpoint's port, for metrics only; an endpoint's label `poolpilot.dev/metrics-port` goes first."""
    tls: ssl.SSLContext | None = None
    """Given: metrics and models are read over HTTPS."""


class Surroundings(msgspec.Struct, frozen=True):
    """What all watches share."""

    sink: TelemetrySink
    now: Callable[[], float]
    settings: Settings
    stats: TelemetryStats
    connect: Callable[[str, int], Client]
    token: BearerToken | None
    rng: random.Random


class EndpointWatch:
    """Reads one endpoint. `read_metrics` and `read_models` may run beside each other, each not beside itself."""

    def __init__(self, spec: EndpointSpec, engine: Engine, around: Surroundings) -> None:
        now = around.now()
        cadence = around.settings.cadence
        self.spec = spec
        self.closed = False
        self.metrics_plan = Plan(cadence, now, around.rng)
        self.models_plan = Plan(cadence, now, around.rng) if engine.models_path else None
        self.load = 0.0
        """Running and waiting by the newest sample."""
        self._around = around
        self._engine = engine
        self._reader = PageReader(engine)
        self._client = around.connect(spec.host, metrics_port(spec, around.settings.port))
        self._models_client = around.connect(spec.host, spec.port)
        self._path = around.settings.path or engine.path
        self._selective_from = now if engine.selects_by_name else float("inf")
        self._selective = [
            f"{self._path.rstrip('/')}/?" + "&".join(f"name[]={family}" for family in engine.families(everything))
            for everything in (False, True)
        ]
        self._everything_due = now
        self._last: EngineSample | None = None
        self._restart = RestartDetector()
        self._models: ServedModels | None = None
        self._models_told = False
        self._core = frozenset(
            family for field in _CORE if (reading := engine.readings.get(field)) for family in reading.families
        )
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

    async def read_metrics(self, in_flight: float) -> None:
        """One poll, and the plan for the next. `in_flight`: what our ledger has on this endpoint."""
        around, plan = self._around, self.metrics_plan
        began = around.now()
        everything = self._last is None or plan.failures > 0 or began >= self._everything_due
        around.stats.polls += 1
        try:
            sample, page = await self._fetch_page(began, everything)
        except FetchError as error:
            self._failed(plan, began, error)
            return
        if self.closed:
            return
        recovered = plan.failures > 0
        plan.succeeded(began, self._pause(sample, in_flight))
        if everything:
            self._everything_due = began + around.settings.cadence.everything_ms
        if recovered:
            log.info("telemetry of %s is back", self.spec.address)
            if self.models_plan is not None:
                self.models_plan.hasten(around.now())
        self._remark(page)
        self.health.last_success_ms, self.health.failing_since_ms, self.health.reason = began, None, None
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
            _check_status(response)
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
        since = plan.failed(began, around.now())
        around.stats.error(error.kind)
        if self.health.reason != error.kind:
            log.warning("telemetry of %s cannot be read: %s", self.spec.address, error)
        self.health.failing_since_ms, self.health.reason = since, error.kind
        around.sink.on_unreachable(self.spec, error.kind, since)

    def _pause(self, sample: EngineSample, in_flight: float) -> float:
        cadence = self._around.settings.cadence
        self.load = (sample.running or 0.0) + (sample.waiting or 0.0)
        return cadence.fast_ms if self.load > 0 or in_flight > 0 else cadence.slow_ms

    def _remark(self, page: Page) -> None:
        stats = self._around.stats
        stats.remark("malformed_line", page.malformed)
        stats.remark("truncated", int(page.truncated))
        for field in _CORE:
            reading = self._engine.readings.get(field)
            if reading is not None and not any(family in page.series for family in reading.families):
                stats.remark("missing_family")

    def _deliver(self, sample: EngineSample, page: Page, everything: bool) -> None:
        """Hands on the sample, with facts of an earlier one where this poll did not ask for them."""
        around, last = self._around, self._last
        # Half of a page may hold half of the ranks, whose sum is less than it was.
        whole = not page.malformed and not page.truncated
        if whole and (why := self._restart.observe(sample)) is not None:
            log.info("engine %s was restarted: %s", self.spec.address, why)
            around.stats.restarts += 1
            last = None
            if not everything:
                self._everything_due = around.now()
                self.metrics_plan.hasten(around.now())
            if self._engine.selects_by_name:
                self._selective_from = around.now()
            around.sink.on_restart(self.spec)
            # What it serves now is told again whatever it is; until then the old list is nearer the truth than none.
            self._models_told = False
            if self.models_plan is not None:
                self.models_plan.hasten(around.now())
        if last is not None:
            for field in (*FACTS, "started_unix_s", "resident_adapters"):
                if not everything and field in self._engine.rarely and getattr(sample, field) is None:
                    setattr(sample, field, getattr(last, field))
        self._last = sample
        around.sink.on_sample(self.spec, sample)

    async def _fetch_page(self, began: float, everything: bool) -> tuple[EngineSample, Page]:
        """The page in the cheapest way that this endpoint answers."""
        if began >= self._selective_from:
            try:
                return await self._read_page(self._selective[everything], began, everything)
            except FetchError as error:
                if error.kind not in _NOT_SELECTIVE:
                    raise
            # Remembered only once the whole page could be read: an engine that is starting answers neither way.
            result = await self._read_page(self._path, began, everything)
            self._selective_from = began + self._around.settings.cadence.reselect_ms
            self._around.stats.remark("selective_fallback")
            return result
        return await self._read_page(self._path, began, everything)

    async def _read_page(self, target: str, began: float, everything: bool) -> tuple[EngineSample, Page]:
        response = await self._get(self._client, target, _ACCEPT_TEXT, self._around.settings.limits)
        if (moved := _slash_redirect(response, target)) is not None:
            response = await self._get(self._client, moved, _ACCEPT_TEXT, self._around.settings.limits)
            if response.status == 200 and target == self._path:
                self._path = moved
        _check_status(response)
        content_type = response.headers.get("content-type", "text/plain").split(";")[0].strip().lower()
        if content_type == "text/html" or not content_type.startswith(("text/", "application/openmetrics-text")):
            raise FetchError(ErrorKind.CONTENT, f"content-type {content_type[:80]!r} is not a metrics page")
        sample, page = self._reader.read(response.body, began, everything=everything)
        if not page.series or (self._core and self._core.isdisjoint(page.series)):
            raise FetchError(ErrorKind.NO_FAMILIES, f"none of the families of engine {self._engine.name} on the page")
        return sample, page

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


def _check_status(response: Response) -> None:
    """Raises FetchError unless the status is 200."""
    status = response.status
    if status == 200:
        return
    if status in (401, 403):
        raise FetchError(ErrorKind.UNAUTHORIZED, f"status {status}: the engine wants other credentials")
    if status == 404:
        raise FetchError(ErrorKind.NOT_FOUND, "status 404: no such page")
    if 300 <= status < 400:
        raise FetchError(ErrorKind.REDIRECT, f"status {status}: redirects elsewhere are not followed")
    raise FetchError(ErrorKind.HTTP_STATUS, f"status {status}")


def _slash_redirect(response: Response, target: str) -> str | None:
    """The new target where an application only wants a slash more or less at the end of its path, else None."""
    location = response.headers.get("location")
    if response.status not in (301, 302, 307, 308) or location is None:
        return None
    path, _, query = target.partition("?")
    moved = urlsplit(location).path
    if moved == path or moved.rstrip("/") != path.rstrip("/"):
        return None
    return f"{moved}?{query}" if query else moved
