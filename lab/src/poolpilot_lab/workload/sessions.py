"""Multi-turn sessions: who talks to which application, when, how long the prompts and the answers are.

A workload is closed-loop where people are: the next turn follows the *end* of the last one after a think time.
Replaying recorded times instead is known to change the order of policies. It is open-loop where new people
come in: sessions start at times of their own, however slow the pool is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poolpilot_lab.workload.draws import LogNormal, poisson_arrivals, stratified, zipf_weights

if TYPE_CHECKING:
    from poolpilot_lab.workload.text import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKind:
    """One way of using an application. Lengths are in (estimated) tokens, times in ms."""

    name: str
    share: float
    """Of all sessions; shares are relative to each other."""
    turns: tuple[float, ...]
    """`turns[i]`: share of the sessions of this kind that have i + 1 turns."""
    opening: LogNormal
    """What the first user message adds to the system prompt: a question, or a document with a question."""
    follow_up: LogNormal
    answer: LogNormal
    think_ms: LogNormal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Everything that, with a seed, makes a workload."""

    requests: int
    sessions_per_s: float
    kinds: tuple[SessionKind, ...]
    base_model: str
    base_applications: int
    """Applications on the base model, each with a system prompt of its own."""
    adapters: tuple[str, ...]
    """LoRA adapters, the most popular first; each is one application with its own system prompt."""
    adapter_share: float
    """Of the sessions: on an adapter rather than on the base model."""
    zipf: float
    """Exponent of the popularity of applications, on the base model and among the adapters."""
    system_prompt: LogNormal
    limit_share: float
    """Of the requests: carry `max_tokens`."""
    limits: tuple[int, ...]
    """What clients set as `max_tokens`, ascending: a habit, no forecast of the answer's length."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session."""

    text: str
    think_ms: float
    """From the end of the previous answer to this request; 0 for the first turn."""
    output_tokens: int
    """How long the answer will be; the client has the engine keep to it, no policy is told. 0: the engine decides."""
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation with one application."""

    number: int
    kind: str
    model: str
    system: str
    start_ms: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order of their start, and the seed that made them."""

    seed: int
    sessions: tuple[Session, ...] = field(repr=False)

    @property
    def requests(self) -> int:
        """How many requests all sessions send together."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def last_start_ms(self) -> float:
        """When the last session starts."""
        return max(session.start_ms for session in self.sessions)


@dataclass(frozen=True, slots=True)
class _Application:
    model: str
    share: float
    system: str


def make_workload(spec: WorkloadSpec, seed: int, writer: Writer) -> Workload:
    """The workload of one seed: exactly `spec.requests` requests (the last session may be cut short)."""
    source = _Source(spec, seed, writer)
    most = _sessions_needed(spec)
    kinds = stratified(source.rng("kinds"), [kind.share for kind in spec.kinds], most)
    applications = source.applications()
    owners = stratified(source.rng("owners"), [application.share for application in applications], most)
    starts = poisson_arrivals(source.rng("starts"), spec.sessions_per_s, most)
    lengths = source.turn_counts(kinds)
    sessions: list[Session] = []
    left = spec.requests
    for number, start_ms in enumerate(starts):
        if left == 0:
            break
        kind = spec.kinds[kinds[number]]
        application = applications[owners[number]]
        turns = source.turns(number, kind, min(lengths[number], left))
        left -= len(turns)
        sessions.append(Session(number, kind.name, application.model, application.system, start_ms, turns))
    return Workload(seed, tuple(sessions))


def _sessions_needed(spec: WorkloadSpec) -> int:
    """Sessions that are expected to make up `spec.requests`, with room for the luck of the draw."""
    total = sum(kind.share for kind in spec.kinds)
    mean = sum(
        kind.share / total * sum(count * share for count, share in enumerate(kind.turns, 1)) / sum(kind.turns)
        for kind in spec.kinds
    )
    return round(spec.requests / mean * 1.1) + 8


class _Source:
    """Draws the parts of one workload, each part from a stream of its own: a change to one leaves the others."""

    def __init__(self, spec: WorkloadSpec, seed: int, writer: Writer) -> None:
        self._spec = spec
        self._seed = seed
        self._writer = writer

    def rng(self, part: str) -> random.Random:
        return random.Random(f"{self._seed}/{part}")

    def applications(self) -> list[_Application]:
        spec = self._spec
        rng = self.rng("applications")
        base_share = 1.0 - spec.adapter_share if spec.adapters else 1.0
        shares = [(spec.base_model, base_share * w) for w in zipf_weights(spec.base_applications, spec.zipf)]
        weights = zipf_weights(len(spec.adapters), spec.zipf)
        shares += [(a, spec.adapter_share * w) for a, w in zip(spec.adapters, weights, strict=True)]
        return [
            _Application(model, share, self._writer.text(rng, spec.system_prompt.whole(rng))) for model, share in shares
        ]

    def turn_counts(self, kinds: list[int]) -> list[int]:
        """Turns of each session, stratified within its kind."""
        counts = [0] * len(kinds)
        for index, kind in enumerate(self._spec.kinds):
            members = [number for number, drawn in enumerate(kinds) if drawn == index]
            drawn = stratified(self.rng(f"turns/{kind.name}"), kind.turns, len(members))
            for number, extra in zip(members, drawn, strict=True):
                counts[number] = extra + 1
        return counts

    def turns(self, number: int, kind: SessionKind, count: int) -> tuple[Turn, ...]:
        rng = self.rng(f"session/{number}")
        return tuple(self._turn(rng, kind, first=index == 0) for index in range(count))

    def _turn(self, rng: random.Random, kind: SessionKind, *, first: bool) -> Turn:
        text = self._writer.text(rng, (kind.opening if first else kind.follow_up).whole(rng))
        think_ms = 0.0 if first else kind.think_ms.draw(rng)
        output_tokens = kind.answer.whole(rng)
        fitting = [limit for limit in self._spec.limits if limit >= output_tokens]
        limited = rng.random() < self._spec.limit_share
        return Turn(text, think_ms, output_tokens, rng.choice(fitting) if limited and fitting else None)
