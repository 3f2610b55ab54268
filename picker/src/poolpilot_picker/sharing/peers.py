"""One worker among its peers: its own account and journal, the sums over all accounts, and everybody's news.

Nothing here waits and nothing is called from outside: sums and news are read when a decision needs them, and a few
times a second where none does.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from poolpilot_picker.flow.crew import Withdrawn
from poolpilot_picker.flow.packed import packed
from poolpilot_picker.instruments.seldom import Seldom
from poolpilot_picker.sharing.journal import JournalReader, JournalWriter
from poolpilot_picker.sharing.shares import recent_of, shares
from poolpilot_picker.sharing.slots import SlotBook
from poolpilot_picker.state.columns import columns
from poolpilot_picker.state.samples import EngineSample, ServedModels

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.shared_pool import SharedPool
    from poolpilot_picker.sharing.memory import Memory
    from poolpilot_picker.state.columns import Floats
    from poolpilot_picker.state.endpoints import EndpointSpec

log = logging.getLogger(__name__)

PLACED, WITHDRAWN, FAILED, SAMPLE, SERVED, RESTARTED = range(1, 7)
"""Kinds of news. Placements are packed (`flow/packed.py`), the others are messages."""
TOGETHER_MS: Final = 20.0
"""Placements within this time are told together, and news taken in together: most of what that costs is once for all of
them, and a prefix is not asked for again so soon."""
MOST_TOGETHER: Final = 16_384
"""Bytes of placements after which they are told at once: a record stays small beside the ring."""
MOST_NEWS: Final = 256
"""Taken from one peer in one go: a decision does not wait for more."""


class About(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """News of an endpoint that has nothing more to say."""

    slot: int
    generation: int


class Sampled(msgspec.Struct, array_like=True, frozen=True):
    """A telemetry sample."""

    slot: int
    generation: int
    sample: EngineSample


class Served(msgspec.Struct, array_like=True, frozen=True):
    """What an engine serves; None: not known."""

    slot: int
    generation: int
    models: ServedModels | None


NEWS: Final[dict[int, Any]] = {
    WITHDRAWN: Withdrawn,
    FAILED: About,
    SAMPLE: Sampled,
    SERVED: Served,
    RESTARTED: About,
}


class Sink(Protocol):
    """Where telemetry of peers goes."""

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""
        ...

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves has changed."""
        ...

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before."""
        ...


class Peers:
    """The `Sharing` of a table and the `Crew` of its pool. `bind` it to the pool before anything else is called."""

    def __init__(self, memory: Memory, chair: int, now: Callable[[], float]) -> None:
        self._memory = memory
        self._chair = chair
        self._now = now
        self._slots = SlotBook(memory, chair)
        self._journal = JournalWriter(memory, chair)
        self._own: Floats = memory.accounts[chair]
        self._shares = shares(memory, chair, self._look_around, self._hear)
        # Called for every request: without a call between.
        self.catch_up = self._shares.catch_up
        self.sum_up = self._shares.sum_up
        self.sum_up_slot = self._shares.sum_up_slot
        self.booked = self._shares.booked
        self.released = self._shares.released
        self.resized = self._shares.resized
        self.booked_since = self._shares.booked_since
        self.released_since = self._shares.released_since
        self._generations = memory.generations.data
        self._untold = packed(
            self._generations, TOGETHER_MS, MOST_TOGETHER, partial(self._journal.write, PLACED), self._not_told
        )
        self.placed = self._untold.placed
        self._epoch = memory.epoch.data
        self._seen_epoch = -1
        self._readers: dict[int, JournalReader] = {}
        self._peers: list[int] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
            kind: msgspec.msgpack.Decoder(news) for kind, news in NEWS.items()
        }
        self._seldom = Seldom()
        self._lost_before = 0
        self.faults = 0
        """News that could not be told or applied."""
        self._pool: SharedPool
        self._sink: Sink

    def bind(self, pool: SharedPool, sink: Sink) -> None:
        """Tells where news go. From here on the others' news are read; what must be known from before is asked for."""
        self._pool = pool
        self._sink = sink
        self._untold.read_with(pool.prefixes)
        self._look_around()
        self.ask()

    # ---- the account

    @property
    def block(self) -> Floats:
        """Our account."""
        return self._own

    def take(self, key: tuple[str, int]) -> int | None:
        """The slot of an endpoint."""
        return self._slots.take(key)

    def give_back(self, slot: int) -> None:
        """The endpoint is not in our table any more."""
        self._slots.give_back(slot)

    def _look_around(self) -> None:
        """A process came or went, or the set of endpoints changed."""
        memory, table = self._memory, self._pool.table
        self._seen_epoch = self._epoch[0]
        taken = np.flatnonzero(memory.taken).tolist()
        self._peers = [chair for chair in taken if chair != self._chair]
        self._untold.wanted = bool(self._peers)
        # Who has gone may have told things before: its journal is read until somebody else sits there.
        for chair in self._peers:
            if chair not in self._readers:
                self._readers[chair] = JournalReader(memory, chair)
        accounts = [columns(memory.accounts[chair], len(table)) for chair in (self._chair, *self._peers)]
        self._shares.follow(table, accounts, [recent_of(memory, chair) for chair in self._peers])

    # ---- what we tell

    def withdrawn(self, news: Withdrawn, now: float) -> None:
        """Tells the others that a placement teaches nothing."""
        self._untold.tell(now)
        self._tell(WITHDRAWN, news)

    def _not_told(self) -> None:
        self._fault("a placement could not be told to other workers")

    def generation(self, slot: int) -> int:
        """Of the slot: grows with each endpoint that gets it."""
        return self._generations[slot]

    def failed(self, slot: int) -> None:
        """Tells the others that an endpoint failed a request."""
        self._tell(FAILED, About(slot, self.generation(slot)))

    def sampled(self, slot: int, sample: EngineSample) -> None:
        """Tells the others a telemetry sample."""
        self._tell(SAMPLE, Sampled(slot, self.generation(slot), sample))

    def serves(self, slot: int, models: ServedModels | None) -> None:
        """Tells the others what an engine serves."""
        self._tell(SERVED, Served(slot, self.generation(slot), models))

    def restarted(self, slot: int) -> None:
        """Tells the others that an engine is another process than before."""
        self._tell(RESTARTED, About(slot, self.generation(slot)))

    def _tell(self, kind: int, news: msgspec.Struct) -> None:
        if self._peers:
            self._journal.write(kind, self._encoder.encode(news))

    # ---- what we are told

    def ask(self) -> None:
        """Asks who reads telemetry to tell again what it tells only once."""
        self._memory.asks[self._chair, 0] += 1

    def asked(self) -> int:
        """Grows when somebody asks."""
        return int(self._memory.asks[:, 0].sum())

    @property
    def lost(self) -> int:
        """Times that news were lost because we did not read them in time, or were too large to be told."""
        return self._journal.dropped + sum(reader.lost for reader in self._readers.values())

    def hear(self) -> None:
        """Tells what is untold, takes in what the others have told, and brings the sums up to date."""
        self._hear(self._now())
        self.sum_up()

    def _hear(self, now: float) -> None:
        self._shares.due_ms = now + TOGETHER_MS
        if self._seen_epoch != self._epoch[0]:
            self._look_around()
        if now - self._untold.told_ms >= TOGETHER_MS:
            self._untold.tell(now)
        for reader in self._readers.values():
            if reader.news:
                self._read(reader)

    def _read(self, reader: JournalReader) -> None:
        before = reader.lost
        for kind, payload in islice(reader.records(), MOST_NEWS):
            try:
                self._apply(kind, payload)
            except Exception:
                # It improves estimates and no more: no request may fail for it.
                self._fault("news of another worker could not be taken")
        if reader.lost != before:
            self.ask()

    def _fault(self, what: str) -> None:
        """The exception at hand is counted, and from time to time shown."""
        self.faults += 1
        if count := self._seldom.due(what, self._now()):
            log.exception(what, extra={"times": count})

    def _apply(self, kind: int, payload: bytes) -> None:
        if kind == PLACED:
            self._pool.placed_elsewhere(payload, self._generations, self._now())
            return
        news: Any = self._decoders[kind].decode(payload)
        slot, table = news.slot, self._pool.table
        endpoint = table.slots[slot] if slot < len(table.slots) else None
        if endpoint is None or news.generation != self.generation(slot):
            return
        if kind == SAMPLE:
            self._sink.on_sample(endpoint.spec, news.sample)
        elif kind == WITHDRAWN:
            self._pool.withdrawn_elsewhere(news)
        elif kind == FAILED:
            self._pool.failed_elsewhere(slot, self._now())
        elif kind == SERVED:
            self._sink.on_served_models(endpoint.spec, news.models)
        else:
            self._sink.on_restart(endpoint.spec)
