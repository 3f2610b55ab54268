"""One call on its way through the simulated fleet, and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Sequence
    from poolpilot_lab.workload.calls import Call
    from poolpilot_picker.flow.pool import Placement


POOLPILOT: Final = "poolpilot"
"""Our policy's name."""


class Fate(StrEnum):
    """How a trip ended."""

    OPEN = "open"
    """Not answered when the run ended: it counts as infinitely late."""
    SERVED = "served"
    REFUSED = "refused"
    """The picker refused it: infinitely late, and not admitted."""
    FAILED = "failed"
    """The endpoint answered with an error."""
    ABORTED = "aborted"
    """The client left."""
    LOST = "lost"
    """The endpoint died with it, or was not there: tried again where nothing of the answer was seen."""


@dataclass(slots=True, eq=False)
class Trip:
    """A call and its times, ms of the simulation's clock; infinite until known."""

    call: Call
    number: int
    arrived_ms: float
    picker: int = 0
    endpoint: int = -1
    sequence: Sequence | None = field(default=None, repr=False)
    placement: Placement | None = field(default=None, repr=False)
    """Where a pool placed it."""
    placed_ms: float = math.inf
    first_ms: float = math.inf
    end_ms: float = math.inf
    cached_tokens: int = 0
    generating: int = 0
    """Sequences of it that have not ended."""
    tried: list[int] = field(default_factory=list)
    """Endpoints that were not there, or died before they answered: a gateway does not try them again."""
    fate: Fate = Fate.OPEN

    @property
    def ttft_ms(self) -> float:
        """From arrival at the gateway to the first token there."""
        return self.first_ms - self.arrived_ms

    @property
    def e2e_ms(self) -> float:
        """From arrival to the last token."""
        return self.end_ms - self.arrived_ms

    @property
    def tpot_ms(self) -> float:
        """Mean time per output token after the first."""
        return (self.end_ms - self.first_ms) / max(1, self.call.output_tokens - 1)
