"""Programs in Go that tests need: built once into the user's cache, by the versions that a module pins."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from poolpilot_lab import gotools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def built(module: Path, package: str = ".") -> Path:
    """The program of a package of `module`; built if it is not in the cache. Skips the test where there is no Go."""
    # A thread, for tests and fixtures that run on an event loop already.
    with skipped_without_go(), ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(gotools.built(gotools.GoProgram(module, package)))).result()


@contextlib.contextmanager
def skipped_without_go() -> Iterator[None]:
    """A build that fails is a failure, not a reason to skip."""
    try:
        yield
    except gotools.BuildFailedError:
        raise
    except gotools.NotAvailable as error:
        pytest.skip(error.reason)
