"""What the picker does for one page of one engine, in calls: a ceiling that does not depend on the machine."""

import sys

import pytest

from poolpilot_lab.bench.pages import Pages, addresses, engine_page
from poolpilot_lab.bench.scrape import compose, engines
from poolpilot_lab.bench.still import Still
from poolpilot_picker import compiled
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.state.endpoints import EndpointSpec

pytestmark = pytest.mark.quality

ENDPOINTS = 20
CADENCE = Cadence(fast_ms=50.0, slow_ms=50.0, everything_ms=1e9, models_ms=1e9)


class Calls:
    """Counts calls of Python functions and of built-in ones while it is entered."""

    def __init__(self) -> None:
        self.python = 0
        self.builtin = 0

    def _event(self, frame, event, argument) -> None:
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.builtin += 1

    def __enter__(self):
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


async def calls_per_page(*, idle: bool, mode: str) -> tuple[float, float]:
    """(Python functions, built-in ones) per page, everything from the scheduler to the pool's arrays."""
    specs = [EndpointSpec(host=host, port=1, uid=host) for host in addresses(ENDPOINTS)]
    pages = Pages(await engine_page(), idle=idle)
    pool, _ = compose(specs, mode, 50.0)
    feed = PoolFeed(pool, lambda: still.now_ms)
    ready: dict[bytes, list[bytes]] = {}

    def answer(target: bytes) -> bytes:
        return ready[target].pop() if ready.get(target) else pages.answer(target)

    still = Still(feed, specs, answer, Settings(cadence=CADENCE), in_flight=feed.in_flight, engines=engines(mode))
    await still.start()
    calls = Calls()
    asked = 0
    for _ in range(16):
        targets = {one.target for one in still.clients}
        ready = {target: [pages.answer(target) for _ in range(2 * ENDPOINTS)][::-1] for target in targets}
        with calls:
            asked += still.turn(50.0)
    assert asked >= 16 * ENDPOINTS * 0.8
    assert still.source.stats.restarts == 0
    assert not still.source.stats.errors
    assert still.source.stats.samples >= asked
    own = 4 * asked  # of the harness: answer, write, arrive, begin
    return (calls.python - own) / asked, calls.builtin / asked


CEILINGS = {
    (True, "full"): ((47, 44), (59, 61)),
    (False, "full"): ((40, 43), (58, 96)),
    (True, "selected"): ((47, 45), (65, 67)),
    (False, "selected"): ((40, 44), (63, 102)),
}
"""Of an idle engine or not, and the mode: (Python, built-in) with the compiled core and with the reference."""


@pytest.mark.parametrize(("idle", "mode"), CEILINGS)
async def test_calls_per_page(idle, mode):
    found = await calls_per_page(idle=idle, mode=mode)
    print(f"{mode}, {'idle' if idle else 'busy'}: {found[0]:.1f} Python calls, {found[1]:.1f} built-in calls per page")
    python, builtin = CEILINGS[idle, mode][compiled.in_force is None]
    assert found[0] <= python
    assert found[1] <= builtin
