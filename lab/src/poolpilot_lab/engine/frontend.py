"""The API server in front of one engine: routes, checks, and the way from a request body to sequences and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from random import Random
from typing import TYPE_CHECKING, cast

import msgspec

from poolpilot_lab.engine import api
from poolpilot_lab.engine.answers import EmbeddingAnswer, StreamAnswer, WholeAnswer
from poolpilot_lab.engine.driver import Driver
from poolpilot_lab.engine.errors import ApiError, BadRequestError, InjectedFailureError
from poolpilot_lab.engine.faults import FaultError, Faults, parse_faults
from poolpilot_lab.engine.generation import Answer, Limits, build_sequences
from poolpilot_lab.engine.metrics_page import CONTENT_TYPE, CacheConfig, LoraInfo, MetricsPage
from poolpilot_lab.engine.model import Accelerator, Engine
from poolpilot_lab.engine.models import LoadBody, Registry, UnloadBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.http import Connection, Exchange
    from poolpilot_lab.engine.model import Outcome
    from poolpilot_lab.engine.options import EngineConfig

VERSION = "0.32.0"
OUTPUT_HEADER = "x-engine-output-tokens"
LOAD_FORMAT_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"


class FaultBody(msgspec.Struct, kw_only=True):
    """`POST /fault`: the faults in force from now on, instead of those before."""

    faults: list[str]


class Frontend:
    """Answers every route of one engine's server. Made anew at every (re)start: cold, nothing in flight."""

    def __init__(
        self, config: EngineConfig, loop: asyncio.AbstractEventLoop, on_restart: Callable[[float], None]
    ) -> None:
        self._config = config
        self._on_restart = on_restart
        self.connections: set[Connection] = set()
        self.answers: set[Answer] = set()
        self._drained: asyncio.Event | None = None
        started = time.time()
        profile = config.profile.scaled(config.time_scale)
        settings = config.engine_settings()
        self.engine = Engine(settings, Accelerator(profile, config.engine_variation(), config.seed))
        self.driver = Driver(self.engine, loop, self._deliver)
        self._limits = Limits(
            block_size=settings.block_size,
            longest=self.engine.longest(),
            prefix_caching=settings.enable_prefix_caching,
            output_median=config.output_median,
            output_sigma=config.output_sigma,
            prompt_details=config.enable_prompt_tokens_details,
        )
        self.registry = Registry(
            names=config.names,
            root=config.model or config.profile.model,
            max_model_len=config.context,
            created=int(started),
            adapters={adapter.name: adapter for adapter in config.lora_modules},
        )
        self._lora_info = LoraInfo() if config.enable_lora else None
        cache = CacheConfig(
            block_size=settings.block_size,
            block_size_given=config.block_size is not None,
            num_gpu_blocks=settings.num_gpu_blocks,
            num_gpu_blocks_override=config.num_gpu_blocks_override,
            enable_prefix_caching=settings.enable_prefix_caching,
            kv_bytes=settings.num_gpu_blocks * settings.block_size * profile.kv_bytes_per_token,
            max_model_len=settings.max_model_len,
        )
        self.metrics = MetricsPage(self.engine, self.registry.base, cache, self._lora_info, started)
        self.faults = config.faults
        self._luck = Random(config.seed)
        self._routes = self._make_routes()
        self.set_faults(config.faults)

    # -- connections ---------------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A client connected."""
        self.connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        """A client's connection ended."""
        self.connections.discard(connection)

    async def drained(self, seconds: float) -> None:
        """Returns when no request is in flight, or after `seconds`."""
        if self.answers and seconds > 0:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), seconds)

    def stop(self) -> None:
        """Stops the engine and breaks every connection off."""
        self.driver.stop()
        for connection in list(self.connections):
            connection.drop()

    # -- routes --------------------------------------------------------------------------------------------------------

    def _make_routes(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        routes: dict[str, dict[str, Callable[[Exchange], None]]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/chat/completions/render": {"POST": self._render_chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/embeddings": {"POST": self._embeddings},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": lambda exchange: _json(exchange, {"version": VERSION})},
            "/load": {"GET": lambda exchange: _json(exchange, {"server_load": len(self.answers)})},
            "/metrics": {"GET": lambda exchange: self._metrics(exchange, filtered=False)},
            "/metrics/": {"GET": lambda exchange: self._metrics(exchange, filtered=True)},
            "/stats": {"GET": self._stats},
            "/fault": {"GET": self._show_faults, "POST": self._change_faults},
        }
        if self._config.runtime_lora:
            routes["/v1/load_lora_adapter"] = {"POST": self._load_adapter}
            routes["/v1/unload_lora_adapter"] = {"POST": self._unload_adapter}
        return routes

    def handle(self, exchange: Exchange) -> None:
        """Finds the route; every ApiError becomes vLLM's error object."""
        if self._config.instance is not None:
            exchange.extra_headers = (("x-engine-instance", self._config.instance),)
        methods = self._routes.get(exchange.path)
        if exchange.path.startswith("/v1") and not self._authorized(exchange):
            _json(exchange, {"error": "Unauthorized"}, 401)
        elif methods is None:
            _json(exchange, {"detail": "Not Found"}, 404)
        elif exchange.method not in methods:
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', headers=(("allow", ", ".join(sorted(methods))),))
        else:
            try:
                methods[exchange.method](exchange)
            except ApiError as error:
                exchange.respond(error.status, error.body())
        handler = exchange.path if methods is not None else "none"
        self.metrics.count_http(handler, exchange.method, exchange.status or 200)

    def _authorized(self, exchange: Exchange) -> bool:
        if not self._config.api_keys:
            return True
        scheme, _, token = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and token in self._config.api_keys

    def _empty(self, exchange: Exchange) -> None:
        exchange.respond(200, b"", None)

    def _models(self, exchange: Exchange) -> None:
        exchange.respond(200, self.registry.listing())

    def _metrics(self, exchange: Exchange, *, filtered: bool) -> None:
        if self.faults.metrics_hang:
            return
        names = exchange.query_values("name[]") if filtered else []
        exchange.respond(200, self.metrics.render(frozenset(names) if names else None), CONTENT_TYPE)

    def _stats(self, exchange: Exchange) -> None:
        """What the model knows and a real engine does not tell: adapter loads, and how punctual the clock was."""
        slots, driver = self.engine.slots, self.driver
        clock = {
            "steps": driver.steps,
            "late": driver.late,
            "late_ms": driver.late_ms,
            "worst_ms": driver.worst_ms,
            "forgiven": driver.forgiven,
        }
        _json(exchange, {"adapter_loads": slots.loads, "adapter_evictions": slots.evictions, "clock": clock})

    def _tokenize(self, exchange: Exchange) -> None:
        body = api.read(exchange.body, api.TokenizeBody)
        self.registry.resolve(body.model)
        prompt = api.tokenize_prompt(body)
        ids = prompt.ids()
        _json(
            exchange,
            {"count": len(ids), "max_model_len": self._config.context, "tokens": ids, "token_strs": None},
        )

    def _render_chat(self, exchange: Exchange) -> None:
        """The prompt's tokens as the engine would compute them: what a router asks for that indexes tokens."""
        request = api.chat_generation(exchange.body)
        self.registry.resolve(request.model)
        [prompt] = request.prompts
        _json(
            exchange,
            {
                "request_id": request.kind.id_prefix + (exchange.headers.get("x-request-id") or os.urandom(8).hex()),
                "token_ids": prompt.ids(),
                "features": None,
                "sampling_params": {"n": request.choices, "max_tokens": request.max_tokens},
                "model": request.model or self.registry.base,
                "stream": request.stream,
                "cache_salt": request.cache_salt,
                "priority": 0,
            },
        )

    # -- LoRA ----------------------------------------------------------------------------------------------------------

    def _load_adapter(self, exchange: Exchange) -> None:
        body = api.read(exchange.body, LoadBody)
        if not self._config.enable_lora:
            raise BadRequestError("LoRA is not enabled on this server: start it with --enable-lora.")
        if self.registry.load(body):
            self.engine.load_adapter(body.lora_name)
        exchange.respond(200, f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode(), None)

    def _unload_adapter(self, exchange: Exchange) -> None:
        body = api.read(exchange.body, UnloadBody)
        self.registry.unload(body)
        exchange.respond(200, f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode(), None)

    # -- faults --------------------------------------------------------------------------------------------------------

    def set_faults(self, faults: Faults) -> None:
        """Puts these faults in force instead of those before."""
        self.faults = faults
        self.engine.accelerator.slow = faults.slow
        if faults.hang:
            self.driver.pause()
        else:
            self.driver.resume()

    def _show_faults(self, exchange: Exchange) -> None:
        _json(exchange, {"faults": self.faults.specs()})

    def _change_faults(self, exchange: Exchange) -> None:
        try:
            faults = parse_faults(api.read(exchange.body, FaultBody).faults)
        except FaultError as error:
            raise BadRequestError(str(error), "faults") from None
        if faults.restart_s is not None:
            _json(exchange, {"faults": [f"restart={faults.restart_s:g}"]})
            self._on_restart(faults.restart_s)
            return
        self.set_faults(faults)
        self._show_faults(exchange)

    # -- inference -----------------------------------------------------------------------------------------------------

    def _chat(self, exchange: Exchange) -> None:
        self._maybe_fail()
        self._generate(exchange, api.chat_generation(exchange.body))

    def _completion(self, exchange: Exchange) -> None:
        self._maybe_fail()
        self._generate(exchange, api.completion_generation(exchange.body))

    def _maybe_fail(self) -> None:
        if self.faults.error_rate and self._luck.random() < self.faults.error_rate:
            raise InjectedFailureError(self.faults.error_status)

    def _generate(self, exchange: Exchange, request: api.Generation) -> None:
        adapter = self.registry.resolve(request.model)
        built = build_sequences(request, adapter, self._fixed_output(exchange), self._limits)
        model = adapter or (request.model or self.registry.base)
        answer: Answer
        if request.stream:
            stream = StreamAnswer(exchange, request, model, built, self._limits)
            stream.begin()
            answer = stream
        else:
            answer = WholeAnswer(exchange, request, model, built, self._limits, lambda: self._load_report(exchange))
        self._submit(answer)

    def _submit(self, answer: Answer) -> None:
        self.answers.add(answer)
        answer.exchange.on_abort = lambda: self._abort(answer)
        self.driver.submit(answer.sequences)

    def _embeddings(self, exchange: Exchange) -> None:
        self._maybe_fail()
        request = api.embedding_request(exchange.body)
        adapter = self.registry.resolve(request.model)
        built = build_sequences(request, adapter, 1, self._limits)
        model = adapter or (request.model or self.registry.base)
        self._submit(EmbeddingAnswer(exchange, request, model, built, self._limits))

    def _fixed_output(self, exchange: Exchange) -> int | None:
        value = exchange.headers.get(OUTPUT_HEADER)
        if value is None:
            return None
        if not value.isdigit() or int(value) < 1:
            raise BadRequestError(f"header {OUTPUT_HEADER}: {value!r} is not a positive integer", OUTPUT_HEADER)
        return int(value)

    def _load_report(self, exchange: Exchange) -> tuple[tuple[str, str], ...]:
        """The ORCA header of a whole answer, when the client asked for it."""
        gauges = self.engine.telemetry.gauges
        named = {"num_requests_waiting": float(gauges.waiting), "kv_cache_usage_perc": gauges.kv_usage}
        match exchange.headers.get(LOAD_FORMAT_HEADER, "").upper():
            case "TEXT":
                metrics = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
                return ((LOAD_HEADER, f"TEXT {metrics}"),)
            case "JSON":
                metrics = ", ".join(f'"{name}": {value}' for name, value in named.items())
                return ((LOAD_HEADER, f'JSON {{"named_metrics": {{{metrics}}}}}'),)
            case _:
                return ()

    def _abort(self, answer: Answer) -> None:
        self._forget(answer)
        for sequence in answer.sequences:
            self.driver.abort(sequence)

    def _forget(self, answer: Answer) -> None:
        self.answers.discard(answer)
        for sequence in answer.sequences:
            # Sequence and answer know each other: without the cycle both go at once, not at the next collection.
            sequence.tag = None
        if not self.answers and self._drained is not None:
            self._drained.set()

    def _deliver(self, outcome: Outcome) -> None:
        if self._lora_info is not None:
            self._lora_info.update(self.engine.adapters_in_flight)
        for sequence, _ in outcome.tokens:
            answer, position = cast("tuple[Answer, int]", sequence.tag)
            answer.progress(position, sequence)
        for sequence in outcome.finished:
            owner = cast("tuple[Answer, int] | None", sequence.tag)
            if owner is not None and owner[0].done:
                self._forget(owner[0])


def _json(exchange: Exchange, value: object, status: int = 200) -> None:
    exchange.respond(status, msgspec.json.encode(value))
