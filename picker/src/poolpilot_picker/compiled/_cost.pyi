from typing import Final

from poolpilot_picker.compiled._columns import Columns
from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.state.columns import Floats, Mask

TERMS: Final[tuple[str, ...]]
OUT_ROWS: Final[int]
TOTAL_ROW: Final[int]

class Cost:
    def __init__(self, parameters: CostParameters) -> None: ...
    def fill(
        self,
        columns: Columns,
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
