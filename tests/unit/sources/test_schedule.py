"""Who is read when: TelemetrySource with a clock that is moved and clients that answer from memory."""

import asyncio
import itertools
import random

import pytest

from engine_pages import MODELS, RecordingSink
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_response import Response
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.sources.watch import METRICS_PORT_LABEL
from poolpilot_picker.state.endpoints import EndpointSpec

CADENCE = Cadence(
    fast_ms=200, slow_ms=1_500, everything_ms=5_000, models_ms=10_000, retry_ms=250, retry_max_ms=3_000, jitter=0.0
)


class Fleet:
    """Engines in memory, by port: a page as text, or an error, or an event to wait for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pages: dict[int, object] = {}
        self.reads: list[tuple[float, int, str]] = []
        self.open = 0
        self.most_open = 0
        self.in_flight: dict[int, float] = {}
        self.sink = RecordingSink()

    def source(self, **options) -> TelemetrySource:
        settings = options.pop("settings", Settings(cadence=CADENCE))
        return TelemetrySource(
            options.pop("sink", self.sink),
            settings=settings,
            connect=lambda host, port: Client(self, port),
            now=lambda: self.now,
            in_flight=lambda spec: self.in_flight.get(spec.port, 0.0),
            rng=random.Random(1),
            **options,
        )

    async def pass_time(self, source: TelemetrySource, until: float, step: float = 20.0) -> None:
        while self.now < until:
            source.start_due()
            await settle()
            self.now += step

    def times(self, port: int, kind: str = "metrics") -> list[float]:
        return [now for now, at, target in self.reads if at == port and (kind in target)]


class Client:
    def __init__(self, fleet: Fleet, port: int) -> None:
        self._fleet = fleet
        self._port = port

    async def get(self, target, headers, limits):
        fleet = self._fleet
        fleet.reads.append((fleet.now, self._port, target))
        fleet.open += 1
        fleet.most_open = max(fleet.most_open, fleet.open)
        try:
            if target == "/v1/models":
                return Response(200, {"content-type": "application/json"}, MODELS)
            page = fleet.pages[self._port]
            if isinstance(page, asyncio.Event):
                await page.wait()
                return Response(200, {}, b"vllm:num_requests_running 0\n")
            if isinstance(page, Exception):
                raise page
            return Response(200, {}, str(page).encode())
        finally:
            fleet.open -= 1

    def begin(self, target, headers, limits, done):
        return False  # as a client without a kept connection

    def close(self, error=None):
        pass


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def spec(port: int, **fields) -> EndpointSpec:
    return EndpointSpec(host="10.0.0.1", port=port, **fields)


def page(running: float = 0.0, waiting: float = 0.0) -> str:
    return f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc 0\n"


async def test_a_loaded_endpoint_is_read_fast_and_an_idle_one_slowly():
    fleet = Fleet()
    fleet.pages = {1: page(running=3), 2: page(), 3: page(waiting=1)}
    source = fleet.source()
    source.update([spec(1), spec(2), spec(3)])
    await fleet.pass_time(source, 6_000)
    assert fleet.times(1) == [200.0 * number for number in range(30)]
    assert fleet.times(3) == fleet.times(1)
    assert fleet.times(2) == [0.0, 1_500.0, 3_000.0, 4_500.0]


async def test_an_idle_page_of_an_endpoint_our_ledger_books_on_is_read_fast():
    fleet = Fleet()
    fleet.pages = {1: page()}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 500)
    fleet.in_flight[1] = 2.0
    await fleet.pass_time(source, 2_000)
    reads = fleet.times(1)
    assert reads[0] == 0.0
    assert reads[1] <= 500 + 200
    assert all(later - earlier <= 200 for earlier, later in itertools.pairwise(reads[1:]))
    fleet.in_flight[1] = 0.0
    await fleet.pass_time(source, 6_000)
    assert len([now for now in fleet.times(1) if now > 2_400]) <= 3


async def test_wake_reads_now_but_not_what_is_failing():
    fleet = Fleet()
    fleet.pages = {1: page(), 2: FetchError(ErrorKind.REFUSED, "x")}
    source = fleet.source()
    source.update([spec(1), spec(2)])
    await fleet.pass_time(source, 40)
    source.wake(spec(1))
    source.wake(spec(2))
    source.wake(spec(9))
    await fleet.pass_time(source, 80)
    assert fleet.times(1) == [0.0, 40.0]
    assert fleet.times(2) == [0.0]


async def test_everything_is_asked_for_at_first_then_every_five_seconds_and_after_failures():
    fleet = Fleet()
    fleet.pages = {1: page(running=1)}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 12_000)
    full = [now for now, _, target in fleet.reads if "time_to_first_token" in target]
    assert full == [0.0, 5_000.0, 10_000.0]
    fleet.pages[1] = FetchError(ErrorKind.TIMEOUT, "x")
    await fleet.pass_time(source, 12_500)
    fleet.pages[1] = page(running=1)
    await fleet.pass_time(source, 13_500)
    back = [(now, "time_to_first_token" in target) for now, _, target in fleet.reads if now >= 12_500]
    assert back[0][1]
    assert not back[1][1]


async def test_model_lists_every_ten_seconds_and_after_an_outage():
    fleet = Fleet()
    fleet.pages = {1: page()}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 21_000)
    assert fleet.times(1, "models") == [0.0, 10_000.0, 20_000.0]
    fleet.pages[1] = FetchError(ErrorKind.REFUSED, "x")
    await fleet.pass_time(source, 24_000)
    fleet.pages[1] = page()
    await fleet.pass_time(source, 28_000)
    assert len(fleet.times(1, "models")) == 4
    assert len(fleet.sink.models) == 1


async def test_a_failing_endpoint_is_asked_less_and_less_but_every_few_seconds():
    fleet = Fleet()
    fleet.pages = {1: FetchError(ErrorKind.CONNECT_TIMEOUT, "x")}
    fleet.in_flight[1] = 5.0
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 20_000)
    reads = fleet.times(1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(reads)]
    assert pauses[:4] == [260.0, 500.0, 1_000.0, 2_000.0]
    assert set(pauses[4:]) == {3_000.0}
    assert {since for _, _, since in fleet.sink.unreachable} == {0.0}
    assert source.stats.age_ms(spec(1).address, fleet.now) is None


async def test_reads_are_bounded_and_those_that_failed_have_their_own_bound():
    fleet = Fleet()
    hang = asyncio.Event()
    fleet.pages = dict.fromkeys(range(1, 21), hang)
    source = fleet.source(concurrency=5, suspect_concurrency=2)
    source.update([spec(port, engine="triton") for port in range(1, 21)])
    await fleet.pass_time(source, 100)
    assert len({at for _, at, target in fleet.reads if "metrics" in target}) == 5
    assert 5 <= fleet.most_open <= 7
    hang.set()
    await fleet.pass_time(source, 1_000)
    assert {at for _, at, target in fleet.reads if "metrics" in target} == set(range(1, 21))
    assert fleet.open == 0


async def test_hung_suspects_leave_the_lane_of_the_good():
    fleet = Fleet()
    fleet.pages = {port: FetchError(ErrorKind.TIMEOUT, "x") for port in range(1, 9)} | {9: page(running=1)}
    source = fleet.source(concurrency=4, suspect_concurrency=2)
    source.update([spec(port) for port in range(1, 10)])
    await fleet.pass_time(source, 200)
    for port in range(1, 9):
        fleet.pages[port] = asyncio.Event()
    await fleet.pass_time(source, 8_000)
    assert fleet.open == 2
    assert len([now for now in fleet.times(9) if now > 4_000]) >= 18
    await source.close()


async def test_one_read_of_an_endpoint_at_a_time():
    fleet = Fleet()
    hang = asyncio.Event()
    fleet.pages = {1: hang}
    source = fleet.source()
    source.update([spec(1)])
    fleet.in_flight[1] = 1.0
    await fleet.pass_time(source, 3_000)
    source.wake(spec(1))
    await fleet.pass_time(source, 4_000)
    assert fleet.times(1) == [0.0]
    hang.set()
    await settle()
    await fleet.pass_time(source, 4_400)
    assert fleet.times(1)[1] <= 4_060


async def test_the_begin_of_a_read_is_the_samples_time():
    fleet = Fleet()
    fleet.now = 77.0
    fleet.pages = {1: page()}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 100)
    assert fleet.sink.samples[0][1].taken_ms == 77.0


async def test_a_sink_that_fails_costs_one_read(caplog):
    class Failing(RecordingSink):
        def on_sample(self, spec, sample):
            super().on_sample(spec, sample)
            if len(self.samples) == 1:
                raise RuntimeError("boom")

    fleet = Fleet()
    fleet.pages = {1: page(running=1), 2: page(running=1)}
    sink = Failing()
    source = fleet.source(sink=sink)
    source.update([spec(1), spec(2)])
    await fleet.pass_time(source, 2_000)
    assert source.stats.errors == {"internal": 1}
    assert "boom" in caplog.text
    assert {address for address, _ in sink.samples} == {spec(1).address, spec(2).address}
    assert len(sink.samples) > 10


async def test_an_unknown_engine_costs_that_endpoint_its_telemetry_only(caplog):
    fleet = Fleet()
    fleet.pages = {1: page(), 2: page(), 3: page()}
    source = fleet.source()
    wanted = [spec(1, engine="vlm"), spec(2), spec(3, labels={METRICS_PORT_LABEL: "http"})]
    source.update(wanted)
    source.update(wanted)
    await fleet.pass_time(source, 2_000)
    assert {at for _, at, _ in fleet.reads} == {2}
    assert [(address, reason) for address, reason, _ in fleet.sink.unreachable] == [
        (spec(1).address, ErrorKind.UNKNOWN_ENGINE),
        (spec(3).address, ErrorKind.UNKNOWN_ENGINE),
    ]
    assert "unknown engine 'vlm'; one of llamacpp" in caplog.text
    assert "label poolpilot.dev/metrics-port is 'http'; a port from 1 to 65535 is allowed" in caplog.text
    source.update([spec(1), spec(2)])
    await fleet.pass_time(source, 2_100)
    assert fleet.times(1)


async def test_an_endpoint_that_stays_keeps_its_rhythm_and_one_that_changed_starts_anew():
    fleet = Fleet()
    fleet.pages = {1: page(), 2: page()}
    source = fleet.source()
    source.update([spec(1, uid="a"), spec(2, uid="b")])
    await fleet.pass_time(source, 700)
    source.update([spec(1, uid="a"), spec(2, uid="c")])
    await fleet.pass_time(source, 1_400)
    assert fleet.times(1) == [0.0]
    assert fleet.times(2) == [0.0, 700.0]


async def test_a_removed_endpoint_says_nothing_any_more():
    fleet = Fleet()
    hang = asyncio.Event()
    fleet.pages = {1: hang}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 100)
    source.update([])
    hang.set()
    await settle()
    await fleet.pass_time(source, 3_000)
    assert not fleet.sink.samples
    assert not source.stats.endpoints
    assert len(fleet.times(1)) == 1


async def test_close_ends_hung_reads():
    fleet = Fleet()
    fleet.pages = {1: asyncio.Event()}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 100)
    await source.close()
    assert fleet.open == 0


@pytest.mark.parametrize("everything", [True, False])
async def test_facts_are_kept_between_the_polls_that_ask_for_them(everything):
    fleet = Fleet()
    fact = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1\n'
    fleet.pages = {1: page(running=1) + fact}
    source = fleet.source()
    source.update([spec(1)])
    await fleet.pass_time(source, 1_000)
    if everything:
        fleet.pages[1] = page(running=1)
        await fleet.pass_time(source, 6_000)
    sample = fleet.sink.samples[-1][1]
    assert sample.block_tokens == (None if everything else 16)
    assert sample.kv_capacity_tokens == (None if everything else 160)
