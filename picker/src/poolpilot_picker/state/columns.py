"""The pool's numbers, one row per quantity and one column per slot, and the arithmetic of the account on them.

One block of memory holds them all, so that the compiled core needs one pointer, and so that the block may lie in memory
that is shared. `ReferenceColumns` is the reference of what `compiled/_columns.pyx` does in the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from poolpilot_picker import compiled

if TYPE_CHECKING:
    from poolpilot_picker.state.samples import EngineSample

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

NEVER: Final = -np.inf
"""Time of a sample that was never taken."""
ABSURD: Final = 1e6
"""No engine runs or queues more sequences than this; what says so lies."""

TOLD_SHARE: Final = 0.5
"""What a sample that was just begun counts of what others have at an endpoint; the rest is what they usually have there
beside as many of ours as there are now."""
TOLD_MS: Final = 2_000.0
"""Age at which a sample no longer counts there: others, who see what we see, have placed more since."""
MEAN_MS: Final = 10_000.0
"""Over about so long what others have, and what we have, is averaged to what is usual."""
FEW: Final = 0.5
"""Sequences added to ours, now and usually, before they are compared: few of them tell little."""
MOST_TIMES: Final = 4.0
"""What others have is taken to be at most so many times what is usual, and at least that part of it: direct clients do
not follow us."""
NOBODY: Final = 0.01
"""Where a sample tells of none and fewer are usual, there are none."""

# Column name → (initial value, what it is). Times in ms of the monotonic clock, lengths in tokens. What a formula reads
# is finite and harmless in every slot, also in a free one; only what an engine tells may be NaN: it did not.
COLUMNS: Final[dict[str, tuple[float, str]]] = {
    # written by the ledger
    "inflight": (0.0, "sequences booked and not released"),
    "requests": (0.0, "requests booked and not released"),
    "prompt_tokens": (0.0, "sum of prompt tokens of the bookings"),
    "expected_tokens": (0.0, "sum of expected output tokens of the bookings"),
    "uncached_tokens": (0.0, "sum of uncached prompt tokens of the bookings whose first token was not seen"),
    "new_kv_tokens": (0.0, "sum of uncached prompt tokens of the bookings: what they add to the KV cache"),
    "started_sum_ms": (0.0, "sum over the bookings of their predicted first-token times"),
    "free_at_ms": (0.0, "when the prefill work booked here is predicted to be done"),
    # written when a sample is applied
    "sample_ms": (NEVER, "when the newest sample was begun"),
    "load_ms": (NEVER, "when the newest sample that told the load was begun"),
    "running": (np.nan, "sequences the engine ran"),
    "waiting": (np.nan, "sequences the engine queued"),
    "queued": (0.0, "the same, 0 where the engine did not tell"),
    "kv_usage": (np.nan, "share of the KV cache in use, 0..1"),
    "kv_capacity": (np.nan, "KV cache size"),
    "foreign": (0.0, "sequences at the engine that cannot be ours, by the newest sample that told the load"),
    "foreign_mean": (0.0, "mean of that over the last ten seconds or so"),
    "own_mean": (0.0, "mean of our sequences there when those samples were taken"),
    "other_kv_tokens": (0.0, "KV tokens in use besides new_kv_tokens, by the newest sample that told"),
    "preempting_until_ms": (NEVER, "recently seen preempting, until this time"),
    # as the engine tells, else from the profile
    "kv_tokens": (1e9, "KV cache size"),
    "max_sequences": (1e9, "sequences that run at once (max_num_seqs)"),
    # from the profile, times the residuals
    "token_budget": (1e9, "tokens a step may hold"),
    "step_ms": (1.0, "decode step: constant"),
    "sequence_ms": (0.0, "decode step: per sequence"),
    "context_ms": (0.0, "decode step: per context token"),
    "token_ms": (0.0, "prefill: per uncached token"),
    "token2_ms": (0.0, "prefill: per squared token"),
    "half_chunk_ms": (0.0, "prefill: half of the work that a full step holds"),
    # written from what was learned
    "prefill_speed": (1.0, "residual: prefill takes this times the profile's prediction"),
    "decode_speed": (1.0, "residual: a decode step takes this times the profile's prediction"),
    "prefill_share": (0.0, "share of time spent on prefill, smoothed, 0..0.7"),
    "interference": (1.0, "a decode step takes this times longer, for the prefills between: 1 ÷ (1 − prefill_share)"),
    "failure_ms": (0.0, "penalty for recent failures"),
    "cache_trust": (1.0, "observed over predicted cache hits, 0..1"),
    # written by discovery
    "mean_weight": (0.0, "1 ÷ number of wanted endpoints, 0 for the others: dot product = mean over the pool"),
}

ROWS: Final[tuple[str, ...]] = tuple(COLUMNS)
"""Names of the block's rows, in order. The ledger's come first."""
LEDGER_ROWS: Final = ROWS.index("free_at_ms") + 1
_STARTS: Final = np.array([start for start, _ in COLUMNS.values()])

_INFLIGHT, _REQUESTS, _PROMPT, _EXPECTED, _UNCACHED, _NEW_KV, _STARTED, _FREE_AT = range(LEDGER_ROWS)
_SAMPLE_MS, _LOAD_MS, _RUNNING, _WAITING, _QUEUED, _USAGE, _CAPACITY = range(LEDGER_ROWS, LEDGER_ROWS + 7)
_FOREIGN, _FOREIGN_MEAN, _OWN_MEAN, _OTHER_KV = range(LEDGER_ROWS + 7, LEDGER_ROWS + 11)
_KV_TOKENS, _MAX_SEQUENCES, _STEP, _SEQUENCE, _CONTEXT, _MEAN_WEIGHT = map(
    ROWS.index, ("kv_tokens", "max_sequences", "step_ms", "sequence_ms", "context_ms", "mean_weight")
)


def new_block(slots: int) -> Floats:
    """A block for at least so many slots, all of them free.

    A row is an odd number of cache lines long: a power of two would put equal slots of all rows into the same few lines
    of the processor's cache, and a decision reads most rows at once.
    """
    lines = -(-slots // 8) | 1
    return reset(np.empty((len(ROWS), 8 * lines)))


def reset(block: Floats) -> Floats:
    """Makes all slots of a block, or of a part of its columns, free."""
    block[:] = _STARTS[:, None]
    return block


def gauge(value: float | None) -> float:
    """NaN for what was not told, or makes no sense."""
    return value if value is not None and 0.0 <= value <= ABSURD else math.nan


class ClockLike(Protocol):
    """What is told how many sequences were at an endpoint, and for how long."""

    def advance(self, now: float, sequences: float, context_tokens: float) -> None:
        """Accounts for the time since the last call, during which this many sequences were here."""
        ...


class Columns(Protocol):
    """The account's arithmetic on the slots in use of a block. Lengths in tokens: `prompt` and `expected` of each of
    the booking's sequences, `uncached` of all of them."""

    def enter(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        prefill_ms: float,
        now: float,
    ) -> float:
        """Books a request whose prefill is still to come; returns when its first token is predicted, ms."""
        ...

    def enter_decoding(
        self, slot: int, sequences: float, prompt: float, expected: float, uncached: float, first_ms: float
    ) -> None:
        """Books a request whose first token was seen at `first_ms`."""
        ...

    def leave(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        first_ms: float,
        prefilling: bool,
    ) -> None:
        """Takes a booking out, one of several: numbers as they were when it entered, `first_ms` as it is now."""
        ...

    def leave_idle(self, slot: int, now: float) -> None:
        """The last booking goes: an idle endpoint starts from exact zeros, float sums do not drift over days."""
        ...

    def batch(self, slot: int, now: float) -> tuple[float, float]:
        """(sequences, their context tokens) that run at an endpoint now, others' taken to be like ours."""
        ...

    def advance(self, slot: int, now: float, clock: ClockLike) -> None:
        """Tells the endpoint's clock what ran there since it was last told."""
        ...

    def tell(self, slot: int, sample: EngineSample, explained: float) -> float:
        """Writes what a sample tells in numbers: its times, its gauges, and the facts it has.

        A gauge that is missing is unknown, not zero. `explained`: sequences in the gauges that may be ours. Returns how
        many wait, NaN where that is not told.
        """
        ...

    def tell_usage(self, slot: int, usage: float) -> None:
        """Writes the share of the KV cache in use; NaN: unknown."""
        ...

    def crowd(self, slot: int) -> float:
        """Sequences at an endpoint for each of ours, one of ours more taken to be there."""
        ...

    def step(self, slot: int, growth: float) -> float:
        """ms of a decode step, with our sequences as they are when they have this share of their expected output."""
        ...

    def ample(self, by_ms: float, sequences: float, tokens: float, share: float, kv_share: float) -> bool:
        """True where every slot is far from its bounds, or none has a request of ours.

        Far: prefill work ends by `by_ms`; with `sequences` and `tokens` more, twice what runs and twice what will be
        generated stay within a share of the engine's sequences, and of the KV cache within `kv_share` of that.
        """
        ...

    def all_hold(self, tokens: float) -> bool:
        """True when no slot's KV cache is smaller."""
        ...

    def load(self, now: float, stale_after_ms: float, expected: bool) -> tuple[Floats, Floats, Mask]:
        """(foreign, other KV tokens, unknown), one element per slot, as `LoadEstimate` describes them."""
        ...

    def sum_up(self, accounts: list[Any]) -> None:
        """Makes the ledger's rows what the accounts of several processes hold together, each with at least as many
        slots; `free_at_ms` is the latest of theirs. The accounts are of the same class."""
        ...

    def sum_up_slot(self, accounts: list[Any], slot: int) -> None:
        """The same for one slot."""
        ...


def columns(block: Floats, slots: int) -> Columns:
    """The arithmetic in force, on the first `slots` slots of a block."""
    core = compiled.in_force
    if core is None:
        return ReferenceColumns(block, slots)
    if core.rows != ROWS:
        raise RuntimeError("the compiled core is of another version than the rest: install again (make setup)")
    return core.columns(block, slots)


class ReferenceColumns:
    """The arithmetic in Python."""

    __slots__ = ("_block",)

    def __init__(self, block: Floats, slots: int) -> None:
        self._block = block[:, :slots]

    def sum_up(self, accounts: list[ReferenceColumns]) -> None:
        """Makes the ledger's rows what the accounts hold together."""
        self._sum(accounts, slice(0, self._block.shape[1]))

    def sum_up_slot(self, accounts: list[ReferenceColumns], slot: int) -> None:
        """The same for one slot."""
        self._sum(accounts, slice(slot, slot + 1))

    def _sum(self, accounts: list[ReferenceColumns], slots: slice) -> None:
        total, latest = self._block[:_FREE_AT, slots], self._block[_FREE_AT, slots]
        first, *others = (account._block[: _FREE_AT + 1, slots] for account in accounts)
        total[:], latest[:] = first[:_FREE_AT], first[_FREE_AT]
        for other in others:
            total += other[:_FREE_AT]
            np.maximum(latest, other[_FREE_AT], out=latest)

    def enter(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        prefill_ms: float,
        now: float,
    ) -> float:
        """As `Columns.enter`."""
        column = self._block[:, slot]
        first = max(now, float(column[_FREE_AT])) + prefill_ms
        column[_FREE_AT] = first
        column[_UNCACHED] += uncached
        self._add(column, 1.0, sequences, prompt, expected, uncached, first)
        return first

    def enter_decoding(
        self, slot: int, sequences: float, prompt: float, expected: float, uncached: float, first_ms: float
    ) -> None:
        """As `Columns.enter_decoding`."""
        self._add(self._block[:, slot], 1.0, sequences, prompt, expected, uncached, first_ms)

    def leave(
        self,
        slot: int,
        sequences: float,
        prompt: float,
        expected: float,
        uncached: float,
        first_ms: float,
        prefilling: bool,
    ) -> None:
        """As `Columns.leave`."""
        column = self._block[:, slot]
        if prefilling:
            column[_UNCACHED] -= uncached
        self._add(column, -1.0, sequences, prompt, expected, uncached, first_ms)

    @staticmethod
    def _add(
        column: Floats, sign: float, sequences: float, prompt: float, expected: float, uncached: float, first_ms: float
    ) -> None:
        column[_REQUESTS] += sign
        column[_INFLIGHT] += sign * sequences
        column[_PROMPT] += sign * (prompt * sequences)
        column[_EXPECTED] += sign * (expected * sequences)
        column[_NEW_KV] += sign * uncached
        column[_STARTED] += sign * (first_ms * sequences)

    def leave_idle(self, slot: int, now: float) -> None:
        """As `Columns.leave_idle`."""
        column = self._block[:, slot]
        column[:_FREE_AT] = 0.0
        column[_FREE_AT] = min(float(column[_FREE_AT]), now)

    def batch(self, slot: int, now: float) -> tuple[float, float]:
        """As `Columns.batch`."""
        column = self._block[:, slot]
        own = float(column[_INFLIGHT])
        sequences = own + float(column[_FOREIGN])
        context = float(column[_PROMPT])
        if own > 0.0:
            elapsed = own * now - float(column[_STARTED])
            step = float(column[_STEP]) + float(column[_SEQUENCE]) * own + float(column[_CONTEXT]) * context
            context += min(max(0.0, elapsed / step), 2.0 * float(column[_EXPECTED]))
            context *= sequences / own
        return sequences, context

    def advance(self, slot: int, now: float, clock: ClockLike) -> None:
        """As `Columns.advance`."""
        clock.advance(now, *self.batch(slot, now))

    def tell(self, slot: int, sample: EngineSample, explained: float) -> float:
        """As `Columns.tell`."""
        column, taken = self._block[:, slot], sample.taken_ms
        column[_SAMPLE_MS] = taken
        if sample.kv_capacity_tokens:
            column[_CAPACITY] = column[_KV_TOKENS] = sample.kv_capacity_tokens
        if sample.max_sequences:
            column[_MAX_SEQUENCES] = sample.max_sequences
        running, waiting = gauge(sample.running), gauge(sample.waiting)
        queued = max(0.0, waiting)  # of NaN too
        column[_RUNNING], column[_WAITING], column[_QUEUED] = running, waiting, queued
        if running >= 0.0:
            self._tell_foreign(column, max(0.0, running + queued - explained), explained, taken)
        self.tell_usage(slot, gauge(sample.kv_usage))
        return waiting

    @staticmethod
    def _tell_foreign(column: Floats, foreign: float, own: float, taken: float) -> None:
        elapsed = max(0.0, taken - float(column[_LOAD_MS]))
        share = 1.0 if elapsed == math.inf else elapsed / (elapsed + MEAN_MS)
        column[_FOREIGN], column[_LOAD_MS] = foreign, taken
        column[_FOREIGN_MEAN] += share * (foreign - column[_FOREIGN_MEAN])
        if foreign == 0.0 and column[_FOREIGN_MEAN] < NOBODY:
            column[_FOREIGN_MEAN] = 0.0
        column[_OWN_MEAN] += share * (own - column[_OWN_MEAN])

    def tell_usage(self, slot: int, usage: float) -> None:
        """As `Columns.tell_usage`."""
        column = self._block[:, slot]
        held = 0.0 if math.isnan(usage) else usage * float(column[_KV_TOKENS])
        column[_USAGE] = usage
        column[_OTHER_KV] = max(0.0, held - float(column[_NEW_KV]))

    def crowd(self, slot: int) -> float:
        """As `Columns.crowd`."""
        return 1.0 + float(self._block[_FOREIGN, slot]) / (1.0 + float(self._block[_INFLIGHT, slot]))

    def step(self, slot: int, growth: float) -> float:
        """As `Columns.step`."""
        column = self._block[:, slot]
        batch, context = float(column[_INFLIGHT]), float(column[_PROMPT]) + growth * float(column[_EXPECTED])
        return float(column[_STEP]) + float(column[_SEQUENCE]) * batch + float(column[_CONTEXT]) * context

    def ample(self, by_ms: float, sequences: float, tokens: float, share: float, kv_share: float) -> bool:
        """As `Columns.ample`."""
        block = self._block
        if not block[_REQUESTS].any():
            return True
        running = 2.0 * (block[_INFLIGHT] + block[_FOREIGN]) + sequences
        used = 2.0 * block[_EXPECTED] + block[_NEW_KV] + block[_OTHER_KV] + tokens
        full: Mask = block[_FREE_AT] > by_ms
        full |= running > share * block[_MAX_SEQUENCES]
        full |= used > share * kv_share * block[_KV_TOKENS]
        return not full.any()

    def all_hold(self, tokens: float) -> bool:
        """As `Columns.all_hold`."""
        return bool((self._block[_KV_TOKENS] >= tokens).all())

    def load(self, now: float, stale_after_ms: float, expected: bool) -> tuple[Floats, Floats, Mask]:
        """As `Columns.load`."""
        block = self._block
        own, foreign, held = block[_INFLIGHT], block[_FOREIGN], block[_OTHER_KV]
        age = now - block[_LOAD_MS]
        unknown: Mask = age > stale_after_ms
        fresh = np.sort(foreign[(block[_MEAN_WEIGHT] > 0.0) & ~unknown])
        # By hand: numpy's median takes longer than all the rest of a decision.
        peers = 0.5 * float(fresh[(len(fresh) - 1) // 2] + fresh[len(fresh) // 2]) if len(fresh) else 0.0
        if expected:
            told = TOLD_SHARE * np.minimum(np.maximum(1.0 - age / TOLD_MS, 0.0), 1.0)
            usual = block[_FOREIGN_MEAN] * np.minimum(
                np.maximum((own + FEW) / (block[_OWN_MEAN] + FEW), 1.0 / MOST_TIMES), MOST_TIMES
            )
            foreign = told * foreign + (1.0 - told) * usual
        trust = np.minimum(np.maximum(2.0 - 2.0 * (age / stale_after_ms), 0.0), 1.0)
        foreign = trust * foreign + (1.0 - trust) * peers
        return foreign, np.where(unknown, 0.0, held), unknown
