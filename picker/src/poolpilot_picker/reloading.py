"""Watches the configuration file and offers what it says. Beside app, which decides what to do with an offer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

POLL_S: Final = 0.5


def read_text(file: Path) -> str:
    """The file's text. Raises ConfigurationError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text at byte {error.start}"
        raise ConfigurationError(f"{file}: cannot be read: {reason}") from error


class ConfigFile:
    """Looks at a file twice a second. `problem` says why it cannot be read; empty while it can.

    A text is offered when two looks in a row found it: of a file that is written in place, a beginning may be good YAML
    and mean something else. A file that is away for one look is being replaced; for longer, it is missed.
    """

    def __init__(self, file: Path, offer: Callable[[str], object]) -> None:
        self._file = file
        self._offer = offer
        self._seen: str | None = None
        self._missed = 0
        self.problem = ""

    async def run(self) -> None:
        """Watches until cancelled. The file system is touched in a thread: a hung one must not stop the picker."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                text = await asyncio.to_thread(read_text, self._file)
            except ConfigurationError as error:
                self.missed(str(error))
            else:
                self.look(text)

    def look(self, text: str) -> None:
        """One look that found this text."""
        if self.problem:
            log.info("%s can be read again", self._file)
        self._missed, self.problem = 0, ""
        again, self._seen = text == self._seen, text
        if not again:
            return
        try:
            self._offer(text)
        except Exception:
            # A fault of ours or of a plugin must not end the watch: the next text may be good.
            log.exception("%s could not be put into force; the running configuration stays", self._file)

    def missed(self, why: str) -> None:
        """One look that found nothing."""
        self._seen = None
        self._missed += 1
        if self._missed == 2:
            self.problem = f"{why}; the running configuration stays"
            log.error(self.problem)
