"""Homes of prompts: the same for all pickers, spread, and worth no more than what comes true."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from core_pools import START, chain, chosen, feed, feed_all, make_pool, request, spec
from poolpilot_picker import compiled
from poolpilot_picker.state.homes import LEAST_TRUST, Homes, reference_home
from poolpilot_picker.state.samples import EngineSample, HistogramTotals

pytestmark = pytest.mark.usefixtures("both_cores")

PROMPTS = [chain((f"prompt {number}", 1_280)) for number in range(400)]


def pool_with_others(order=range(8), *, running=9.0):
    """A pool whose endpoints, in this order, run what none of ours is."""
    pool = make_pool(spec(index) for index in order)
    feed_all(pool, START, running=running, ttft=HistogramTotals())
    return pool


def weight(address, key):
    """xxh64 of the address, exclusive or the key, mixed as SplitMix64 does, in whole numbers."""
    mixed = xxh64_intdigest(address.encode()) ^ key
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return mixed ^ (mixed >> 31)


def home_of(pool, prompt, cached=None, tokens=1_300):
    held = np.zeros(len(pool.table)) if cached is None else np.array(cached, dtype=float)
    home = pool.homes.of(prompt, tokens, held)
    return pool.table.at(home.slot).address


def counted(pool, found, queried, slot=0):
    """The engine has looked for so many prompt tokens since its start, and found so many."""
    sample = EngineSample(taken_ms=START, cached_prompt_tokens=float(found), cache_queried_tokens=float(queried))
    pool.homes.sampled(pool.table.at(slot), sample, 10_000.0)


def test_all_pickers_find_the_same_home_whatever_their_slots():
    one, other = pool_with_others(range(8)), pool_with_others((5, 2, 7, 0, 1, 6, 3, 4))
    homes = [home_of(one, prompt) for prompt in PROMPTS]
    assert homes == [home_of(other, prompt) for prompt in PROMPTS]
    # As every release must find them: pickers of two releases run beside each other during an upgrade.
    addresses = [f"10.0.0.{index + 1}:8000" for index in range(8)]
    weights = [{address: weight(address, prompt.hashes[0]) for address in addresses} for prompt in PROMPTS]
    assert homes == [max(one, key=one.get) for one in weights]
    assert weight("10.0.0.1:8000", 1) == 0x3E9B6B59D33D8077


def test_homes_are_spread_evenly():
    homes = Counter(home_of(pool_with_others(), prompt) for prompt in PROMPTS)
    assert len(homes) == 8 and min(homes.values()) > 30 and max(homes.values()) < 75


@given(gone=st.integers(0, 7))
def test_when_an_endpoint_goes_only_its_prompts_move(gone):
    pool = pool_with_others()
    before = {prompt: home_of(pool, prompt) for prompt in PROMPTS[:100]}
    left = pool.table.at(gone).address
    pool.apply_endpoints(endpoint.spec for endpoint in list(pool.table.wanted()) if endpoint.address != left)
    for prompt, home in before.items():
        now = home_of(pool, prompt)
        assert now == home or (home == left and now != left)


def test_alone_there_are_no_homes():
    held = np.zeros(8)
    alone = pool_with_others(running=0.0)
    assert alone.homes.others == 0.0 and alone.homes.of(PROMPTS[0], 1_300, held) is None
    one = pool_with_others(range(1))
    assert one.homes.others == 1.0 and one.homes.of(PROMPTS[0], 1_300, held[:1]) is None
    assert pool_with_others().homes.of(chain(), 30, held) is None


def test_a_few_stray_requests_make_no_others():
    pool = make_pool(4)
    for _ in range(40):
        pool.place(request(), START - 1_000)
    for endpoint in pool.table.wanted():
        running = float(pool.table.inflight[endpoint.slot]) + (endpoint.slot == 0)
        feed(pool, endpoint, START, running=running, ttft=HistogramTotals())
    assert pool.table.foreign.tolist() == [1, 0, 0, 0] and pool.homes.others == 0.0


def test_prompts_that_begin_alike_are_told_apart_by_what_follows_where_most_hold_the_beginning():
    pool = pool_with_others()
    prompts = [chain(("system prompt of all", 640), (f"conversation {number}", 640)) for number in range(40)]
    everywhere, somewhere = [640.0] * 5 + [0.0] * 3, [640.0] * 4 + [0.0] * 4
    assert len({home_of(pool, prompt, somewhere) for prompt in prompts}) == 1
    assert len({home_of(pool, prompt, everywhere) for prompt in prompts}) == 8
    # A conversation's next turn is at home where its first was, though this picker has not seen that.
    longer = [chain(("system prompt of all", 640), (f"conversation {number}", 1_280)) for number in range(40)]
    for prompt, more in zip(prompts, longer, strict=True):
        assert home_of(pool, prompt, everywhere) == home_of(pool, more, everywhere, 2_000)
    assert home_of(pool, prompts[0], [1_280.0] * 8), "all of it is held everywhere"


def test_hope_is_the_others_share_of_what_is_not_known_to_be_there():
    pool = make_pool(2)
    for _ in range(4):
        pool.place(request(), START - 1_000)
    feed_all(pool, START, running=8.0, ttft=HistogramTotals())
    assert pool.homes.others == pytest.approx(12 / 16)
    home = pool.homes.of(PROMPTS[0], 1_300, np.array([200.0, 200.0]))
    assert home.raw_tokens == home.tokens == pytest.approx(0.75 * (1_299 - 200))


def test_trust_is_what_came_true():
    pool = pool_with_others()
    homes = pool.homes
    home = homes.of(PROMPTS[0], 1_001, np.zeros(8))
    counted(pool, 0, 0)
    # All of the pool's sequences are others': at home all of 1,000 tokens are hoped for, elsewhere 200 are known.
    for slot in (home.slot, home.slot, 1 - min(home.slot, 1)):
        homes.placed(slot, 1_000.0, 0.0 if slot == home.slot else 200.0, home)
    counted(pool, 0, 10_000)
    assert homes.trust == 1.0, "too little to say anything"
    counted(pool, 15_000, 50_000)
    assert homes.trust == pytest.approx((15_000 / 50_000) / (2_200 / 3_000), rel=0.02)
    assert homes.of(PROMPTS[0], 1_001, np.zeros(8)).tokens == pytest.approx(homes.trust * 1_000)
    counted(pool, 15_000, 4_000_000)
    assert homes.trust == LEAST_TRUST
    assert homes.of(PROMPTS[0], 1_001, np.zeros(8)).tokens > 0.0, "or nobody would ever see hope come true again"
    for at in range(1, 60):
        counted(pool, 15_000 + 90_000 * at, 4_000_000 + 100_000 * at)
    assert homes.trust == 1.0, "and hope comes back with what is found"


def test_counters_that_begin_again_or_are_missing_teach_nothing():
    pool = pool_with_others()
    home = pool.homes.of(PROMPTS[0], 1_001, np.zeros(8))
    pool.homes.placed(home.slot, 1_000.0, 0.0, home)
    counted(pool, 900_000, 1_000_000)
    counted(pool, 5_000, 40_000)
    assert pool.homes.trust == 1.0
    counted(pool, 5_000, 80_000)
    assert pool.homes.trust == LEAST_TRUST
    other = pool_with_others()
    other.homes.placed(home.slot, 1_000.0, 0.0, home)
    for taken in (1.0, 2.0):
        other.homes.sampled(other.table.at(0), EngineSample(taken_ms=START + taken, prompt_tokens=1e6 * taken), 1e4)
    assert other.homes.trust == 1.0


def test_one_that_leaves_takes_its_counters_along():
    pool = pool_with_others()
    counted(pool, 10, 100)
    pool.apply_endpoints(endpoint.spec for endpoint in list(pool.table.wanted())[1:])
    assert not pool.homes._last


def test_what_one_picker_has_made_warm_another_one_finds():
    pickers = [pool_with_others(range(8)), pool_with_others((3, 1, 0, 2, 7, 6, 5, 4))]
    now, went = START, []
    for prompt in PROMPTS[:60]:
        placed = []
        for picker in pickers:
            asked = request(1_300)
            asked.prefix = prompt
            placed.append(picker.place(asked, now))
        went.append((chosen(placed[0]), chosen(placed[1])))
        now += 400.0
    agreed = sum(one == other for one, other in went)
    assert agreed > 45, "by chance it would be 7 or 8"
    assert len({one for one, _ in went}) == 8


def test_a_home_that_is_full_of_work_is_passed_over():
    pool = pool_with_others()
    prompt = PROMPTS[0]
    home = home_of(pool, prompt)
    asked = request(1_300)
    asked.prefix = prompt
    assert chosen(pool.place(asked, START)) == home
    for _ in range(30):
        pool.place(request(9_000, subset=(home,)), START)
    fresh = request(1_300)
    fresh.prefix = chain(("prompt 0", 1_216), ("another end", 64))
    assert home_of(pool, fresh.prefix) == home and chosen(pool.place(fresh, START)) != home


def test_an_adapter_is_at_home_at_one_endpoint_for_all_pickers():
    one, other = pool_with_others(range(8)), pool_with_others((5, 2, 7, 0, 1, 6, 3, 4))
    none = np.zeros(8)
    homes = [one.homes.of_adapter(f"adapter-{number}", none) for number in range(200)]
    addresses = [one.table.at(slot).address for slot, _ in homes]
    found = [other.homes.of_adapter(f"adapter-{number}", none)[0] for number in range(200)]
    assert addresses == [other.table.at(slot).address for slot in found]
    assert len(set(addresses)) == 8 and {hope for _, hope in homes} == {1.0}
    assert pool_with_others(running=0.0).homes.of_adapter("a", none) == (-1, 0.0)
    assert pool_with_others(range(1)).homes.of_adapter("a", none) == (-1, 0.0)


def test_who_is_not_heard_from_any_more_is_no_evidence_of_others():
    pool = make_pool(2)
    feed(pool, pool.table.at(0), START, running=10.0, ttft=HistogramTotals())
    feed(pool, pool.table.at(1), START + 9_000, running=0.0, ttft=HistogramTotals())
    assert pool.homes.others == 1.0
    feed(pool, pool.table.at(1), START + 11_000, running=0.0, ttft=HistogramTotals())
    assert pool.homes.others == 0.0


def test_a_sample_that_is_dropped_teaches_nothing():
    pool = pool_with_others()
    first = pool.table.at(0)
    for taken, queried in ((0, 0.0), (10, 100.0), (5, 50.0), (20, 100.0)):
        counters = {"cached_prompt_tokens": 0.0, "cache_queried_tokens": queried}
        feed(pool, first, START + 20, running=9.0, taken_ms=START + taken, **counters)
    assert pool.homes._queried == 100.0
    pool.apply_endpoints(endpoint.spec for endpoint in list(pool.table.wanted())[1:])
    feed(pool, first, START + 30, running=9.0, **counters)
    assert not pool.homes._last


def test_a_home_is_among_those_that_serve_the_model():
    pool = pool_with_others()
    serving = np.array([True] * 3 + [False] * 5)
    prompts = [chain(("system", 640), (f"chat {number}", 640)) for number in range(60)]
    held = np.where(serving, 640.0, 0.0)
    homes = {pool.homes.of(prompt, 1_300, held, serving).slot for prompt in prompts}
    assert homes == {0, 1, 2}, "and common is what most of those hold"
    assert {pool.homes.of_adapter(f"a{number}", held, serving)[0] for number in range(40)} == {0, 1, 2}
    assert pool.homes.of(prompts[0], 1_300, held, np.arange(8) == 5) is None


def test_homes_of_an_empty_pool():
    assert Homes(make_pool(0).table).trust == 1.0


@given(
    cached=st.lists(st.sampled_from((0.0, 0.0, 63.0, 64.0, 640.0, 1e5)) | st.floats(0, 2_000), min_size=1, max_size=40),
    keys=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=40),
    seed=st.integers(0, 99),
)
def test_the_compiled_home_is_the_reference_s(cached, keys, seed):
    draw = np.random.default_rng(seed)
    slots = draw.permutation(len(cached))[: int(draw.integers(1, len(cached) + 1))]
    salts = draw.integers(0, 2**64, len(slots), dtype=np.uint64)
    asked = (np.array(cached), slots, salts, keys, [64.0 * (block + 1) for block in range(len(keys))])
    assert compiled.load().home(*asked) == reference_home(*asked)


@pytest.mark.parametrize("short", ["slots", "salts", "hashes"])
def test_a_home_of_nothing_is_refused(short):
    asked = {
        "cached": np.zeros(2),
        "slots": np.arange(2),
        "salts": np.zeros(2, dtype=np.uint64),
        "hashes": [1],
        "ends": [64.0],
    }
    asked[short] = asked[short][:0]
    with pytest.raises(ValueError, match="a home needs"):
        compiled.load().home(**asked)
