"""What poolpilot's figures must not exceed, and whether they do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.cases import POOLPILOT
from poolpilot_lab.bench.cost.gateway import BodyMode
from poolpilot_lab.bench.cost.groups import Group, Replies, against_one, peer_of, ratio
from poolpilot_lab.bench.cost.pickers import SCRAPE_MS, Scrape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CPU: Final = {"short": 0.4, "stream": 0.5, "long": 0.3}
"""Of Go's CPU per request, in the same mode."""
_BEST_STREAM: Final = 0.05
"""Of Go's, streamed, in the mode that costs us least."""
_ENVOY: Final = 1.05
_WORKERS: Final = 1.1
"""Of the CPU per request with one worker."""
_UNEVEN: Final = 1.2
"""Times its even share of the streams that a worker may have: 40 to 60 % with two."""
_PICK_P99_MS: Final = {100: 0.3, 1_000: 1.0}
_IDLE_CORES: Final = {Scrape.FULL: 0.15, Scrape.ADAPTIVE: 0.04}
_IDLE_ENDPOINTS: Final = 100
_REFRESH_SHARE: Final = 0.95
"""Of the pages asked for, that full scraping must reach."""
_REPLY_MS: Final = {"p50": 0.25, "p99": 2.0}
_RSS_MB: Final = 250.0
_SLOPE_BYTES: Final = 20.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise. `most`: the highest value that keeps it."""

    what: str
    who: str
    most: float
    value: float

    @property
    def holds(self) -> bool:
        """Whether it is kept."""
        return self.value <= self.most


def bars(groups: Sequence[Group], replies: Sequence[Replies] = (), most_streams: float | None = None) -> list[Bar]:
    """Every promise that these figures say something about. `most_streams`: of one worker, ÷ an even share."""
    found = [bar for group in groups if group.picker == POOLPILOT for bar in _of(group, groups)]
    ours = (one for one in replies if one.picker == POOLPILOT)
    found += [
        Bar(f"reply, {name} ms", one.who, most, one.handed(name)) for one in ours for name, most in _REPLY_MS.items()
    ]
    if most_streams is not None:
        found.append(Bar("busiest worker, streams ÷ even share", POOLPILOT, _UNEVEN, most_streams))
    return found


def _of(group: Group, groups: Sequence[Group]) -> Iterator[Bar]:
    match group.case:
        case "idle":
            yield from _idle(group)
        case "pick":
            most, p99 = _PICK_P99_MS.get(group.endpoints), group.stat("p99_ms")
            if most is not None and p99 is not None:
                yield Bar(f"decision and booking, {group.endpoints:,} endpoints, p99 ms", group.who, most, p99.median)
        case "memory":
            for field, most, unit in (
                ("rss_mb", _RSS_MB, "RSS MB"),
                ("slope_bytes_per_request", _SLOPE_BYTES, "slope, bytes/request"),
            ):
                stat = group.stat(field)
                if stat is not None:
                    yield Bar(f"memory, {unit}", group.who, most, stat.median)
        case _:
            yield from _against_go(group, peer_of(group, groups))
            yield from _workers(group, groups)


def _idle(group: Group) -> Iterator[Bar]:
    if group.endpoints != _IDLE_ENDPOINTS:
        return
    cores, reached = group.stat("idle_cores"), group.stat("refresh_hz")
    if cores is None or reached is None or group.scrape is None:
        return
    yield Bar(
        f"idle, {group.endpoints} endpoints, {group.scrape}, cores",
        group.who,
        _IDLE_CORES[Scrape(group.scrape)],
        cores.median,
    )
    if group.scrape == Scrape.FULL:
        wanted = 1000.0 / SCRAPE_MS
        yield Bar(
            f"idle, {group.endpoints} endpoints, pages missed, share",
            group.who,
            1 - _REFRESH_SHARE,
            max(0.0, 1 - reached.median / wanted),
        )


def _workers(group: Group, groups: Sequence[Group]) -> Iterator[Bar]:
    value = ratio(group, against_one(group, groups), "cpu_us_per_request")
    if value is not None:
        mode = "" if group.body_mode == BodyMode.FULL_DUPLEX else f", {group.body_mode}"
        yield Bar(f"{group.played}{mode}, CPU ÷ one worker's", group.who, _WORKERS, value)


def _against_go(group: Group, peer: Group | None) -> Iterator[Bar]:
    cpu, envoy = ratio(group, peer, "cpu_us_per_request"), ratio(group, peer, "envoy_cpu_us_per_request")
    duplex = group.body_mode == BodyMode.FULL_DUPLEX
    if cpu is not None and duplex and group.case in _CPU:
        yield Bar(f"{group.played}, CPU ÷ Go's", group.who, _CPU[group.case], cpu)
    if cpu is not None and group.body_mode == BodyMode.BUFFERED and group.case == "stream":
        yield Bar(f"{group.played}, best mode, CPU ÷ Go's", group.who, _BEST_STREAM, cpu)
    if envoy is not None and duplex and group.case in _CPU:
        yield Bar(f"{group.played}, Envoy's CPU ÷ with Go's", group.who, _ENVOY, envoy)
