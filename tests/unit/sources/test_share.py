"""Reading takes a share of the event loop's time: with more to read than that allows, everybody is read less often."""

import asyncio
import random

import pytest

from engine_turns import EVERY, Engines
from poolpilot_picker.sources.cadence import Plan
from poolpilot_picker.sources.errors import ErrorKind
from poolpilot_picker.sources.page_reader import PageReader
from poolpilot_picker.state.endpoints import EndpointSpec


async def test_what_fits_into_the_share_is_read_at_the_full_rate():
    engines = Engines(100, cost_ms=0.06)
    await engines.start()
    begin = engines.now
    while engines.now < begin + 5_000.0:
        engines.turn(5.0)
    counts = [len(reads) for reads in engines.reads.values()]
    assert 98 <= min(counts) <= max(counts) <= 101
    assert engines.source.stats.overdue_ms <= 10.0


@pytest.mark.parametrize("turn_ms", [5.0, 10.0])
async def test_with_more_to_read_all_are_read_less_often_and_as_often_as_each_other(turn_ms):
    engines = Engines(500, cost_ms=0.2)
    await engines.start()
    begin, spent = engines.now, engines.source.meter.busy_s
    while engines.now < begin + 10_000.0:
        engines.turn(turn_ms)
    counts = [len(reads) for reads in engines.reads.values()]
    share = (engines.source.meter.busy_s - spent) * 1000.0 / (engines.now - begin)
    # Wanted were 2 cores.
    assert 0.2 <= share <= 0.26
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 20
    assert engines.source.stats.overdue_ms > 100.0, "and it is said"


async def test_the_share_is_a_setting():
    counts = []
    for share in (0.1, 0.4):
        engines = Engines(500, cost_ms=0.2, share=share)
        await engines.start()
        begin = engines.now
        while engines.now < begin + 5_000.0:
            engines.turn(5.0)
        counts.append(sum(len(reads) for reads in engines.reads.values()))
    assert 3.5 <= counts[1] / counts[0] <= 4.5


async def test_one_turn_starts_a_few_reads_only():
    engines = Engines(500, cost_ms=0.0)
    await engines.start()
    engines.now += 1_000.0
    assert engines.source.start_due() <= 32


async def test_time_that_was_not_used_is_not_saved_up():
    engines = Engines(500, cost_ms=0.2)
    await engines.start()
    engines.now += 60_000.0
    begin = engines.now
    before = engines.source.meter.busy_s
    while engines.now < begin + 100.0:
        engines.turn(5.0)
    assert (engines.source.meter.busy_s - before) * 1000.0 <= 0.25 * 105.0 + 5.0 + 16 * 0.2


async def test_a_process_that_stood_still_while_it_read_goes_on_reading():
    """Suspended or throttled in the middle of a read: by the clock, that read has taken half a minute."""
    engines = Engines(10, cost_ms=0.05)
    await engines.start()
    engines.now += 30_000.0
    engines.source.meter.busy_s += 30.0
    begin = engines.now
    while engines.now < begin + 300.0:
        engines.turn(5.0)
    assert min(len(reads) for reads in engines.reads.values()) >= 3


async def test_a_poll_that_gets_no_answer_is_given_up_after_its_time_and_the_endpoint_is_asked_less():
    engines = Engines(3, cost_ms=0.05)
    await engines.start()
    engines.silent.add(2)
    asked = engines.now
    while not engines.sink.unreachable:
        engines.turn(5.0)
        assert engines.now < asked + 2_000.0
    assert 1_000.0 <= engines.now - engines.reads[2][0] <= 1_010.0
    assert engines.sink.unreachable[0][1] is ErrorKind.TIMEOUT
    # Meanwhile the others were read as always.
    assert len([now for now in engines.reads[1] if now > asked]) >= 19


async def test_an_endpoint_that_goes_while_it_is_polled_says_nothing():
    engines = Engines(2, cost_ms=0.05)
    await engines.start()
    engines.silent.add(1)
    while not engines.reads[1]:
        engines.turn(5.0)
    count = len(engines.sink.samples)
    engines.source.update([EndpointSpec(host="10.0.0.1", port=2)])
    assert len(engines.sink.samples) == count
    assert not engines.sink.unreachable
    for _ in range(50):
        engines.turn(5.0)
    assert {address for address, _ in engines.sink.samples[count:]} == {"10.0.0.1:2"}
    await engines.source.close()


def test_a_read_that_begins_a_little_late_does_not_shift_those_after_it_and_a_very_late_one_is_not_made_up_for():
    plan = Plan(EVERY, 0.0, random.Random(1))
    for due in (0.0, 50.0, 100.0):
        assert plan.due_ms == due
        plan.begin()
        plan.succeeded(due + 4.0, 50.0)
    plan.begin()
    plan.succeeded(1_000.0, 50.0)
    assert plan.due_ms == 1_000.0


async def test_first_pages_are_searched_one_in_a_turn_of_the_loop():
    engines = Engines(40, 0.0)
    samples, most = engines.sink.samples, 0
    while len({address for address, _ in samples}) < 40:
        engines.turn(5.0)
        before = len(samples)
        await asyncio.sleep(0)
        most = max(most, len(samples) - before)
    assert most == 1


async def test_the_time_of_searches_is_counted(monkeypatch):
    async def spent(search_ms):
        engines = Engines(8, 0.0)

        def slow(*arguments, **options):
            engines.now += search_ms
            return (yield from steps(*arguments, **options))

        monkeypatch.setattr(PageReader, "steps", slow)
        await engines.start()
        return engines.source.meter.busy_s * 1000.0

    steps = PageReader.steps
    assert await spent(1.0) - await spent(0.0) == pytest.approx(8.0)
    assert await spent(90.0) - await spent(0.0) == pytest.approx(16.0), "no longer than a turn can be"
