"""How much memory this process may use, and what of it bodies may take. Beside app and fleet, which divide it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARE: Final = 4
"""Bodies may take this part of the memory: the rest is for endpoints, prefix index, streams and what is in work."""
LEAST_BYTES: Final = 64 * 2**20
UNLIMITED: Final = 2**60
"""cgroup v1 writes "no limit" as a number of about 2⁶³."""


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes: the tightest limit of this process's control groups (v2 `memory.max`, v1 `memory.limit_in_bytes`), else
    the machine's memory."""
    limits = [number for file in _files(root) if (number := _number(file)) is not None]
    return min(limits, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _files(root: Path) -> Iterator[Path]:
    """Of each group that the process is in, and of those above it. In a container the path may name a group that is not
    visible there: then that of the mount is its own."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", "0:memory:/"]:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "/")
        if not controllers:
            mount, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.strip("/"))
        if ".." in inside.parts:
            continue
        yield from (mount / parent / name for parent in (inside, *inside.parents))


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    number = int(text) if text.isascii() and text.isdigit() else UNLIMITED
    return number if 0 < number < UNLIMITED else None


def body_budget(wanted: int | None, processes: int = 1, *, limit: int | None = None) -> int:
    """Bytes of request bodies that one of so many processes may hold; `wanted`: of all together, as configured. None:
    a part of the memory limit, and no less than LEAST_BYTES for each."""
    if wanted is not None:
        return max(1, wanted // processes)
    return max(LEAST_BYTES, (memory_limit() if limit is None else limit) // SHARE // processes)
