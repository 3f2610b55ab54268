"""What the picker does with each kind of answer of an engine, over real sockets. docs/telemetry.md is this list."""

import asyncio
import contextlib

from engine_pages import MODELS, RecordingSink, answer, page, serving, until
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.http import Limits
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.sources.watch import Settings

QUICK = Settings(
    cadence=Cadence(
        fast_ms=10, slow_ms=30, everything_ms=60, models_ms=50, retry_ms=10, retry_max_ms=40, reselect_ms=10_000
    ),
    limits=Limits(connect_timeout_ms=300, timeout_ms=400, max_bytes=200_000),
    models_limits=Limits(connect_timeout_ms=300, timeout_ms=400, max_bytes=20_000),
)


@contextlib.asynccontextmanager
async def polling(sink, *specs, **options):
    source = TelemetrySource(sink, **{"settings": QUICK, **options})
    source.update(specs)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def vllm(metrics):
    """A server whose metrics page and selective scrape are `metrics`, with a model list."""
    return lambda request: (
        answer(MODELS, content_type="application/json") if request.target == "/v1/models" else answer(metrics)
    )


async def test_a_recorded_vllm():
    sink = RecordingSink()
    async with serving(vllm(page("vllm-0.32/metrics-busy-lora.txt"))) as server, polling(sink, server.spec()):
        await until(lambda: len(sink.samples) > 3 and sink.models)
        assert server.connections <= 3
    sample = sink.samples[0][1]
    assert (sample.running, sample.waiting, sample.active_adapters) == (29.0, 371.0, ("ad-a", "ad-b"))
    assert sample.kv_capacity_tokens == 1048576
    assert sink.samples[2][1].kv_capacity_tokens == 1048576
    assert sink.models[0][1].adapters == {"ad-a": "tiny"}
    assert sink.models[0][1].base == ("tiny",)
    assert len(sink.models) == 1
    assert not sink.unreachable
