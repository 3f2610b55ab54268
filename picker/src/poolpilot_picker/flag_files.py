"""The engines' token, which a flag names a file or a variable for. Read once, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.credentials import BearerToken

if TYPE_CHECKING:
    from pathlib import Path


def token_of(file: Path | None, variable: str | None) -> BearerToken | None:
    """The bearer token for the engines. Raises ConfigurationError, with the flag's name."""
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise ConfigurationError("--engine-api-key-file and --engine-api-key-env exclude each other")
    try:
        return BearerToken(file=file, env=variable)
    except ConfigurationError as error:
        flag = "--engine-api-key-file" if file is not None else "--engine-api-key-env"
        raise ConfigurationError(*(f"{flag}: {problem}" for problem in error.problems)) from error
