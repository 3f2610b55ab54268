"""What the simulator asks of whoever routes: the picker with a policy, or a reference that sees into the engines."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.trip import Fate, Trip
    from poolpilot_lab.workload.calls import Call
    from poolpilot_picker.state.samples import EngineSample


TURNED_AWAY: Final = -1
"""In place of the endpoint of a held trip that will not be placed."""


@runtime_checkable
class Holding(Protocol):
    """Holds trips, and knows when it wants to be asked for them besides."""

    def wakes(self, ask: Callable[[float], None]) -> None:
        """`ask`: for a call of `released` at a time; one that is over means now, behind what is under way."""
        ...


@runtime_checkable
class Clairvoyant(Protocol):
    """A reference that knows what will come."""

    def foresee(self, arrivals: list[tuple[float, Call]]) -> None:
        """(time, call) of all heads of conversations, in order."""
        ...


class Sampling(Enum):
    """When a router must hear of telemetry."""

    AT_ONCE = "at once"
    """When it arrives: the router may act on it."""
    IN_TIME = "in time"
    """Before the router is told or asked anything else; with the time of its arrival."""
    LATEST = "latest"
    """Before the router is asked, and of an endpoint's samples the last one only (`Scrapes`)."""
    GAUGES = "gauges"
    """As `LATEST`, and without the adapters that run."""

    @property
    def latest_only(self) -> bool:
        """Gauges that are followed by newer ones are never told."""
        return self in (Sampling.LATEST, Sampling.GAUGES)


@runtime_checkable
class Patient(Protocol):
    """A router that need not be told of telemetry at once."""

    @property
    def sampling(self) -> Sampling:
        """When it must hear of it."""
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
        """Held trips that may go now, with their endpoints: asked after every step that ended.

        With TURNED_AWAY: those that will not be placed.
        """
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
