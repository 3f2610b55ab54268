"""What a stored run depends on: its settings and the code that made it. A change of either runs it again."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

import poolpilot_lab
import poolpilot_picker

_LAB: Final = ("sim", "workload", "engine/model", "engine/compiled")
_PICKER: Final = ("flow", "routing", "state", "learning", "requests", "config", "compiled")


@cache
def code() -> str:
    """Hash of the sources of simulator, workloads, engine model and the picker's decision code, those in C too."""
    total = hashlib.sha256()
    for package, rooms in ((poolpilot_lab, _LAB), (poolpilot_picker, _PICKER)):
        root = Path(package.__path__[0])
        for room in rooms:
            for file in sorted(one for kind in ("*.py", "*.pyx") for one in (root / room).rglob(kind)):
                total.update(str(file.relative_to(root)).encode())
                total.update(file.read_bytes())
    return total.hexdigest()[:16]


def fingerprint(*settings: object) -> str:
    """Of these settings under this code."""
    return hashlib.sha256(f"{code()} {settings!r}".encode()).hexdigest()[:24]
