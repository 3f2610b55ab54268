import random

from poolpilot_picker.compiled._columns import Columns
from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.routing.decision import Forecast
from poolpilot_picker.state.columns import Floats, Mask

class Priced:
    @property
    def terms(self) -> dict[str, Floats]: ...
    @property
    def total(self) -> Floats: ...
    def forecast(self, slot: int) -> Forecast: ...
    def cheapest(self, mask: Mask, rng: random.Random) -> int: ...

class Cost:
    def __init__(self, parameters: CostParameters) -> None: ...
    def price(
        self,
        columns: Columns,
        now: float,
        prompt: float,
        sequences: float,
        output: float,
        rest: float,
        target_ms: float | None,
        hit_share: float,
        stale_after_ms: float,
        mask: Mask,
        cached: Floats,
        indexed: Floats,
        adapter: tuple[Mask, Floats, Floats, Floats, Floats, int, float] | None,
        lent: Floats | None,
        reuse: Floats | None,
    ) -> Priced: ...
