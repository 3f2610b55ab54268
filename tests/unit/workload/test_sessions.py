"""Sessions: the same for everybody with the same seed, exactly as many requests as asked for, shares as specified."""

import collections
import dataclasses
import itertools
import statistics

import pytest

from poolpilot_lab.workload.draws import LogNormal
from poolpilot_lab.workload.sessions import SessionKind, Workload, WorkloadSpec, make_workload
from poolpilot_lab.workload.text import Writer

CHAT = SessionKind(
    name="chat",
    share=0.8,
    turns=(0.5, 0.3, 0.2),
    opening=LogNormal(60, 0.8, 8, 400),
    follow_up=LogNormal(30, 0.8, 4, 200),
    answer=LogNormal(90, 0.7, 8, 400),
    think_ms=LogNormal(1500, 0.6, 300, 6000),
)
DOCUMENT = dataclasses.replace(CHAT, name="document", share=0.2, turns=(1.0,), opening=LogNormal(3000, 0.3, 2000, 5000))
SPEC = WorkloadSpec(
    requests=500,
    sessions_per_s=5.0,
    kinds=(CHAT, DOCUMENT),
    base_model="base",
    base_applications=3,
    adapters=("a-1", "a-2", "a-3", "a-4"),
    adapter_share=0.4,
    zipf=1.0,
    system_prompt=LogNormal(300, 0.5, 100, 900),
    limit_share=0.5,
    limits=(128, 256, 512),
)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make_workload(SPEC, 5, Writer())


def test_equal_seed_equal_workload(workload: Workload) -> None:
    assert make_workload(SPEC, 5, Writer()).sessions == workload.sessions
    assert make_workload(SPEC, 6, Writer()).sessions != workload.sessions


def test_a_change_of_load_changes_nothing_but_the_starts(workload: Workload) -> None:
    faster = make_workload(dataclasses.replace(SPEC, sessions_per_s=10.0), 5, Writer())
    assert [session.turns for session in faster.sessions] == [session.turns for session in workload.sessions]
    assert faster.last_start_ms == pytest.approx(workload.last_start_ms / 2)


@pytest.mark.parametrize("requests", [1, 2, 17, 500])
def test_exactly_as_many_requests_as_asked_for(requests: int) -> None:
    made = make_workload(dataclasses.replace(SPEC, requests=requests), 3, Writer())
    assert made.requests == requests
    assert all(session.turns for session in made.sessions)


def test_shares_of_kinds_models_and_turns(workload: Workload) -> None:
    sessions = workload.sessions
    models = collections.Counter(session.model for session in sessions)
    assert models["base"] / len(sessions) == pytest.approx(0.6, abs=0.05)
    assert models["a-1"] > models["a-2"] > models["a-4"] > 0
    kinds = collections.Counter(session.kind for session in sessions)
    assert kinds["document"] / len(sessions) == pytest.approx(0.2, abs=0.04)
    chats = [len(session.turns) for session in sessions if session.kind == "chat"]
    assert statistics.mean(chats) == pytest.approx(1.7, abs=0.12)


def test_sessions_of_one_application_share_their_system_prompt_and_no_other(workload: Workload) -> None:
    prompts = {(session.model, session.system) for session in workload.sessions}
    assert len({system for _, system in prompts}) == len(prompts) == 3 + 4


def test_turns_differ_and_thinking_starts_with_the_second(workload: Workload) -> None:
    turns = [turn for session in workload.sessions for turn in session.turns]
    assert len({turn.text for turn in turns}) == len(turns)
    assert all(session.turns[0].think_ms == 0.0 for session in workload.sessions)
    assert all(turn.think_ms >= 300 for session in workload.sessions for turn in session.turns[1:])


def test_half_of_the_requests_have_a_limit_that_never_cuts_and_says_little(workload: Workload) -> None:
    turns = [turn for session in workload.sessions for turn in session.turns]
    limited = [turn for turn in turns if turn.max_tokens is not None]
    assert len(limited) / len(turns) == pytest.approx(0.5, abs=0.07)
    assert all(turn.output_tokens <= turn.max_tokens for turn in limited if turn.max_tokens is not None)
    assert statistics.correlation(
        [turn.output_tokens for turn in limited], [turn.max_tokens or 0 for turn in limited]
    ) == pytest.approx(0.0, abs=0.45)


def test_starts_are_in_order_and_at_the_rate(workload: Workload) -> None:
    starts = [session.start_ms for session in workload.sessions]
    assert all(earlier < later for earlier, later in itertools.pairwise(starts))
    assert len(starts) / (starts[-1] / 1000.0) == pytest.approx(5.0, rel=0.2)


def test_no_adapters_means_the_base_model_alone() -> None:
    made = make_workload(dataclasses.replace(SPEC, adapters=(), requests=40), 3, Writer())
    assert {session.model for session in made.sessions} == {"base"}
