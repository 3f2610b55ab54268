from collections.abc import Callable

from poolpilot_picker.sources.page_layout import Line
from poolpilot_picker.sources.series import Series

class Layout:
    def __init__(self, lines: list[Line], series: Callable[[bytes, float], Series]) -> None: ...
    def read(
        self, text: bytes | bytearray, begin: int, end: int, found: dict[str, list[Series]]
    ) -> list[tuple[str, float]] | None: ...

def same_head(buffer: bytes | bytearray, filled: int, before: bytes, behind: bytes) -> tuple[int, int] | None: ...
