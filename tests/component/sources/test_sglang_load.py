"""The pushed load channel over real ZMQ sockets on loopback, with and without pages beside it."""

import asyncio
import contextlib

import msgspec
import pytest
import zmq

from engine_pages import RecordingSink, answer, serving, until
from poolpilot_picker.sources.errors import ErrorKind
from poolpilot_picker.sources.http import HttpClient
from poolpilot_picker.sources.load_stat import LOAD_PORT_LABEL, LOAD_RANKS_LABEL, LoadChannel
from poolpilot_picker.sources.sglang_load import SglangLoadSource, server_info_reader
from poolpilot_picker.sources.telemetry import monotonic_ms
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample, HistogramTotals, ServedModels


class Publisher:
    """One rank's PUB socket."""

    def __init__(self, context: zmq.Context, port: int = 0) -> None:
        self.socket = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        try:
            self.socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        except zmq.ZMQError:
            self.socket.close()
            raise
        self.port = int(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        self.sequence = 0

    def push(self, running, waiting=0, used=10, capacity=100, rank=0, *more) -> None:
        payload = msgspec.msgpack.encode(["LoadStat", running, waiting, used, capacity, rank, *more])
        self.socket.send_multipart([b"load", self.sequence.to_bytes(8, "big", signed=True), payload])
        self.sequence += 1

    async def until(self, condition, running, **fields) -> None:
        """Pushes again and again: a subscription takes a moment, and PUB drops until then."""

        def push_and_look():
            self.push(running, **fields)
            return condition()

        await until(push_and_look)


class Publishers(list):
    """Makes publishers and keeps them: a socket that is only collected would not be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.context = zmq.Context()

    def make(self, port: int = 0) -> Publisher:
        self.append(Publisher(self.context, port))
        return self[-1]


@pytest.fixture
def publishers():
    made = Publishers()
    yield made
    for publisher in made:
        publisher.socket.close()
    made.context.term()


@contextlib.asynccontextmanager
async def subscribed(sink, *specs, **options):
    source = SglangLoadSource(sink, **{"now": monotonic_ms, "pause_ms": 5.0, **options})
    source.update(specs)
    try:
        yield source
    finally:
        await source.close()


def spec(port: int = 30000, **fields) -> EndpointSpec:
    return EndpointSpec(host="127.0.0.1", port=port, engine="sglang", **fields)


def labelled(base: int, ranks: int = 1) -> EndpointSpec:
    return spec(labels={LOAD_PORT_LABEL: str(base), LOAD_RANKS_LABEL: str(ranks)})


async def test_pushed_loads_are_samples(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    async with subscribed(sink, labelled(publisher.port)) as source:
        before = monotonic_ms()
        await publisher.until(lambda: sink.samples, 3, waiting=2, used=40)
        publisher.push(9)
        await until(lambda: sink.samples[-1][1].running == 9.0)
        assert source.stats.malformed == 0
    address, sample = sink.samples[0]
    assert address == "127.0.0.1:30000"
    assert (sample.running, sample.waiting, sample.kv_usage, sample.kv_capacity_tokens) == (3.0, 2.0, 0.4, 100)
    assert before <= sample.taken_ms <= monotonic_ms()


async def test_ranks_are_one_endpoint(publishers):
    first = publishers.make()
    for _ in range(50):
        try:
            second = publishers.make(first.port + 1)
            break
        except zmq.ZMQError:
            first = publishers.make()
    sink = RecordingSink()
    async with subscribed(sink, labelled(first.port, ranks=2)) as source:
        await first.until(lambda: source.stats.messages >= 3, 3)
        assert not sink.samples
        await second.until(lambda: sink.samples, 4, used=90)
    assert sink.samples[0][1].running == 7.0
    assert sink.samples[0][1].kv_usage == 0.9


async def test_malformed_messages_are_counted_and_change_nothing(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    async with subscribed(sink, labelled(publisher.port)) as source:
        await publisher.until(lambda: sink.samples, 3)
        bad = [
            [b"load"],
            [b"load", b"1", b"x"],
            [b"load", bytes(8), b"\xc1"],
            [b"load", bytes(8), msgspec.msgpack.encode(["LoadStat"])],
            [b"loadx", bytes(8), msgspec.msgpack.encode(["LoadStat", 1, 1, 1, 1, 0])],
            [b"load", bytes(8), b"", b""],
        ]
        for frames in bad:
            publisher.socket.send_multipart(frames)
        publisher.push(5)
        await until(lambda: sink.samples[-1][1].running == 5.0)
        assert source.stats.malformed == len(bad)


async def test_gaps_and_restarts_of_the_publisher_are_harmless(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    async with subscribed(sink, labelled(publisher.port)) as source:
        await publisher.until(lambda: sink.samples, 3)
        publisher.sequence += 10
        publisher.push(4)
        await until(lambda: sink.samples[-1][1].running == 4.0)
        assert source.stats.gaps == 10
        port = publisher.port
        publisher.socket.close()
        await asyncio.sleep(0.05)
        again = publishers.make(port)
        await again.until(lambda: sink.samples[-1][1].running == 8.0, 8)
        assert source.stats.restarts >= 1


async def test_many_pushes_make_few_samples(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    async with subscribed(sink, labelled(publisher.port), pause_ms=100.0) as source:
        await publisher.until(lambda: sink.samples, 1)
        count = len(sink.samples)
        for number in range(200):
            publisher.push(number)
        await until(lambda: sink.samples[-1][1].running == 199.0)
        assert source.stats.messages > 200
        assert len(sink.samples) - count <= 10


PAGE = EngineSample(
    taken_ms=0.0, running=99.0, waiting=99.0, prompt_tokens=500.0, block_tokens=64, ttft=HistogramTotals(1.0, 2.0)
)


async def test_a_page_adds_to_the_next_push_while_pushes_are_fresh(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    endpoint = labelled(publisher.port)
    async with subscribed(sink, endpoint) as source:
        source.on_sample(endpoint, PAGE)
        assert sink.samples.pop()[1].running == 99.0, "nothing was pushed yet"
        await publisher.until(lambda: sink.samples, 3)
        assert sink.samples[-1][1].ttft is None, "told with the page"
        count = len(sink.samples)
        source.on_sample(endpoint, PAGE)
        source.on_sample(endpoint, msgspec.structs.replace(PAGE, prompt_tokens=600.0, ttft=None))
        await asyncio.sleep(0.02)
        told = [sample for _, sample in sink.samples[count:] if sample.running == 99.0]
        assert not told
        await publisher.until(lambda: sink.samples[-1][1].running == 4.0, 4)
        later = [sample for _, sample in sink.samples if sample.prompt_tokens == 600.0]
        assert later[0].ttft == PAGE.ttft
        assert all(sample.ttft is None for sample in later[1:])
        assert later[-1].block_tokens == 64


async def test_pages_go_on_when_pushes_end(publishers):
    publisher, sink, now = publishers.make(), RecordingSink(), [0.0]
    endpoint = labelled(publisher.port)
    async with subscribed(sink, endpoint, now=lambda: now[0]) as source:
        await publisher.until(lambda: sink.samples, 3)
        now[0] = 2_000.0
        source.on_sample(endpoint, PAGE)
        assert sink.samples[-1][1].running == 3.0
        now[0] = 4_000.0
        source.on_sample(endpoint, PAGE)
        assert sink.samples[-1][1].running == 99.0


async def test_the_rest_passes_through_and_a_restart_forgets(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    endpoint = labelled(publisher.port)
    async with subscribed(sink, endpoint) as source:
        await publisher.until(lambda: sink.samples, 3)
        source.on_restart(endpoint)
        source.on_sample(endpoint, PAGE)
        assert sink.samples[-1][1].running == 99.0
        source.on_served_models(endpoint, ServedModels(base=("m",)))
        source.on_unreachable(endpoint, ErrorKind.TIMEOUT, 5.0)
    assert sink.restarts == [endpoint.address]
    assert sink.models == [(endpoint.address, ServedModels(base=("m",)))]
    assert sink.unreachable == [(endpoint.address, ErrorKind.TIMEOUT, 5.0)]


async def test_the_channel_is_asked_for_once_the_engine_answers(publishers):
    publisher, sink = publishers.make(), RecordingSink()
    body = msgspec.json.encode({"kv_events": {"dp_size": 1, "load_endpoint_port_base": publisher.port}})
    async with serving(lambda _: answer(body, content_type="application/json")) as server:
        endpoint = spec(server.port)
        async with subscribed(sink, endpoint, discover=server_info_reader(HttpClient)) as source:
            assert not server.requests
            for _ in range(3):
                source.on_sample(endpoint, PAGE)
            await until(lambda: server.requests)
            await publisher.until(lambda: sink.samples[-1][1].running == 6.0, 6)
        assert [request.target for request in server.requests] == ["/server_info"]


@pytest.mark.parametrize("reply", [answer(b"", status=404), answer(b"[]"), answer(b"{}"), None])
async def test_an_engine_without_a_channel_is_read_by_its_pages(reply):
    sink = RecordingSink()
    async with serving(lambda _: reply) as server:
        endpoint = spec(server.port)
        async with subscribed(sink, endpoint, discover=server_info_reader(HttpClient)) as source:
            source.on_sample(endpoint, PAGE)
            await until(lambda: server.requests)
            await asyncio.sleep(0.02)
            source.on_sample(endpoint, PAGE)
    assert [sample.running for _, sample in sink.samples] == [99.0, 99.0]


async def test_changes_of_the_set(publishers, caplog):
    publisher, sink = publishers.make(), RecordingSink()
    endpoint = labelled(publisher.port)
    async with subscribed(sink, endpoint, EndpointSpec(host="127.0.0.1", port=1, engine="vllm")) as source:
        await publisher.until(lambda: sink.samples, 3)
        source.update([])
        count = len(sink.samples)
        for _ in range(5):
            publisher.push(4)
            await asyncio.sleep(0.01)
        assert len(sink.samples) <= count + 1
        source.update([spec(labels={LOAD_PORT_LABEL: "http"})])
        assert "'http' is not a number" in caplog.text
        source.subscribe(spec(), LoadChannel(publisher.port))
        await publisher.until(lambda: sink.samples[-1][1].running == 5.0, 5)
