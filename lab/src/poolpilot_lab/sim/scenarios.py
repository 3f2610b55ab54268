"""The scenarios by name. A new one is one entry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.sim.flow_scenarios import FLOW_SCENARIOS
from poolpilot_lab.sim.harms import HARMS
from poolpilot_lab.sim.scenario import Scenario
from poolpilot_lab.sim.world import Change, Slo
from poolpilot_lab.workload import generators, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.workload.calls import Traffic

_QWEN: Final = PROFILES["qwen3-32b-h100-tp2"]
_H100: Final = PROFILES["llama-3.1-8b-h100"]
_A100: Final = PROFILES["llama-3.1-8b-a100"]
_L40S: Final = PROFILES["llama-3.1-8b-l40s"]


def lora_scenario(name: str, number: int, zipf: float, slots: int) -> Scenario:
    """So many adapters, so skewed, so many slots per endpoint."""
    return Scenario(
        name=name,
        summary=f"{number} LoRA adapters, Zipf {zipf:g}, {slots} slots an endpoint",
        traffic=partial(streams.adapters, number=number, zipf=zipf),
        fleet=(_H100,) * 8,
        guess=60.0,
        scaled=True,
        slo=Slo(2_000.0, 50.0),
        warm_share=0.25,
        run_s=60.0,
        search_s=300.0,
        more={"max_loras": slots, "adapters": streams.adapter_names(number)},
    )


_APPLICATIONS: Final[dict[str, Any]] = {
    "traffic": streams.applications,
    "fleet": (_H100,) * 8,
    "guess": 150.0,
    "warm_share": 0.3,
    "run_s": 25.0,
    "search_s": 80.0,
}
"""What S9 to S13 share."""

_ALL: Final = (
    Scenario(
        name="S1",
        summary="shared system prompts that fit the fleet's caches, not one endpoint's",
        traffic=generators.shared_prompts,
        fleet=(_QWEN,) * 8,
        guess=15.0,
        warm_share=0.25,
        run_s=150.0,
        search_s=600.0,
    ),
    Scenario(
        name="S2",
        summary="code generation: long contexts that grow turn by turn",
        traffic=generators.coding,
        fleet=(_QWEN,) * 10,
        guess=1.4,
        slo=Slo(10_000.0, 100.0),
        block_tokens=256,
        warm_share=0.35,
        run_s=800.0,
        search_s=900.0,
    ),
    Scenario(
        name="S3",
        summary="reasoning: answers of thousands of tokens",
        traffic=streams.reasoning,
        fleet=(_QWEN,) * 8,
        guess=1.6,
        slo=Slo(2_000.0, 100.0),
        warm_share=0.35,
        run_s=700.0,
        search_s=2_000.0,
    ),
    Scenario(
        name="S4",
        summary="multi-turn chat, closed loop with think time",
        traffic=generators.chat,
        fleet=(_QWEN,) * 4,
        guess=55.0,
        slo=Slo(1_000.0, 50.0),
        warm_share=0.4,
        run_s=110.0,
        search_s=300.0,
    ),
    Scenario(
        name="S5",
        summary="long conversations whose prefixes do not all fit (Mooncake's statistics)",
        traffic=generators.conversations,
        fleet=(_QWEN,) * 8,
        guess=7.0,
        slo=Slo(30_000.0, 100.0),
        block_tokens=256,
        run_s=350.0,
        search_s=900.0,
    ),
    Scenario(
        name="S6",
        summary="chat with a tenth of heavy jobs that come in bursts",
        traffic=streams.bimodal,
        fleet=(_H100,) * 8,
        guess=56.0,
        slo=Slo(2_000.0, 50.0, {"long-prompt": (10_000.0, 100.0)}),
        warm_share=0.3,
        run_s=70.0,
        search_s=250.0,
    ),
    Scenario(
        name="S7",
        summary="twenty tenants, one of them ten times as loud for a while",
        traffic=streams.tenants,
        fleet=(_H100,) * 4,
        guess=70.0,
        warm_share=0.15,
        run_s=60.0,
        search_s=150.0,
    ),
    lora_scenario("S8", 100, 1.0, 4),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S9",
            "summary": "bursts: a 1:5 rate ladder",
            "traffic": partial(streams.applications, bursts=True),
            "guess": 90.0,
            "run_s": 50.0,
            "search_s": 240.0,
            "warm_share": 0.25,
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S10",
            "summary": "heterogeneous endpoints: H100, A100, L40S as 4:2:2",
            "fleet": (_H100,) * 4 + (_A100,) * 2 + (_L40S,) * 2,
            "guess": 90.0,
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S11",
            "rate_of": "S12",
            "summary": "one of eight dies, later a cold one joins and another drains",
            "fleet": (_H100,) * 9,
            "run_s": 40.0,
            "search_s": 180.0,
            "warm_share": 0.15,
            "changes": (Change(0.4, "kill", 3, 3_000.0), Change(0.65, "start", 8), Change(0.85, "drain", 5)),
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S12",
            "summary": "four pickers that share nothing, telemetry every 5 s",
            "more": {"pickers": 4, "scrape_ms": 5_000.0},
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S13",
            "rate_of": "S12",
            "summary": "overload, half of it sheddable",
            "traffic": partial(streams.applications, sheddable=0.5),
            "run_s": 60.0,
            "search_s": 120.0,
            "loads": (1.0, 1.2, 1.5),
            "draws": 5,
        }
    ),
    Scenario(
        name="poisson-mix",
        summary="70 % short and 30 % long answers, nothing shared",
        traffic=streams.short_long,
        fleet=(_H100,) * 4,
        guess=50.0,
        nominal=20.0,
        warm_share=0.25,
        run_s=70.0,
        search_s=200.0,
    ),
)

_CONSTANT: Final = replace(
    _H100,
    id="constant",
    prefill_b_ms=1e-9,
    prefill_c_ms=1e-15,
    decode_a_ms=20.0,
    decode_b_ms=0.0,
    decode_c_ms=0.0,
    sequence_overhead_ms=0.0,
    kv_tokens=100_000_000,
)
"""A naive engine: a step takes as long whatever runs in it."""

LORA: Final = {
    f"S8-{number}-{zipf:.1f}-{slots}": (number, zipf, slots)
    for number, zipf, slots in (
        *((27, zipf, 4) for zipf in (1.0, 1.2)),
        *((number, zipf, slots) for number in (100, 1_000) for zipf in (1.0, 1.2) for slots in (4, 8)),
    )
}
"""Name → number of adapters, Zipf exponent, slots."""


def _four_pickers(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        name=f"{scenario.name}-4-5000",
        rate_of=scenario.name,
        summary=f"{scenario.name} with four pickers that share nothing, telemetry every 5 s",
        more=scenario.more | {"pickers": 4, "scrape_ms": 5_000.0},
    )


_VARIANTS: Final = (
    *(lora_scenario(name, *what) for name, what in LORA.items()),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S10-slow",
            "rate_of": "S12",
            "summary": "one of eight is slowed to half its speed for a while",
            # What the endpoint's share was before is part of what is measured.
            "warm_share": 0.15,
            "changes": (Change(0.3, "slow", 3, 2.0), Change(0.65, "heal", 3)),
            "run_s": 160.0,
            "search_s": 200.0,
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S11-kill",
            "rate_of": "S12",
            "summary": "one of eight dies, and long after",
            "run_s": 240.0,
            "search_s": 240.0,
            "warm_share": 0.1,
            "changes": (Change(0.3, "kill", 3, 3_000.0),),
        }
    ),
    Scenario(
        **_APPLICATIONS
        | {
            "name": "S11-fail",
            "rate_of": "S12",
            "summary": "one of eight answers errors within 20 ms for a while",
            "run_s": 90.0,
            "search_s": 180.0,
            "changes": (Change(0.4, "fail", 3, 20.0), Change(0.7, "heal", 3)),
        }
    ),
    *(
        Scenario(
            **_APPLICATIONS
            | {
                "name": f"S12-{pickers}-{scrape:g}",
                "rate_of": "S12",
                "summary": f"{pickers} picker(s) that share nothing, telemetry every {scrape:g} ms",
                "more": {"pickers": pickers, "scrape_ms": scrape},
            }
        )
        for pickers, scrape in ((1, 50.0), (1, 1_000.0), (1, 5_000.0), (2, 200.0), (4, 200.0), (8, 5_000.0))
    ),
    *(_four_pickers(scenario) for scenario in _ALL if scenario.name in ("S1", "S8")),
    Scenario(
        name="poisson-mix-naive",
        summary="the mix on engines whose steps ignore load: no balancer can differ",
        traffic=streams.short_long,
        fleet=(_CONSTANT,) * 4,
        guess=60.0,
        unlimited=True,
        run_s=60.0,
        search_s=150.0,
        more={"max_num_seqs": 1_000_000, "max_num_batched_tokens": 1_000_000_000},
    ),
    Scenario(
        name="uniform",
        summary="equal requests at equal distances: where all tie",
        traffic=streams.uniform,
        fleet=(_H100,) * 4,
        guess=155.0,
        run_s=20.0,
        search_s=60.0,
    ),
)

SCENARIOS: Final[dict[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
"""In the order of the report."""
VARIANTS: Final[dict[str, Scenario]] = {
    **{scenario.name: scenario for scenario in _VARIANTS},
    **{name: harm.scenario for name, harm in HARMS.items()},
    **FLOW_SCENARIOS,
}
"""Run when they are asked for by name."""
KNOWN: Final = SCENARIOS | VARIANTS

TRACE: Final = "trace"
"""Name of the scenario that plays a recorded trace."""


def trace_scenario(make: Callable[[float, int, int], Traffic], sample: Traffic) -> Scenario:
    """A recorded trace on the reference fleet; `sample`: some of it, to size blocks and the first guess."""
    mean = sum(call.prompt_tokens + 8.0 * call.output_tokens for call in sample.calls) / len(sample.calls)
    adapters = tuple(sorted({call.adapter for call in sample if call.adapter}))
    return Scenario(
        name=TRACE,
        summary="a recorded trace",
        traffic=make,
        fleet=(_QWEN,) * 8,
        guess=8.0 * 10_000.0 / mean,
        slo=Slo(5_000.0, 100.0),
        run_s=350.0,
        search_s=900.0,
        block_tokens=sample.block_tokens,
        more={"max_loras": 4, "adapters": adapters} if adapters else {},
    )
