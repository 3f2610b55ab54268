"""The pool's endpoints as arrays (struct of arrays): what ledger and sources write in place and a decision reads.

Every endpoint holds one slot for as long as it is wanted or still has bookings; slots are reused, never moved, so an
index or a booking may keep a slot number. All columns end with the highest slot in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import numpy as np

from poolpilot_picker.config.step_models import StepModel, step_model
from poolpilot_picker.state.account import Account, Sharing
from poolpilot_picker.state.columns import ROWS, Columns, columns, new_block, reset
from poolpilot_picker.state.columns import Floats as Floats
from poolpilot_picker.state.columns import Mask as Mask


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What discovery says of one endpoint. `uid` is the identity (pod UID, or the address where there is none): an
    address that comes back with another uid is another endpoint and starts cold."""

    host: str
    port: int
    uid: str = ""
    labels: Mapping[str, str] = {}
    engine: str = "vllm"
    name: str = ""

    @property
    def address(self) -> str:
        """`ip:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the endpoint: (uid, port)."""
        return (self.uid or self.host, self.port)


class Endpoint:
    """One endpoint in its slot. Bookings hold this object, so they release where they booked, whatever happens."""

    __slots__ = ("address", "draining", "model", "slot", "spec")

    def __init__(self, spec: EndpointSpec, slot: int, model: StepModel) -> None:
        self.spec = spec
        self.address = spec.address
        self.slot = slot
        self.model = model
        """The profile's step model, before residuals."""
        self.draining = False
        """No longer wanted by discovery; kept until its last booking is released."""

    def __repr__(self) -> str:
        return f"Endpoint({self.address}, slot {self.slot}{', draining' if self.draining else ''})"


class EndpointTable:
    """Slots and columns of one pool. `table.inflight` is the live column, length `len(table)`."""

    # Columns, for readers and type checkers; assigned in _resize.
    inflight: Floats
    requests: Floats
    prompt_tokens: Floats
    expected_tokens: Floats
    uncached_tokens: Floats
    new_kv_tokens: Floats
    started_sum_ms: Floats
    free_at_ms: Floats
    sample_ms: Floats
    load_ms: Floats
    running: Floats
    waiting: Floats
    queued: Floats
    kv_usage: Floats
    kv_capacity: Floats
    foreign: Floats
    foreign_mean: Floats
    own_mean: Floats
    other_kv_tokens: Floats
    preempting_until_ms: Floats
    kv_tokens: Floats
    max_sequences: Floats
    token_budget: Floats
    step_ms: Floats
    sequence_ms: Floats
    context_ms: Floats
    token_ms: Floats
    token2_ms: Floats
    half_chunk_ms: Floats
    prefill_speed: Floats
    decode_speed: Floats
    prefill_share: Floats
    interference: Floats
    failure_ms: Floats
    cache_trust: Floats
    mean_weight: Floats
    eligible: Mask
    """Wanted by discovery: may be chosen."""

    columns: Columns
    """The arithmetic on the columns."""
    account: Account
    """The rows that our own ledger writes."""

    def __init__(
        self,
        model_of: Callable[[EndpointSpec], StepModel] = lambda spec: step_model(spec.labels),
        allocate: Callable[[int], Floats] = new_block,
        sharing: Sharing | None = None,
    ) -> None:
        """`allocate`: makes a block for at least so many slots, all free, shape (len(ROWS), slots), C-contiguous.

        `sharing`: other processes have the same endpoints in the same slots, and the ledger's rows are sums over all.
        """
        self._model_of = model_of
        self._allocate = allocate
        self.sharing = sharing
        self.slots: list[Endpoint | None] = []
        self.block: Floats = allocate(8)
        self._eligible: Mask = np.zeros(self.block.shape[1], dtype=np.bool_)
        self._by_key: dict[tuple[str, int], Endpoint] = {}
        self._by_address: dict[str, Endpoint] = {}
        self.any_wanted = False
        """Some endpoint may be chosen."""
        self.generation = 0
        """Grows with every change of the set of endpoints: what is derived from it can be cached by it."""
        self._resize()

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Endpoint]:
        return (endpoint for endpoint in self.slots if endpoint is not None)

    def _resize(self) -> None:
        """Makes every column a view of the slots in use; grows the storage by doubling."""
        length, capacity = len(self.slots), len(self._eligible)
        if length > capacity:
            block = self._allocate(max(length, 2 * capacity))
            block[:, :capacity] = self.block
            eligible = np.zeros(block.shape[1], dtype=np.bool_)
            eligible[:capacity] = self._eligible
            self.block, self._eligible = block, eligible
        for name, row in zip(ROWS, self.block, strict=True):
            setattr(self, name, row[:length])
        self.eligible = self._eligible[:length]
        self.columns = columns(self.block, length)
        self.account = Account(self.block if self.sharing is None else self.sharing.block, length)
        if self.sharing is not None:
            self.sharing.resized()

    def find(self, address: str) -> Endpoint | None:
        """The wanted endpoint at `ip:port`, if any."""
        return self._by_address.get(address)

    def find_draining(self, address: str) -> Endpoint | None:
        """The endpoint at `ip:port` that is not wanted any more but still has bookings, if any."""
        return next((known for known in self._by_key.values() if known.draining and known.address == address), None)

    def at(self, slot: int) -> Endpoint:
        """The endpoint in a slot that is in use."""
        endpoint = self.slots[slot]
        if endpoint is None:
            raise LookupError(f"slot {slot} is free")
        return endpoint

    def holds(self, endpoint: Endpoint) -> bool:
        """True while the endpoint has its slot: it is wanted, or drains."""
        return endpoint.slot < len(self.slots) and self.slots[endpoint.slot] is endpoint

    def wanted(self) -> list[Endpoint]:
        """Endpoints that may be chosen, by slot."""
        return [endpoint for endpoint in self.slots if endpoint is not None and not endpoint.draining]

    def apply(self, specs: Iterable[EndpointSpec]) -> tuple[list[Endpoint], list[Endpoint]]:
        """Makes the wanted set equal to `specs`; returns (added, removed).

        Endpoints that stay keep their slot and everything known of them. A removed endpoint with bookings drains: it is
        not chosen any more and its slot is freed by the last release (`drop_if_idle`).
        """
        wanted = {spec.key: spec for spec in specs}
        added: list[Endpoint] = []
        removed: list[Endpoint] = []
        for key, endpoint in list(self._by_key.items()):
            if key not in wanted and not endpoint.draining:
                endpoint.draining = True
                self.eligible[endpoint.slot] = False
                removed.append(endpoint)
        for endpoint in removed:
            self.drop_if_idle(endpoint)
        free = [slot for slot, held in enumerate(self.slots) if held is None]
        for key, spec in wanted.items():
            known = self._by_key.get(key)
            if known is None:
                slot = self._free_slot(key, free)
                if slot is not None:
                    added.append(self._add(spec, slot))
                continue
            if known.draining:
                known.draining = False
                self.eligible[known.slot] = True
                added.append(known)
            if known.spec != spec:
                relabelled = known.spec.labels != spec.labels
                known.spec = spec
                known.address = spec.address
                if relabelled:
                    known.model = self._model_of(spec)
                    self._apply_model(known)
        self._by_address = {endpoint.address: endpoint for endpoint in self._by_key.values() if not endpoint.draining}
        self.any_wanted = bool(self._by_address)
        self.mean_weight[:] = self.eligible / max(1, len(wanted))
        self.generation += 1
        return added, removed

    def _free_slot(self, key: tuple[str, int], free: list[int]) -> int | None:
        """Where a new endpoint goes; None: nowhere, for as long as others hold all slots that are shared."""
        if self.sharing is not None:
            return self.sharing.take(key)
        return free.pop(0) if free else len(self.slots)

    def _add(self, spec: EndpointSpec, slot: int) -> Endpoint:
        endpoint = Endpoint(spec, slot, self._model_of(spec))
        if slot >= len(self.slots):
            self.slots += [None] * (slot - len(self.slots))
            self.slots.append(endpoint)
            self._resize()
        else:
            self.slots[slot] = endpoint
        self._by_key[spec.key] = endpoint
        self.eligible[slot] = True
        self._apply_model(endpoint)
        return endpoint

    def _apply_model(self, endpoint: Endpoint) -> None:
        slot, model = endpoint.slot, endpoint.model
        self.token_budget[slot] = model.token_budget
        self.max_sequences[slot] = model.max_sequences
        capacity = float(self.kv_capacity[slot])
        self.kv_tokens[slot] = model.kv_tokens if np.isnan(capacity) else capacity
        self.set_speed(endpoint, float(self.prefill_speed[slot]), float(self.decode_speed[slot]))

    def set_speed(self, endpoint: Endpoint, prefill: float, decode: float) -> None:
        """Sets the residuals of an endpoint and with them its effective coefficients."""
        slot, model = endpoint.slot, endpoint.model
        self.prefill_speed[slot] = prefill
        self.decode_speed[slot] = decode
        self.step_ms[slot] = model.step_ms * decode
        self.sequence_ms[slot] = model.sequence_ms * decode
        self.context_ms[slot] = model.context_ms * decode
        self.token_ms[slot] = model.token_ms * prefill
        self.token2_ms[slot] = model.token2_ms * prefill
        self.half_chunk_ms[slot] = 0.5 * model.token_budget * model.token_ms * prefill

    def set_prefill_share(self, endpoint: Endpoint, share: float) -> None:
        """Sets the share of its time, below 1, that an endpoint spends on prefill."""
        self.prefill_share[endpoint.slot] = share
        self.interference[endpoint.slot] = 1.0 / (1.0 - share)

    def set_kv_capacity(self, endpoint: Endpoint, tokens: float) -> None:
        """The engine told the size of its KV cache."""
        self.kv_capacity[endpoint.slot] = self.kv_tokens[endpoint.slot] = tokens

    def generated_tokens(self, now: float) -> Floats:
        """Output tokens our bookings have probably generated: time since their predicted first tokens ÷ step time."""
        step = self.step_ms + self.sequence_ms * self.inflight + self.context_ms * self.prompt_tokens
        elapsed = self.inflight * now - self.started_sum_ms
        return np.minimum(np.maximum(elapsed / step, 0.0), 2.0 * self.expected_tokens)

    def kv_in_use(self, other_tokens: Floats, generated: Floats) -> Floats:
        """Tokens in the KV caches: `other_tokens`, where the engine told how much it uses, and what was placed since.

        What we reckon was `generated` stands in only where it did not: it is far too much for long answers, and all
        endpoints that have those would seem to overflow.
        """
        in_use: Floats = self.new_kv_tokens + np.where(other_tokens > 0.0, other_tokens, generated)
        return in_use

    def drop_if_idle(self, endpoint: Endpoint) -> bool:
        """Frees the slot of a draining endpoint whose last booking is gone; True if it was freed."""
        slot = endpoint.slot
        if not endpoint.draining or not self.holds(endpoint) or self.account.requests[slot] > 0:
            return False
        self.slots[slot] = None
        self._by_key.pop(endpoint.spec.key, None)
        reset(self.block[:, slot : slot + 1])
        if self.sharing is not None:
            self.account.free_at_ms[slot] = 0.0
            self.sharing.give_back(slot)
        while self.slots and self.slots[-1] is None:
            self.slots.pop()
        self._resize()
        self.generation += 1
        return True
