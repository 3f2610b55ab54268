"""One message of SGLang's load channel → the load of a rank, and of all ranks a sample. Pure.

Wire format (SGLang 0.5.23): PUB, three frames `[b"load", sequence as 8 bytes big endian, msgpack]`; the payload is an
array `["LoadStat", running, waiting, used tokens, capacity tokens, rank, waiting uncached tokens, total tokens, max
running, prefilled uncached tokens, prefill busy µs]`, which has grown: what is behind the rank may be absent. Rank r
publishes on base port + r, at least once a second.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.state.samples import EngineSample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.state.endpoints import EndpointSpec

TOPIC: Final = b"load"

LOAD_PORT_LABEL: Final = "poolpilot.dev/sglang-load-port"
"""Label with the base port of an endpoint's load channel."""
LOAD_RANKS_LABEL: Final = "poolpilot.dev/sglang-dp-size"
"""Label with its number of data-parallel ranks (1 where absent)."""

_MAX_RANKS: Final = 1_024


class LoadChannel(msgspec.Struct, frozen=True):
    """Where one endpoint publishes its load: rank r on `base_port + r`."""

    base_port: int
    ranks: int = 1


class LoadStat(msgspec.Struct, frozen=True):
    """One rank's load. Tokens are KV cache tokens."""

    running: float
    waiting: float
    used_tokens: float
    capacity_tokens: float
    rank: int
    waiting_tokens: float | None = None
    max_running: float | None = None
    prefilled_tokens: float | None = None
    prefill_busy_s: float | None = None


def parse_load_stat(payload: bytes) -> LoadStat:
    """The third frame. Raises ValueError where it is no LoadStat."""
    try:
        fields = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not msgpack: {error}") from None
    if not isinstance(fields, list) or len(fields) < 6 or fields[0] != "LoadStat":
        raise ValueError("not a LoadStat with five numbers")
    numbers = [_number(field) for field in fields[1:11]]
    running, waiting, used, capacity, rank = numbers[:5]
    if running is None or waiting is None or used is None or capacity is None:
        raise ValueError("a load that is no number")
    optional = numbers[5:] + [None] * (10 - len(numbers))
    busy = optional[4]
    return LoadStat(
        running=running,
        waiting=waiting,
        used_tokens=used,
        capacity_tokens=capacity,
        rank=0 if rank is None else int(rank),
        waiting_tokens=optional[0],
        max_running=optional[2],
        prefilled_tokens=optional[3],
        prefill_busy_s=None if busy is None else busy / 1e6,
    )


def load_channel_of(server_info: bytes) -> LoadChannel | None:
    """What `GET /server_info` says of the load channel; None where the engine has none. Raises ValueError if it is no
    such answer."""
    try:
        info = msgspec.json.decode(server_info, type=_ServerInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a server_info answer: {error}") from None
    events = info.kv_events
    if events is None or events.load_endpoint_port_base is None:
        return None
    return LoadChannel(_port(events.load_endpoint_port_base), _ranks(events.dp_size))


def load_channel_by_label(spec: EndpointSpec) -> LoadChannel | None:
    """What an endpoint's labels say of its load channel. Raises ValueError where they are no numbers."""
    text = spec.labels.get(LOAD_PORT_LABEL)
    if text is None:
        return None
    return LoadChannel(_port(_digits(text)), _ranks(_digits(spec.labels.get(LOAD_RANKS_LABEL, "1"))))


class _KvEvents(msgspec.Struct):
    load_endpoint_port_base: int | None = None
    dp_size: int = 1


class _ServerInfo(msgspec.Struct):
    kv_events: _KvEvents | None = None


class RankLoads:
    """The newest load of each rank of one endpoint. Pure: time is an argument (ms)."""

    def __init__(self, ranks: int, fresh_ms: float) -> None:
        self._ranks = ranks
        self._fresh_ms = fresh_ms
        self._loads: dict[int, tuple[float, LoadStat]] = {}
        self._sequences: dict[int, int] = {}

    def take(self, socket_rank: int, sequence: int, load: LoadStat, now: float) -> tuple[int, bool]:
        """A message of one rank's socket arrived; returns (messages lost before it, publisher restarted)."""
        last = self._sequences.get(socket_rank)
        self._sequences[socket_rank] = sequence
        self._loads[socket_rank] = (now, load)
        if last is None or sequence == last + 1:
            return 0, False
        return (sequence - last - 1, False) if sequence > last else (0, True)

    def sample(self, now: float) -> EngineSample | None:
        """Sum over the ranks, KV usage of the fullest; None unless every rank is fresh: half of an engine is no load.

        `taken_ms` is the oldest of the loads it is made of.
        """
        fresh = [(taken, load) for taken, load in self._loads.values() if now - taken <= self._fresh_ms]
        if len(fresh) < self._ranks:
            return None
        loads = [load for _, load in fresh]
        usages = [min(1.0, load.used_tokens / load.capacity_tokens) for load in loads if load.capacity_tokens > 0]
        capacity = math.fsum(load.capacity_tokens for load in loads)
        limit = _total(load.max_running for load in loads)
        return EngineSample(
            taken_ms=min(taken for taken, _ in fresh),
            running=math.fsum(load.running for load in loads),
            waiting=math.fsum(load.waiting for load in loads),
            kv_usage=max(usages, default=None),
            kv_capacity_tokens=int(capacity) or None,
            max_sequences=int(limit) if limit else None,
            waiting_tokens=_total(load.waiting_tokens for load in loads),
            prefilled_tokens=_total(load.prefilled_tokens for load in loads),
            prefill_busy_s=_total(load.prefill_busy_s for load in loads),
        )


_PUSHED: Final = (
    "running",
    "waiting",
    "kv_usage",
    "kv_capacity_tokens",
    "max_sequences",
    "waiting_tokens",
    "prefilled_tokens",
    "prefill_busy_s",
)
_HISTOGRAMS: Final = ("ttft", "inter_token", "queue_time", "prefill_time")


def merged(page: EngineSample | None, pushed: EngineSample, *, histograms: bool) -> EngineSample:
    """The pushed load with the counters and facts of the last page; its histograms only where they are new."""
    if page is None:
        return pushed
    fields: dict[str, Any] = {name: value for name in _PUSHED if (value := getattr(pushed, name)) is not None}
    if not histograms:
        fields.update(dict.fromkeys(_HISTOGRAMS))
    return msgspec.structs.replace(page, taken_ms=pushed.taken_ms, **fields)


def _number(field: Any) -> float | None:
    """A count; None where the field is something else."""
    if isinstance(field, bool) or not isinstance(field, int | float) or not 0 <= field < math.inf:
        return None
    return float(field)


def _total(values: Iterable[float | None]) -> float | None:
    """Sum, None unless every rank tells."""
    numbers = list(values)
    return None if None in numbers else math.fsum(number for number in numbers if number is not None)


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def _port(number: int) -> int:
    if not 1 <= number <= 65535:
        raise ValueError(f"{number} is not a port; 1 to 65535 is allowed")
    return number


def _ranks(number: int) -> int:
    if not 1 <= number <= _MAX_RANKS:
        raise ValueError(f"{number} ranks; 1 to {_MAX_RANKS} are allowed")
    return number
