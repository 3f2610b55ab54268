"""Prometheus for tests: found on the path or in $PROMETHEUS, else unpacked from Debian's package into the cache."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from poolpilot_lab.gotools import cache_folder
from poolpilot_lab.processes import Child, free_ports, http_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_LONGEST_S: Final = 100.0
"""Of one command, a download included."""


@contextlib.asynccontextmanager
async def running(folder: Path, configuration: str) -> AsyncIterator[str]:
    """Its URL. What it remembers is in `folder`/data."""
    server = await asyncio.to_thread(found, "prometheus")
    (folder / "prometheus.yml").write_text(configuration)
    [port] = free_ports(1, "127.0.0.1")
    argv = [server, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    child = Child("prometheus", [*argv, f"--web.listen-address=127.0.0.1:{port}"], log=folder / "prometheus.log")
    child.start()

    async def ready() -> bool:
        return await http_status("127.0.0.1", port, "/-/ready") == 200

    try:
        await child.ready(ready, 60.0)
        yield f"http://127.0.0.1:{port}"
    finally:
        await child.stop()


def found(name: str) -> str:
    """`prometheus` or `promtool`. Skips the test, with the reason, where neither program nor package can be had."""
    folders = os.pathsep.join([os.environ.get("PROMETHEUS", ""), os.environ["PATH"]])
    return shutil.which(name, path=folders) or str(_unpacked(cache_folder("prometheus")) / "usr/bin" / name)


def _unpacked(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _unpack(folder)
    return folder


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        _skip("there is no apt-get")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        download = ["apt-get", "download", "prometheus"]
        said = _ran(download, scratch)
        if said is not None and os.geteuid() == 0:
            # A fresh image has no list of packages yet.
            said = _ran(["apt-get", "update"], scratch) or _ran(download, scratch)
        if said is not None:
            _skip(said)
        whole = Path(scratch) / "whole"
        packages = [str(one) for one in Path(scratch).glob("*.deb")]
        said = _ran(["dpkg-deb", "-x", *packages, str(whole)], scratch)
        if said is not None:
            raise RuntimeError(said)
        # It appears whole or not at all.
        whole.replace(folder)


def _ran(argv: list[str], folder: str) -> str | None:
    """What it said where it failed."""
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"{' '.join(argv)} took longer than {_LONGEST_S:g} s"
    return None if done.returncode == 0 else f"{' '.join(argv)} failed: {done.stderr.strip()}"


def _skip(reason: str) -> None:
    pytest.skip(f"there is no Prometheus: install it, or name its folder in $PROMETHEUS; {reason}")
