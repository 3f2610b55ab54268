"""Plays a workload against a gateway: sessions start on time, turns follow answers, every request gets an outcome."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poolpilot_lab.client.chat import INSTANCE, PATH, Message, chat_body, chat_headers, read_completion
from poolpilot_lab.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.client.pool import HttpClient
    from poolpilot_lab.workload.sessions import Session, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request. Times in ms; `sent_ms` and `end_ms` count from the start of the run."""

    session: int
    turn: int
    kind: str
    model: str
    sent_ms: float = 0.0
    end_ms: float = 0.0
    ttft_ms: float = 0.0
    """From sending to the chunk with the first token."""
    tpot_ms: float | None = None
    """(last token − first token) ÷ (tokens − 1); None for answers of one token."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    endpoint: str = ""
    """Name of the engine that answered; empty when unknown."""
    error: str = ""
    """Why it failed; empty when it did not."""

    @property
    def e2e_ms(self) -> float:
        """From sending to the last byte."""
        return self.end_ms - self.sent_ms


@dataclass(slots=True)
class LoadResult:
    """All outcomes of a run, in the order in which they became known, and how punctual the client was."""

    outcomes: list[Outcome] = field(default_factory=list)
    lateness_ms: list[float] = field(default_factory=list)
    """Per request: how much later than due it was sent, because the client's own machine was busy."""


async def play(
    workload: Workload,
    client: HttpClient,
    *,
    limit_s: float,
    drain_s: float,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> LoadResult:
    """Plays all sessions to their end and returns one outcome per request of the workload.

    Gives up `drain_s` after the last request was sent, and in any case `limit_s` + `drain_s` after the start: what
    is unfinished or unsent then is an error. Failures never raise.
    """
    player = _Player(client, on_outcome, workload.requests)
    tasks = [asyncio.create_task(player.play(session)) for session in workload.sessions]
    for task in tasks:
        task.add_done_callback(player.ended)
    try:
        await asyncio.wait([player.all_sent], timeout=limit_s)
        await asyncio.wait(tasks, timeout=drain_s, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
    player.account_for_unsent(workload)
    return player.result


class _Player:
    def __init__(self, client: HttpClient, on_outcome: Callable[[Outcome], None], requests: int) -> None:
        self._client = client
        self._on_outcome = on_outcome
        self._start_s = time.monotonic()
        self._unsent = requests
        self.all_sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.result = LoadResult()

    async def play(self, session: Session) -> None:
        """Plays one session; a failed turn ends it, for its next turn would have had the answer in its prompt."""
        due_s = self._start_s + session.start_ms / 1000.0
        messages = [Message("system", session.system)]
        for index, turn in enumerate(session.turns):
            if index:
                due_s = time.monotonic() + turn.think_ms / 1000.0
            await asyncio.sleep(due_s - time.monotonic())
            messages.append(Message("user", turn.text))
            self.result.lateness_ms.append((time.monotonic() - due_s) * 1000.0)
            text = await self._request(session, index, messages)
            if text is None:
                self._sent(len(session.turns) - index - 1)
                return
            messages.append(Message("assistant", text))

    def ended(self, task: asyncio.Task[None]) -> None:
        """Stops the waiting when a session ended in a fault of ours."""
        if not task.cancelled() and task.exception() is not None:
            self._sent(self._unsent)

    async def _request(self, session: Session, index: int, messages: list[Message]) -> str | None:
        """Sends one turn; returns the answer's text, or None when it failed."""
        turn = session.turns[index]
        sent_s = time.monotonic()
        self._sent(1)
        endpoint = ""
        try:
            body = chat_body(session.model, messages, turn)
            answer = await self._client.request("POST", PATH, chat_headers(turn), body)
            endpoint = answer.headers.get(INSTANCE, "")
            completion = read_completion(answer, turn.output_tokens)
        except (ClientError, asyncio.CancelledError) as error:
            reason = str(error) if isinstance(error, ClientError) else "unfinished when the run ended"
            end_ms = self._since(time.monotonic())
            self._record(_failed(session, index, reason, endpoint, sent_ms=self._since(sent_s), end_ms=end_ms))
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        tokens = completion.output_tokens
        generating_ms = (completion.last_token_s - completion.first_token_s) * 1000.0
        self._record(
            Outcome(
                session=session.number,
                turn=index,
                kind=session.kind,
                model=session.model,
                sent_ms=self._since(answer.sent_s),
                end_ms=self._since(answer.end_s),
                ttft_ms=(completion.first_token_s - answer.sent_s) * 1000.0,
                tpot_ms=generating_ms / (tokens - 1) if tokens > 1 else None,
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                output_tokens=tokens,
                endpoint=endpoint,
            )
        )
        return completion.text

    def account_for_unsent(self, workload: Workload) -> None:
        """Adds an error for every request that was never sent."""
        known = {(outcome.session, outcome.turn) for outcome in self.result.outcomes}
        for session in workload.sessions:
            for index in range(len(session.turns)):
                if (session.number, index) not in known:
                    self._record(_failed(session, index, "never sent"))

    def _since(self, at_s: float) -> float:
        return (at_s - self._start_s) * 1000.0

    def _sent(self, count: int) -> None:
        self._unsent -= count
        if self._unsent == 0 and not self.all_sent.done():
            self.all_sent.set_result(None)

    def _record(self, outcome: Outcome) -> None:
        self.result.outcomes.append(outcome)
        self._on_outcome(outcome)


def _failed(
    session: Session, turn: int, error: str, endpoint: str = "", *, sent_ms: float = 0.0, end_ms: float = 0.0
) -> Outcome:
    return Outcome(
        session=session.number,
        turn=turn,
        kind=session.kind,
        model=session.model,
        sent_ms=sent_ms,
        end_ms=end_ms,
        endpoint=endpoint,
        error=error,
    )
