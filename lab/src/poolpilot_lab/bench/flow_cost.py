"""What flow control costs while nothing waits: CPU of a request's way through it, beside the same without it.

Run `python -m poolpilot_lab.bench.flow_cost` (options: --endpoints, --requests). Both pools decide by the default
policy and see the same requests: one in flight at each endpoint, short prompts, metrics as in a running picker.
`place`: until the request is booked; `end`: from the answer's end until all is released and charged. Medians of the
thread's own time, the two taking turns.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool
from poolpilot_picker.instruments.flow_metrics import FlowMetrics
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishPicker
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from poolpilot_picker.errors import RequestRefused

TURN: Final = 200
"""Requests before it is the other's turn."""
GAP_MS: Final = 20.0


class _Nobody:
    """Waits for nothing: where a request has to, the measurement is not of an idle layer."""

    def dispatched(self, placement: Placement, now: float) -> None:
        raise RuntimeError("a request had to wait")

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        raise refused

    def unplaceable(self, now: float) -> None:
        raise RuntimeError("a request could not be placed")


class Side:
    """One pool and its times, in µs."""

    def __init__(self, endpoints: int, *, flow: bool) -> None:
        self._rng = random.Random(1)
        self._now = 1_000_000.0
        self._pool = Pool("bench", Profile("default", picker=("p", PredictedFinishPicker())), self._rng)
        self._pool.apply_endpoints(EndpointSpec(host=f"10.0.{n >> 8}.{n & 255}", port=8000) for n in range(endpoints))
        self._flow: FlowControl | None = None
        if flow:
            metrics = FlowMetrics(PickerMetrics(CollectorRegistry()), "bench", lambda: self._now)
            self._flow = self._pool.flow = FlowControl(self._pool, FlowSettings(), metrics)
        self._open: deque[Placement] = deque()
        self._waiter = _Nobody()
        self.place: list[float] = []
        self.end: list[float] = []
        for _ in range(endpoints):
            self._open.append(self._placed())

    def _request(self) -> InferenceRequest:
        number = self._rng.getrandbits(62)
        return InferenceRequest(
            request_id=f"r{number}",
            client_id=f"r{number}",
            kind=RequestKind.CHAT,
            model="model",
            target_model="model",
            tenant=f"tenant-{number % 7}",
            prompt_tokens=200,
            prefix=PrefixChain(hashes=[number, number + 1], ends=[64.0, 128.0]),
        )

    def _placed(self) -> Placement:
        return self._submit(self._request())

    def _submit(self, request: InferenceRequest) -> Placement:
        if self._flow is None:
            return self._pool.place(request, self._now)
        found = self._flow.submit(request, self._waiter, self._now)
        if isinstance(found, Ticket):
            raise RuntimeError(f"a request has to wait: {found.why}")
        return found

    def turn(self, *, counts: bool) -> None:
        """TURN requests come, and as many end."""
        clock = time.thread_time_ns
        for request in [self._request() for _ in range(TURN)]:
            self._now += GAP_MS
            start = clock()
            placement = self._submit(request)
            placed = clock()
            self._open.append(placement)
            going = self._open.popleft()
            before = clock()
            self._pool.finish(going, Outcome.SERVED, self._now)
            after = clock()
            if counts:
                self.place.append((placed - start) / 1000.0)
                self.end.append((after - before) / 1000.0)


def compare(endpoints: int, requests: int) -> tuple[Side, Side]:
    """(without, with) flow control, after so many requests each."""
    sides = Side(endpoints, flow=False), Side(endpoints, flow=True)
    gc.collect()
    gc.freeze()
    for turn in range(max(2, requests // TURN + 1)):
        for side in sides:
            side.turn(counts=turn > 0)
    return sides


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--endpoints", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--requests", type=int, default=20_000, help="requests per row (default %(default)s)")
    options = parser.parse_args()
    for name, least in (("endpoints", min(options.endpoints)), ("requests", options.requests)):
        if least < 1:
            parser.error(f"--{name} is {least}; allowed is 1 or more")
    print("CPU in µs, median     place: without   with    end: without   with    added, both")
    for endpoints in options.endpoints:
        without, with_flow = compare(endpoints, options.requests)
        place, placed = statistics.median(without.place), statistics.median(with_flow.place)
        end, ended = statistics.median(without.end), statistics.median(with_flow.end)
        added = placed - place + ended - end
        print(f"{endpoints:9} endpoints{place:17.1f}{placed:7.1f}{end:16.1f}{ended:7.1f}{added:15.1f}")


if __name__ == "__main__":
    main()
