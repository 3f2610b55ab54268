"""Puts a pinned router into a virtual environment of its own in the user's cache; whole, or not at all."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_lab.gotools import NotAvailable, cache_folder
from poolpilot_lab.processes import Child, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.bench.peers.catalogue import Distribution

INSTALL_S: Final = 900.0
"""Longest installation, downloads included."""


def environment(distribution: Distribution) -> Path:
    """Where it is, or will be: a name of its own for each version, lock and Python."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag}\0{_lock(distribution)}".encode())
    return cache_folder("peers") / f"{distribution.name}-{distribution.version}-{digest.hexdigest()[:8]}"


async def installed(distribution: Distribution, say: Callable[[str], None]) -> Path:
    """The interpreter of its environment, made now if need be; `say` hears of it before that starts.

    Raises NotAvailable, with the end of what pip said, where that is impossible.
    """
    folder = environment(distribution)
    if not folder.exists():
        say(f"installing {distribution.name} {distribution.version} into {folder}, once")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
            fresh = await _made(distribution, Path(scratch))
            try:
                # Its interpreter finds its packages wherever the folder lies; scripts, which would not, are not used.
                fresh.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
                # Somebody else was faster.
    return folder / "bin" / "python"


async def _made(distribution: Distribution, scratch: Path) -> Path:
    lock, fresh = scratch / distribution.lock, scratch / "environment"
    lock.write_text(_lock(distribution), encoding="utf-8")
    await _run("python -m venv", [sys.executable, "-m", "venv", str(fresh)], scratch)
    pip = [
        str(fresh / "bin" / "python"), "-m", "pip", "install",
        "--quiet", "--disable-pip-version-check", "--no-input",
        "--require-hashes", "--no-deps", "--only-binary", ":all:",
        "-r", str(lock),
    ]  # fmt: skip
    await _run(f"pip install of {distribution.name} {distribution.version}", pip, scratch)
    return fresh


async def _run(what: str, argv: list[str], scratch: Path) -> None:
    try:
        async with Child(what, argv, log=scratch / "log", cwd=scratch) as child:
            if not await child.ended(INSTALL_S):
                raise NotAvailable(f"{what} is not done after {INSTALL_S:g} s\n{child.tail()}")
    except ProcessError as error:
        raise NotAvailable(str(error)) from error
    if child.exit_code != 0:
        raise NotAvailable(f"{what} failed\n{child.tail()}")


def _lock(distribution: Distribution) -> str:
    return (resources.files("poolpilot_lab.bench.peers") / "locks" / distribution.lock).read_text(encoding="utf-8")
