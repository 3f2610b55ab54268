"""The pool and the clients of the demo. docs/demo.md says why each number is what it is."""

from __future__ import annotations

import dataclasses
from typing import Final

from poolpilot_lab.programs import EngineSpec
from poolpilot_lab.workload.draws import LogNormal
from poolpilot_lab.workload.sessions import SessionKind, WorkloadSpec

BASE_MODEL: Final = "llama-3.1-8b"
ADAPTERS: Final = tuple(f"adapter-{number}" for number in range(1, 9))
ADAPTER_SLOTS: Final = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoEngine(EngineSpec):
    """As pictures and tables name it."""

    label: str


ENGINES: Final = (
    DemoEngine("engine-1", "llama-3.1-8b-h100", label="H100 #1"),
    DemoEngine("engine-2", "llama-3.1-8b-h100", label="H100 #2"),
    DemoEngine("engine-3", "llama-3.1-8b-a100", label="A100"),
    DemoEngine("engine-4", "llama-3.1-8b-h100", kv_blocks=3000, label="H100 small KV"),
)
HIDDEN: Final[dict[str, float]] = {"variation": 0.15, "step-noise": 0.1, "stall-every-ms": 20_000, "stall-ms": 100}
"""How far the engines stray from their profiles, as flags: speed factors of each engine (±30 % at most), noise of each
step, and a stall now and then. So no two are alike, and no formula that a picker may believe in is exact."""

CHAT: Final = SessionKind(
    name="chat",
    share=0.8,
    turns=(0.25, 0.2, 0.2, 0.15, 0.1, 0.1),
    opening=LogNormal(60, 0.9, 8, 600),
    follow_up=LogNormal(40, 0.8, 4, 300),
    answer=LogNormal(90, 0.7, 8, 400),
    think_ms=LogNormal(1500, 0.6, 300, 6000),
)
DOCUMENT: Final = SessionKind(
    name="document",
    share=0.2,
    turns=(0.4, 0.35, 0.25),
    opening=LogNormal(7000, 0.35, 3000, 14_000),
    follow_up=LogNormal(40, 0.8, 4, 300),
    answer=LogNormal(120, 0.6, 16, 400),
    think_ms=LogNormal(2250, 0.6, 500, 8000),
)

REQUESTS: Final = 1400
WORKLOAD: Final = WorkloadSpec(
    requests=REQUESTS,
    sessions_per_s=14.0,
    kinds=(CHAT, DOCUMENT),
    base_model=BASE_MODEL,
    base_applications=4,
    adapters=ADAPTERS,
    adapter_share=0.2,
    zipf=1.0,
    system_prompt=LogNormal(600, 0.6, 200, 1800),
    limit_share=0.5,
    limits=(256, 512, 1024),
)

QUICK_REQUESTS: Final = 40
_QUICK_TURNS: Final = (0.6, 0.4)


def workload_spec(requests: int, *, quick: bool = False) -> WorkloadSpec:
    """The demo's clients. `quick` makes sessions and answers so short that everything is over in seconds: a check that
    all parts work together, without meaning as a comparison."""
    spec = dataclasses.replace(WORKLOAD, requests=requests)
    if not quick:
        return spec
    kinds = tuple(
        dataclasses.replace(
            kind, turns=_QUICK_TURNS, answer=LogNormal(20, 0.5, 4, 60), think_ms=LogNormal(150, 0.5, 50, 400)
        )
        for kind in spec.kinds
    )
    return dataclasses.replace(spec, kinds=kinds)
