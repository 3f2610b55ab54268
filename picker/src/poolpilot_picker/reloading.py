"""Watches files, the configuration's first, and offers what they say to who decides what to do with it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

POLL_S: Final = 0.5

Content = TypeVar("Content")


def read_text(file: Path) -> str:
    """The file's text. Raises ConfigurationError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text at byte {error.start}"
        raise ConfigurationError(f"{file}: cannot be read: {reason}") from error


class WatchedFiles(Generic[Content]):
    """Looks at files twice a second. `problem` says why they cannot be read; empty while they can.

    A content is offered when two looks in a row found it: of a file that is written in place, a beginning may be good
    YAML and mean something else, and of two files only one may have been replaced yet. A file that is away for one look
    is being replaced; for longer, it is missed.
    """

    def __init__(
        self, name: str, read: Callable[[], Content], offer: Callable[[Content], object], *, stays: str
    ) -> None:
        """`read` raises ConfigurationError; `stays`: what is in force then, in words."""
        self._name = name
        self._read = read
        self._offer = offer
        self._stays = stays
        self._seen: Content | None = None
        self._missed = 0
        self.problem = ""

    async def run(self) -> None:
        """Watches until cancelled. The file system is touched in a thread: a hung one must not stop the picker."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                content = await asyncio.to_thread(self._read)
            except ConfigurationError as error:
                self.missed("; ".join(error.problems))
            else:
                self.look(content)

    def look(self, content: Content) -> None:
        """One look that found this."""
        if self.problem:
            log.info("%s can be read again", self._name)
        self._missed, self.problem = 0, ""
        again, self._seen = content == self._seen, content
        if not again:
            return
        try:
            self._offer(content)
        except Exception:
            # A fault of ours or of a plugin must not end the watch: what comes next may be good.
            log.exception("%s could not be put into force; %s", self._name, self._stays)

    def missed(self, why: str) -> None:
        """One look that found nothing."""
        self._seen = None
        self._missed += 1
        if self._missed == 2:
            self.problem = f"{why}; {self._stays}"
            log.error(self.problem)


class ConfigFile(WatchedFiles[str]):
    """The configuration file."""

    def __init__(self, file: Path, offer: Callable[[str], object]) -> None:
        super().__init__(str(file), lambda: read_text(file), offer, stays="the running configuration stays")
