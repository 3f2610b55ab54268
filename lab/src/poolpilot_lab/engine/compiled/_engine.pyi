from poolpilot_lab.engine.model.accelerator import Accelerator as Accelerator
from poolpilot_lab.engine.model.flight import Outcome as Outcome
from poolpilot_lab.engine.model.kv_cache import BlockCache as BlockCache
from poolpilot_lab.engine.model.scheduler import Engine as Engine
from poolpilot_lab.engine.model.sequence import Sequence as Sequence
from poolpilot_lab.engine.model.telemetry import Histogram as Histogram
