"""Was the engine restarted since the readings before? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_picker.state.samples import EngineSample

COUNTERS: Final = (
    "generated_tokens",
    "preemptions",
    "prompt_tokens",
    "requests_succeeded",
    "cache_queried_tokens",
    "cached_prompt_tokens",
)
_SAME_START_S: Final = 1.0


class RestartDetector:
    """Compares each reading with the newest value of every counter, whichever reading told it."""

    __slots__ = ("_counters", "_started")

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._started: float | None = None

    def observe(self, sample: EngineSample, asked: Sequence[str] = COUNTERS) -> str | None:
        """Why this reading is of another process than those before (a counter went down, the start time moved), or
        None. Knows only the new process afterwards. `asked`: those of the counters that the reading may tell.

        A start time may come from a clock that is being set: less than a second is no restart.
        """
        started = sample.started_unix_s
        counters = self._counters
        why = None
        if started is not None and self._started is not None and abs(started - self._started) >= _SAME_START_S:
            why = f"start time moved by {started - self._started:.1f} s"
        for name in asked:
            value = getattr(sample, name)
            if value is not None:
                if value < counters.get(name, value):
                    why = why or f"{name} went from {counters[name]:g} to {value:g}"
                counters[name] = value
        if why is not None:
            counters.clear()
            counters.update((name, value) for name in asked if (value := getattr(sample, name)) is not None)
        if started is not None or why is not None:
            self._started = started
        return why
