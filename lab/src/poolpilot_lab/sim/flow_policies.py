"""Poolpilot with flow control, with a part of it less, and what sheds without a queue: by name, for table `flow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.sim.flow_router import FlowRouter, QueuesRouter, SheddingRouter
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_picker.config.flow_plugins import ProbabilisticParameters
from poolpilot_picker.flow.admission import ProbabilisticAdmitter, SaturationAdmitter
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.queue import BandSettings, QueueSettings
from poolpilot_picker.flow.saturation import UtilizationDetector
from poolpilot_picker.routing.plugins.limits import UtilizationDetectorParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.sim.pool_router import PoolRouter
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.flow.admission import Admitter
    from poolpilot_picker.routing.pipeline import Profile

FLOW: Final = f"{POOLPILOT}-flow"
"""Flow control with its defaults."""


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """How requests are held, shed or bound, in front of poolpilot's own placing."""

    summary: str
    settings: FlowSettings | None = None
    """Of the queue; None: there is none."""
    late: bool = True
    """One queue for all endpoints; else one for each."""
    admitter: Callable[[Callable[[], float]], Admitter] | None = None
    """Sheds, from something to draw numbers in [0, 1) with; where there is no queue."""

    def router(self, world: World, policy: Callable[[], Profile], seed: int, **more: object) -> PoolRouter:
        """For one run."""
        if self.settings is not None:
            settings = self.settings
            router = FlowRouter if self.late else QueuesRouter
            return router(world, policy, seed, settings=lambda _: settings, **more)
        assert self.admitter is not None
        return SheddingRouter(world, policy, seed, self.admitter, **more)


def _first_come() -> FlowSettings:
    return FlowSettings(queue=QueueSettings(default_band=BandSettings(fairness="global-strict")))


def _probabilistic(draw: Callable[[], float]) -> Admitter:
    return ProbabilisticAdmitter(ProbabilisticParameters(), draw)


def _hard(_: Callable[[], float]) -> Admitter:
    return SaturationAdmitter(UtilizationDetector(UtilizationDetectorParameters()))


FLOW_POLICIES: Final[dict[str, FlowPolicy]] = {
    FLOW: FlowPolicy("flow control as it is when only its feature gate is on", FlowSettings()),
    f"{FLOW}-drop": FlowPolicy("the same with sheddable: drop", FlowSettings(drop_sheddable=True)),
    f"{FLOW}-first-come": FlowPolicy("one line in order of arrival in place of tenants' shares", _first_come()),
    f"{FLOW}-queues": FlowPolicy("a queue for each endpoint, chosen on arrival", FlowSettings(), late=False),
    f"{POOLPILOT}-probabilistic": FlowPolicy(
        "no queue; llm-d's probabilistic-admitter with its defaults sheds", admitter=_probabilistic
    ),
    f"{POOLPILOT}-hard-shed": FlowPolicy(
        "no queue; all that is sheddable is shed at a saturation of 1 (utilization-detector)", admitter=_hard
    ),
}
"""By name, in the order of the report."""
