"""What the simulator asks of whoever routes: the picker with a policy, or a reference that sees into the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.trip import Fate, Trip
    from poolpilot_lab.workload.calls import Call
    from poolpilot_picker.state.samples import EngineSample


@runtime_checkable
class Clairvoyant(Protocol):
    """A reference that knows what will come."""

    def foresee(self, arrivals: list[tuple[float, Call]]) -> None:
        """(time, call) of all heads of conversations, in order."""
        ...


class Router(Protocol):
    """Told of everything in the order in which it would see it. `now`: ms of the simulation's clock."""

    @property
    def scrape_ms(self) -> float | None:
        """Between two readings of an endpoint that has work; None: it wants no telemetry."""
        ...

    def start(self, engines: list[Engine], present: list[int], now: float) -> None:
        """The run begins. `engines`: for references that may look into them; `present`: endpoints that are there."""
        ...

    def route(self, trip: Trip, now: float) -> int | None:
        """Endpoint for the trip; None: it is held until `released` gives it back.

        Raises RequestRefused.
        """
        ...

    def released(self, now: float) -> list[tuple[Trip, int]]:
        """Held trips that may go now, with their endpoints: asked after every step that ended."""
        ...

    def first_token(self, trip: Trip, now: float) -> None:
        """The first token passed the gateway."""
        ...

    def ended(self, trip: Trip, fate: Fate, now: float) -> None:
        """The exchange ended."""
        ...

    def sampled(self, picker: int, endpoint: int, sample: EngineSample, now: float) -> None:
        """A reading arrived at one of the pickers."""
        ...

    def present(self, endpoints: list[int], now: float) -> None:
        """Discovery says which endpoints there are."""
        ...
