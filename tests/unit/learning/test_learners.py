"""The small learners: failures, cache trust, output lengths, tokens per estimated token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.learning.cache_trust import LEAST_TOKENS, CacheTrust
from poolpilot_picker.learning.failures import HALF_LIFE_MS, MOST, PENALTY_MS, Failures
from poolpilot_picker.learning.lengths import EAGER, KEYS, MEMORY, PRIOR_MEAN, Moments, OutputLengths
from poolpilot_picker.learning.tokens import BOUNDS, MODELS, TokenScale


class TestFailures:
    """Recent failures as a penalty in ms."""

    def test_one_per_failure_half_per_success_half_per_half_life(self):
        failures = Failures()
        assert failures.penalty_ms(0.0) == 0.0
        failures.failed(0.0)
        failures.failed(0.0)
        assert failures.penalty_ms(0.0) == 2 * PENALTY_MS
        failures.succeeded(0.0)
        assert failures.penalty_ms(0.0) == PENALTY_MS
        assert failures.penalty_ms(HALF_LIFE_MS) == pytest.approx(PENALTY_MS / 2)

    def test_successes_forgive_soon(self):
        failures = Failures()
        for _ in range(50):
            failures.failed(0.0)
        assert failures.penalty_ms(0.0) == MOST * PENALTY_MS
        for _ in range(12):
            failures.succeeded(0.0)
        assert failures.penalty_ms(0.0) == 0.0

    @given(st.lists(st.tuples(st.sampled_from(("failed", "succeeded")), st.floats(0, 1e6)), max_size=50))
    def test_bounded_and_never_growing_by_itself(self, steps):
        failures, now = Failures(), 0.0
        for step, elapsed in steps:
            before = failures.penalty_ms(now)
            now += elapsed
            assert failures.penalty_ms(now) <= before
            getattr(failures, step)(now)
            assert 0.0 <= failures.penalty_ms(now) <= MOST * PENALTY_MS


class TestCacheTrust:
    """Observed over predicted hits."""

    def test_predictions_that_come_true_are_trusted(self):
        trust = CacheTrust()
        for _ in range(10):
            trust.placed(5_000)
            trust.close_window(5_000)
        assert trust.trust == 1.0

    def test_predictions_that_do_not_are_not(self):
        trust = CacheTrust()
        for _ in range(20):
            trust.placed(5_000)
            trust.close_window(0)
        assert trust.trust < 0.01
        for _ in range(20):
            trust.placed(5_000)
            trust.close_window(4_000)
        assert trust.trust == pytest.approx(0.8, abs=0.01)

    def test_quiet_windows_are_joined_with_their_hits(self):
        trust = CacheTrust()
        for _ in range(40):
            trust.placed(LEAST_TOKENS / 4)
            trust.close_window(LEAST_TOKENS / 4)
        assert trust.trust == 1.0

    def test_what_never_arrived_is_not_missed(self):
        trust = CacheTrust()
        for _ in range(20):
            trust.placed(5_000)
            trust.placed(5_000)
            trust.withdrawn(5_000)
            trust.close_window(5_000)
        assert trust.trust == 1.0

    @given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e7)), max_size=40))
    def test_always_a_share(self, windows):
        trust = CacheTrust()
        for placed, withdrawn, hits in windows:
            trust.placed(placed)
            trust.withdrawn(withdrawn)
            trust.close_window(hits)
            assert 0.0 <= trust.trust <= 1.0


class TestLengths:
    """Expected output lengths."""

    def test_a_guess_before_anything_is_known(self):
        lengths = OutputLengths()
        assert lengths.expected("m", "", None) == PRIOR_MEAN
        assert lengths.expected("m", "", 50) == 50
        assert not lengths.known("m")

    def test_learned_per_model_and_tenant_with_fallbacks(self):
        lengths = OutputLengths()
        for _ in range(60):
            lengths.observe("chat", "short", 20)
            lengths.observe("chat", "long", 1_000)
            lengths.observe("batch", "", 4_000)
        assert lengths.expected("chat", "short", None) == pytest.approx(20, rel=0.5)
        assert lengths.expected("chat", "long", None) == pytest.approx(1_000, rel=0.1)
        assert lengths.expected("chat", "new tenant", None) == pytest.approx(510, rel=0.3)
        assert lengths.expected("batch", "", None) == pytest.approx(4_000, rel=0.1)
        assert 20 < lengths.expected("new model", "", None) < 4_000
        assert lengths.expected("batch", "", 100) == 100

    def test_all_are_observed_until_enough_are_known(self):
        lengths = OutputLengths()
        for _ in range(EAGER):
            assert not lengths.known("m")
            lengths.observe("m", "tenant", 100)
        assert lengths.known("m") and not lengths.known("other")

    def test_counters_are_a_hint_for_all(self):
        lengths = OutputLengths()
        for _ in range(30):
            lengths.observe_mean(50.0, 100)
        assert lengths.expected("m", "", None) == pytest.approx(50, rel=0.2)
        assert lengths.observed == 0

    def test_the_rest_of_an_answer_met_at_random_is_longer_than_half_the_mean(self):
        lengths = OutputLengths()
        for length in (10, 2_000) * 200:
            lengths.observe("m", "", length)
        assert lengths.remaining() > 0.5 * lengths.expected("m", "", None)

    def test_memory_is_bounded(self):
        lengths = OutputLengths()
        for number in range(2 * KEYS):
            lengths.observe("m", f"tenant-{number}", 10)
        assert len(lengths._by_key) <= KEYS

    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
    def test_moments_stay_within_what_was_seen(self, seen):
        moments = Moments(PRIOR_MEAN, PRIOR_MEAN**2, 3.0)
        for length in seen:
            moments.add(length)
            assert moments.count <= MEMORY
        low, high = min(*seen, PRIOR_MEAN), max(*seen, PRIOR_MEAN)
        assert low - 1e-6 <= moments.mean <= high * (1 + 1e-9)
        assert moments.square >= moments.mean**2 * (1 - 1e-6) - 1e-6
        assert moments.remaining >= 0.0


class TestTokenScale:
    """Tokens per estimated token."""

    def test_learned_from_text_and_not_from_media(self):
        scale = TokenScale()
        for _ in range(200):
            scale.observe("m", 1_000.0, 500.0, 2_000.0)
        assert scale.scale("m") == pytest.approx(1.5, rel=0.01)
        assert scale.scale("other") == 1.0
        taken = scale.observed
        scale.observe("m", 100.0, 5_000.0, 9_000.0)
        scale.observe("m", 5.0, 0.0, 9.0)
        scale.observe("m", 100.0, 50.0, 20.0)
        assert scale.observed == taken

    def test_short_texts_say_little(self):
        short, long = TokenScale(), TokenScale()
        short.observe("m", 20.0, 0.0, 60.0)
        long.observe("m", 2_000.0, 0.0, 6_000.0)
        assert short.scale("m") - 1.0 < 0.3 * (long.scale("m") - 1.0)

    @given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.integers(0, 10**6)), max_size=50))
    def test_bounded(self, seen):
        scale = TokenScale()
        for text, fixed, counted in seen:
            scale.observe("m", text, fixed, counted)
            assert BOUNDS[0] <= scale.scale("m") <= BOUNDS[1]

    def test_memory_is_bounded(self):
        scale = TokenScale()
        for number in range(2 * MODELS):
            scale.observe(f"m{number}", 1_000.0, 0.0, 1_200.0)
        assert len(scale._scales) <= MODELS
