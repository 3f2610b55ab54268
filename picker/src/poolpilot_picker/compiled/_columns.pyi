from typing import Final

from poolpilot_picker.state.columns import Floats, Mask

ROWS: Final[tuple[str, ...]]

class Columns:
    def __init__(self, block: Floats, slots: int) -> None: ...
    def sum_up(self, accounts: list[Columns]) -> None: ...
    def sum_up_slot(self, accounts: list[Columns], slot: int) -> None: ...
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
    def crowd(self, slot: int) -> float: ...
    def all_hold(self, tokens: float) -> bool: ...
    def load(self, now: float, stale_after_ms: float, pickers: float) -> tuple[Floats, Floats, Mask]: ...
