"""SGLang's load messages: what is read, what is refused, and how ranks make one sample."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.sources.load_stat import (
    LOAD_PORT_LABEL,
    LOAD_RANKS_LABEL,
    LoadChannel,
    LoadStat,
    RankLoads,
    load_channel_by_label,
    load_channel_of,
    merged,
    parse_load_stat,
)
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample, HistogramTotals

FULL = ["LoadStat", 7, 2, 30_000, 100_000, 1, 4_000, 36_000, 256, 900_000, 12_500_000]


def pack(*fields) -> bytes:
    return msgspec.msgpack.encode(list(fields))


def test_all_fields():
    assert parse_load_stat(pack(*FULL)) == LoadStat(
        running=7.0,
        waiting=2.0,
        used_tokens=30_000.0,
        capacity_tokens=100_000.0,
        rank=1,
        waiting_tokens=4_000.0,
        max_running=256.0,
        prefilled_tokens=900_000.0,
        prefill_busy_s=12.5,
    )


@pytest.mark.parametrize("length", [6, 7, 9, 11])
def test_older_and_newer_forms(length):
    load = parse_load_stat(pack(*FULL[:length]))
    assert (load.running, load.waiting, load.used_tokens, load.rank) == (7.0, 2.0, 30_000.0, 1)
    assert (load.max_running is None) == (length < 9)
    assert parse_load_stat(pack(*FULL, "of the future", {})).prefill_busy_s == 12.5


def test_a_rank_that_is_none():
    assert parse_load_stat(pack("LoadStat", 1, 0, 0, 10, None)).rank == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack("LoadStat", 1, 2, 3, 4),
        pack("Other", 1, 2, 3, 4, 0),
        pack("LoadStat", "1", 2, 3, 4, 0),
        pack("LoadStat", True, 2, 3, 4, 0),
        pack("LoadStat", -1, 2, 3, 4, 0),
        pack("LoadStat", float("nan"), 2, 3, 4, 0),
        pack("LoadStat", 1, 2, None, 4, 0),
        msgspec.msgpack.encode({"num_running_reqs": 1}),
        msgspec.msgpack.encode(5),
        b"\x91" * 3_000,
    ],
)
def test_what_is_no_load(payload):
    with pytest.raises(ValueError):
        parse_load_stat(payload)


@given(st.binary(max_size=100))
def test_no_bytes_break_the_reader(payload):
    for data in (payload, b"\x96\xa8LoadStat" + payload):
        try:
            parse_load_stat(data)
        except ValueError:
            continue


def load(running: float, used: float = 0.0, capacity: float = 100.0, **fields) -> LoadStat:
    return LoadStat(running=running, waiting=1.0, used_tokens=used, capacity_tokens=capacity, rank=0, **fields)


def test_ranks_are_added_and_the_fullest_counts():
    loads = RankLoads(2, fresh_ms=3_000.0)
    loads.take(0, 0, load(3.0, used=20.0, waiting_tokens=5.0, max_running=8.0), 1_000.0)
    assert loads.sample(1_000.0) is None, "half of an engine is no load"
    loads.take(1, 0, load(4.0, used=70.0, waiting_tokens=6.0, max_running=8.0), 1_400.0)
    assert loads.sample(1_500.0) == EngineSample(
        taken_ms=1_000.0,
        running=7.0,
        waiting=2.0,
        kv_usage=0.7,
        kv_capacity_tokens=200,
        max_sequences=16,
        waiting_tokens=11.0,
    )


def test_a_silent_rank_ends_it():
    loads = RankLoads(2, fresh_ms=3_000.0)
    loads.take(0, 0, load(3.0), 0.0)
    loads.take(1, 0, load(4.0), 3_500.0)
    assert loads.sample(3_500.0) is None
    loads.take(0, 1, load(5.0), 3_600.0)
    assert loads.sample(3_600.0).running == 9.0


def test_what_not_every_rank_tells_is_unknown():
    loads = RankLoads(2, fresh_ms=3_000.0)
    loads.take(0, 0, load(3.0, waiting_tokens=5.0, capacity=0.0), 0.0)
    loads.take(1, 0, load(4.0, capacity=0.0), 0.0)
    sample = loads.sample(0.0)
    assert (sample.waiting_tokens, sample.kv_usage, sample.kv_capacity_tokens) == (None, None, None)


def test_sequences():
    loads = RankLoads(1, fresh_ms=3_000.0)
    assert loads.take(0, 5, load(1.0), 0.0) == (0, False)
    assert loads.take(0, 6, load(1.0), 0.0) == (0, False)
    assert loads.take(0, 10, load(2.0), 0.0) == (3, False)
    assert loads.take(0, 0, load(3.0), 0.0) == (0, True)
    assert loads.take(0, 0, load(4.0), 0.0) == (0, True)
    assert loads.sample(0.0).running == 4.0


def test_a_push_and_the_page_before_it():
    histogram = HistogramTotals(1.0, 2.0)
    page = EngineSample(
        taken_ms=10.0, running=1.0, waiting=9.0, kv_usage=0.1, prompt_tokens=50.0, block_tokens=16, ttft=histogram
    )
    pushed = EngineSample(taken_ms=20.0, running=5.0, waiting=0.0)
    result = merged(page, pushed, histograms=False)
    assert (result.taken_ms, result.running, result.waiting, result.kv_usage) == (20.0, 5.0, 0.0, 0.1)
    assert (result.prompt_tokens, result.block_tokens, result.ttft) == (50.0, 16, None)
    assert merged(page, pushed, histograms=True).ttft == histogram
    assert merged(None, pushed, histograms=True) is pushed
    assert page.running == 1.0


def test_where_the_channel_is():
    labels = {LOAD_PORT_LABEL: "5559", LOAD_RANKS_LABEL: "4"}
    assert load_channel_by_label(EndpointSpec(host="10.0.0.1", port=1, labels=labels)) == LoadChannel(5559, 4)
    assert load_channel_by_label(
        EndpointSpec(host="10.0.0.1", port=1, labels={LOAD_PORT_LABEL: "5559"})
    ) == LoadChannel(5559)
    assert load_channel_by_label(EndpointSpec(host="10.0.0.1", port=1)) is None
    for port, ranks in (("x", "1"), ("0", "1"), ("70000", "1"), ("1", "0"), ("1", "-1"), ("1", "99999")):
        with pytest.raises(ValueError):
            load_channel_by_label(
                EndpointSpec(host="10.0.0.1", port=1, labels={LOAD_PORT_LABEL: port, LOAD_RANKS_LABEL: ranks})
            )


def test_server_info():
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "dp_size": 2}
    told = {"kv_events": {**events, "load_endpoint_port_base": 5559, "load_topic": "load"}, "model_path": "m"}
    assert load_channel_of(msgspec.json.encode(told)) == LoadChannel(5559, 2)
    assert load_channel_of(msgspec.json.encode({"kv_events": events})) is None
    assert load_channel_of(b'{"kv_events":null}') is None
    assert load_channel_of(b"{}") is None
    for body in (
        b"",
        b"[]",
        b'{"kv_events":{"load_endpoint_port_base":"x"}}',
        b'{"kv_events":{"load_endpoint_port_base":0}}',
    ):
        with pytest.raises(ValueError):
            load_channel_of(body)
