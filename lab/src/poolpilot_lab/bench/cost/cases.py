"""What is played: cases by name, each a list of trials; a trial is one load on one pool, for several contestants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as changed

from poolpilot_lab.bench.cost.gateway import BodyMode
from poolpilot_lab.bench.cost.pages import ADAPTERS, BASE_MODEL
from poolpilot_lab.bench.cost.pickers import Scrape
from poolpilot_lab.bench.cost.tools import LoadSpec, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

POOLPILOT: Final = "poolpilot"
GIE_EPP: Final = "gie-epp"
LLM_D_EPP: Final = "llm-d-epp"
NO_PICKER: Final = "none"
PICKERS: Final = (POOLPILOT, GIE_EPP, LLM_D_EPP)
TRANSPORTS: Final = ("wire", "grpc")
CASES: Final = ("idle", "short", "stream", "long", "million", "pick", "memory", "mix", "latency")

FEW: Final = 4
"""Endpoints of the cases that are not about their number."""
CHUNKS: Final = 200
CHUNK_MS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A picker as it is run."""

    picker: str
    transport: str | None
    body_mode: BodyMode | None
    scrape: Scrape | None
    workers: int = 1

    @property
    def name(self) -> str:
        """For logs and the screen; different contestants of a trial have different names."""
        parts = [self.picker, self.transport, self.body_mode, self.scrape]
        if self.workers > 1:
            parts.append(f"{self.workers}-workers")
        return "-".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Trial:
    """One load on one pool, for every contestant in turn."""

    case: str
    endpoints: int
    contestants: tuple[Contestant, ...]
    load: LoadSpec | None = None
    """None: nothing but scraping is measured."""
    idle_s: float = 2.0
    """Time over which the cost without requests is measured."""
    warm: LoadSpec | None = None
    runs: int | None = None
    """Where it is not as often as the others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line asks for."""

    cases: tuple[str, ...]
    pickers: tuple[str, ...]
    transports: tuple[str, ...]
    workers: int
    memory_requests: int
    quick: bool = False

    def contestants(self, modes: Iterable[BodyMode], scrapes: Iterable[Scrape] = (Scrape.FULL,)) -> list[Contestant]:
        """Ours in each of these modes, Go's in the only one they know."""
        scrapes = tuple(scrapes)
        found: list[Contestant] = []
        for mode in modes:
            for picker in self.pickers:
                if picker == POOLPILOT:
                    found += [
                        Contestant(picker, transport, mode, scrape, self.workers)
                        for transport in self.transports
                        for scrape in scrapes
                    ]
                elif mode is BodyMode.FULL_DUPLEX:
                    found.append(Contestant(picker, None, mode, Scrape.FULL))
        return found


def trials(choice: Choice) -> list[Trial]:
    """All trials of the chosen cases but `pick`, which has no gateway, in the order of CASES."""
    makers = {
        "idle": _idle,
        "short": _short,
        "stream": _stream,
        "long": _long,
        "million": _million,
        "memory": _memory,
        "mix": _mix,
        "latency": _latency,
    }
    found = [trial for case in CASES if case in choice.cases and case in makers for trial in makers[case](choice)]
    return [_quicker(trial) for trial in found] if choice.quick else found


def _quicker(trial: Trial) -> Trial:
    """Enough to see that everything works; the figures mean nothing."""
    load = trial.load
    if load is not None:
        stagger = min(load.stagger_ms, 100.0)
        load = changed(load, seconds=min(load.seconds, 0.4), requests=min(load.requests, 200), stagger_ms=stagger)
        if load.concurrency > 16:
            load = changed(load, concurrency=16, requests=16)
    return replace(trial, load=load, idle_s=0.2, warm=None)


_ALL_MODES: Final = tuple(BodyMode)


def _idle(choice: Choice) -> list[Trial]:
    contestants = tuple(choice.contestants([BodyMode.FULL_DUPLEX], Scrape))
    counts: Sequence[int] = (4, 20) if choice.quick else (4, 20, 100, 1000)
    return [Trial("idle", count, contestants, idle_s=3.0) for count in counts]


def _short(choice: Choice) -> list[Trial]:
    load = LoadSpec(concurrency=16, seconds=3.0, prompt=Prompt(bytes=1_000))
    return [Trial("short", FEW, tuple(choice.contestants(_ALL_MODES)), load, warm=changed(load, seconds=0.7))]


def _stream(choice: Choice) -> list[Trial]:
    contestants = tuple(choice.contestants(_ALL_MODES))
    found = []
    for streams in (64, 512):
        load = LoadSpec(
            concurrency=streams, requests=streams, stagger_ms=1_000.0, prompt=Prompt(bytes=1_000, stream=True)
        )
        warm = LoadSpec(concurrency=16, seconds=0.5, prompt=Prompt(bytes=1_000))
        found.append(Trial("stream", FEW, contestants, load, idle_s=2.5, warm=warm))
    return found


def _long(choice: Choice) -> list[Trial]:
    load = LoadSpec(concurrency=4, seconds=3.0, prompt=Prompt(bytes=400_000))
    return [Trial("long", FEW, tuple(choice.contestants(_ALL_MODES)), load, warm=changed(load, seconds=0.7))]


def _million(choice: Choice) -> list[Trial]:
    load = LoadSpec(concurrency=2, seconds=3.0, prompt=Prompt(bytes=4_000_000))
    return [Trial("million", FEW, tuple(choice.contestants(_ALL_MODES)), load, warm=changed(load, seconds=0.7))]


def _memory(choice: Choice) -> list[Trial]:
    load = LoadSpec(concurrency=16, requests=choice.memory_requests, limit_s=3_600.0, prompt=Prompt(bytes=1_000))
    return [Trial("memory", 100, tuple(choice.contestants([BodyMode.FULL_DUPLEX])), load, idle_s=1.0, runs=1)]


def _mix(choice: Choice) -> list[Trial]:
    prompt = Prompt(bytes=8_000, models=(BASE_MODEL, *ADAPTERS), prefixes=64, prefix_share=0.75)
    load = LoadSpec(concurrency=16, seconds=3.0, prompt=prompt)
    return [Trial("mix", FEW, tuple(choice.contestants(_ALL_MODES)), load, warm=changed(load, seconds=0.7))]


def _latency(choice: Choice) -> list[Trial]:
    contestants = (
        Contestant(NO_PICKER, None, None, None),
        *choice.contestants([BodyMode.FULL_DUPLEX, BodyMode.BUFFERED]),
    )
    prompt = Prompt(bytes=1_000)
    warm = LoadSpec(concurrency=4, seconds=0.3, prompt=prompt)
    return [
        Trial("latency", FEW, contestants, LoadSpec(rate=rate, seconds=seconds, prompt=prompt), idle_s=1.0, warm=warm)
        for rate, seconds in ((1.0, 8.0), (500.0, 4.0))
    ]
