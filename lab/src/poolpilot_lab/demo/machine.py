"""Whether the machine kept up: figures of a run in which it did not say more about the machine than about routing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.demo.telemetry import Clock

MOST_LATE_STEPS: Final = 0.05
MOST_CLIENT_LATE_MS: Final = 25.0


@dataclass(frozen=True, slots=True)
class Punctuality:
    """Of one run. `busy`: share of all processors over the run, by whatever program; None where it is not known."""

    busy: float | None
    late_steps: float
    """Share of the engines' steps that came more than 5 ms late."""
    worst_step_ms: float
    client_late_ms: float
    """99 % of the requests were sent at most so much later than due."""

    @property
    def problems(self) -> list[str]:
        """Why the figures should not be trusted; empty when they may be."""
        found = []
        if self.late_steps > MOST_LATE_STEPS:
            found.append(
                f"{self.late_steps:.0%} of the engines' steps came late, the worst by {self.worst_step_ms:.0f} ms"
            )
        if self.client_late_ms > MOST_CLIENT_LATE_MS:
            found.append(f"requests were sent up to {self.client_late_ms:.0f} ms late (p99)")
        # Busy with other people's work at a lower priority does no harm: it explains lateness, it is none.
        if found and self.busy is not None:
            found.append(f"the processors were {self.busy:.0%} busy")
        return found


def punctuality(
    before: tuple[float, float] | None, after: tuple[float, float] | None, clock: Clock, lateness_ms: Sequence[float]
) -> Punctuality:
    """From readings of `processor_seconds` around a run, the engines' clocks and the client's lateness."""
    busy = None
    if before is not None and after is not None and after[1] > before[1]:
        busy = (after[0] - before[0]) / (after[1] - before[1])
    late_ms = float(np.percentile(lateness_ms, 99)) if lateness_ms else 0.0
    return Punctuality(busy, clock.late / max(1, clock.steps), clock.worst_ms, late_ms)


def processor_seconds(stat: Path = Path("/proc/stat")) -> tuple[float, float] | None:
    """Ticks of all processors since boot, busy and in total; None where the kernel does not tell (not Linux)."""
    try:
        line = stat.read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return None
    ticks = [float(value) for value in line.split()[1:9]]
    if len(ticks) < 5:
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
