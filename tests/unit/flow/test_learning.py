"""Through the pool: what an exchange and a sample may teach, and what they must not."""

from __future__ import annotations

import math

import pytest

from core_pools import START, chain, feed, make_pool, request, spec
from poolpilot_picker.flow.learners import PUBLISH_MS
from poolpilot_picker.flow.outcome import AGAINST_ENDPOINT, Outcome
from poolpilot_picker.requests.request import RequestKind
from poolpilot_picker.state.samples import HistogramTotals

WINDOW = 5_000.0
TEACHES_NOTHING = [outcome for outcome in Outcome if outcome is not Outcome.SERVED]


class Told:
    """An engine's counters, and windows of steady load on a pool's endpoint."""

    def __init__(self, pool, slot=0, slower=1.0):
        self.pool = pool
        self.endpoint = pool.table.at(slot)
        self.slower = slower
        self.ttft = HistogramTotals()
        self.inter_token = HistogramTotals()

    def sample(self, now, **more):
        feed(
            self.pool,
            self.endpoint,
            now,
            ttft=HistogramTotals(self.ttft.sum_s, self.ttft.count),
            inter_token=HistogramTotals(self.inter_token.sum_s, self.inter_token.count),
            **more,
        )

    def window(self, now, requests=20, outcome=Outcome.SERVED, **more):
        """`requests` at regular times, each ended with `outcome`; the engine tells of those it answered."""
        pool, slot, table = self.pool, self.endpoint.slot, self.pool.table
        keep = []
        for _ in range(requests):
            now += WINDOW / requests
            placement = pool.place(request(500, subset=(self.endpoint.address,), **more), now)
            keep.append(placement)
            if len(keep) > 4:
                pool.finish(keep.pop(0), outcome, now)
            if outcome is Outcome.SERVED:
                model, batch = self.endpoint.model, float(table.inflight[slot])
                step = self.slower * model.step(batch, float(table.prompt_tokens[slot])) / 1000.0
                tokens = batch * (WINDOW / requests / 1000.0) / step
                self.inter_token.sum_s += tokens * step / (1.0 - float(table.prefill_share[slot]))
                self.inter_token.count += tokens
                ttft = placement.predicted.ttft_ms * self.slower / float(table.prefill_speed[slot])
                self.ttft.sum_s += ttft / 1000.0
                self.ttft.count += 1
        for placement in keep:
            pool.finish(placement, outcome, now)
        self.sample(now)
        return now


def speeds(pool, slot=0):
    return float(pool.table.prefill_speed[slot]), float(pool.table.decode_speed[slot])


def test_a_slow_endpoint_is_known_within_30_seconds_and_forgiven_as_fast():
    pool = make_pool(2)
    slow, other = Told(pool, 0, slower=2.0), Told(pool, 1)
    now = START
    for told in (slow, other):
        told.sample(now)
    for _ in range(6):
        slow.window(now)
        now = other.window(now)
    apart = [a / b for a, b in zip(speeds(pool, 0), speeds(pool, 1), strict=True)]
    assert apart[0] > 1.6 and apart[1] > 1.6
    slow.slower = 1.0
    for _ in range(6):
        slow.window(now)
        now = other.window(now)
    apart = [a / b for a, b in zip(speeds(pool, 0), speeds(pool, 1), strict=True)]
    assert apart == pytest.approx([1.0, 1.0], abs=0.15)


def test_endpoints_whose_windows_end_together_are_all_known_a_second_later():
    pool = make_pool(3)
    told = [Told(pool, slot, slower=slower) for slot, slower in enumerate((0.5, 2.0, 2.0))]
    for one in told:
        one.sample(START)
    for number, one in enumerate(told):
        now = one.window(START + 50.0 * number)
    # Gauges alone, as most readings are.
    feed(pool, told[0].endpoint, now + PUBLISH_MS)
    assert speeds(pool, 1)[0] > 1.5 * speeds(pool, 0)[0]
    assert speeds(pool, 1)[1] > 1.5 * speeds(pool, 0)[1]
    # The first to end its window must not have changed what the others' predictions are compared with.
    assert speeds(pool, 2) == pytest.approx(speeds(pool, 1), rel=0.05)


class ToldBySteps(Told):
    """An engine that generates several tokens in a step: its histogram times steps, its counter counts tokens."""

    per_step = 2.5

    def sample(self, now, **more):
        super().sample(now, generated_tokens=self.per_step * self.inter_token.count + self.ttft.count, **more)


def test_an_engine_that_speculates_is_as_fast_as_its_tokens_come():
    pool = make_pool(2)
    speculating, other = ToldBySteps(pool, 0), Told(pool, 1)
    now = START
    for told in (speculating, other):
        told.sample(now)
    for _ in range(12):
        speculating.window(now)
        now = other.window(now)
    assert speeds(pool, 0)[1] / speeds(pool, 1)[1] == pytest.approx(1 / 2.5, rel=0.1)


def test_an_endpoint_that_joins_is_taken_to_be_like_its_peers():
    pool = make_pool([spec(0)])
    told = Told(pool, 0, slower=2.0)
    told.sample(START)
    now = START
    for _ in range(10):
        now = told.window(now)
    pool.apply_endpoints([spec(0), spec(1), spec(2, **{"poolpilot.dev/gpu": "a100"})])
    assert speeds(pool, 1) == pytest.approx(speeds(pool, 0), rel=0.1)
    # Another profile, without evidence of its own, follows the pool too.
    assert speeds(pool, 2) == pytest.approx(speeds(pool, 0), rel=0.1)


@pytest.mark.parametrize("outcome", TEACHES_NOTHING)
def test_only_answers_teach(outcome):
    pool = make_pool(1)
    told = Told(pool, 0)
    told.sample(START, cached_prompt_tokens=0.0)
    before = pool.learning_counts()
    now = START
    for _ in range(3):
        for _ in range(10):
            placement = pool.place(request(4_000, prefix=[("x", 1_024)]), now)
            pool.usage(placement, 9_000, 7)
            now += 400.0
            # Long before any prefill can have ended: none of this is a short answer or a fast engine.
            assert pool.finish(placement, outcome, now)
        told.ttft.sum_s += 1e-3
        told.ttft.count += 10
        told.sample(now + 500.0, cached_prompt_tokens=0.0)
        now += 1_000.0
    after = pool.learning_counts()
    assert after["lengths"] == before["lengths"] == 0
    assert after["speed_windows"] == 0
    assert speeds(pool) == (1.0, 1.0)
    assert pool.table.prefill_share[0] == 0.0
    assert pool.table.cache_trust[0] == 1.0
    assert (pool.table.requests == 0).all()
    pool.place(request(), now)
    assert (pool.table.failure_ms[0] > 0) == (outcome in AGAINST_ENDPOINT)


def test_an_answer_with_usage_teaches_lengths_and_tokens_once():
    pool = make_pool(1)
    placement = pool.place(request(1_000, sequences=4), START)
    pool.usage(placement, 1_300, 400)
    assert pool.finish(placement, Outcome.SERVED, START + 900)
    assert not pool.finish(placement, Outcome.SERVED, START + 901)
    counts = pool.learning_counts()
    assert counts["lengths"] == 1 and counts["token_scale"] == 1
    # Four sequences, 100 tokens each.
    assert pool.lengths.expected("base", "", None) < 300
    assert pool.tokens.scale("base") > 1.0


def test_what_is_no_inference_teaches_nothing():
    pool = make_pool(1)
    told = Told(pool)
    told.sample(START)
    for _ in range(10):
        placement = pool.place(request(0, kind=RequestKind.OTHER), START)
        assert not placement.observe
        pool.usage(placement, None, 50)
        pool.finish(placement, Outcome.SERVED, START + 100)
    told.ttft = HistogramTotals(5.0, 10.0)
    told.sample(START + WINDOW)
    counts = pool.learning_counts()
    assert counts["lengths"] == 0 and counts["speed_windows"] == 0


def test_a_cut_body_does_not_teach_the_tokenizer():
    pool = make_pool(1)
    placement = pool.place(request(1_000, complete=False), START)
    pool.usage(placement, 9_000, 10)
    assert pool.learning_counts()["token_scale"] == 0


def test_a_request_that_moved_is_not_compared_with_the_first_endpoint():
    pool = make_pool(2)
    first = Told(pool, 0)
    first.sample(START)
    now = first.window(START)
    believed = speeds(pool)
    for _ in range(30):
        placement = pool.place(request(90_000, subset=("10.0.0.1",)), now)
        assert pool.served(placement, "10.0.0.2:8000", now + 10)
        pool.finish(placement, Outcome.SERVED, now + 500)
    first.window(now)
    assert speeds(pool) == pytest.approx(believed, rel=0.05)


def test_histograms_that_run_backwards_begin_a_new_window():
    pool = make_pool(1)
    told = Told(pool, slower=2.0)
    told.sample(START)
    now = told.window(START)
    lessons = pool.learning_counts()["speed_windows"]
    told.ttft, told.inter_token = HistogramTotals(0.1, 1.0), HistogramTotals(0.1, 10.0)
    told.sample(now + WINDOW)
    assert pool.learning_counts()["speed_windows"] == lessons
    told.window(now + WINDOW)
    assert pool.learning_counts()["speed_windows"] > lessons


def test_after_a_restart_nothing_of_the_old_process_is_compared():
    pool = make_pool(1)
    told = Told(pool)
    told.sample(START)
    now = told.window(START)
    believed, lessons = speeds(pool), pool.learning_counts()["speed_windows"]
    for _ in range(50):
        pool.place(request(9_000), now)
    pool.restarted(told.endpoint, now + 100)
    told.ttft, told.inter_token = HistogramTotals(), HistogramTotals()
    told.sample(now + 200)
    told.sample(now + 300)
    assert speeds(pool) == believed
    assert pool.learning_counts()["speed_windows"] == lessons


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_histograms_without_numbers_teach_nothing(broken):
    pool = make_pool(1)
    told = Told(pool)
    told.sample(START)
    told.ttft, told.inter_token = HistogramTotals(broken, broken), HistogramTotals(broken, broken)
    pool.place(request(), START + 1)
    told.sample(START + WINDOW)
    assert speeds(pool) == (1.0, 1.0)


def test_hits_that_do_not_happen_shrink_the_bonus():
    pool = make_pool(1)
    told = Told(pool)
    now, hits = START, 0.0
    told.sample(now, cached_prompt_tokens=hits)
    shared = [("system", 2_048)]
    for _ in range(12):
        for _ in range(10):
            placement = pool.place(request(2_100, prefix=shared), now)
            pool.finish(placement, Outcome.SERVED, now + 100)
            now += WINDOW / 10
        told.ttft.count += 10
        told.ttft.sum_s += 1.0
        told.sample(now, cached_prompt_tokens=hits)
    assert pool.table.cache_trust[0] < 0.05
    placement = pool.place(request(2_100, prefix=shared), now)
    assert placement.cached_tokens == 2_048
    assert placement.predicted.uncached_tokens > 1_900


def test_lengths_are_also_learned_from_the_engines_counters():
    pool = make_pool(1)
    told = Told(pool)
    told.sample(START, generated_tokens=0.0, requests_succeeded=0.0)
    for number in range(1, 30):
        told.ttft.count += 1
        told.sample(START + number * WINDOW, generated_tokens=20_000.0 * number, requests_succeeded=10.0 * number)
    assert pool.lengths.expected("any", "", None) > 1_000
    assert pool.learning_counts()["lengths"] == 0


def test_hits_are_not_missed_where_the_counters_began_again():
    pool = make_pool(1)
    told = Told(pool)
    told.ttft.count = 1_000.0
    told.sample(START, cached_prompt_tokens=90_000.0)
    for number in range(10):
        placement = pool.place(request(2_100, prefix=[("system", 2_048)]), START + number)
        pool.finish(placement, Outcome.SERVED, START + number + 1)
    told.ttft.count = 3.0
    told.sample(START + WINDOW, cached_prompt_tokens=10.0)
    assert pool.table.cache_trust[0] == 1.0


def test_an_old_window_is_not_closed_by_another_process():
    pool = make_pool(1)
    told = Told(pool)
    told.sample(START)
    now = told.window(START) + PUBLISH_MS
    feed(pool, told.endpoint, now)
    believed = speeds(pool)
    pool.restarted(told.endpoint, now + 100)
    pool.place(request(), now + 150)
    told.ttft, told.inter_token = HistogramTotals(5_000.0, 1_000.0), HistogramTotals(9_000.0, 90_000.0)
    told.sample(now + WINDOW)
    assert speeds(pool) == believed


def test_a_failure_is_forgotten_in_half_a_minute():
    pool = make_pool(1)
    pool.finish(pool.place(request(), START), Outcome.UNREACHABLE, START)
    for later, penalised in ((1_000.0, True), (15_000.0, True), (31_000.0, False)):
        pool.finish(pool.place(request(), START + later), Outcome.ABORTED, START + later)
        assert (pool.table.failure_ms[0] > 0) == penalised
        assert pool.learning_counts()["failing_endpoints"] == penalised


def test_the_batch_of_all_is_compared_with_the_histograms_of_all():
    """Nine of ten sequences are placed by others; each has 8,000 tokens of context."""
    pool = make_pool(1)
    told = Told(pool)
    [endpoint] = pool.table
    now = START
    own = pool.place(request(8_000, max_tokens=0), now)
    told.sample(now, running=10.0)
    assert pool.table.foreign[0] == 9.0
    for _ in range(8):
        now += WINDOW
        step = endpoint.model.step(10.0, 80_000.0) / 1000.0
        tokens = 10 * WINDOW / 1000.0 / step
        told.inter_token.sum_s += tokens * step
        told.inter_token.count += tokens
        told.sample(now, running=10.0)
    assert pool.finish(own, Outcome.SERVED, now)
    assert speeds(pool)[1] == pytest.approx(1.0, rel=0.03)


def test_prefills_of_others_are_a_share_of_the_time_too():
    shares = {}
    for others in (0.0, 9.0):
        pool = make_pool(1)
        told = Told(pool)
        told.sample(START, running=others)
        for number in range(10):
            now = START + number * WINDOW / 10
            pool.finish(pool.place(request(2_000), now), Outcome.SERVED, now + 100)
        told.sample(START + WINDOW, running=others)
        shares[others] = float(pool.table.prefill_share[0])
    assert shares[9.0] > 2 * shares[0.0] > 0


def test_a_changed_profile_starts_to_learn_anew():
    pool = make_pool(1)
    told = Told(pool, slower=3.0)
    told.sample(START)
    now = START
    for _ in range(6):
        now = told.window(now)
    assert speeds(pool)[1] > 2.0
    pool.apply_endpoints([spec(0, **{"poolpilot.dev/profile": "llama-3.1-8b-l40s"})])
    assert speeds(pool) == (1.0, 1.0)
    assert told.endpoint.model.kv_tokens == 185_000
    now = told.window(now)
    assert chain(("x", 64)).hashes
