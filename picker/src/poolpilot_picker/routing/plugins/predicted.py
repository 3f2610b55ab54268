"""The default policy as plugin types: on its own as a picker, among others as a scorer."""

from __future__ import annotations

from typing import Any, Final

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.routing.predicted_finish import (
    PredictedFinishParameters,
    PredictedFinishPicker,
    PredictedFinishScorer,
)

TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="predicted-finish-picker",
        kinds=frozenset({PluginKind.PICKER}),
        parameters=PredictedFinishParameters,
        summary="where the request is predicted to finish first, counting what it costs the others; the default policy",
        build=PredictedFinishPicker,
    ),
    PluginType(
        name="predicted-finish-scorer",
        kinds=frozenset({PluginKind.SCORER}),
        parameters=PredictedFinishParameters,
        summary="the same cost among other scorers: best cost ÷ cost",
        build=PredictedFinishScorer,
    ),
)
