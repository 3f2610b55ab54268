"""The engine model in C, chosen like the picker's core (`POOLPILOT_CORE`); its reference is `engine/model`."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

from poolpilot_picker.compiled import VARIABLE

_PACKAGE: Final = "poolpilot_lab.engine.compiled"


def load(name: str = "_engine") -> Any:
    """A compiled module. Raises ImportError where it was not built for this interpreter."""
    return importlib.import_module(f"{_PACKAGE}.{name}")


def wanted(name: str = "_engine") -> Any:
    """A compiled module, or None: it was not built, or the environment asks for the reference."""
    if os.environ.get(VARIABLE, "") == "reference":
        return None
    try:
        return load(name)
    except ImportError:
        return None
