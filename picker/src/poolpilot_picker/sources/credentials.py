"""The bearer token engines may ask for (`--api-key`): from a file or the environment, never in a log or a message."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN: Final = re.compile(r"[!-~]+")


class BearerToken:
    """A token read from `file` or the environment variable `env`; a file is read again when it has changed.

    Raises ConfigurationError where both or none is given, or where the first read fails. A later bad read keeps the
    token that was good.
    """

    __slots__ = ("_file", "_stamp", "_value")

    def __init__(
        self, *, file: str | Path | None = None, env: str | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        if (file is None) == (env is None):
            raise ConfigurationError("bearer token: give either a file or the name of an environment variable")
        self._file = None if file is None else Path(file)
        self._stamp: tuple[int, int, int] | None = None
        if env is not None:
            variables = os.environ if environ is None else environ
            if env not in variables:
                raise ConfigurationError(f"bearer token: environment variable {env} is not set")
            self._value = _checked(variables[env], f"environment variable {env}")
        else:
            self._value = ""
            self._load()

    def header(self) -> str:
        """`Bearer …`, for the authorization header."""
        return f"Bearer {self._value}"

    def reload(self) -> bool:
        """Reads a changed file again; True if the token is another one. Called when an engine refuses the token."""
        if self._file is None:
            return False
        before = self._value
        try:
            self._load()
        except ConfigurationError:
            return False
        return self._value != before

    def _load(self) -> None:
        assert self._file is not None
        try:
            stat = self._file.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return
            text = self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"bearer token: cannot read {self._file}: {reason}") from None
        self._value = _checked(text.strip(), str(self._file))
        self._stamp = stamp

    @override
    def __repr__(self) -> str:
        return "BearerToken(…)"


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"bearer token: {where} must hold one token of printable ASCII characters without blanks"
        )
    return token
