# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The account's arithmetic on a pool's numbers. Read by every decision.

Does what `ReferenceColumns` in `state/columns.py` does, operation by operation.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

import numpy as np

cdef enum:
    ABSURD = 1_000_000

cdef double TOLD_SHARE = 0.5
cdef double TOLD_MS = 2_000.0
cdef double MEAN_MS = 10_000.0
cdef double FEW = 0.5
cdef double MOST_TIMES = 4.0
cdef double NOBODY = 0.01

ROWS = (
    "inflight", "requests", "prompt_tokens", "expected_tokens", "uncached_tokens", "new_kv_tokens", "started_sum_ms",
    "free_at_ms",
    "sample_ms", "load_ms", "running", "waiting", "queued", "kv_usage", "kv_capacity", "foreign", "foreign_mean",
    "own_mean", "other_kv_tokens", "preempting_until_ms",
    "kv_tokens", "max_sequences",
    "token_budget", "step_ms", "sequence_ms", "context_ms", "token_ms", "token2_ms", "half_chunk_ms",
    "prefill_speed", "decode_speed", "prefill_share", "interference", "failure_ms", "cache_trust",
    "mean_weight",
)
"""What the rows of a block must be."""


cdef class Clock:
    """An endpoint's predicted step time, summed over the running window. Does what `ReferenceClock` does."""

    def __init__(self, model):
        self.step_ms, self.sequence_ms, self.context_ms = model.step_ms, model.sequence_ms, model.context_ms
        self.max_sequences = model.max_sequences
        self.since_ms = INFINITY

    def restart(self, double now):
        """A new window begins."""
        self.since_ms = self.at_ms = now
        self.step_sum = self.step_weight = 0.0

    def advance(self, double now, double sequences, double context_tokens):
        """Accounts for the time since the last call, during which this many sequences were here."""
        self._advance(now, sequences, context_tokens)

    cdef void _advance(self, double now, double sequences, double context) noexcept:
        cdef double elapsed = now - self.at_ms, weight
        self.at_ms = now
        if self.since_ms == INFINITY:
            self.since_ms = now
        elif elapsed > 0.0 and sequences > 0.0:
            weight = elapsed * sequences
            self.step_sum += weight * (
                self.step_ms + self.sequence_ms * smaller(self.max_sequences, sequences) + self.context_ms * context
            )
            self.step_weight += weight


cdef class Columns:
    """A block and how many of its slots are in use."""

    def __init__(self, double[:, ::1] block not None, Py_ssize_t slots):
        if block.shape[0] != ROW_COUNT or not 0 <= slots <= block.shape[1]:
            raise ValueError(
                f"a block has {int(ROW_COUNT)} rows and at least {slots} slots, "
                f"not ({block.shape[0]}, {block.shape[1]})"
            )
        self._block = block
        self._slots = slots

    cdef Py_ssize_t _checked(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < self._slots:
            raise IndexError(f"slot {slot} of {self._slots}")
        return slot

    # ── accounts of several processes ────────────────────────────────────────

    def sum_up(self, list accounts):
        """Makes the ledger's rows what the accounts hold together; `free_at_ms` is the latest of theirs."""
        self._sum_up(accounts)

    def sum_up_slot(self, list accounts, Py_ssize_t slot):
        """The same for one slot."""
        self._sum_up_slot(accounts, slot)

    cdef int _sum_up(self, list accounts) except -1:
        cdef Columns account
        cdef Py_ssize_t row, slot, slots = self._slots, stride, total_stride = self._block.shape[1]
        cdef double *totals
        cdef double *parts
        cdef double *total
        cdef double *part
        cdef bint first = True
        if not slots:
            return 0
        totals = &self._block[0, 0]
        for account in accounts:
            if account._slots < slots:
                raise ValueError(f"an account has {account._slots} slots, fewer than {slots}")
            parts, stride = &account._block[0, 0], account._block.shape[1]
            for row in range(FREE_AT_MS + 1):
                total, part = totals + row * total_stride, parts + row * stride
                if first:
                    memcpy(total, part, slots * sizeof(double))
                elif row < FREE_AT_MS:
                    for slot in range(slots):
                        total[slot] += part[slot]
                else:
                    for slot in range(slots):
                        total[slot] = larger(part[slot], total[slot])
            first = False
        return 0

    cdef int _sum_up_slot(self, list accounts, Py_ssize_t slot) except -1:
        cdef Columns account
        cdef Py_ssize_t row, stride, total_stride = self._block.shape[1]
        cdef double *total
        cdef double *part
        cdef bint first = True
        self._checked(slot)
        total = &self._block[0, slot]
        for account in accounts:
            account._checked(slot)
            part, stride = &account._block[0, slot], account._block.shape[1]
            if first:
                for row in range(FREE_AT_MS + 1):
                    total[row * total_stride] = part[row * stride]
                first = False
                continue
            for row in range(FREE_AT_MS):
                total[row * total_stride] += part[row * stride]
            if part[FREE_AT_MS * stride] > total[FREE_AT_MS * total_stride]:
                total[FREE_AT_MS * total_stride] = part[FREE_AT_MS * stride]
        return 0

    # ── the account ──────────────────────────────────────────────────────────

    def enter(
        self,
        Py_ssize_t slot,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double prefill_ms,
        double now,
    ):
        """Books a request whose prefill is still to come; returns when its first token is predicted, ms."""
        self._checked(slot)
        cdef double first = larger(now, self._block[FREE_AT_MS, slot]) + prefill_ms
        self._block[FREE_AT_MS, slot] = first
        self._block[UNCACHED_TOKENS, slot] += uncached
        self._add(slot, 1.0, sequences, prompt, expected, uncached, first)
        return first

    def enter_decoding(
        self, Py_ssize_t slot, double sequences, double prompt, double expected, double uncached, double first_ms
    ):
        """Books a request whose first token was seen at `first_ms`."""
        self._add(self._checked(slot), 1.0, sequences, prompt, expected, uncached, first_ms)

    def leave(
        self,
        Py_ssize_t slot,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double first_ms,
        bint prefilling,
    ):
        """Takes a booking out, one of several."""
        self._checked(slot)
        if prefilling:
            self._block[UNCACHED_TOKENS, slot] -= uncached
        self._add(slot, -1.0, sequences, prompt, expected, uncached, first_ms)

    cdef void _add(
        self,
        Py_ssize_t slot,
        double sign,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double first_ms,
    ):
        self._block[REQUESTS, slot] += sign
        self._block[INFLIGHT, slot] += sign * sequences
        self._block[PROMPT_TOKENS, slot] += sign * (prompt * sequences)
        self._block[EXPECTED_TOKENS, slot] += sign * (expected * sequences)
        self._block[NEW_KV_TOKENS, slot] += sign * uncached
        self._block[STARTED_SUM_MS, slot] += sign * (first_ms * sequences)

    def leave_idle(self, Py_ssize_t slot, double now):
        """The last booking goes."""
        cdef Py_ssize_t row
        self._checked(slot)
        for row in range(FREE_AT_MS):
            self._block[row, slot] = 0.0
        self._block[FREE_AT_MS, slot] = smaller(self._block[FREE_AT_MS, slot], now)

    def batch(self, Py_ssize_t slot, double now):
        """(sequences, their context tokens) that run at an endpoint now, others' taken to be like ours."""
        cdef double context, sequences = self._batch(self._checked(slot), now, &context)
        return sequences, context

    def advance(self, Py_ssize_t slot, double now, clock not None):
        """Tells the endpoint's clock what ran there since it was last told."""
        cdef double context, sequences = self._batch(self._checked(slot), now, &context)
        if type(clock) is Clock:
            (<Clock> clock)._advance(now, sequences, context)
        else:
            clock.advance(now, sequences, context)

    cdef double _batch(self, Py_ssize_t slot, double now, double* of_context) noexcept:
        cdef double own = self._block[INFLIGHT, slot], context = self._block[PROMPT_TOKENS, slot]
        cdef double sequences = own + self._block[FOREIGN, slot]
        if own > 0.0:
            context += generated_tokens(
                own, context, self._block[EXPECTED_TOKENS, slot], self._block[STARTED_SUM_MS, slot],
                self._block[STEP_MS, slot], self._block[SEQUENCE_MS, slot], self._block[CONTEXT_MS, slot], now,
            )
            context *= sequences / own
        of_context[0] = context
        return sequences

    # ── samples ──────────────────────────────────────────────────────────────

    def tell(self, Py_ssize_t slot, sample, double explained):
        """Writes what a sample tells in numbers; returns how many sequences wait, NaN where that is not told."""
        cdef double taken = sample.taken_ms, running = gauge(sample.running), waiting = gauge(sample.waiting)
        cdef double usage = gauge(sample.kv_usage), queued = waiting if waiting > 0.0 else 0.0
        capacity, most = sample.kv_capacity_tokens, sample.max_sequences
        self._checked(slot)
        self._block[SAMPLE_MS, slot] = taken
        if capacity:
            self._block[KV_CAPACITY, slot] = self._block[KV_TOKENS, slot] = capacity
        if most:
            self._block[MAX_SEQUENCES, slot] = most
        self._block[RUNNING, slot] = running
        self._block[WAITING, slot] = waiting
        self._block[QUEUED, slot] = queued
        if running >= 0.0:
            self._tell_foreign(slot, larger(running + queued - explained, 0.0), explained, taken)
        self._tell_usage(slot, usage)
        return waiting

    cdef void _tell_foreign(self, Py_ssize_t slot, double foreign, double own, double taken) noexcept:
        cdef double elapsed = larger(taken - self._block[LOAD_MS, slot], 0.0)
        cdef double share = 1.0 if elapsed == INFINITY else elapsed / (elapsed + MEAN_MS)
        self._block[FOREIGN, slot] = foreign
        self._block[FOREIGN_MEAN, slot] += share * (foreign - self._block[FOREIGN_MEAN, slot])
        if foreign == 0.0 and self._block[FOREIGN_MEAN, slot] < NOBODY:
            self._block[FOREIGN_MEAN, slot] = 0.0
        self._block[OWN_MEAN, slot] += share * (own - self._block[OWN_MEAN, slot])
        self._block[LOAD_MS, slot] = taken

    def tell_usage(self, Py_ssize_t slot, double usage):
        """Writes the share of the KV cache in use; NaN: unknown."""
        self._tell_usage(self._checked(slot), usage)

    cdef void _tell_usage(self, Py_ssize_t slot, double usage) noexcept:
        cdef double held = usage * self._block[KV_TOKENS, slot] if usage == usage else 0.0
        self._block[KV_USAGE, slot] = usage
        self._block[OTHER_KV_TOKENS, slot] = larger(held - self._block[NEW_KV_TOKENS, slot], 0.0)

    def crowd(self, Py_ssize_t slot):
        """Sequences at an endpoint for each of ours, one of ours more taken to be there."""
        self._checked(slot)
        return 1.0 + self._block[FOREIGN, slot] / (1.0 + self._block[INFLIGHT, slot])

    def step(self, Py_ssize_t slot, double growth):
        """ms of a decode step, with our sequences as they are when they have this share of their expected output."""
        self._checked(slot)
        cdef double context = self._block[PROMPT_TOKENS, slot] + growth * self._block[EXPECTED_TOKENS, slot]
        return (
            self._block[STEP_MS, slot] + self._block[SEQUENCE_MS, slot] * self._block[INFLIGHT, slot]
            + self._block[CONTEXT_MS, slot] * context
        )

    def ample(self, double by_ms, double sequences, double tokens, double share, double kv_share):
        """True where every slot is far from its bounds, or none has a request of ours."""
        cdef Py_ssize_t slot
        cdef bint busy = False, full = False
        for slot in range(self._slots):
            if self._block[REQUESTS, slot] != 0.0:
                busy = True
            if (
                self._block[FREE_AT_MS, slot] > by_ms
                or 2.0 * (self._block[INFLIGHT, slot] + self._block[FOREIGN, slot]) + sequences
                > share * self._block[MAX_SEQUENCES, slot]
                or 2.0 * self._block[EXPECTED_TOKENS, slot] + self._block[NEW_KV_TOKENS, slot]
                + self._block[OTHER_KV_TOKENS, slot] + tokens > share * kv_share * self._block[KV_TOKENS, slot]
            ):
                full = True
        return not (busy and full)

    def all_hold(self, double tokens):
        """True when no slot's KV cache is smaller."""
        cdef Py_ssize_t slot
        for slot in range(self._slots):
            if not self._block[KV_TOKENS, slot] >= tokens:
                return False
        return True

    # ── the load ─────────────────────────────────────────────────────────────

    def load(self, double now, double stale_after_ms, bint expected):
        """(foreign, other KV tokens, unknown), one element per slot: what others have there."""
        foreign, other_kv, unknown = np.empty(self._slots), np.empty(self._slots), np.zeros(self._slots, dtype=np.bool_)
        if not self._slots:
            return foreign, other_kv, unknown
        cdef double[::1] to_foreign = foreign, to_other_kv = other_kv
        cdef uint8_t[::1] to_unknown = unknown.view(np.uint8)
        self._estimate(now, stale_after_ms, expected, &to_foreign[0], &to_other_kv[0], &to_unknown[0])
        return foreign, other_kv, unknown

    cdef bint _alone(self, double since) noexcept:
        """True when every wanted endpoint told its load at `since` or later, and none had anything of others."""
        cdef Py_ssize_t slot
        for slot in range(self._slots):
            if self._block[FOREIGN, slot] != 0.0 or self._block[FOREIGN_MEAN, slot] != 0.0:
                return False
            if self._block[MEAN_WEIGHT, slot] > 0.0 and self._block[LOAD_MS, slot] < since:
                return False
        return True

    cdef int _estimate(
        self, double now, double stale_after_ms, bint expected, double* foreign, double* other_kv, uint8_t* unknown
    ) except -1:
        """What `load` returns, into arrays with a place for each slot; `unknown` may be NULL."""
        cdef Py_ssize_t slots = self._slots, slot, fresh = 0
        cdef const double* heard = &self._block[LOAD_MS, 0]
        cdef const double* told = &self._block[FOREIGN, 0]
        cdef const double* held = &self._block[OTHER_KV_TOKENS, 0]
        cdef const double* own = &self._block[INFLIGHT, 0]
        cdef const double* mean = &self._block[FOREIGN_MEAN, 0]
        cdef const double* own_mean = &self._block[OWN_MEAN, 0]
        cdef const double* weight = &self._block[MEAN_WEIGHT, 0]
        cdef double age, trust, peers = 0.0, told_share, usual
        cdef bint old, stale = False
        # The fresh ones first, in the same memory: their median stands for those that are not.
        for slot in range(slots):
            if now - heard[slot] > 0.5 * stale_after_ms:
                stale = True
            if weight[slot] > 0.0 and now - heard[slot] <= stale_after_ms and told[slot] == told[slot]:
                foreign[fresh] = told[slot]
                fresh += 1
        if stale:
            peers = median(foreign, fresh)
        for slot in range(slots):
            age = now - heard[slot]
            old = age > stale_after_ms
            foreign[slot] = told[slot]
            if expected:
                told_share = TOLD_SHARE * smaller(larger(1.0 - age / TOLD_MS, 0.0), 1.0)
                usual = mean[slot] * smaller(
                    larger((own[slot] + FEW) / (own_mean[slot] + FEW), 1.0 / MOST_TIMES), MOST_TIMES
                )
                foreign[slot] = told_share * told[slot] + (1.0 - told_share) * usual
            trust = smaller(larger(2.0 - 2.0 * (age / stale_after_ms), 0.0), 1.0)
            if trust < 1.0:
                foreign[slot] = trust * foreign[slot] + (1.0 - trust) * peers
            other_kv[slot] = 0.0 if old else held[slot]
            if unknown != NULL:
                unknown[slot] = old
        return 0


cdef inline double gauge(value) except? -2.0:
    """NaN for what was not told, or makes no sense."""
    if value is None:
        return NAN
    cdef double number = value
    return number if 0.0 <= number <= ABSURD else NAN


cdef double median(double* numbers, Py_ssize_t count) noexcept nogil:
    """Of numbers that are none of them NaN, 0 where there are none; changes their order."""
    cdef Py_ssize_t middle = count // 2, at
    cdef double above, below
    if count == 0:
        return 0.0
    above = selected(numbers, count, middle)
    if count & 1:
        return above
    below = numbers[0]
    for at in range(1, middle):
        if numbers[at] > below:
            below = numbers[at]
    return 0.5 * (below + above)
