"""The engine itself: pure, driven by a clock it is given. The fleet simulation and the HTTP server run this code.

`Engine`, `Sequence`, `BlockCache`, `Histogram`, `Outcome` and `Accelerator` are compiled ones (`engine/compiled`) where
there are any.
"""

from typing import TYPE_CHECKING

from poolpilot_lab.engine import compiled as _compiled
from poolpilot_lab.engine.model.accelerator import Accelerator, Variation
from poolpilot_lab.engine.model.flight import Outcome
from poolpilot_lab.engine.model.kv_cache import BlockCache
from poolpilot_lab.engine.model.lora import AdapterSlots
from poolpilot_lab.engine.model.profiles import PROFILES, Profile
from poolpilot_lab.engine.model.scheduler import Engine
from poolpilot_lab.engine.model.sequence import Sequence, State
from poolpilot_lab.engine.model.settings import EngineSettings, SequenceTooLongError
from poolpilot_lab.engine.model.telemetry import Histogram, Telemetry

if not TYPE_CHECKING:
    _core = _compiled.wanted()
    if _core is not None:
        Engine, Sequence, Outcome = _core.Engine, _core.Sequence, _core.Outcome
        BlockCache, Histogram, Accelerator = _core.BlockCache, _core.Histogram, _core.Accelerator

__all__ = [
    "PROFILES",
    "Accelerator",
    "AdapterSlots",
    "BlockCache",
    "Engine",
    "EngineSettings",
    "Histogram",
    "Outcome",
    "Profile",
    "Sequence",
    "SequenceTooLongError",
    "State",
    "Telemetry",
    "Variation",
]
