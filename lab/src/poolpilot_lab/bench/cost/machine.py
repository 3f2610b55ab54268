"""What the operating system knows of processes: CPU time, memory, cores. Linux only."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROC: Final = Path("/proc")
_CPU_CLOCK_OF_PROCESS: Final = 2


@dataclass(frozen=True, slots=True)
class Cores:
    """The picker has cores for itself where there are two or more; everything else shares the others."""

    picker: frozenset[int]
    others: frozenset[int]

    @property
    def apart(self) -> bool:
        """False on a machine with a single core: figures then include what the cache loses to the others."""
        return self.picker != self.others


def cores(allowed: Iterable[int], wanted: int = 1) -> Cores:
    """Of those that this process may use: the last `wanted` for the picker, but one stays for the others."""
    usable = sorted(allowed)
    if len(usable) == 1:
        return Cores(frozenset(usable), frozenset(usable))
    own = min(wanted, len(usable) - 1)
    return Cores(frozenset(usable[-own:]), frozenset(usable[:-own]))


@contextlib.contextmanager
def started_on(where: frozenset[int]) -> Iterator[None]:
    """What is started inside inherits these cores (and counts them, as Go's runtime and Envoy do)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, where)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move(pids: Iterable[int], where: frozenset[int]) -> None:
    """Moves all threads of these processes; one that has ended is no error."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(_PROC / str(pid) / "task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), where)


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and all their descendants that live now."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (_PROC / entry / "stat").read_text(encoding="utf-8", errors="replace")
            # The name, in brackets, may itself hold brackets and spaces.
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, ())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of all threads, living and ended, of these processes.

    The kernel's CPU clock of the process: the sum that /proc/PID/stat shows in ticks of 10 ms, in nanoseconds.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages = (_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]
            total += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return total


class Machine(msgspec.Struct, frozen=True):
    """Where and when figures were taken."""

    processor: str
    cores: int
    kernel: str
    python: str
    picker_core: str
    load_average: tuple[float, float, float]
    at: str


def describe(where: Cores) -> Machine:
    """This machine, now."""
    processor = platform.machine()
    with contextlib.suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return Machine(
        processor=processor,
        cores=len(where.picker | where.others),
        kernel=platform.release(),
        python=platform.python_version(),
        picker_core=f"core {', '.join(map(str, sorted(where.picker)))} alone" if where.apart else "no core for itself",
        load_average=os.getloadavg(),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
