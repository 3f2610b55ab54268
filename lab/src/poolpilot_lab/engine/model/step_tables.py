"""Step times as tabulated, where a profile is only the straight lines through them: how far the two differ, by size.

The picker's policy believes in the lines; the simulated world follows the table, so no policy is judged on the very
formula it believes in. Source of `step_tables.csv`: computed offline with NVIDIA AIConfigurator 0.12.0 (Apache-2.0),
backend vllm, BF16, without CPU overhead. Between its points ratios are interpolated, beyond them the last one holds.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_lab.engine.model import step_time
from poolpilot_lab.engine.model.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.engine.model.profiles import Profile

FILE: Final = Path(__file__).with_name("step_tables.csv")


class StepTable:
    """Table ÷ formula of one engine. Decode: by sequences and context tokens of each; prefill: by tokens in a step."""

    __slots__ = ("batches", "contexts", "decode_ratios", "least_prefill", "log_tokens", "prefill_ratios")

    def __init__(
        self, profile: Profile, decode: dict[tuple[int, int], float], prefill: dict[int, float], budget: int = 2_048
    ) -> None:
        """decode: (sequences, context tokens of each) → ms; prefill: tokens → ms. Raises ValueError on a grid with
        holes."""
        batches, contexts = sorted({b for b, _ in decode}), sorted({c for _, c in decode})
        if len(decode) != len(batches) * len(contexts) or not decode or not prefill:
            raise ValueError(f"{profile.id}: the decode table must be a full grid and the prefill table not empty")
        self.batches = [math.log2(b) for b in batches]
        self.contexts = [math.log2(c) for c in contexts]
        self.decode_ratios = [
            [decode[b, c] / step_time.decode_alone_ms(profile, b, b * c) for c in contexts] for b in batches
        ]
        tokens = sorted(prefill)
        self.log_tokens = [math.log2(n) for n in tokens]
        self.prefill_ratios = [prefill[n] / step_time.prefill_alone_ms(profile, n, 0) for n in tokens]
        self.least_prefill = min(
            self.prefill(budget), *(r for n, r in zip(tokens, self.prefill_ratios, strict=True) if n <= budget)
        )
        """Lowest ratio of a step within that token budget: what bounds assume."""

    def decode(self, sequences: int, context_tokens: int) -> float:
        """Factor on the formula's time of a step that decodes so many sequences with that context in all."""
        b, share_b = _between(self.batches, math.log2(max(1, sequences)))
        c, share_c = _between(self.contexts, math.log2(max(1.0, context_tokens / max(1, sequences))))
        low, high = self.decode_ratios[b], self.decode_ratios[b + 1]
        return (1.0 - share_b) * (low[c] + share_c * (low[c + 1] - low[c])) + share_b * (
            high[c] + share_c * (high[c + 1] - high[c])
        )

    def prefill(self, tokens: int) -> float:
        """Factor on the formula's time of so many prompt tokens in one step."""
        n, share = _between(self.log_tokens, math.log2(max(1, tokens)))
        return self.prefill_ratios[n] + share * (self.prefill_ratios[n + 1] - self.prefill_ratios[n])


def _between(grid: Sequence[float], value: float) -> tuple[int, float]:
    """(index of the point below, share of the way to the next); at the ends the outermost point."""
    if value <= grid[0]:
        return 0, 0.0
    if value >= grid[-1]:
        return len(grid) - 2, 1.0
    index = bisect_right(grid, value) - 1
    return index, (value - grid[index]) / (grid[index + 1] - grid[index])


@cache
def step_tables() -> dict[str, StepTable]:
    """Of every profile that comes with the package, by id."""
    decode: dict[str, dict[tuple[int, int], float]] = {}
    prefill: dict[str, dict[int, float]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name, ms = row["model_id"], float(row["ms"])
            if row["phase"] == "decode":
                decode.setdefault(name, {})[int(row["batch"]), int(row["context_tokens"])] = ms
            else:
                prefill.setdefault(name, {})[int(row["prompt_tokens"])] = ms
    return {name: StepTable(PROFILES[name], decode[name], prefill[name]) for name in PROFILES}
