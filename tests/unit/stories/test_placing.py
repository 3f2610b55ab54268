"""The named stories: what a placement must do in situations that went wrong elsewhere. No engine needed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core_pools import START, chosen, feed, feed_all, make_pool, request, spec
from poolpilot_picker.errors import NoEndpoints, PreconditionFailed
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.state.samples import ServedModels

pytestmark = pytest.mark.usefixtures("both_cores")

SEEDS = range(30)


def shares(placements):
    return Counter(chosen(placement) for placement in placements)


@pytest.mark.parametrize("heard", [True, False], ids=["sampled", "never sampled"])
def test_64_simultaneous_first_requests_spread_over_8_equal_endpoints(heard):
    for seed in SEEDS:
        pool = make_pool(8, seed=seed)
        if heard:
            feed_all(pool, START)
        placed = [pool.place(request(500, prefix=[(number, 448)]), START) for number in range(64)]
        assert max(shares(placed).values()) == 8


@pytest.mark.parametrize("longest", [600, 2_000])
def test_64_simultaneous_requests_of_all_lengths_spread_their_work(longest):
    for seed in SEEDS:
        pool, rng = make_pool(8, seed=seed), random.Random(seed)
        feed_all(pool, START)
        prompts = [rng.randint(20, longest) for _ in range(64)]
        placed = [
            pool.place(request(tokens, prefix=[(number, tokens)]), START) for number, tokens in enumerate(prompts)
        ]
        # Waits weigh several times: the prompts are even, and whoever got the shortest has some more of them.
        assert max(shares(placed).values()) <= (11 if longest < 1_000 else 14)
        assert max(pool.table.prompt_tokens) <= (1.4 if longest < 1_000 else 1.3) * sum(prompts) / 8


def test_1000_requests_between_two_samples_do_not_herd():
    pool = make_pool(8)
    feed_all(pool, START)
    now, placed = START, []
    for number in range(1_000):
        now += 0.2
        placed.append(pool.place(request(200, prefix=[(number, 128)]), now))
        if number >= 100:
            pool.finish(placed[number - 100], Outcome.SERVED, now)
    assert max(shares(placed).values()) <= 1.25 * 1_000 / 8


def test_ties_are_broken_evenly():
    drawn = Counter()
    for seed in range(2_000):
        drawn[chosen(make_pool(4, seed=seed).place(request(), START))] += 1
    assert min(drawn.values()) > 420 and len(drawn) == 4


def test_paced_requests_on_an_idle_pool_do_not_all_go_to_one_endpoint():
    pool = make_pool(2)
    now, placed = START, []
    for number in range(200):
        now += 1_000.0
        feed_all(pool, now)
        placed.append(pool.place(request(300, prefix=[(number, 256)]), now))
        pool.finish(placed[-1], Outcome.SERVED, now + 300)
    assert max(shares(placed).values()) < 130


@pytest.mark.parametrize("later_ms", [0.0, 100.0, 1_000.0, 4_000.0])
def test_the_ninth_request_avoids_the_endpoint_with_the_heavy_one(later_ms):
    for seed in SEEDS:
        pool = make_pool(4, seed=seed)
        feed_all(pool, START)
        for slot in range(4):
            heavy = slot == 2
            for light in (False, True):
                tokens, limit = (8_000, 2_000) if heavy and not light else (300, 100)
                pool.place(request(tokens, max_tokens=limit, subset=(f"10.0.0.{slot + 1}",)), START)
        assert pool.table.requests.tolist() == [2, 2, 2, 2]
        feed_all(pool, START + later_ms)
        assert chosen(pool.place(request(300), START + later_ms)) != "10.0.0.3:8000"


def test_the_clients_address_never_matters():
    # The request as the decision sees it has no such field: two clients are told apart by tenant and routing key alone.
    drawn = {}
    for client in ("203.0.113.7", "198.51.100.99"):
        pool = make_pool(8, seed=5)
        feed_all(pool, START)
        placed = [pool.place(request(400, request_id=client, prefix=[(n % 9, 384)]), START + n) for n in range(200)]
        drawn[client] = [chosen(placement) for placement in placed]
    assert drawn["203.0.113.7"] == drawn["198.51.100.99"]


def test_an_endpoint_never_heard_from_is_neither_idle_nor_excluded():
    pool = make_pool(4)
    for slot in range(3):
        feed(pool, pool.table.at(slot), START, running=30.0)
    placed = [pool.place(request(500, prefix=[(n, 448)]), START) for n in range(80)]
    share = shares(placed)["10.0.0.4:8000"]
    assert 10 <= share <= 30


def test_a_new_endpoint_in_a_busy_pool_gets_traffic_but_not_all_of_it():
    pool = make_pool(3)
    now, number, running = START, 0, []
    for _ in range(150):
        number += 1
        running.append(pool.place(request(500, prefix=[(number, 448)]), now))
        now += 5
    feed_all(pool, now)
    pool.apply_endpoints([*(endpoint.spec for endpoint in pool.table.wanted()), spec(3)])
    placed = []
    for _ in range(200):
        number += 1
        placed.append(pool.place(request(500, prefix=[(number, 448)]), now))
        pool.finish(running.pop(0), Outcome.SERVED, now)
        running.append(placed[-1])
        now += 20
        feed_all(pool, now)
    share = shares(placed)["10.0.0.4:8000"]
    assert 50 <= share <= 130


def test_when_the_whole_pool_is_dark_the_shortest_own_queue_wins():
    pool = make_pool(4)
    feed_all(pool, START, running=50.0)
    now = START + 120_000.0
    for slot, count in enumerate((3, 1, 2, 4)):
        for _ in range(count):
            pool.place(request(400, subset=(f"10.0.0.{slot + 1}",)), now)
    placed = [chosen(pool.place(request(400), now)) for _ in range(10)]
    assert placed[0] == "10.0.0.2:8000"
    assert max(pool.table.inflight) - min(pool.table.inflight) <= 1


def test_a_stale_low_reading_does_not_attract():
    pool = make_pool(4)
    feed(pool, pool.table.at(0), START, running=0.0)
    now = START + 60_000.0
    for slot in (1, 2, 3):
        feed(pool, pool.table.at(slot), now, running=20.0)
    placed = [pool.place(request(500, prefix=[(n, 448)]), now) for n in range(40)]
    assert shares(placed)["10.0.0.1:8000"] <= 16


def test_a_kv_reading_from_long_ago_does_not_exclude():
    pool = make_pool(2)
    feed_all(pool, START, kv_usage=0.99, kv_capacity_tokens=200_000)
    now = START + 3_600_000.0
    placed = []
    for _ in range(500):
        now += 50
        placed.append(pool.place(request(3_000), now))
        pool.finish(placed[-1], Outcome.SERVED, now + 40)
        feed(pool, pool.table.at(1), now, kv_usage=0.1)
    assert 100 <= shares(placed)["10.0.0.1:8000"] <= 400


def test_an_engine_so_full_that_it_preempts_is_steered_around_but_never_excluded():
    pool = make_pool(3)
    feed_all(pool, START, preemptions=5.0)
    feed(pool, pool.table.at(0), START + 200, preemptions=6.0, kv_usage=0.99)
    for slot in (1, 2):
        feed(pool, pool.table.at(slot), START + 200, preemptions=5.0, kv_usage=0.3)
    light = [pool.place(request(300, prefix=[(n, 256)]), START + 210) for n in range(10)]
    assert shares(light)["10.0.0.1:8000"] == 0
    rush = [pool.place(request(2_000, prefix=[("r", n), (n, 1_920)]), START + 220) for n in range(120)]
    assert shares(rush)["10.0.0.1:8000"] > 10
    # Alone, it is taken; and after a while without preemptions it is no longer shown as preempting.
    assert chosen(pool.place(request(subset=("10.0.0.1",)), START + 230)) == "10.0.0.1:8000"
    assert not (pool.table.preempting_until_ms > START + 6_000).any()


def test_a_cache_hit_is_worth_its_time_and_not_more():
    pool = make_pool(4)
    feed_all(pool, START)
    system = [("system", 6_400)]
    first = pool.place(request(6_500, prefix=system), START)
    pool.finish(first, Outcome.SERVED, START + 2_000)
    # Idle: the warm endpoint. Busy with prefills that take longer than the hit saves: another.
    assert chosen(pool.place(request(6_500, prefix=system), START + 3_000)) == chosen(first)
    for number in range(12):
        pool.place(request(8_000, prefix=[(number, 7_936)], subset=(chosen(first),)), START + 3_000)
    assert chosen(pool.place(request(6_500, prefix=system), START + 3_000)) != chosen(first)


def test_a_popular_prefix_in_one_burst_spreads_and_every_endpoint_computes_it_once():
    pool = make_pool(4)
    feed_all(pool, START)
    placed = [pool.place(request(2_200, prefix=[("hot", 2_048), (n, 128)]), START + n) for n in range(200)]
    counted = shares(placed)
    assert len(counted) == 4 and max(counted.values()) <= 100
    cold = sum(placement.cached_tokens < 2_048 for placement in placed)
    assert cold == 4


def test_new_prefix_groups_do_not_cluster():
    pool = make_pool(8)
    feed_all(pool, START)
    now, placed = START, []
    for group in range(150):
        now += 30.0
        feed_all(pool, now)
        placed.append(pool.place(request(2_000, prefix=[(group, 1_920)]), now))
        if group >= 20:
            pool.finish(placed[group - 20], Outcome.SERVED, now)
    assert max(shares(placed).values()) <= 30


def test_an_engine_restart_forgets_its_prefixes():
    pool = make_pool(2)
    feed_all(pool, START)
    prefix = [("system", 4_096)]
    first = pool.place(request(4_200, prefix=prefix), START)
    pool.finish(first, Outcome.SERVED, START + 500)
    pool.restarted(first.booking.endpoint, START + 600)
    second = pool.place(request(4_200, prefix=prefix), START + 700)
    assert second.cached_tokens == 0.0
    # Its load is unknown until it tells, its own account is not forgotten.
    assert pool.table.requests.sum() == 1


def test_an_address_reused_by_another_pod_starts_cold():
    pool = make_pool([spec(0, uid="old"), spec(1, uid="other")])
    prefix = [("system", 4_096)]
    first = pool.place(request(4_200, prefix=prefix, subset=("10.0.0.1",)), START)
    pool.apply_endpoints([spec(0, uid="new"), spec(1, uid="other")])
    second = pool.place(request(4_200, prefix=prefix, subset=("10.0.0.1",)), START)
    assert second.booking.endpoint is not first.booking.endpoint
    assert second.cached_tokens == 0.0
    # The answer of the old pod comes from the same address: the booking stays with the old pod.
    assert not pool.served(first, "10.0.0.1:8000", START + 10)
    pool.finish(first, Outcome.SERVED, START + 20)
    assert pool.table.requests.sum() == 1


class TestModels:
    """What an endpoint serves is a veto where it is known."""

    def listed(self, pool, slot, *adapters, base="base"):
        pool.apply_served_models(
            pool.table.at(slot), ServedModels(base=(base,), adapters=dict.fromkeys(adapters, base))
        )

    def drawn(self, pool, **asked):
        return {chosen(pool.place(request(100, **asked), START)) for _ in range(30)}

    def test_who_does_not_serve_the_model_is_not_asked(self):
        pool = make_pool(3)
        self.listed(pool, 0, "sql")
        self.listed(pool, 1)
        self.listed(pool, 2, base="another")
        assert self.drawn(pool, model="sql") == {"10.0.0.1:8000"}
        assert self.drawn(pool, model="another") == {"10.0.0.3:8000"}

    def test_an_unknown_list_is_eligible(self):
        pool = make_pool(3)
        self.listed(pool, 0, "sql")
        self.listed(pool, 1)
        assert self.drawn(pool, model="sql") == {"10.0.0.1:8000", "10.0.0.3:8000"}

    def test_where_nobody_serves_it_all_are_eligible(self):
        pool = make_pool(3)
        for slot in range(3):
            self.listed(pool, slot)
        assert len(self.drawn(pool, model="typo")) == 3

    def test_an_unnamed_model_may_go_anywhere(self):
        pool = make_pool(2)
        self.listed(pool, 0)
        assert len(self.drawn(pool, model="")) == 2


class TestAdapters:
    """Residency is a bounded bonus: the time of a load."""

    def pool(self, **more):
        pool = make_pool(4, **more)
        for endpoint in pool.table:
            pool.apply_served_models(
                endpoint, ServedModels(base=("base",), adapters={f"a{n}": "base" for n in range(12)})
            )
        feed_all(pool, START, max_adapters=2)
        return pool

    def test_a_warm_adapter_is_preferred(self):
        pool = self.pool()
        first = pool.place(request(300, model="a1"), START)
        again = [chosen(pool.place(request(300, model="a1"), START + 600 + n)) for n in range(5)]
        assert set(again) == {chosen(first)}

    def test_but_not_at_any_price(self):
        pool = self.pool()
        placed = [pool.place(request(1_500, model="a1", prefix=[(n, 1_472)]), START + n) for n in range(120)]
        assert len(shares(placed)) >= 2
        assert max(shares(placed).values()) < 110

    def test_a_cold_load_is_counted(self):
        pool = self.pool()
        cold = pool.place(request(300, model="a1"), START)
        assert cold.predicted.adapter_ms == 500.0
        warm = pool.place(request(300, model="a1"), START + 5_000)
        assert warm.predicted.adapter_ms == 0.0
        assert cold.predicted.ttft_ms > warm.predicted.ttft_ms + 400
        # The load holds up what comes next to the same endpoint.
        pool = self.pool()
        pool.place(request(300, model="a1"), START)
        queued = pool.place(request(300, subset=("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")), START)
        assert queued.predicted.wait_ms < 100

    def test_as_many_adapters_as_slots_are_loaded_once_each(self):
        pool = self.pool()
        now, cold = START, 0
        for adapter in list(range(8)) * 6:
            now += 800.0
            feed_all(pool, now, max_adapters=2)
            placement = pool.place(request(300, model=f"a{adapter}"), now)
            cold += placement.predicted.adapter_ms > 0
            pool.finish(placement, Outcome.SERVED, now + 700.0)
        assert cold == 8

    def test_a_busy_slot_is_worse_than_a_free_one(self):
        pool = self.pool()
        for slot, adapters in enumerate((("a1", "a2"), ("a3", "a4"), ("a5", "a6"), ("a7",))):
            for adapter in adapters:
                pool.place(request(300, model=adapter, subset=(f"10.0.0.{slot + 1}",)), START)
        assert chosen(pool.place(request(300, model="a9"), START)) == "10.0.0.4:8000"

    def test_a_base_model_needs_no_slot(self):
        assert self.pool().place(request(300), START).predicted.adapter_ms == 0.0

    def test_the_adapter_a_body_names_counts_like_one_that_is_listed(self):
        pool = make_pool(2)
        placement = pool.place(request(300, adapter="lora/path"), START)
        assert placement.booking.adapter == "lora/path"
        assert chosen(pool.place(request(300, adapter="lora/path"), START + 600)) == chosen(placement)


class TestCapacity:
    """Headroom: what will not fit when it peaks is not placed there, as long as there is another place."""

    # At once they queue for prefill, and a wait weighs several times: at 0.95 one of five is worth it, at 0.98 none.
    @pytest.mark.parametrize(("usage", "apart_ms"), [(0.95, 100.0), (0.98, 0.0)])
    def test_a_full_kv_cache_is_avoided(self, usage, apart_ms):
        pool = make_pool(2)
        feed(pool, pool.table.at(0), START, kv_usage=usage, running=3.0)
        feed(pool, pool.table.at(1), START, kv_usage=0.2, running=8.0)
        assert {chosen(pool.place(request(500), START + apart_ms * n)) for n in range(5)} == {"10.0.0.2:8000"}

    def test_what_was_placed_since_the_sample_counts(self):
        pool = make_pool(2)
        feed_all(pool, START, kv_usage=0.1, kv_capacity_tokens=100_000)
        placed = [pool.place(request(20_000, prefix=[(n, 19_968)]), START + n) for n in range(8)]
        assert sorted(shares(placed).values()) == [4, 4]
        # What has ended since gives its room back, before any sample says so.
        for placement in placed:
            if chosen(placement) == "10.0.0.1:8000":
                pool.finish(placement, Outcome.SERVED, START + 100)
        assert chosen(pool.place(request(20_000, prefix=[("new", 19_968)]), START + 101)) == "10.0.0.1:8000"

    def test_a_shared_prefix_is_held_once(self):
        pool = make_pool(1)
        feed_all(pool, START, kv_capacity_tokens=100_000)
        for number in range(20):
            pool.place(request(8_100, prefix=[("shared", 8_064)]), START + number)
        assert pool.table.new_kv_tokens[0] < 10_000
        assert pool.table.prompt_tokens[0] == 20 * 8_100

    def test_a_prompt_that_can_never_fit_goes_where_it_can(self):
        pool = make_pool(2)
        feed(pool, pool.table.at(0), START, kv_capacity_tokens=50_000)
        feed(pool, pool.table.at(1), START, kv_capacity_tokens=200_000, running=200.0, waiting=500.0)
        assert chosen(pool.place(request(60_000), START)) == "10.0.0.2:8000"
        # Where it fits nowhere, the engine's own answer is the best one.
        pool.place(request(900_000), START)

    def test_a_full_batch_is_waited_for(self):
        pool = make_pool(2)
        feed(pool, pool.table.at(0), START, max_sequences=4, running=4.0)
        feed(pool, pool.table.at(1), START, max_sequences=256, running=12.0)
        assert chosen(pool.place(request(300), START)) == "10.0.0.2:8000"

    def test_when_all_are_full_the_rest_still_counts(self):
        pool = make_pool(3)
        feed_all(pool, START, kv_usage=1.0, running=5.0)
        feed(pool, pool.table.at(1), START, kv_usage=1.0, running=5.0, waiting=100.0)
        placed = [pool.place(request(300), START) for _ in range(10)]
        assert shares(placed)["10.0.0.2:8000"] == 0


class TestRefusals:
    """Only the data plane's hint and the client's condition can leave nobody."""

    def test_an_empty_pool(self):
        with pytest.raises(NoEndpoints):
            make_pool(0).place(request(), START)

    def test_a_hint_that_matches_nobody(self):
        pool = make_pool(2)
        for subset in ((), ("10.9.9.9",), ("10.0.0.1:9999",)):
            with pytest.raises(NoEndpoints):
                pool.place(request(subset=subset), START)
        assert pool.table.requests.sum() == 0

    def test_only_if_cached(self):
        pool = make_pool(2)
        prefix = [("system", 2_048)]
        with pytest.raises(PreconditionFailed, match="no decode worker has the requested KV cache"):
            pool.place(request(2_100, prefix=prefix, only_if_cached=True), START)
        assert pool.table.requests.sum() == 0
        first = pool.place(request(2_100, prefix=prefix), START)
        assert chosen(pool.place(request(2_100, prefix=prefix, only_if_cached=True), START)) == chosen(first)


def most_at_one_endpoint(apart_ms):
    """Of 48 requests that four pickers place, so far apart, each two seconds after a sample by which one of four
    endpoints, usually as busy as the others, had less to do than they."""
    total = Counter()
    for seed in range(4):
        pool = make_pool(4, seed=seed)
        for slot in range(4):
            pool.place(request(400, subset=(f"10.0.0.{slot + 1}",)), START - 60_000.0)
        for second in range(30):
            feed_all(pool, START - 1_000.0 * (30 - second), running=12.0)
        feed(pool, pool.table.at(0), START, running=2.0)
        for number in range(12):
            placed = pool.place(request(400, prefix=[((seed, number), 384)]), START + 2_000.0 + apart_ms * number)
            total[chosen(placed)] += 1
    return max(total.values())


@pytest.mark.parametrize("apart_ms", [100.0, 0.0], ids=["one by one", "at once"])
def test_several_pickers_do_not_run_to_the_same_endpoint_on_old_samples(apart_ms):
    # 100 ms apart no prefill queue builds up: only the batches differ.
    assert most_at_one_endpoint(apart_ms) <= 20
