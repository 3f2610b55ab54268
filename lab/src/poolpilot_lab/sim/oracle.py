"""References that look into the engines: what knowledge and late binding would buy. Not competitors.

The greedy oracle minimises the same kind of cost as the default policy, but with the true coefficients, lengths, cache
and state of every engine at that very moment, and with the true value of what a placement evicts. Its constants are its
own: the load axis hangs on it and must not move when the policy is tuned. The central queue also binds late: a request
stays at the router until an engine has no prefill to do. Neither is a bound: see `limits` for those.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from poolpilot_lab.sim.outlook import Outlook
from poolpilot_lab.sim.trip import Fate

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.trip import Trip
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.state.samples import EngineSample


AVOID_MS: Final = 5_000.0
LEAST_CHUNK: Final = 256
KV_ROOM: Final = 0.9
OWN_DECODE: Final = 0.25
OTHERS: Final = 0.3
FLEET_SHARE: Final = 0.3
OTHERS_DECODE: Final = 0.25
SLOW_START: Final = 3.0
SLOW_START_MS: Final = 300.0
KV_BARRIER_MS: Final = 1_000.0
KV_BARRIER_MOST_MS: Final = 30_000.0
PROMPT_SMOOTHING: Final = 0.02


class _State(NamedTuple):
    """One engine as it is now; tokens and ms."""

    decoding: int
    context: int
    joining: int
    """Being prefilled, waiting, or on their way: they will decode beside whoever comes."""
    joining_context: int
    waiting: int
    queue_ms: float
    """Prefill work of what is being prefilled, waits, or is on its way."""
    queue_tokens: int
    shared: int
    """Σ min(tokens that the new one generates, true output tokens still to come) over all that are here."""
    remaining: int
    """Σ true output tokens still to come."""
    adapters: set[str]


class Oracle:
    """Places greedily by full knowledge, at once."""

    scrape_ms = None

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(f"{seed}/oracle")
        self._engines: list[Engine] = []
        self._present: list[int] = []
        self._transit: dict[int, dict[Trip, None]] = {}
        self._uncached: dict[int, int] = {}
        self._outlook = Outlook()
        self._mean_prompt = 0.0
        self._avoid_until: dict[int, float] = {}

    # ---- Router

    def start(self, engines: list[Engine], present: list[int], now: float) -> None:
        """Keeps the engines to look into."""
        self._engines = engines
        self._transit = {endpoint: {} for endpoint in range(len(engines))}
        self.present(present, now)

    def present(self, endpoints: list[int], now: float) -> None:
        """Which endpoints there are."""
        self._present = endpoints

    def route(self, trip: Trip, now: float) -> int | None:
        """The lowest true cost."""
        return self._choose(trip, self._working(trip, now), now)

    def _working(self, trip: Trip, now: float) -> list[int]:
        """Endpoints that are there and do not fail; all of them where none is left."""
        sound = [e for e in self._present if self._avoid_until.get(e, 0.0) <= now and e not in trip.tried]
        return sound or self._present

    def released(self, now: float) -> list[tuple[Trip, int]]:
        """Nothing is held."""
        return []

    def first_token(self, trip: Trip, now: float) -> None:
        """Known anyway."""

    def ended(self, trip: Trip, fate: Fate, now: float) -> None:
        """One failure is enough to know that an endpoint is broken."""
        if fate in (Fate.FAILED, Fate.LOST):
            self._avoid_until[trip.endpoint] = now + AVOID_MS
        self._transit[trip.endpoint].pop(trip, None)
        self._uncached.pop(trip.number, None)

    def sampled(self, picker: int, endpoint: int, sample: EngineSample, now: float) -> None:
        """Known anyway."""

    # ---- the truth

    def _choose(self, trip: Trip, among: list[int], now: float) -> int:
        if not trip.tried:
            self._outlook.arrived(trip.call)
        costs, uncached = self._costs(trip, among, now)
        best = min(costs.values())
        chosen = self._random.choice([endpoint for endpoint, cost in costs.items() if cost <= best + 1e-9])
        self._mean_prompt += PROMPT_SMOOTHING * (trip.call.prompt_tokens - self._mean_prompt)
        self._uncached[trip.number] = uncached[chosen]
        self._transit[chosen][trip] = None
        return chosen

    def _costs(self, trip: Trip, among: list[int], now: float) -> tuple[dict[int, float], dict[int, int]]:
        """(cost, uncached tokens) by endpoint."""
        states = {endpoint: self._look(endpoint, now, trip.call.output_tokens) for endpoint in among}
        mean = sum(state.decoding + state.joining for state in states.values()) / len(states)
        own = set(trip.call.blocks)
        costs: dict[int, float] = {}
        uncached: dict[int, int] = {}
        for endpoint, state in states.items():
            costs[endpoint], uncached[endpoint] = self._cost(trip, own, endpoint, state, mean, now)
        return costs, uncached

    def ranked(self, trip: Trip, among: list[int], now: float) -> list[tuple[float, int]]:
        """(cost, endpoint), cheapest first; nothing is noted."""
        costs, _ = self._costs(trip, among, now)
        return sorted((cost, endpoint) for endpoint, cost in costs.items())

    def _look(self, endpoint: int, now: float, output: int) -> _State:
        engine = self._engines[endpoint]
        accelerator = engine.accelerator
        decoding, context, joining, joining_context, tokens, prefills, shared, remaining = engine.survey(now, output)
        work = sum([accelerator.prefill_ms(rest, attention) for rest, attention in prefills])
        transit = self._transit[endpoint]
        for trip in [trip for trip in transit if trip.sequence is not None]:
            del transit[trip]
        coming: list[Trip] = [cast("Trip", sequence.tag) for sequence in engine.waiting]
        coming += transit
        adapters = set(engine.adapters_in_flight)
        for trip in coming:
            call = trip.call
            new = self._uncached.get(trip.number, call.prompt_tokens)
            old = call.prompt_tokens - new
            joining += 1
            joining_context += call.prompt_tokens
            tokens += new
            work += accelerator.prefill_ms(new, new * new + 2 * new * old)
            shared += min(output, call.output_tokens)
            remaining += call.output_tokens
            if call.adapter:
                adapters.add(call.adapter)
        queue_ms = accelerator.slow * work
        return _State(
            decoding,
            context,
            joining,
            joining_context,
            len(coming),
            queue_ms,
            tokens,
            shared,
            remaining,
            adapters,
        )

    def _cost(
        self, trip: Trip, own: set[int], endpoint: int, state: _State, mean: float, now: float
    ) -> tuple[float, int]:
        """The default policy's cost with true numbers, and the uncached tokens."""
        engine, call = self._engines[endpoint], trip.call
        accelerator, profile = engine.accelerator, engine.accelerator.profile
        slow = accelerator.slow
        decode_factor = accelerator.decode_factor * slow
        prompt, output, settings = call.prompt_tokens, call.output_tokens, engine.settings
        size = settings.block_size
        hit = size * engine.blocks.match(call.blocks, (prompt - 1) // size)
        new = prompt - hit
        work = slow * accelerator.prefill_ms(new, new * new + 2 * new * hit)
        batch = state.decoding + state.joining
        step = slow * accelerator.decode_ms(state.decoding, state.context, 0)
        room = max(settings.max_num_batched_tokens - state.decoding, LEAST_CHUNK)
        prefill = work + -(-new // room) * step
        wait = state.queue_ms + -(-state.queue_tokens // room) * step
        if engine.busy_until is not None:
            left = engine.busy_until - now
            wait += max(0.0, min(left, step if left > 2.0 * step else left))
        each = profile.decode_b_ms + profile.sequence_overhead_ms + profile.decode_c_ms * (prompt + 0.5 * output)
        beside = slow * accelerator.decode_ms(batch, state.context + state.joining_context, 0)
        later = beside + decode_factor * each
        capacity = engine.blocks.total * size
        in_use = engine.blocks.used * size + state.queue_tokens + new
        over = float(batch + 1 - settings.max_num_seqs)
        if in_use > 0.98 * capacity:
            over = max(over, state.waiting + 1.0)
        mean_rest = state.remaining / max(1, batch)
        admission = max(0.0, over) * mean_rest * later / max(1, batch) if batch else 0.0
        load_ms, adapter_cost = self._adapter(trip, engine, state, later)
        ttft = wait + prefill + admission + load_ms
        delayed = FLEET_SHARE * mean + (1.0 - FLEET_SHARE) * batch
        slowed = decode_factor * each * state.shared
        cost = (
            ttft
            + admission
            + OWN_DECODE * output * later
            + OTHERS * delayed * work
            + OTHERS_DECODE * slowed
            + SLOW_START * max(0.0, ttft - work - SLOW_START_MS)
            + adapter_cost
        )
        peak = (in_use + output + 0.5 * state.remaining) / capacity
        if peak > KV_ROOM:
            cost += min(KV_BARRIER_MOST_MS, KV_BARRIER_MS * (peak - KV_ROOM) / max(0.02, 1.05 - peak))
        needed = (new + output + state.queue_tokens) // size + 1
        lost = size * self._outlook.lost_blocks(engine, needed, own, self._engines)
        if lost:
            # Recomputed once, at the mean depth of a prompt, beside whatever decodes there.
            again = slow * accelerator.prefill_ms(int(lost), int(lost * self._mean_prompt))
            cost += again * (1.0 + OTHERS * delayed)
        return cost, new

    def _adapter(self, trip: Trip, engine: Engine, state: _State, later: float) -> tuple[float, float]:
        """(time of a load, its cost besides)."""
        adapter = trip.call.adapter
        if not adapter or adapter in engine.slots.resident or adapter in state.adapters:
            return 0.0, 0.0
        load, slots, active = engine.settings.lora_load_ms, engine.settings.max_loras, len(state.adapters)
        cost = load * (state.decoding + state.joining)
        if active >= slots:
            cost += (active - slots + 1) * trip.call.output_tokens * later / max(1, active)
        return load, cost


class CentralQueue(Oracle):
    """First come, first served, from one queue: the head goes to the best engine that has nothing to prefill."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self._queue: deque[Trip] = deque()

    def route(self, trip: Trip, now: float) -> int | None:
        """At once when nobody waits and an engine is ready."""
        if not self._queue:
            ready = self._ready(trip, now)
            if ready:
                return self._choose(trip, ready, now)
        self._queue.append(trip)
        return None

    def released(self, now: float) -> list[tuple[Trip, int]]:
        """As many from the head as engines are ready."""
        going: list[tuple[Trip, int]] = []
        while self._queue:
            ready = self._ready(self._queue[0], now)
            if not ready:
                break
            trip = self._queue.popleft()
            going.append((trip, self._choose(trip, ready, now)))
        return going

    def _ready(self, trip: Trip, now: float) -> list[int]:
        return [endpoint for endpoint in self._working(trip, now) if self._is_ready(endpoint, trip)]

    def _is_ready(self, endpoint: int, trip: Trip) -> bool:
        engine = self._engines[endpoint]
        if engine.waiting or len(engine.running) >= engine.settings.max_num_seqs:
            return False
        if any(trip.sequence is None for trip in self._transit[endpoint]):
            return False
        if any(not sequence.generated for sequence in engine.running):
            return False
        needed = trip.call.prompt_tokens // engine.settings.block_size + 1
        return not engine.running or needed <= engine.blocks.free
