"""What the doctor has to say, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Requests fail or are not placed by a picker."""
    WARNING = "warning"
    """It works, but slower, dearer or less safely than it could."""
    INFO = "info"
    """Good to know."""


class Finding(msgspec.Struct, frozen=True):
    """One of them: `about` is KIND NAMESPACE/NAME, `check` a word for programs that never changes its meaning."""

    level: Level
    check: str
    about: str
    problem: str
    change: str
    """What to do; empty where nothing has to be done."""


Findings: TypeAlias = Iterable[Finding]


class Report(msgspec.Struct, frozen=True):
    """All of them, worst first, and what was looked at."""

    findings: tuple[Finding, ...]
    seen: dict[str, int]
    """Number of objects by kind."""

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.level is Level.ERROR for finding in self.findings)


def report(findings: Findings, seen: dict[str, int]) -> Report:
    """In a stable order: by level, check and object."""
    levels = list(Level)
    return Report(tuple(sorted(set(findings), key=lambda one: (levels.index(one.level), one.check, one.about))), seen)


def as_text(made: Report) -> str:
    """For a person."""
    lines = []
    for finding in made.findings:
        lines.append(f"{finding.level.upper():8} {finding.about}: {finding.problem} [{finding.check}]")
        if finding.change:
            lines.append(f"{'':8} → {finding.change}")
    counted = ", ".join(f"{number} {kind}" for kind, number in made.seen.items())
    warnings = sum(finding.level is Level.WARNING for finding in made.findings)
    lines.append(f"{made.errors} errors, {warnings} warnings; looked at {counted or 'nothing'}.")
    return "\n".join([*lines, ""])


def as_json(made: Report) -> str:
    """For programs: {"errors": N, "findings": […], "seen": {…}}."""
    content = {"errors": made.errors, "findings": made.findings, "seen": made.seen}
    return msgspec.json.format(msgspec.json.encode(content)).decode() + "\n"
