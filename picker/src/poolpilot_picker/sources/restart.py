"""Was the engine restarted between two samples of it? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from poolpilot_picker.state.samples import EngineSample

COUNTERS: Final = (
    "prompt_tokens",
    "generated_tokens",
    "requests_succeeded",
    "cache_queried_tokens",
    "cached_prompt_tokens",
    "preemptions",
)


def restarted(before: EngineSample, after: EngineSample) -> str | None:
    """Why `after` is of another process than `before`, or None: a counter went down or the start time moved.

    A start time may come from a clock that is being set: less than a second is no restart.
    """
    if before.started_unix_s is not None and after.started_unix_s is not None:
        moved = after.started_unix_s - before.started_unix_s
        if abs(moved) >= 1.0:
            return f"start time moved by {moved:.1f} s"
    for field in COUNTERS:
        old, new = getattr(before, field), getattr(after, field)
        if old is not None and new is not None and new < old:
            return f"{field} went from {old:g} to {new:g}"
    return None
