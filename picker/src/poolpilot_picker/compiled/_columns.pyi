from typing import Final

from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.state.columns import Floats, Mask

ROWS: Final[tuple[str, ...]]
TERMS: Final[tuple[str, ...]]
OUT_ROWS: Final[int]
TOTAL_ROW: Final[int]

class Constants:
    def __init__(self, parameters: CostParameters) -> None: ...

class Columns:
    def __init__(self, block: Floats, slots: int) -> None: ...
    def enter(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        prefill_ms: float,
        now: float,
    ) -> float: ...
    def enter_decoding(
        self, slot: int, sequences: float, prompt: float, expected: float, uncached: float, first_ms: float
    ) -> None: ...
    def leave(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        first_ms: float,
        prefilling: bool,
    ) -> None: ...
    def leave_idle(self, slot: int, now: float) -> None: ...
    def batch(self, slot: int, now: float) -> tuple[float, float]: ...
    def all_heard(self, since: float) -> bool: ...
    def cost(
        self,
        constants: Constants,
        now: float,
        prompt: float,
        sequences: float,
        output: float,
        rest: float,
        target_ms: float | None,
        hit_share: float,
        pickers: float,
        cached: Floats,
        indexed: Floats,
        load: tuple[Floats, Floats] | None,
        adapter: tuple[Mask, Floats, Floats, Floats] | None,
        out: Floats,
    ) -> int: ...
    def predicted(self, out: Floats, slot: int) -> tuple[float, float, float, float, float]: ...
    def cheapest(self, out: Floats, mask: Mask, tie_ms: float) -> tuple[int, int]: ...
    def tied(self, out: Floats, mask: Mask, tie_ms: float, best: int, number: int) -> int: ...
