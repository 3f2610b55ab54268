"""The load client against a tiny server: times, order, errors, and that it always comes to an end."""

import asyncio

import pytest

from fake_chat import FakeChat
from poolpilot_lab.client.load import LoadResult, play
from poolpilot_lab.client.pool import HttpClient
from poolpilot_lab.workload.sessions import Session, Turn, Workload


def workload(*lengths: list[int], think_ms: float = 5.0) -> Workload:
    """One session per list; an answer length per turn."""
    sessions = []
    for number, turns in enumerate(lengths):
        made = tuple(
            Turn(f"question {index}", think_ms if index else 0.0, tokens, 64 if index else None)
            for index, tokens in enumerate(turns)
        )
        sessions.append(Session(number, "chat", "base", f"system {number}", 10.0 * number, made))
    return Workload(1, tuple(sessions))


async def run(server: FakeChat, what: Workload, limit_s: float = 20.0, drain_s: float = 20.0) -> LoadResult:
    client = HttpClient("127.0.0.1", server.port)
    try:
        return await play(what, client, limit_s=limit_s, drain_s=drain_s)
    finally:
        client.close()


async def test_every_turn_has_an_outcome_with_its_times_and_counts() -> None:
    async with FakeChat("e-1", token_s=0.002).running() as server:
        result = await run(server, workload([3, 5], [1]))
    outcomes = {(outcome.session, outcome.turn): outcome for outcome in result.outcomes}
    assert sorted(outcomes) == [(0, 0), (0, 1), (1, 0)]
    assert not any(outcome.error for outcome in outcomes.values())
    longest = outcomes[0, 1]
    assert (longest.endpoint, longest.output_tokens, longest.prompt_tokens, longest.cached_tokens) == ("e-1", 5, 7, 3)
    assert 0 < longest.ttft_ms < longest.e2e_ms
    assert longest.tpot_ms is not None
    assert longest.tpot_ms >= 1.5, "2 ms between tokens were slept"
    assert longest.sent_ms >= outcomes[0, 0].end_ms + 5.0, "thinking starts when the answer has ended"
    assert outcomes[1, 0].tpot_ms is None
    assert outcomes[1, 0].sent_ms >= 10.0
    assert len(result.lateness_ms) == 3
    assert all(late >= -1.0 for late in result.lateness_ms)


async def test_the_next_turn_carries_the_answer_it_follows() -> None:
    async with FakeChat().running() as server:
        await run(server, workload([2, 1]))
    first, second = server.bodies
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][2] == {"role": "assistant", "content": " w0 w1"}
    assert second["messages"][3]["content"] == "question 1"
    assert "max_tokens" not in first
    assert second["max_tokens"] == 64
    assert first["stream"] is True
    assert first["stream_options"] == {"include_usage": True}


async def test_connections_are_used_again() -> None:
    async with FakeChat().running() as server:
        await run(server, workload([1, 1, 1, 1], think_ms=1.0))
        assert server.connections == 1


async def test_a_status_other_than_200_ends_the_session_and_counts_all_its_turns() -> None:
    async with FakeChat(status=503).running() as server:
        result = await run(server, workload([1, 1, 1]))
    assert [outcome.error[:10] for outcome in result.outcomes] == ["status 503", "never sent", "never sent"]
    assert result.outcomes[0].endpoint == "fake"


async def test_a_connection_closed_in_mid_answer_is_an_error() -> None:
    async with FakeChat(close_after=2).running() as server:
        result = await run(server, workload([9]))
    assert "lost in mid-answer" in result.outcomes[0].error


async def test_nobody_listening_is_an_error_not_an_exception() -> None:
    async with FakeChat().running() as server:
        pass
    result = await run(server, workload([1]))
    assert "no connection" in result.outcomes[0].error


async def test_what_is_unfinished_after_the_drain_is_an_error() -> None:
    async with FakeChat(hang=True).running() as server:
        result = await run(server, workload([1], [1, 1]), limit_s=0.3, drain_s=0.05)
    errors = sorted(outcome.error for outcome in result.outcomes)
    assert errors == ["never sent", "unfinished when the run ended", "unfinished when the run ended"]


async def test_a_fault_of_ours_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolpilot_lab.client.load.chat_body", lambda *_: 1 / 0)
    async with FakeChat().running() as server, asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError):
            await run(server, workload([1], [1]), limit_s=60.0, drain_s=60.0)


async def test_cancelling_leaves_nothing_running() -> None:
    async with FakeChat(hang=True).running() as server:
        before = asyncio.all_tasks()
        task = asyncio.create_task(run(server, workload([1], [1])))
        while len(server.bodies) < 2:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {left for left in asyncio.all_tasks() - before if "play" in repr(left)} == set()
