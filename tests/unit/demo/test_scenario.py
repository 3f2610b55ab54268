"""The demo's own workload keeps what docs/demo.md says of it."""

import collections
import statistics

import pytest

from poolpilot_lab.demo.scenario import ADAPTERS, BASE_MODEL, ENGINES, QUICK_REQUESTS, REQUESTS, WORKLOAD, workload_spec
from poolpilot_lab.workload.sessions import Workload, make_workload
from poolpilot_lab.workload.text import WORDS_PER_TOKEN, Writer


@pytest.fixture(scope="module", params=[1, 2])
def workload(request: pytest.FixtureRequest) -> Workload:
    return make_workload(workload_spec(REQUESTS), request.param, Writer())


def tokens(text: str) -> float:
    return len(text.split()) / WORDS_PER_TOKEN


def test_enough_requests(workload: Workload) -> None:
    assert workload.requests == REQUESTS >= 1000


def test_two_kinds_of_prompts_an_order_of_magnitude_apart(workload: Workload) -> None:
    openings: dict[str, list[float]] = collections.defaultdict(list)
    for session in workload.sessions:
        openings[session.kind].append(tokens(session.turns[0].text))
    assert statistics.median(openings["chat"]) == pytest.approx(60, rel=0.2)
    assert statistics.median(openings["document"]) == pytest.approx(7000, rel=0.1)
    assert len(openings["document"]) / len(workload.sessions) == pytest.approx(0.2, abs=0.02)


def test_every_request_fits_into_the_smallest_engine(workload: Workload) -> None:
    """With the text of all turns and answers; the stand-in counts 1.2 times as many tokens as the generator aims at."""
    smallest = min(spec.kv_blocks for spec in ENGINES if spec.kv_blocks is not None) * 16
    for session in workload.sessions:
        whole = tokens(session.system) + sum(tokens(turn.text) + turn.output_tokens for turn in session.turns)
        assert 1.5 * whole + max(WORKLOAD.limits) < smallest


def test_adapters_are_popular_in_their_order(workload: Workload) -> None:
    models = collections.Counter(session.model for session in workload.sessions)
    assert set(models) == {BASE_MODEL, *ADAPTERS}
    assert models[BASE_MODEL] / len(workload.sessions) == pytest.approx(0.8, abs=0.02)
    assert models[ADAPTERS[0]] > 2 * models[ADAPTERS[3]]


def test_most_sessions_have_several_turns(workload: Workload) -> None:
    assert workload.requests / len(workload.sessions) == pytest.approx(2.7, abs=0.2)


def test_quick_is_short_and_of_the_same_make() -> None:
    quick = make_workload(workload_spec(QUICK_REQUESTS, quick=True), 1, Writer())
    assert quick.requests == QUICK_REQUESTS
    assert {session.kind for session in quick.sessions} == {"chat", "document"}
    assert max(turn.output_tokens for session in quick.sessions for turn in session.turns) <= 60
    assert quick.last_start_ms < 6000
