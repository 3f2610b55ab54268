from poolpilot_picker.compiled._prefix import PrefixIndex
from poolpilot_picker.flow.learners import Lesson
from poolpilot_picker.requests.request import PrefixChain
from poolpilot_picker.state.endpoints import Endpoint

class Packed:
    def __init__(self, index: PrefixIndex) -> None: ...
    def __len__(self) -> int: ...
    def add(
        self,
        slot: int,
        generation: int,
        chain: PrefixChain,
        lesson: Lesson | None,
        adapter: str,
        adapter_ms: float,
        routing_key: str,
    ) -> int: ...
    def take(self) -> bytes: ...

def take_in(
    told: bytes, index: PrefixIndex, slots: list[Endpoint | None], generations: memoryview
) -> tuple[list[tuple[int, float, float, int, float]], list[tuple[int, str, float, str]]]: ...
