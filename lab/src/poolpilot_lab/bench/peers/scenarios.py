"""The pools and the clients of the comparison. docs/benchmarks/peers.md says why each number is what it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.programs import EngineSpec
from poolpilot_lab.workload.draws import LogNormal
from poolpilot_lab.workload.sessions import SessionKind, Workload, WorkloadSpec, make_workload
from poolpilot_lab.workload.text import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL: Final = "llama-3.1-8b"
_L40S: Final = "llama-3.1-8b-l40s"
_A100: Final = "llama-3.1-8b-a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One pool and its clients."""

    name: str
    summary: str
    engines: tuple[EngineSpec, ...]
    hidden: Mapping[str, float]
    """How far engines stray from their profiles, as flags of the stand-in."""
    answers: tuple[float, float]
    """Median and sigma of the lengths (tokens) that engines give to answers: a prompt always gets the same."""
    workload: WorkloadSpec

    def traffic(self, seed: int, requests: int | None = None) -> Workload:
        """The clients of one seed: texts, starts, think times. Lengths of answers are left to the engines."""
        spec = dataclasses.replace(self.workload, requests=requests or self.workload.requests)
        made = make_workload(spec, seed, Writer())
        # Routers that parse requests drop headers they do not know, and with them the length that a client asks for.
        sessions = tuple(
            dataclasses.replace(
                session, turns=tuple(dataclasses.replace(turn, output_tokens=0) for turn in session.turns)
            )
            for session in made.sessions
        )
        return Workload(seed, sessions)


_CHAT: Final = SessionKind(
    name="chat",
    share=0.8,
    turns=(0.4, 0.35, 0.25),
    opening=LogNormal(60, 0.9, 8, 600),
    follow_up=LogNormal(40, 0.8, 4, 300),
    answer=LogNormal(60, 0.5, 8, 400),
    think_ms=LogNormal(700, 0.5, 200, 2000),
)
_DOCUMENT: Final = dataclasses.replace(_CHAT, name="document", share=0.2, opening=LogNormal(7000, 0.35, 3000, 14_000))
_ANSWERS: Final = (60.0, 0.5)
_SPEC: Final = WorkloadSpec(
    requests=240,
    sessions_per_s=14.0,
    kinds=(_CHAT,),
    base_model=MODEL,
    base_applications=40,
    adapters=(),
    adapter_share=0.0,
    zipf=1.0,
    system_prompt=LogNormal(5000, 0.3, 2500, 8000),
    limit_share=0.5,
    limits=(512, 1024),
)

CHAT: Final = Scenario(
    name="chat",
    summary="multi-turn chat, 40 long system prompts of unequal popularity, four equal engines",
    engines=tuple(EngineSpec(f"engine-{number}", _A100) for number in range(1, 5)),
    hidden={"step-noise": 0.1},
    answers=_ANSWERS,
    workload=_SPEC,
)
MIXED: Final = Scenario(
    name="mixed",
    summary="one session in five brings a document of some 7,000 tokens; four engines of unequal speed and memory",
    engines=(
        EngineSpec("engine-1", _A100),
        EngineSpec("engine-2", _A100),
        EngineSpec("engine-3", _L40S),
        EngineSpec("engine-4", _A100, kv_blocks=3000),
    ),
    hidden={"variation": 0.15, "step-noise": 0.1},
    answers=_ANSWERS,
    workload=dataclasses.replace(
        _SPEC,
        kinds=(_CHAT, _DOCUMENT),
        base_applications=12,
        system_prompt=LogNormal(600, 0.6, 200, 1800),
    ),
)
SCENARIOS: Final = {scenario.name: scenario for scenario in (CHAT, MIXED)}
