"""Which routers are compared: the pinned versions, how each is started, and in which configurations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from poolpilot_lab.programs import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Distribution:
    """A router from a Python package. `locks/NAME.txt` pins it and all it needs, with hashes."""

    name: str
    version: str
    start: tuple[str, ...]
    """Of the interpreter: the module, and its command where it has several."""

    @property
    def lock(self) -> str:
        """File name of its lock."""
        return f"{self.name}.txt"

    def argv(
        self, python: Path, port: int, metrics_port: int, workers: Sequence[str], flags: Sequence[str]
    ) -> list[str]:
        """The command line: listening on 127.0.0.1:`port`, in front of `workers` (HOST:PORT), with `flags`."""
        return [
            str(python), "-m", *self.start,
            "--host", HOST, "--port", str(port),
            "--prometheus-host", HOST, "--prometheus-port", str(metrics_port),
            "--worker-urls", *(f"http://{worker}" for worker in workers),
            *flags,
        ]  # fmt: skip


VLLM_ROUTER: Final = Distribution("vllm-router", "0.1.17", ("vllm_router.launch_router",))
SGLANG_ROUTER: Final = Distribution("sglang-router", "0.3.2", ("sglang_router.launch_router",))
SMG: Final = Distribution("smg", "1.13.0", ("smg", "launch"))
DYNAMO: Final = Distribution("ai-dynamo-runtime", "1.6.1", ("dynamo",))
"""No router that forwards: its offline replay is what `replay` compares the simulator with."""
DISTRIBUTIONS: Final = (VLLM_ROUTER, SGLANG_ROUTER, SMG)


class Way(StrEnum):
    """How a request comes from the client to an engine."""

    ENVOY = "Envoy alone"
    PICKER = "Envoy and a picker"
    ROUTER = "a router of its own"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One router in one configuration."""

    name: str
    what: str
    """For the report: version and configuration."""
    way: Way
    distribution: Distribution | None = None
    flags: tuple[str, ...] = ()
    """Of the distribution's command line: what is not its default."""


POOLPILOT: Final = Contestant("poolpilot", "default flags; Envoy as `poolpilot envoy-config` makes it", Way.PICKER)
ROUND_ROBIN: Final = Contestant("round-robin", "Envoy's `ROUND_ROBIN`", Way.ENVOY)
LEAST_REQUEST: Final = Contestant("least-request", "Envoy's `LEAST_REQUEST`, two choices", Way.ENVOY)
GIE_EPP: Final = Contestant(
    "gie-epp", "v1.5.0, its built-in configuration: queue 2, KV cache 2, prefix 3; pages read each 50 ms", Way.PICKER
)
LLM_D_EPP: Final = Contestant("llm-d-epp", "the binary given with `--epp`, weights as gie-epp", Way.PICKER)


def _router(distribution: Distribution, suffix: str, what: str, *flags: str) -> Contestant:
    name = f"{distribution.name}-{suffix}" if suffix else distribution.name
    return Contestant(name, f"{distribution.version}, {what}", Way.ROUTER, distribution, flags)


CONTESTANTS: Final = (
    POOLPILOT,
    ROUND_ROBIN,
    LEAST_REQUEST,
    _router(VLLM_ROUTER, "", "defaults: cache_aware on tokens that an engine renders"),
    _router(VLLM_ROUTER, "power-of-two", "`--policy power_of_two`", "--policy", "power_of_two"),
    _router(SGLANG_ROUTER, "", "defaults: cache_aware on characters"),
    _router(SMG, "", "defaults: cache_aware, loads read each 10 s"),
    _router(
        SMG,
        "least-load",
        "`--policy least_load`, loads read each second (its shortest)",
        *("--policy", "least_load", "--load-monitor-interval", "1"),
    ),
    GIE_EPP,
    LLM_D_EPP,
)
"""In the order of the report."""
BY_NAME: Final = {contestant.name: contestant for contestant in CONTESTANTS}
