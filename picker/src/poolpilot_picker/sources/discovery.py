"""Where the pool's endpoints come from without Kubernetes: a file that is watched.

The file is looked at, not listened to: a ConfigMap changes by a swapped symlink, an editor by a rename, others by
writing in place, and a poll sees all three. What replaces the file (rename, symlink) is complete and taken at once;
what is written in place is taken when it has not changed for one interval, so that half of it never becomes the pool.
A bad file keeps the endpoints of the last good one and says so in `status`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.endpoint_list import MAX_FILE_BYTES, parse_endpoint_file
from poolpilot_picker.sources.telemetry import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)


class DiscoveryStatus(msgspec.Struct):
    """For readiness detail, metric and log. Times in ms of the monotonic clock."""

    path: str
    """The file, or the object that says which endpoints there are."""
    endpoints: int = 0
    loads: int = 0
    """How often the endpoints were said."""
    failures: int = 0
    """Files refused, each counted once; answers of an API server that failed."""
    loaded_ms: float | None = None
    problems: tuple[str, ...] = ()
    """What is wrong now; empty when the pool is what the source says."""
    failing_since_ms: float | None = None
    missing: str = "no endpoints file has been read yet"
    """What is waited for while it is not ready."""

    @property
    def ready(self) -> bool:
        """The source has said which endpoints there are."""
        return self.loaded_ms is not None


class Discovery(Protocol):
    """A source of endpoints: hands them to whom it was made for, while `run` runs."""

    @property
    def status(self) -> DiscoveryStatus:
        """How it goes."""

    @property
    def turned(self) -> asyncio.Event | None:
        """Set when readiness may have changed; None where a source that was ready stays it."""

    def load(self) -> object:
        """What can be read at once, at start. Raises ConfigurationError."""

    async def run(self) -> None:
        """Until cancelled."""


class _Stamp(msgspec.Struct, frozen=True):
    """What tells two contents of a path apart without reading them."""

    real_path: str
    inode: int
    modified_ns: int
    size: int

    def replaces(self, other: _Stamp) -> bool:
        """Another file, not the same one written to."""
        return (self.real_path, self.inode) != (other.real_path, other.inode)


class FileDiscovery:
    """Endpoints of a YAML file, handed to `apply` at each change, while `run` runs."""

    turned = None

    def __init__(
        self,
        path: str | Path,
        apply: Callable[[list[EndpointSpec]], None],
        *,
        engines: Collection[str],
        default_engine: str = "vllm",
        interval_ms: float = 500.0,
        now: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._path = Path(path)
        self._apply = apply
        self._engines = engines
        self._default_engine = default_engine
        self._interval_ms = interval_ms
        self._now = now
        self._taken: _Stamp | None = None
        """The content that was last taken or refused."""
        self._seen: _Stamp | None = None
        self.status = DiscoveryStatus(path=str(path))

    def load(self) -> list[EndpointSpec]:
        """The first read, at start: applies and returns the endpoints. Raises ConfigurationError."""
        stamp = self._stamp()
        try:
            specs = self._read()
        except ConfigurationError as error:
            self._refuse(stamp, error.problems)
            raise
        self._accept(stamp, specs)
        return specs

    async def run(self) -> None:
        """Watches until cancelled. The file system is touched in a thread: a hung one must not stop the picker."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000.0)
            try:
                self.take(await asyncio.to_thread(self.look))
            except Exception as error:
                # Whatever is wrong with one set of endpoints must not end the watch for the next.
                log.exception("%s", self._path)
                self._refuse(self._taken, (f"{self._path}: not applied: {error}",))

    def look(self) -> tuple[_Stamp | None, list[EndpointSpec] | tuple[str, ...]] | None:
        """One look at the file: (content, endpoints or problems) where something is to be taken, else None."""
        stamp = self._stamp()
        if stamp is None:
            # Between an unlink and a rename there is no file for a moment: a problem only when it stays away.
            away, self._seen = self._seen is None, None
            return (None, (f"{self._path}: no such file or no access",)) if away else None
        settled = self._seen == stamp or (self._taken is not None and stamp.replaces(self._taken))
        self._seen = stamp
        if stamp == self._taken or not settled:
            return None
        try:
            specs = self._read()
        except ConfigurationError as error:
            result: list[EndpointSpec] | tuple[str, ...] = error.problems
        else:
            result = specs
        if self._stamp() != stamp:
            return None  # changed while it was read: the next look sees the new one
        return stamp, result

    def take(self, change: tuple[_Stamp | None, list[EndpointSpec] | tuple[str, ...]] | None) -> None:
        """Takes what `look` found."""
        if change is None:
            return
        stamp, result = change
        if isinstance(result, list):
            self._accept(stamp, result)
        else:
            self._refuse(stamp, result)

    def _accept(self, stamp: _Stamp | None, specs: list[EndpointSpec]) -> None:
        status = self.status
        self._taken = self._seen = stamp
        log.info("%s: %d endpoints", self._path, len(specs))
        status.endpoints, status.loaded_ms = len(specs), self._now()
        status.loads += 1
        status.problems, status.failing_since_ms = (), None
        self._apply(specs)

    def _refuse(self, stamp: _Stamp | None, problems: tuple[str, ...]) -> None:
        status = self.status
        self._taken = stamp
        if status.problems == problems:
            return
        for problem in problems:
            log.error("endpoints stay as they are: %s", problem)
        status.failures += 1
        status.problems = problems
        if status.failing_since_ms is None:
            status.failing_since_ms = self._now()

    def _stamp(self) -> _Stamp | None:
        try:
            real = os.path.realpath(self._path)
            stat = os.stat(real)
        except OSError:
            return None
        return _Stamp(real, stat.st_ino, stat.st_mtime_ns, stat.st_size)

    def _read(self) -> list[EndpointSpec]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"{self._path}: cannot be read: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise ConfigurationError(f"{self._path}: larger than {MAX_FILE_BYTES} bytes")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self._path}: not UTF-8 text at byte {error.start}") from None
        return parse_endpoint_file(
            text, engines=self._engines, default_engine=self._default_engine, where=str(self._path)
        )
