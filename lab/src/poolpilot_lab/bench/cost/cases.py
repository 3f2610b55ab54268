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
    from pathlib import Path

POOLPILOT: Final = "poolpilot"
GIE_EPP: Final = "gie-epp"
LLM_D_EPP: Final = "llm-d-epp"
NO_PICKER: Final = "none"
PICKERS: Final = (POOLPILOT, GIE_EPP, LLM_D_EPP)
TRANSPORTS: Final = ("wire", "grpc")
CASES: Final = ("idle", "short", "stream", "long", "million", "pick", "memory", "mix", "latency")

FEW: Final = 4
"""Endpoints of the cases that are not about their number."""
MANY: Final = 100
"""Endpoints of the case `memory`."""
MEMORY_SEGMENTS: Final = 40
RATES: Final = (1.0, 500.0, 2_000.0)
"""Requests per second of the case `latency`; the last only where several workers are compared with one."""
REPLIES_RATE: Final = RATES[1]
"""Of the exchanges with the picker alone."""
REPLIES: Final = 600
PEERS_MEMORY_S: Final = 40.0
SHORT_CLIENTS: Final = 16
"""At once, in the case `short`."""
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
    probes: int = 0
    """Exchanges with the picker alone, at the load's rate, after each run."""
    segments: int = 1
    """Parts of the load, one after the other, between which memory is read."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line asks for."""

    cases: tuple[str, ...]
    pickers: tuple[str, ...]
    transports: tuple[str, ...]
    workers: int
    """Of ours; with more than one, one is measured too."""
    memory_requests: int
    runs: int
    quick: bool
    pod_port: int
    """Of the stand-in servers; those that can select families of their page use the next one."""
    epp: Path | None
    """Binary of the picker `llm-d-epp`."""
    strict: bool
    """The pickers were named: one that is not available is an error, else it is left out."""

    def contestants(self, modes: Iterable[BodyMode], scrapes: Iterable[Scrape] = (Scrape.FULL,)) -> list[Contestant]:
        """Ours in each of these modes, Go's in the only one they know."""
        scrapes = tuple(scrapes)
        found: list[Contestant] = []
        for mode in modes:
            for picker in self.pickers:
                if picker == POOLPILOT:
                    found += [
                        Contestant(picker, transport, mode, scrape, workers)
                        for transport in self.transports
                        for scrape in scrapes
                        for workers in sorted({1, self.workers})
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
    if load is None:
        return replace(trial, idle_s=0.2)
    load = changed(
        load,
        requests=min(load.requests, 16 if load.prompt.stream else 200),
        concurrency=min(load.concurrency, 16),
        seconds=0.3 if load.seconds and load.rate != RATES[0] else load.seconds,
        stagger_ms=0.0,
    )
    probes, segments = min(trial.probes, 100), min(trial.segments, 4)
    return replace(trial, load=load, idle_s=0.2, warm=None, probes=probes, segments=segments)


_ALL_MODES: Final = tuple(BodyMode)
_EXTREMES: Final = (BodyMode.FULL_DUPLEX, BodyMode.BUFFERED)
_SHORT: Final = Prompt(bytes=1_000)


def _closed(case: str, choice: Choice, modes: Sequence[BodyMode], concurrency: int, prompt: Prompt) -> Trial:
    load = LoadSpec(concurrency=concurrency, seconds=1.7, prompt=prompt)
    contestants = tuple(choice.contestants(modes))
    return Trial(case, FEW, contestants, load, idle_s=1.0, warm=changed(load, seconds=0.4))


def _idle(choice: Choice) -> list[Trial]:
    contestants = tuple(choice.contestants([BodyMode.FULL_DUPLEX], Scrape))
    counts: Sequence[int] = (4, 20) if choice.quick else (4, 20, 100, 1000)
    return [Trial("idle", count, contestants, idle_s=2.0) for count in counts]


def _short(choice: Choice) -> list[Trial]:
    trial = _closed("short", choice, _ALL_MODES, SHORT_CLIENTS, _SHORT)
    if choice.workers == 1 or POOLPILOT not in choice.pickers:
        return [trial]
    # What one worker costs where it has no more to do than each of several: small batches cost more a request.
    single = replace(choice, workers=1, pickers=(POOLPILOT,))
    return [trial, _closed("short", single, [BodyMode.FULL_DUPLEX], share_of_clients(choice.workers), _SHORT)]


def share_of_clients(workers: int) -> int:
    """Of the case `short`, for each of several workers."""
    return max(1, SHORT_CLIENTS // workers)


def _stream(choice: Choice) -> list[Trial]:
    # Not streamed, so that it is short; afterwards ours observes 1 % of the answers, as it does for ever.
    warm = LoadSpec(concurrency=16, seconds=0.5, prompt=_SHORT)
    found = []
    # With fewer streams, what is taken off is large beside what is left: longer idle times, and no mode in between.
    for streams, idle_s, modes in ((64, 2.5, _EXTREMES), (512, 1.5, _ALL_MODES)):
        prompt = Prompt(bytes=1_000, stream=True)
        load = LoadSpec(concurrency=streams, requests=streams, stagger_ms=500.0, prompt=prompt)
        found.append(Trial("stream", FEW, tuple(choice.contestants(modes)), load, idle_s=idle_s, warm=warm))
    return found


def _long(choice: Choice) -> list[Trial]:
    return [_closed("long", choice, _EXTREMES, 4, Prompt(bytes=400_000))]


def _million(choice: Choice) -> list[Trial]:
    return [_closed("million", choice, _EXTREMES, 2, Prompt(bytes=4_000_000))]


def _memory(choice: Choice) -> list[Trial]:
    load = LoadSpec(concurrency=64, requests=choice.memory_requests, limit_s=3_600.0, prompt=_SHORT)
    contestants = choice.contestants([BodyMode.FULL_DUPLEX], (Scrape.ADAPTIVE,))
    ours = tuple(one for one in contestants if one.picker == POOLPILOT)
    # With so many pages to read, Go's answers a few dozen requests a second: a million would take hours.
    peers = tuple(one for one in contestants if one.picker != POOLPILOT)
    bounded = changed(load, seconds=PEERS_MEMORY_S / MEMORY_SEGMENTS)
    return [
        Trial("memory", MANY, who, part, idle_s=1.0, runs=1, segments=MEMORY_SEGMENTS)
        for who, part in ((ours, load), (peers, bounded))
        if who
    ]


def _mix(choice: Choice) -> list[Trial]:
    prompt = Prompt(bytes=8_000, models=(BASE_MODEL, *ADAPTERS), prefixes=64, prefix_share=0.75)
    return [_closed("mix", choice, [BodyMode.FULL_DUPLEX], 16, prompt)]


def _latency(choice: Choice) -> list[Trial]:
    nobody = Contestant(NO_PICKER, None, None, None)
    contestants = (nobody, *choice.contestants([BodyMode.FULL_DUPLEX]))
    warm = LoadSpec(concurrency=4, seconds=0.3, prompt=_SHORT)
    loads = [LoadSpec(rate=rate, seconds=max(2.5, 5.0 / rate), prompt=_SHORT) for rate in RATES]
    slow, fast, dense = (Trial("latency", FEW, contestants, load, idle_s=0.5, warm=warm) for load in loads)
    # A handful of requests says little about one run, and much of it is waiting: fewer runs will do.
    found = [replace(slow, runs=min(choice.runs, 3)), replace(fast, probes=REPLIES)]
    ours = tuple(one for one in contestants if one.picker == POOLPILOT)
    # Clients of a closed loop fall into step, and what arrives by itself does not: what several workers cost is asked
    # of both, at rates that a machine with two processors can bear.
    return [*found, replace(dense, contestants=ours)] if choice.workers > 1 and ours else found
