"""What the picker does with each kind of answer of an engine, over real sockets. docs/telemetry.md is this list."""

import asyncio
import contextlib
import socket

import pytest

from engine_pages import MODELS, RecordingSink, answer, page, serving, until
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.sources.errors import ErrorKind
from poolpilot_picker.sources.http import Limits
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.sources.watch import METRICS_PORT_LABEL
from poolpilot_picker.state.endpoints import EndpointSpec

QUICK = Settings(
    cadence=Cadence(
        fast_ms=10, slow_ms=30, everything_ms=60, models_ms=50, retry_ms=10, retry_max_ms=40, reselect_ms=10_000
    ),
    limits=Limits(connect_timeout_ms=5_000, timeout_ms=5_000, max_bytes=200_000),
    models_limits=Limits(connect_timeout_ms=5_000, timeout_ms=5_000, max_bytes=20_000),
)
BUSY = page("vllm-0.32/metrics-busy-lora.txt")
DP2 = page("vllm-0.32/metrics-dp2-multiproc.txt")


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


def models_answer():
    return answer(MODELS, content_type="application/json")


async def test_a_page_of_fewer_ranks_is_no_restart_when_it_was_cut():
    counters = b'vllm:generation_tokens_total{engine="0"} 5\nvllm:generation_tokens_total{engine="1"} 9\n'
    whole = b"vllm:num_requests_running 1\n" + counters
    pages = [whole, whole[:-4], whole]
    sink, source, _ = await outcome(lambda _: answer(pages.pop(0) if len(pages) > 1 else pages[0]))
    assert source.stats.remarks["truncated"] == 1
    assert [sample.generated_tokens for _, sample in sink.samples[:3]] == [14.0, 5.0, 14.0]
    assert not sink.restarts


def engine(metrics):
    """A handler: the model list, and `metrics(request)` or those bytes for all else."""

    def handle(request):
        if request.target == "/v1/models":
            return models_answer()
        return metrics(request) if callable(metrics) else answer(metrics)

    return handle


async def outcome(metrics, **options):
    """Polls one engine until it said something; returns (sink, source, server)."""
    sink = RecordingSink()
    async with serving(engine(metrics)) as server, polling(sink, server.spec(), **options) as source:
        await until(lambda: len(sink.samples) + len(sink.unreachable) >= 3)
    return sink, source, server


async def test_a_recorded_vllm():
    sink = RecordingSink()
    async with serving(engine(BUSY)) as server, polling(sink, server.spec()) as source:
        await until(lambda: len(sink.samples) > 3 and sink.models)
        assert server.connections <= 3
        assert source.stats.age_ms(server.spec().address, asyncio.get_running_loop().time() * 1000.0) is not None
    sample = sink.samples[0][1]
    assert (sample.running, sample.waiting, sample.active_adapters) == (29.0, 371.0, ("ad-a", "ad-b"))
    assert all(one.kv_capacity_tokens == 1048576 for _, one in sink.samples)
    assert sink.models == [(server.spec().address, sink.models[0][1])]
    assert sink.models[0][1].base == ("tiny",)
    assert sink.models[0][1].adapters == {"ad-a": "tiny"}
    assert sink.models[0][1].max_model_len == 2048
    assert not sink.unreachable
    assert not source.stats.errors


async def test_vllm_is_asked_for_the_wanted_families_only():
    sink, source, server = await outcome(page("vllm-0.32/metrics-kv-pressure-selected.txt"))
    asked = [request.target for request in server.requests if request.target != "/v1/models"]
    assert all(target.startswith("/metrics/?name[]=vllm:num_requests_running&name[]=") for target in asked)
    assert "name[]=vllm:time_to_first_token_seconds_sum" in asked[0]
    assert "name[]=vllm:time_to_first_token_seconds_sum" not in asked[1]
    assert "_bucket" not in asked[0]
    assert sink.samples[0][1].running == 6.0
    assert "selective_fallback" not in source.stats.remarks


@pytest.mark.parametrize(
    "refusal",
    [
        answer(b""),
        answer(b"", status=404),
        answer(b"Not here", status=405),
        answer(b"", status=307, Location="/login"),
        answer(b"process_start_time_seconds 5\n"),
    ],
    ids=["empty", "404", "405", "redirect", "no family"],
)
async def test_an_engine_that_cannot_select_gives_its_whole_page(refusal):
    sink, source, server = await outcome(lambda request: refusal if "name[]" in request.target else answer(DP2))
    asked = [request.target for request in server.requests if request.target != "/v1/models"]
    assert asked[1] == "/metrics"
    assert sum("name[]" in target for target in asked) == 1, "remembered"
    assert sink.samples[0][1].prompt_tokens == 15.0
    assert not sink.unreachable
    assert source.stats.remarks["selective_fallback"] == 1


async def test_selection_is_tried_again_but_rarely():
    settings = Settings(
        cadence=Cadence(fast_ms=10, slow_ms=10, everything_ms=50, models_ms=1_000, retry_ms=10, reselect_ms=100),
        limits=QUICK.limits,
    )
    sink = RecordingSink()
    selects = []

    def metrics(request):
        if "name[]" in request.target:
            selects.append(len(sink.samples))
            return answer(b"") if len(selects) < 2 else answer(BUSY)
        return answer(DP2)

    async with serving(engine(metrics)) as server, polling(sink, server.spec(), settings=settings) as source:
        await until(lambda: len(selects) >= 5)
        assert source.stats.remarks["selective_fallback"] == 1
    assert selects[1] - selects[0] >= 2
    assert sink.samples[-1][1].running == 29.0


async def test_a_starting_engine_is_not_taken_for_one_that_cannot_select():
    sink = RecordingSink()
    up = []
    async with (
        serving(engine(lambda _: answer(BUSY) if up else answer(b"", status=404))) as server,
        polling(sink, server.spec()),
    ):
        await until(lambda: len(sink.unreachable) >= 2)
        up.append(True)
        await until(lambda: len(sink.samples) >= 2)
    assert "name[]" in server.requests[-1].target or server.requests[-1].target == "/v1/models"
    assert {reason for _, reason, _ in sink.unreachable} == {ErrorKind.NOT_FOUND}


async def test_a_missing_family_leaves_its_field_unknown():
    sink, source, _ = await outcome(b"vllm:num_requests_running 2\n")
    assert sink.samples[0][1].running == 2.0
    assert sink.samples[0][1].waiting is None
    assert sink.samples[0][1].kv_usage is None
    assert source.stats.remarks["missing_family"] >= 2
    assert not source.stats.errors


async def test_nan_is_unknown():
    sink, _, _ = await outcome(b"vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n")
    assert sink.samples[0][1].running is None
    assert sink.samples[0][1].waiting == 1.0


async def test_a_truncated_page_gives_what_is_whole():
    cut = BUSY.index(b"vllm:num_requests_waiting{") + 60
    sink, source, _ = await outcome(BUSY[:cut])
    assert sink.samples[0][1].running == 29.0
    assert sink.samples[0][1].waiting is None
    assert source.stats.remarks["truncated"] >= 1
    assert not sink.restarts


async def test_lines_that_cannot_be_read_are_counted():
    sink, source, _ = await outcome(b"vllm:num_requests_running x\nvllm:num_requests_waiting 1\n")
    assert sink.samples[0][1].running is None
    assert source.stats.remarks["malformed_line"] >= 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (answer(b"", status=401), ErrorKind.UNAUTHORIZED),
        (answer(b"", status=403), ErrorKind.UNAUTHORIZED),
        (answer(b"", status=404), ErrorKind.NOT_FOUND),
        (answer(b"", status=302, Location="http://example.test/metrics"), ErrorKind.REDIRECT),
        (answer(b"", status=503), ErrorKind.HTTP_STATUS),
        (answer(b"{}", content_type="application/json"), ErrorKind.CONTENT),
        (answer(b"<html>sign in</html>", content_type="text/html"), ErrorKind.CONTENT),
        (answer(b"\x0a\x05", content_type="application/vnd.google.protobuf"), ErrorKind.CONTENT),
        (answer(b"sglang:num_running_reqs 1\n"), ErrorKind.NO_FAMILIES),
        (answer(b""), ErrorKind.NO_FAMILIES),
        (answer(b"x" * 200_001), ErrorKind.TOO_LARGE),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n\r\n\r\n", ErrorKind.PROTOCOL),
        (None, ErrorKind.RESET),
    ],
    ids=[
        "401",
        "403",
        "404",
        "redirect",
        "503",
        "json",
        "html",
        "protobuf",
        "other engine",
        "empty",
        "huge",
        "ssh",
        "closed",
    ],
)
async def test_answers_that_tell_no_load(reply, kind):
    sink, source, server = await outcome(lambda _: reply)
    assert {reason for _, reason, _ in sink.unreachable} == {kind}
    assert not sink.samples
    assert not kind.down
    assert source.stats.errors[kind.value] >= 3
    since = {since for _, _, since in sink.unreachable}
    assert len(since) == 1, "one failure, told several times"
    assert "example.test" not in str([request.target for request in server.requests])


@pytest.mark.parametrize(
    ("name", "reply", "said"),
    [
        (
            "vllm",
            answer(b"sglang:num_running_reqs 1\n"),
            "the page has those of engine sglang: is the endpoint's engine",
        ),
        ("sglang", answer(b"", status=404), "(sglang needs --enable-metrics)"),
        ("llamacpp", answer(b"{}", status=501, content_type="application/json"), "(llamacpp needs --metrics)"),
        (
            "tgi",
            answer(b""),
            "the page is empty; engines that write metrics as they come do so until the first request",
        ),
    ],
    ids=["other engine", "not enabled", "not implemented", "no request yet"],
)
async def test_a_page_that_tells_no_load_is_explained_once_and_counted(name, reply, said, caplog):
    sink = RecordingSink()
    async with serving(engine(lambda _: reply)) as server, polling(sink, server.spec(engine=name)) as source:
        await until(lambda: len(sink.unreachable) >= 4)
    lines = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(lines) == 1
    assert said in lines[0]
    assert sum(source.stats.errors.values()) >= 4
    assert set(source.stats.errors) <= {"no_families", "not_found"}


def adapter_page(combinations: int, request=None, generated: int = 5) -> bytes:
    """A page with so many series of adapters, of which the first is the newest."""
    text = f"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:generation_tokens_total {generated}\n"
    if request is None or "lora_requests_info" in request.target:
        text += "".join(
            f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="ad-{number}",waiting_lora_adapters=""}} '
            f"{1_790_000_000 - number}\n"
            for number in range(combinations)
        )
    return text.encode()


async def test_adapters_are_asked_for_rarely_once_they_have_many_series():
    sink = RecordingSink()
    made = [10]
    async with (
        serving(engine(lambda request: answer(adapter_page(made[0], request)))) as server,
        polling(sink, server.spec()) as source,
    ):
        await until(lambda: len(sink.samples) >= 4)
        few = len(server.requests)
        made[0] = 500
        await until(lambda: "many_series" in source.stats.remarks)
        many, samples = len(server.requests), len(sink.samples)
        await until(lambda: len(server.requests) >= many + 20)
    assert all("lora_requests_info" in one.target for one in server.requests[:few] if "name[]" in one.target)
    later = [one.target for one in server.requests[many:] if "name[]" in one.target]
    with_adapters = [target for target in later if "lora_requests_info" in target]
    assert 0 < len(with_adapters) < len(later) / 2
    assert all("time_to_first_token" in target for target in with_adapters), "with all that is asked for rarely"
    assert {sample.active_adapters for _, sample in sink.samples[samples:]} == {None, ("ad-0",)}
    assert {sample.running for _, sample in sink.samples} == {3.0}
    assert source.stats.remarks["many_series"] == 1
    assert not source.stats.errors


async def test_a_page_too_large_for_its_adapters_still_tells_its_load(caplog):
    sink = RecordingSink()
    made, generated = [5_000], [5]

    def metrics(request):
        return answer(adapter_page(made[0], request, generated[0]))

    async with serving(engine(metrics)) as server, polling(sink, server.spec()) as source:
        await until(lambda: len(sink.samples) >= 4)
        assert source.stats.remarks == {"too_many_series": 1, "missing_family": source.stats.remarks["missing_family"]}
        assert {sample.active_adapters for _, sample in sink.samples} == {()}
        assert {sample.waiting for _, sample in sink.samples} == {1.0}
        made[0], generated[0] = 3, 1
        await until(lambda: sink.restarts)
        await until(lambda: sink.samples[-1][1].active_adapters == ("ad-0",))
    assert not sink.unreachable
    assert not source.stats.errors
    assert sum("until it restarts" in record.getMessage() for record in caplog.records) == 1


async def test_an_answer_that_is_too_large_for_another_reason_costs_no_adapters():
    sink = RecordingSink()
    mad = [True]

    def metrics(request):
        return answer(b"x" * 300_000 if mad else adapter_page(3, request))

    async with serving(engine(metrics)) as server, polling(sink, server.spec()) as source:
        await until(lambda: len(sink.unreachable) >= 3)
        mad.clear()
        await until(lambda: sink.samples)
    assert sink.samples[0][1].active_adapters == ("ad-0",)
    assert "too_many_series" not in source.stats.remarks


async def test_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        spec = EndpointSpec(host="127.0.0.1", port=free.getsockname()[1])
        sink = RecordingSink()
        async with polling(sink, spec):
            await until(lambda: len(sink.unreachable) >= 3)
    assert {reason for _, reason, _ in sink.unreachable} == {ErrorKind.REFUSED}
    assert ErrorKind.REFUSED.down
    assert not sink.models


async def test_a_redirect_to_the_same_page_with_a_slash_is_followed_and_remembered():
    def metrics(request):
        if request.target == "/metrics":
            return answer(b"", status=307, Location=f"http://{request.headers['host']}/metrics/")
        return answer(page("vllm-0.32/metrics-idle.txt").replace(b"vllm:", b"lmdeploy:"))

    sink = RecordingSink()
    async with serving(engine(metrics)) as server, polling(sink, server.spec(engine="lmdeploy")):
        await until(lambda: len(sink.samples) >= 3)
    asked = [request.target for request in server.requests if request.target != "/v1/models"]
    assert asked[:3] == ["/metrics", "/metrics/", "/metrics/"]
    assert not sink.unreachable


async def test_a_hung_endpoint_delays_no_other():
    settings = Settings(
        cadence=Cadence(fast_ms=20, slow_ms=20, retry_ms=20, retry_max_ms=50, models_ms=60_000),
        limits=Limits(connect_timeout_ms=500, timeout_ms=60_000),
    )
    sink = RecordingSink()
    async with contextlib.AsyncExitStack() as stack:
        hung = [await stack.enter_async_context(serving(lambda _: asyncio.sleep(60))) for _ in range(6)]
        good = await stack.enter_async_context(serving(engine(BUSY)))
        specs = [server.spec() for server in (*hung, good)]
        await stack.enter_async_context(polling(sink, *specs, settings=settings))
        await until(lambda: len(sink.samples) >= 10)
    assert {address for address, _ in sink.samples} == {good.spec().address}


async def test_a_hang_is_a_time_out_and_recovery_is_seen():
    sink = RecordingSink()
    hang = [True]
    async with (
        serving(engine(lambda _: asyncio.sleep(5) if hang else answer(BUSY))) as server,
        polling(
            sink,
            server.spec(),
            settings=Settings(cadence=QUICK.cadence, limits=Limits(timeout_ms=100, connect_timeout_ms=5_000)),
        ) as source,
    ):
        await until(lambda: len(sink.unreachable) >= 2)
        assert source.stats.endpoints[server.spec().address].reason is ErrorKind.TIMEOUT
        hang.clear()
        await until(lambda: sink.samples)
        assert source.stats.endpoints[server.spec().address].reason is None
    assert {reason for _, reason, _ in sink.unreachable} == {ErrorKind.TIMEOUT}


async def test_more_hung_endpoints_than_may_be_read_at_once():
    settings = Settings(
        cadence=Cadence(fast_ms=20, slow_ms=20, retry_ms=20, retry_max_ms=40, models_ms=60_000),
        limits=Limits(connect_timeout_ms=100, timeout_ms=100),
    )
    sink = RecordingSink()
    async with contextlib.AsyncExitStack() as stack:
        hung = await stack.enter_async_context(serving(lambda _: asyncio.sleep(60)))
        good = await stack.enter_async_context(serving(engine(BUSY)))
        specs = [
            EndpointSpec(host="127.0.0.1", port=hung.port, uid=f"u{number}", engine="llamacpp") for number in range(12)
        ]
        options = {"settings": settings, "concurrency": 4, "suspect_concurrency": 2}
        await stack.enter_async_context(polling(sink, *specs, good.spec(), **options))
        await until(lambda: len(sink.samples) >= 20)
        assert len({since for _, _, since in sink.unreachable}) >= 4


async def test_a_bearer_token_is_sent_and_read_again_when_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")
    accepted, refusals = ["Bearer old"], [401]

    def guarded(request):
        if request.headers.get("authorization") not in accepted:
            return answer(b"", status=refusals[-1])
        return models_answer() if request.target == "/v1/models" else answer(BUSY)

    sink = RecordingSink()
    async with serving(guarded) as server, polling(sink, server.spec(), token=BearerToken(file=path)):
        await until(lambda: sink.samples and sink.models)
        for refusal, token in ((401, "newer"), (403, "the-newest")):
            path.write_text(token)
            refusals.append(refusal)
            accepted[:] = [f"Bearer {token}"]
            count = len(sink.samples)
            await until(lambda seen=count: len(sink.samples) > seen + 2)
    assert not sink.unreachable


async def test_a_token_is_never_logged(caplog):
    caplog.set_level("DEBUG")
    sink = RecordingSink()
    async with (
        serving(lambda _: answer(b"", status=401)) as server,
        polling(sink, server.spec(), token=BearerToken(env="K", environ={"K": "s3cret"})),
    ):
        await until(lambda: len(sink.unreachable) >= 2)
    assert "s3cret" not in caplog.text
    assert "credentials" in caplog.text


async def test_a_model_list_that_may_not_be_read_is_unknown_not_empty():
    sink = RecordingSink()
    refuse = []

    def handle(request):
        if request.target == "/v1/models":
            return answer(b"", status=401) if refuse else models_answer()
        return answer(BUSY)

    async with serving(handle) as server, polling(sink, server.spec()):
        await until(lambda: sink.models)
        refuse.append(True)
        await until(lambda: len(sink.models) >= 2)
        refuse.clear()
        await until(lambda: len(sink.models) >= 3)
    known = sink.models[0][1]
    assert known is not None
    assert [models for _, models in sink.models] == [known, None, known]


async def test_a_model_list_that_cannot_be_reached_keeps_what_was_known():
    sink = RecordingSink()
    broken = []

    def handle(request):
        if request.target == "/v1/models":
            return answer(b"", status=503) if broken else models_answer()
        return answer(BUSY)

    async with serving(handle) as server, polling(sink, server.spec()) as source:
        await until(lambda: sink.models)
        broken.append(True)
        await until(lambda: source.stats.errors.get("http_status", 0) >= 3)
    assert len(sink.models) == 1


@pytest.mark.parametrize("what", ["counter", "start time"])
async def test_a_restarted_engine(what):
    sink = RecordingSink()
    restarted = []
    old = b"vllm:num_requests_running 3\nvllm:prompt_tokens_total 100\nprocess_start_time_seconds 1000\n"
    new = old.replace(b" 100\n", b" 5\n") if what == "counter" else old.replace(b" 1000\n", b" 2000\n")
    lists = [models_answer(), answer(b'{"data":[{"id":"tiny"}]}', content_type="application/json")]

    def handle(request):
        if request.target == "/v1/models":
            return lists[bool(restarted)]
        return answer(new if restarted else old)

    settings = Settings(
        cadence=Cadence(fast_ms=10, slow_ms=10, everything_ms=30, models_ms=60_000), limits=QUICK.limits
    )
    async with serving(handle) as server, polling(sink, server.spec(), settings=settings) as source:
        await until(lambda: len(sink.samples) >= 3 and sink.models)
        restarted.append(True)
        await until(lambda: sink.restarts and len(sink.models) >= 2)
        count = len(sink.samples)
        await until(lambda: len(sink.samples) >= count + 4)
        assert source.stats.restarts == 1
    assert sink.restarts == [server.spec().address]
    first = sink.order.index("restart")
    assert sink.order[first : first + 2] == ["restart", "sample"]
    assert [models.adapters for _, models in sink.models] == [{"ad-a": "tiny"}, {}]


async def test_a_restarted_engine_tells_its_models_again_though_they_are_the_same():
    sink = RecordingSink()
    pages = [b"vllm:num_requests_running 3\nvllm:generation_tokens_total 100\n"]
    settings = Settings(
        cadence=Cadence(fast_ms=10, slow_ms=10, everything_ms=30, models_ms=60_000), limits=QUICK.limits
    )
    async with serving(engine(lambda _: answer(pages[0]))) as server, polling(sink, server.spec(), settings=settings):
        await until(lambda: sink.samples and sink.models)
        pages[0] = pages[0].replace(b" 100", b" 1")
        await until(lambda: len(sink.models) >= 2)
    assert sink.models[0] == sink.models[1]
    assert sink.restarts == [server.spec().address]


async def test_an_engine_that_comes_back_smaller_was_restarted():
    sink = RecordingSink()
    pages = [b"vllm:num_requests_running 0\nvllm:generation_tokens_total 50\n"]
    async with serving(engine(lambda _: answer(pages[0]) if pages else None)) as server, polling(sink, server.spec()):
        await until(lambda: sink.samples)
        pages.clear()
        await until(lambda: sink.unreachable)
        pages.append(b"vllm:num_requests_running 0\nvllm:generation_tokens_total 2\n")
        await until(lambda: sink.restarts)
    assert sink.restarts == [server.spec().address]


async def test_metrics_on_another_port():
    sink = RecordingSink()
    async with (
        serving(lambda _: answer(b"nv_inference_pending_request_count 4\n")) as metrics,
        serving(lambda _: models_answer()) as api,
        polling(sink, api.spec(engine="triton", labels={METRICS_PORT_LABEL: str(metrics.port)})),
    ):
        await until(lambda: sink.samples and sink.models)
    assert sink.samples[0][1].waiting == 4.0


async def test_changes_of_the_set():
    sink = RecordingSink()
    async with serving(engine(BUSY)) as one, serving(engine(BUSY)) as two, polling(sink, one.spec()) as source:
        await until(lambda: sink.samples)
        source.update([one.spec(), two.spec()])
        await until(lambda: {address for address, _ in sink.samples} == {one.spec().address, two.spec().address})
        source.update([two.spec()])
        count = len(one.requests)
        sink.samples.clear()
        await until(lambda: len(sink.samples) >= 5)
        assert len(one.requests) <= count + 1
        assert {address for address, _ in sink.samples} == {two.spec().address}
        assert set(source.stats.endpoints) == {two.spec().address}
