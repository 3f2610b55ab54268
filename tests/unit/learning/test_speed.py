"""Speed residuals: learn an engine that differs from its profile, from windows of its histograms, and unlearn it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.config.step_models import GENERIC
from poolpilot_picker.learning.speed import BOUNDS, GAIN, MAX_PREFILL_SHARE, SOFT_BAND, Residual, SpeedLearner

pytestmark = pytest.mark.usefixtures("both_cores")

WINDOW = 5_000.0
BATCH, CONTEXT = 16.0, 30_000.0
NOBODY = Residual()


def alone(residual):
    """What would be believed of an endpoint without peers, without the band."""
    return math.exp(residual.log)


def pool(*residuals):
    total = Residual()
    for residual in residuals:
        total.log += residual.log
        total.evidence += residual.evidence
    return total


class Engine:
    """Says what an engine that takes `slower` times the profile's time would say of a window."""

    def __init__(self, slower=1.0, noise=0.0, seed=1):
        self.slower = slower
        self.noise = noise
        self.now = 0.0
        self._rng = random.Random(seed)

    def window(self, learner, *, requests=20, ttft_ms=80.0, load_ms=0.0, batch=BATCH):
        """One window of steady load; the picker predicts by profile and residual, as it would."""
        believed = learner.prefill.factor(NOBODY)
        for _ in range(requests):
            self.now += WINDOW / requests
            learner.clock.advance(self.now, batch, CONTEXT)
            learner.placed(GENERIC.prefill(500, 0), ttft_ms * believed)
        if load_ms:
            learner.loading(load_ms, batch)
        noise = math.exp(self._rng.gauss(0.0, self.noise))
        itl = self.slower * noise * GENERIC.step(batch, CONTEXT) / (1.0 - learner.prefill_share)
        tokens = batch * (WINDOW - load_ms) / itl
        learner.close_window(
            self.now,
            inter_token_s=(tokens * itl + load_ms * batch) / 1000.0,
            tokens=tokens,
            ttft_s=requests * ttft_ms * self.slower * noise / 1000.0,
            first_tokens=requests,
            prefill=believed,
        )


def settled(learner, engine, windows, **more):
    for _ in range(windows):
        engine.window(learner, **more)
    return alone(learner.prefill), alone(learner.decode)


def close(learner, now, *, inter_token_s=0.0, tokens=0.0, ttft_s=0.0, first_tokens=0.0, prefill=1.0):
    learner.close_window(
        now, inter_token_s=inter_token_s, tokens=tokens, ttft_s=ttft_s, first_tokens=first_tokens, prefill=prefill
    )


def test_twice_as_slow_is_learned_within_30_seconds_and_unlearned_as_fast():
    learner, engine = SpeedLearner(GENERIC), Engine(slower=2.0)
    prefill, decode = settled(learner, engine, 6)
    assert prefill == pytest.approx(2.0, rel=0.15)
    assert decode == pytest.approx(2.0, rel=0.15)
    engine.slower = 1.0
    prefill, decode = settled(learner, engine, 6)
    assert prefill == pytest.approx(1.0, rel=0.15)
    assert decode == pytest.approx(1.0, rel=0.15)


def test_the_first_window_tells_most_of_it_and_later_ones_correct_it_slowly():
    learner, engine = SpeedLearner(GENERIC), Engine(slower=2.0)
    assert min(settled(learner, engine, 1)) > 1.5
    settled(learner, engine, 10)
    engine.slower = 1.0
    assert min(settled(learner, engine, 1)) > 1.3


def test_identical_endpoints_look_identical_in_spite_of_noise():
    learners = [SpeedLearner(GENERIC) for _ in range(8)]
    for seed, learner in enumerate(learners):
        settled(learner, Engine(slower=1.3, noise=0.03, seed=seed), 12)
    residuals = [learner.decode for learner in learners]
    assert len({residual.log for residual in residuals}) == 8
    peers = pool(*residuals)
    believed = [residual.factor(peers) for residual in residuals]
    assert believed == pytest.approx([believed[0]] * 8)
    assert believed[0] == pytest.approx(1.3, rel=0.03)


def test_what_differs_beyond_the_band_stays_different():
    fast, slow = SpeedLearner(GENERIC), SpeedLearner(GENERIC)
    settled(fast, Engine(), 10)
    settled(slow, Engine(slower=1.7), 10)
    peers = pool(fast.decode, slow.decode)
    apart = slow.decode.factor(peers) / fast.decode.factor(peers)
    assert apart == pytest.approx(1.7 * math.exp(-2 * SOFT_BAND), rel=0.02)


def test_what_an_endpoint_has_not_shown_is_taken_from_its_peers():
    shown, new, begun = Residual(), Residual(), Residual()
    for _ in range(20):
        shown.learn(2.0, 0.45)
    begun.learn(2.0, 0.05)
    peers = pool(shown, new, begun)
    assert new.factor(peers) == pytest.approx(2.0, rel=0.01)
    assert begun.factor(peers) == pytest.approx(2.0, rel=0.01)
    # One bad window of a new endpoint is not yet believed in full; its own evidence wins in the end.
    begun.learn(0.5, 0.1)
    assert 1.2 < begun.factor(pool(shown, begun)) < 2.0
    for _ in range(20):
        begun.learn(0.5, 0.45)
    assert begun.factor(pool(shown, begun)) == pytest.approx(0.5 * math.exp(SOFT_BAND), rel=0.02)
    assert Residual().factor(NOBODY) == 1.0


def test_prefill_and_decode_are_learned_apart():
    learner = SpeedLearner(GENERIC)
    settled(learner, Engine(), 8)
    before = learner.decode.log
    learner.placed(10.0, 100.0)
    close(learner, 1e6, ttft_s=2.0, first_tokens=10.0)
    assert learner.prefill.log > 0.1 and learner.decode.log == pytest.approx(before, abs=1e-3)


def test_an_adapter_load_does_not_pass_for_slowness():
    learner, engine = SpeedLearner(GENERIC), Engine()
    settled(learner, engine, 4)
    lessons = learner.lessons
    # 500 ms of 5 s: less is learned, and the stall is taken out of it.
    before = learner.decode.evidence
    engine.window(learner, load_ms=500.0)
    loaded = learner.decode.evidence
    assert learner.lessons == lessons + 2
    engine.window(learner)
    assert loaded - before < 0.75 * GAIN * (1.0 - before)
    for _ in range(10):
        engine.window(learner, load_ms=500.0)
    assert alone(learner.decode) == pytest.approx(1.0, rel=0.02)
    lessons = learner.lessons
    # A window full of loads teaches nothing, however bad it looks.
    learner.loading(2_000.0, BATCH)
    learner.placed(10.0, 50.0)
    learner.clock.advance(engine.now + WINDOW, BATCH, CONTEXT)
    close(learner, engine.now + WINDOW, inter_token_s=900.0, tokens=1_000.0, ttft_s=50.0, first_tokens=5.0)
    assert learner.lessons == lessons
    assert alone(learner.prefill) == pytest.approx(1.0, rel=0.02)
    assert alone(learner.decode) == pytest.approx(1.0, rel=0.02)


def test_less_is_learned_from_few_tokens_and_few_requests():
    few, many = SpeedLearner(GENERIC), SpeedLearner(GENERIC)
    for learner, tokens, firsts in ((few, 60.0, 1.0), (many, 5_000.0, 100.0)):
        learner.clock.advance(0.0, BATCH, CONTEXT)
        learner.clock.advance(WINDOW, BATCH, CONTEXT)
        learner.placed(10.0, 100.0)
        itl = 2 * GENERIC.step(BATCH, CONTEXT) / 1000.0
        close(learner, WINDOW, inter_token_s=tokens * itl, tokens=tokens, ttft_s=firsts * 0.2, first_tokens=firsts)
    assert 0.0 < few.decode.log < many.decode.log < math.log(2.0)
    assert 0.0 < few.prefill.log < many.prefill.log < math.log(2.0)
    assert few.decode.evidence < many.decode.evidence


def test_a_batch_beyond_the_limit_is_not_predicted_to_decode():
    learner, model = SpeedLearner(GENERIC), GENERIC
    learner.clock.advance(0.0, 1_000.0, CONTEXT)
    learner.clock.advance(WINDOW, 1_000.0, CONTEXT)
    itl = model.step(model.max_sequences, CONTEXT) / 1000.0
    close(learner, WINDOW, inter_token_s=5_000 * itl, tokens=5_000.0)
    assert alone(learner.decode) == pytest.approx(1.0)


def test_what_was_withdrawn_is_compared_with_nothing():
    taught, untaught = SpeedLearner(GENERIC), SpeedLearner(GENERIC)
    for learner in (taught, untaught):
        learner.clock.advance(0.0, 1.0, 0.0)
        for _ in range(10):
            learner.placed(10.0, 100.0)
    # Three that never ran were predicted to be very slow.
    windows = [taught.placed(5_000.0, 60_000.0) for _ in range(3)]
    for window in windows:
        taught.withdrawn(window, 5_000.0, 60_000.0)
    for learner in (taught, untaught):
        close(learner, WINDOW, ttft_s=1.0, first_tokens=10.0)
    assert taught.prefill.log == pytest.approx(untaught.prefill.log)
    assert taught.prefill_share == pytest.approx(untaught.prefill_share)


def test_what_was_withdrawn_later_does_not_touch_another_window():
    learner = SpeedLearner(GENERIC)
    learner.clock.advance(0.0, 1.0, 0.0)
    window = learner.placed(100.0, 900.0)
    learner.restart_window(1_000.0)
    learner.placed(10.0, 100.0)
    learner.withdrawn(window, 100.0, 900.0)
    close(learner, 1_000.0 + WINDOW, ttft_s=0.1, first_tokens=1.0)
    assert learner.prefill.log == pytest.approx(0.0)
    assert learner.prefill.evidence > 0.0


def test_a_restart_forgets_the_window_and_keeps_the_hardware():
    learner, engine = SpeedLearner(GENERIC), Engine(slower=2.0)
    settled(learner, engine, 6)
    decode = learner.decode.log
    learner.clock.advance(engine.now + 100, 400.0, CONTEXT)
    learner.placed(9_000.0, 90_000.0)
    learner.restart_window(engine.now + 200)
    assert learner.decode.log == decode
    assert not learner.due(engine.now + 300)
    engine.now += 200
    engine.window(learner)
    assert alone(learner.decode) == pytest.approx(2.0, rel=0.1)


def test_an_endpoint_without_traffic_slowly_becomes_like_its_peers():
    avoided, peer = Residual(), Residual()
    for _ in range(20):
        avoided.learn(4.0, 0.45)
        peer.learn(1.3, 0.45)
    before = avoided.factor(pool(peer))
    for _ in range(7):
        avoided.fade()
    assert math.log(avoided.factor(pool(peer)) / 1.3) == pytest.approx(0.5 * math.log(before / 1.3), rel=0.2)
    for _ in range(100):
        avoided.fade()
    assert avoided.factor(pool(peer)) == pytest.approx(1.3, rel=0.01)


numbers = st.floats(0, 1e7) | st.sampled_from((math.nan, math.inf, -math.inf, -1.0))


@given(
    st.lists(
        st.tuples(numbers, numbers, numbers, numbers, st.floats(0, 60_000), st.floats(0, 300), st.integers(0, 5)),
        max_size=20,
    ),
    st.floats(*BOUNDS),
)
def test_residuals_stay_within_bounds_whatever_is_read(windows, peer):
    learner, peers = SpeedLearner(GENERIC), Residual()
    peers.learn(peer, 0.3)
    now = 0.0
    for inter_token, tokens, ttft, firsts, elapsed, batch, placed in windows:
        now += elapsed
        learner.clock.advance(now, batch, batch * 1_000)
        for number in range(placed):
            learner.placed(elapsed, 10.0**number)
        believed = learner.prefill.factor(peers)
        close(
            learner,
            now,
            inter_token_s=inter_token,
            tokens=tokens,
            ttft_s=ttft,
            first_tokens=firsts,
            prefill=believed,
        )
        for residual in (learner.prefill, learner.decode):
            assert 0.0 <= residual.evidence <= 1.0
            assert abs(residual.log) <= residual.evidence * math.log(4.0) + 1e-9
            assert BOUNDS[0] * (1 - 1e-9) <= residual.factor(peers) <= BOUNDS[1] * (1 + 1e-9)
        assert 0.0 <= learner.prefill_share <= MAX_PREFILL_SHARE
