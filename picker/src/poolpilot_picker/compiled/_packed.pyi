from collections.abc import Callable

from poolpilot_picker.compiled._prefix import PrefixIndex
from poolpilot_picker.flow.learners import Lesson
from poolpilot_picker.requests.request import PrefixChain
from poolpilot_picker.state.endpoints import Endpoint

class Packed:
    wanted: bool
    @property
    def told_ms(self) -> float: ...
    def __init__(
        self,
        generations: memoryview,
        together_ms: float,
        most: int,
        write: Callable[[bytes], None],
        fault: Callable[[], None],
    ) -> None: ...
    def __len__(self) -> int: ...
    def read_with(self, index: PrefixIndex) -> None: ...
    def placed(
        self,
        slot: int,
        chain: PrefixChain,
        lesson: Lesson | None,
        adapter: str,
        adapter_ms: float,
        routing_key: str,
        now: float,
    ) -> None: ...
    def tell(self, now: float) -> None: ...
    def take(self) -> bytes: ...

def take_in(
    told: bytes, index: PrefixIndex, slots: list[Endpoint | None], generations: memoryview
) -> tuple[list[tuple[int, float, float, int, float]], list[tuple[int, str, float, str]]]: ...
