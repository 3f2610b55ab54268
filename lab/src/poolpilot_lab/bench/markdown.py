"""Tables of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Markdown; empty without rows. `numbers`: all columns but the first are to the right."""
    lines = [_line(row) for row in rows]
    if not lines:
        return ""
    return "\n".join([_line(heads), _line(["---", *["--:" if numbers else "---"] * (len(heads) - 1)]), *lines])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
