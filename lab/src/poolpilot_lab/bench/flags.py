"""What flags of several benches say. Every mistake names flag, value and what is allowed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poolpilot_lab.bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def names(flag: str, text: str, allowed: Collection[str]) -> tuple[str, ...]:
    """Of a list with commas, each once. Raises UsageError."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in found if name not in allowed]
    if unknown or not found:
        said = ", ".join(map(repr, unknown)) or "nothing"
        raise UsageError(f"{flag}: {said} is not known; allowed: {', '.join(allowed)}")
    return found


def whole(flag: str, value: int, least: int, most: int) -> int:
    """The value; UsageError where it is out of range."""
    if not least <= value <= most:
        raise UsageError(f"{flag}: {value} is out of range, allowed are {least} to {most}")
    return value


def check_epp(epp: Path | None, flag: str, named: Collection[str], its_name: str) -> None:
    """A picker that is a binary of the user's runs if and only if `flag` names it. Raises UsageError."""
    if epp is not None and not (epp.is_file() and os.access(epp, os.X_OK)):
        raise UsageError(f"--epp: {epp}: there is no such program")
    if its_name in named and epp is None:
        raise UsageError(f"{flag}: {its_name} is a binary of yours; name it with --epp PATH")
    if epp is not None and its_name not in named:
        raise UsageError(f"--epp: without effect, as {flag} does not name {its_name}")
