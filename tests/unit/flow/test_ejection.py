"""Endpoints that fail are left out, come back by a trickle, and never leave a pool empty."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exchange_desk import PARTIAL, Chosen, Desk, chat, spec_of
from poolpilot_picker.config.load import load
from poolpilot_picker.config_use import pool_settings
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool, PoolSettings
from poolpilot_picker.learning.breaker import EjectionSettings
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.routing.decision import Forecast
from poolpilot_picker.routing.registry import default_registry

ADDRESSES = tuple(f"10.0.0.{n}:8000" for n in range(1, 5))
FAILED, SERVED = Outcome.FAILED, Outcome.SERVED


class Stage:
    """A pool of four whose policy takes the first candidate, unless it is told which."""

    def __init__(self, addresses: tuple[str, ...] = ADDRESSES, **settings: Any) -> None:
        self.now = 1_000.0
        self.pool = Pool(
            "pool",
            Chosen(),
            random.Random(1),
            PoolSettings(receipt_share=0.0, ejection=EjectionSettings(**settings)),
        )
        self.pool.apply_endpoints([spec_of(address) for address in addresses])

    def place(self, *only: str, receipt: bool = False) -> Placement:
        request = InferenceRequest(
            request_id="r", kind=RequestKind.CHAT, model="m", target_model="m", prompt_tokens=10,
            subset=only or None, receipt_wanted=receipt,
        )  # fmt: skip
        return self.pool.place(request, self.now)

    def ends(self, outcome: Outcome, *only: str) -> str:
        """A request comes and ends at once; where it was."""
        placement = self.place(*only)
        self.pool.finish(placement, outcome, self.now)
        return placement.destination.split(",")[0]

    def fails(self, address: str, times: int = 5) -> None:
        for _ in range(times):
            self.ends(FAILED, address)

    def out(self) -> set[str]:
        """Who gets nothing now: asked with four requests."""
        listed = self.place().destination.split(",")
        return {*ADDRESSES} - {*listed}

    def standing(self, address: str) -> str:
        endpoint = self.pool.table.find(address)
        assert endpoint is not None
        return self.pool.ejector.standing(endpoint)


FIRST, SECOND, THIRD, FOURTH = ADDRESSES


def test_failures_in_a_row_eject_and_the_receipt_says_so():
    stage = Stage()
    stage.fails(FIRST, 4)
    assert stage.out() == set()
    stage.fails(FIRST, 1)
    assert stage.out() == {FIRST}
    receipt = stage.place(receipt=True).receipt
    assert receipt is not None
    assert {row.endpoint: row.excluded_by for row in receipt.candidates}[FIRST] == "ejected"
    assert stage.pool.ejector.counts == {"failures in a row": 1}


@pytest.mark.parametrize("outcome", [Outcome.UNREACHABLE, Outcome.TIMED_OUT])
def test_resets_connect_failures_and_time_outs_count(outcome: Outcome):
    stage = Stage()
    for _ in range(5):
        stage.ends(outcome, FIRST)
    assert stage.out() == {FIRST}


@pytest.mark.parametrize(
    "outcome", [Outcome.REJECTED, Outcome.LOCAL_REPLY, Outcome.UNCONFIRMED, Outcome.ABORTED, Outcome.OVERLOADED]
)
def test_what_says_nothing_of_the_endpoint_neither_ejects_nor_forgives(outcome: Outcome):
    stage = Stage()
    for _ in range(50):
        stage.ends(outcome, FIRST)
    assert stage.out() == set()
    for _ in range(5):
        stage.ends(outcome, FIRST)
        stage.ends(FAILED, FIRST)
    assert stage.out() == {FIRST}


def test_a_share_of_failures_ejects_without_a_row():
    stage = Stage(least=20)
    for _ in range(9):
        stage.ends(FAILED, FIRST)
        stage.ends(SERVED, FIRST)
    assert stage.out() == set()
    for _ in range(2):
        stage.ends(FAILED, FIRST)
        stage.ends(SERVED, FIRST)
    assert stage.out() == {FIRST}
    assert stage.pool.ejector.counts == {"share of failures": 1}


def test_a_few_failures_among_many_answers_do_not():
    stage = Stage()
    for turn in range(200):
        stage.ends(FAILED if turn % 4 == 0 else SERVED, FIRST)
    assert stage.out() == set()


def test_it_comes_back_by_a_trickle_and_then_for_good():
    stage = Stage(first_ms=10_000.0, trial_ms=1_000.0, trials=3)
    stage.fails(FIRST)
    stage.now += 9_999.0
    assert stage.ends(SERVED) == SECOND
    stage.now += 1.0
    assert stage.ends(SERVED) == FIRST, "the trial begins"
    assert float(stage.pool.table.failure_ms[0]) == 0.0, "with its failures forgiven"
    assert stage.standing(FIRST) == "on trial"
    assert [stage.ends(SERVED) for _ in range(20)] == [SECOND] * 20
    for _ in range(2):
        stage.now += 1_000.0
        assert stage.ends(SERVED) == FIRST
    assert stage.standing(FIRST) == ""
    assert [stage.ends(SERVED) for _ in range(5)] == [FIRST] * 5


def test_failing_on_trial_it_is_out_for_twice_as_long():
    stage = Stage(first_ms=10_000.0, most_ms=30_000.0)
    stage.fails(FIRST)
    for rest_ms in (10_000.0, 20_000.0, 30_000.0, 30_000.0):
        stage.now += rest_ms - 1.0
        assert stage.ends(SERVED) == SECOND
        stage.now += 1.0
        assert stage.ends(FAILED) == FIRST
        assert stage.standing(FIRST) == "ejected"
    assert stage.pool.ejector.counts["failed on trial"] == 4


def test_after_a_long_time_without_fault_it_begins_anew():
    stage = Stage(first_ms=10_000.0, trials=1)
    stage.fails(FIRST)
    stage.now += 10_000.0
    assert stage.ends(SERVED) == FIRST
    stage.now += 50_001.0
    stage.ends(SERVED, FIRST)
    stage.fails(FIRST)
    stage.now += 10_000.0
    assert stage.ends(SERVED) == FIRST


def test_what_was_placed_before_the_trial_says_nothing_in_it():
    stage = Stage(trials=1)
    before = [stage.place(FIRST) for _ in range(2)]
    stage.fails(FIRST)
    stage.now += 10_000.0
    trial = stage.place()
    stage.pool.finish(before[0], FAILED, stage.now)
    stage.pool.finish(before[1], SERVED, stage.now)
    assert stage.standing(FIRST) == "on trial"
    stage.pool.finish(trial, SERVED, stage.now)
    assert stage.standing(FIRST) == ""


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_never_more_than_a_share_is_out(count: int, most: int):
    stage = Stage(ADDRESSES[:count])
    for address in ADDRESSES[:count]:
        stage.fails(address, 20)
    assert len(stage.pool.ejector.out) == most
    assert stage.ends(SERVED) in ADDRESSES[:count]


def test_one_that_is_out_serves_where_nobody_else_may():
    stage = Stage()
    stage.fails(FIRST)
    assert stage.ends(SERVED, FIRST) == FIRST


def test_who_leaves_takes_its_ejection_along_and_the_share_still_holds():
    stage = Stage()
    stage.fails(FIRST)
    stage.fails(SECOND)
    stage.pool.apply_endpoints([spec_of(address) for address in (FIRST, SECOND)])
    assert stage.standing(FIRST) == "" and stage.standing(SECOND) == "ejected"
    stage.pool.apply_endpoints([spec_of(FIRST)])
    assert not stage.pool.ejector.out
    stage.pool.apply_endpoints([spec_of(address) for address in (FIRST, SECOND)])
    assert stage.standing(SECOND) == ""


def test_one_that_drains_takes_no_part_of_the_share():
    stage = Stage()
    open_ = [stage.place(FIRST) for _ in range(8)]
    stage.pool.apply_endpoints([spec_of(address) for address in (SECOND, THIRD)])
    for placement in open_[:7]:
        stage.pool.finish(placement, FAILED, stage.now)
    stage.fails(SECOND)
    assert [endpoint.address for endpoint in stage.pool.ejector.out] == [SECOND]


def test_one_that_fails_and_is_retried_elsewhere_is_blamed():
    stage = Stage()
    for _ in range(5):
        placement = stage.place(FIRST, SECOND)
        assert stage.pool.served(placement, SECOND, stage.now, attempts=2)
        stage.pool.finish(placement, SERVED, stage.now)
    assert stage.out() == {FIRST}


def timed(stage: Stage, address: str, ratio: float) -> None:
    placement = stage.place(address)
    placement.predicted = Forecast(prefill_ms=100.0)
    stage.now += 100.0 * ratio
    stage.pool.finish(placement, SERVED, stage.now)


def test_one_far_slower_than_the_others_is_ejected_where_that_is_asked_for():
    for factor, counts in ((4.0, {"slower than the pool": 1}), (None, {})):
        stage = Stage(slow_factor=factor, first_ms=300_000.0)
        for _ in range(25):
            for address in ADDRESSES[1:]:
                timed(stage, address, 3.0)
            timed(stage, FIRST, 15.0)
        assert stage.pool.ejector.counts == counts
        assert stage.out() == ({FIRST} if counts else set())


def test_a_pool_that_is_slow_as_a_whole_ejects_nobody():
    stage, rng = Stage(slow_factor=4.0), random.Random(3)
    for _ in range(300):
        for address in ADDRESSES:
            timed(stage, address, 20.0 * rng.lognormvariate(0.0, 1.0))
    assert not stage.pool.ejector.counts


def test_response_headers_tell_it_before_the_end():
    desk = Desk(PARTIAL)
    exchanges = []
    for _ in range(5):
        desk.renew()
        desk.headers()
        desk.body(chat())
        desk.answer("500")
        exchanges.append(desk.exchange)
    assert desk.pool.ejector.counts == {"failures in a row": 1}
    for exchange in exchanges:
        exchange.closed(now=desk.now)
    assert desk.pool.ejector.counts == {"failures in a row": 1}, "and once"
    desk.settled()


def test_503_with_a_time_to_come_again_is_no_fault_but_dearer():
    desk = Desk(PARTIAL)
    for _ in range(6):
        desk.renew()
        desk.headers()
        desk.body(chat())
        desk.answer("503", retry_after="1")
        desk.close()
    assert not desk.pool.ejector.counts
    desk.pool._learners.refresh_penalties(desk.now)
    assert float(desk.pool.table.failure_ms[0]) > 5_000.0


CONFIG = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def test_every_setting_reaches_the_pool():
    told = (
        "{mostShare: 0.1, consecutiveFailures: 2, failureShare: 0.3, failureAnswers: 4, slowFactor: 5, "
        "firstMs: 6, mostMs: 7, trialMs: 8, trialRequests: 9}"
    )
    config = load(f"{CONFIG}poolpilot: {{ejection: {told}}}", default_registry(), "f.yaml")
    assert pool_settings(config).ejection == EjectionSettings(
        most_share=0.1, consecutive=2, share=0.3, least=4, slow_factor=5.0,
        first_ms=6.0, most_ms=7.0, trial_ms=8.0, trials=9,
    )  # fmt: skip
    assert pool_settings(load(CONFIG, default_registry(), "f.yaml")).ejection == EjectionSettings()


def test_a_first_time_above_the_longest_is_refused_by_name():
    with pytest.raises(ConfigurationError) as caught:
        load(f"{CONFIG}poolpilot: {{ejection: {{firstMs: 9, mostMs: 8}}}}", default_registry(), "f.yaml")
    [problem] = caught.value.problems
    assert "poolpilot.ejection" in problem and "firstMs (9) must not be above mostMs (8)" in problem


class Machine(RuleBasedStateMachine):
    """Any answers at any times: the share holds, somebody is always left, and who serves comes back."""

    @initialize(count=st.integers(1, 6), share=st.sampled_from([0.0, 0.3, 0.5, 1.0]), slow=st.sampled_from([None, 2.0]))
    def begin(self, count: int, share: float, slow: float | None) -> None:
        self.names = [f"10.0.1.{n}:80" for n in range(count)]
        self.stage = Stage(tuple(self.names), most_share=share, consecutive=2, least=4, slow_factor=slow)
        self.share, self.open = share, []
        self.wanted = list(self.names)

    @rule(ms=st.sampled_from([1.0, 500.0, 1_000.0, 9_000.0, 60_000.0, 700_000.0]))
    def time_passes(self, ms: float) -> None:
        self.stage.now += ms

    @rule(which=st.integers(0, 5), only=st.booleans())
    def comes(self, which: int, only: bool) -> None:
        to = (self.wanted[which % len(self.wanted)],) if only else ()
        table, ejector = self.stage.pool.table, self.stage.pool.ejector
        placement = self.stage.place(*to)
        chosen = placement.booking.endpoint
        if not to and ejector.standing(chosen) == "ejected":
            raise AssertionError("it is out, and others are not")
        assert np.flatnonzero(table.eligible).size == len(self.wanted)
        placement.predicted = Forecast(prefill_ms=100.0)
        self.open.append(placement)

    @rule(which=st.integers(0, 50), outcome=st.sampled_from(list(Outcome)), early=st.booleans())
    def ends(self, which: int, outcome: Outcome, early: bool) -> None:
        if self.open:
            placement = self.open.pop(which % len(self.open))
            if early:
                self.stage.pool.answered(placement, outcome, self.stage.now)
            self.stage.pool.finish(placement, outcome, self.stage.now)

    @rule(keep=st.lists(st.integers(0, 5), min_size=1))
    def endpoints_change(self, keep: list[int]) -> None:
        self.wanted = sorted({self.names[one % len(self.names)] for one in keep})
        self.stage.pool.apply_endpoints([spec_of(address) for address in self.wanted])

    @rule()
    def all_recover(self) -> None:
        """With nothing but good answers, nobody is out for longer than an ejection and a trial."""
        stage, ejector = self.stage, self.stage.pool.ejector
        for _ in range(4):
            stage.now += 300_000.0
            for address in self.wanted:
                stage.ends(SERVED, address)
            stage.ends(SERVED)
        assert not ejector.out

    @invariant()
    def the_share_holds(self) -> None:
        if hasattr(self, "stage"):
            out = self.stage.pool.ejector.out
            assert len(out) <= self.share * len(self.wanted) and len(out) < max(1, len(self.wanted))
            assert {endpoint.address for endpoint in out} <= {*self.wanted}


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)
