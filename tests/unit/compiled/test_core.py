"""Which core is in force, and that both send every request of a busy day to the same endpoint."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from core_pools import START, feed, make_pool, request, spec
from poolpilot_picker import compiled
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import PoolSettings
from poolpilot_picker.state.samples import ServedModels

ADAPTERS = ("a", "b", "c")


def a_busy_day(core, seed):
    """Destinations and receipts of some hundred requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "in_force", core)
        pool = make_pool(12, seed=seed, settings=PoolSettings(receipt_share=0.2))
        rng, now, open_, went = random.Random(seed), START, [], []
        for endpoint in pool.table:
            pool.apply_served_models(endpoint, ServedModels(base=("base",), adapters=dict.fromkeys(ADAPTERS, "base")))
        for number in range(400):
            now += rng.choice((1.0, 20.0, 300.0))
            if number % 9 == 0:
                for endpoint in pool.table.wanted():
                    if rng.random() < 0.8:
                        feed(
                            pool,
                            endpoint,
                            now - rng.choice((0.0, 3_000.0)),
                            running=float(rng.randrange(300)),
                            kv_usage=rng.random(),
                            kv_capacity_tokens=100_000,
                            active_adapters=tuple(rng.sample(ADAPTERS, 1)),
                        )
            if number == 200:
                pool.apply_endpoints(map(spec, range(2, 15)))
            asked = request(
                rng.choice((200, 5_000, 60_000)),
                model=rng.choice(("base", *ADAPTERS)),
                prefix=chain_parts(rng),
                sequences=rng.choice((1, 1, 4)),
            )
            open_.append(pool.place(asked, now))
            went.append(open_[-1].destination)
            while len(open_) > 60:
                outcome = rng.choice((Outcome.SERVED, Outcome.SERVED, Outcome.FAILED, Outcome.ABORTED))
                pool.finish(open_.pop(rng.randrange(len(open_))), outcome, now)
        return went, pool.receipts.newest(100), pool.prefixes.tokens().tolist()


def chain_parts(rng):
    return [(rng.randrange(6), 64 * rng.randrange(60)), (rng.random(), 64 * rng.randrange(8))]


@pytest.mark.parametrize("seed", range(5))
def test_both_cores_send_every_request_to_the_same_endpoint(seed):
    went, receipts, held = a_busy_day(compiled.load(), seed)
    reference, theirs, held_by_reference = a_busy_day(None, seed)
    assert went == reference and len(set(went)) > 8
    assert held == held_by_reference
    assert len(receipts) > 40
    for mine, their in zip(receipts, theirs, strict=True):
        assert mine.chosen == their.chosen and mine.predicted_ttft_ms == pytest.approx(their.predicted_ttft_ms)
        for one, other in zip(mine.candidates, their.candidates, strict=True):
            assert one.terms == pytest.approx(other.terms)
            assert (one.endpoint, one.excluded_by, one.cached_tokens) == (
                other.endpoint,
                other.excluded_by,
                other.cached_tokens,
            )


def described(tell="from poolpilot_picker import compiled; print(compiled.describe())", **environment):
    return subprocess.run(
        [sys.executable, "-c", tell],
        env={**{k: v for k, v in os.environ.items() if k != compiled.VARIABLE}, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("asked", ["", "compiled"])
def test_the_compiled_core_is_the_default(asked):
    assert described(**{compiled.VARIABLE: asked}).stdout == "compiled\n"


def test_the_reference_can_be_asked_for():
    assert described(**{compiled.VARIABLE: "reference"}).stdout == f"reference ({compiled.VARIABLE}=reference)\n"


def test_another_name_is_refused_with_the_names_there_are():
    done = described(**{compiled.VARIABLE: "fast"})
    assert done.returncode != 0
    assert f"{compiled.VARIABLE} must be compiled or reference, not 'fast'" in done.stderr


def test_where_it_was_not_built_the_reference_decides_and_says_why():
    """As after an installation without a compiler."""
    tell = """
import sys
sys.modules["poolpilot_picker.compiled._columns"] = None
from poolpilot_picker import compiled
from poolpilot_picker.state.prefix import prefix_index
print(type(prefix_index()).__name__, compiled.describe())
"""
    done = described(tell)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ReferencePrefixIndex reference (the compiled core was not built for this Python)\n"


def test_a_core_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(compiled, "in_force", compiled.load()._replace(rows=("inflight",)))
    with pytest.raises(RuntimeError, match="make setup"):
        make_pool(1)
