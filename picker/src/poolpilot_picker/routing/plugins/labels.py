"""Filters and scorers by labels of endpoints: label selectors, P/D roles, context lengths. Also the test header."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta, Struct

from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask

ROLE_LABEL: Final = "llm-d.ai/role"
CONTEXT_LABEL: Final = "llm-d.ai/context-length-range"

_FILTER: Final = frozenset({PluginKind.FILTER})


class _PerEndpoint:
    """Numbers worked out from each endpoint's labels, kept until the set of endpoints changes."""

    def __init__(self, width: int, value: Callable[[Mapping[str, str]], tuple[float, ...]]) -> None:
        self._value = value
        self._width = width
        self._table: EndpointTable | None = None
        self._generation = -1
        self._rows: Floats = np.zeros((width, 0))

    def of(self, table: EndpointTable) -> Floats:
        """Shape (width, slots); NaN in free slots."""
        if table is not self._table or table.generation != self._generation:
            self._rows = np.full((self._width, len(table)), np.nan)
            for endpoint in table:
                self._rows[:, endpoint.slot] = self._value(endpoint.spec.labels)
            self._table, self._generation = table, table.generation
        return self._rows


class _LabelFilter:
    """Keeps the endpoints whose labels pass a test."""

    fixed: Final = True

    def __init__(self, passes: Callable[[Mapping[str, str]], bool]) -> None:
        self._passing = _PerEndpoint(1, lambda labels: (1.0 if passes(labels) else 0.0,))

    def filter(self, view: DecisionView) -> Mask:
        """True where the labels pass."""
        passing: Mask = self._passing.of(view.table)[0] == 1.0
        return passing


class LabelExpression(Struct, frozen=True, rename="camel"):
    """One requirement of a Kubernetes label selector."""

    key: Annotated[str, Meta(min_length=1)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.operator in {"In", "NotIn"} and not self.values:
            raise ValueError(f"operator {self.operator} needs values")
        if self.operator in {"Exists", "DoesNotExist"} and self.values:
            raise ValueError(f"operator {self.operator} takes no values")

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it; NotIn holds where the label is absent, as in Kubernetes."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelector(Struct, frozen=True, rename="camel"):
    """A Kubernetes label selector: everything must hold; an empty one selects all."""

    match_labels: Annotated[dict[str, str], Meta(description="labels with exactly these values")] = {}
    match_expressions: Annotated[tuple[LabelExpression, ...], Meta(description="In, NotIn, Exists, DoesNotExist")] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an endpoint with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.holds(labels) for expression in self.match_expressions
        )


class LabelSelectorFilter(_LabelFilter):
    """Keeps the endpoints that a label selector selects."""

    def __init__(self, selector: LabelSelector) -> None:
        super().__init__(selector.selects)


_DECODE = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
_PREFILL = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
_ENCODE = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class DecodeFilter(_LabelFilter):
    """Keeps endpoints that decode; without a role label an endpoint does everything."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        super().__init__(lambda labels: labels.get(ROLE_LABEL, "decode") in _DECODE)


class PrefillFilter(_LabelFilter):
    """Keeps endpoints labelled to prefill; one without a role label is not."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        super().__init__(lambda labels: labels.get(ROLE_LABEL) in _PREFILL)


class EncodeFilter(_LabelFilter):
    """Keeps endpoints labelled to encode; one without a role label is not."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        super().__init__(lambda labels: labels.get(ROLE_LABEL) in _ENCODE)


class TestSelectionFilter:
    """Keeps the endpoints named in the test header, by IP or `ip:port`; without it, none. Never in production."""

    __test__ = False  # not a test case, whatever its name

    def __init__(self, parameters: NoParameters | None = None) -> None:
        pass

    def filter(self, view: DecisionView) -> Mask:
        """True for the endpoints named."""
        wanted = {address.strip() for address in view.request.test_selection}
        kept = np.zeros(len(view.mask), dtype=np.bool_)
        for endpoint in view.table:
            host = endpoint.spec.host
            kept[endpoint.slot] = not wanted.isdisjoint((endpoint.address, host, f"[{host}]"))
        return kept


class ContextLengthParameters(Struct, frozen=True, rename="camel"):
    """Of context-length-aware."""

    label: Annotated[str, Meta(min_length=1, description='label that holds "min-max", in tokens')] = CONTEXT_LABEL
    enable_filtering: Annotated[
        bool, Meta(description="also remove endpoints whose range does not hold the prompt, or cannot be read")
    ] = False


class ContextLength:
    """Prefers endpoints meant for prompts of this length: narrow ranges first, and their lower end."""

    fixed: Final = True

    def __init__(self, parameters: ContextLengthParameters | None = None) -> None:
        self._parameters = parameters or ContextLengthParameters()
        self._ranges = _PerEndpoint(3, self._range)

    def _range(self, labels: Mapping[str, str]) -> tuple[float, float, float]:
        """(low, high, 0), or what to score without one: (NaN, NaN, score)."""
        text = labels.get(self._parameters.label)
        if text is None:
            return np.nan, np.nan, 0.5
        found = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)
        if found is None or int(found[1]) > int(found[2]):
            return np.nan, np.nan, 0.0
        return float(found[1]), float(found[2]), 0.0

    def filter(self, view: DecisionView) -> Mask:
        """True where the range holds the prompt, and without a label; all unless `enableFiltering`."""
        if not self._parameters.enable_filtering:
            return np.ones(len(view.mask), dtype=np.bool_)
        low, high, unlabelled = self._ranges.of(view.table)
        length = view.request.prompt_tokens
        kept: Mask = ((low <= length) & (length <= high)) | (unlabelled == 0.5)
        return kept

    def score(self, view: DecisionView) -> Floats:
        """In range 0.3 to 1; out of range up to 0.3, falling with distance; without a label 0.5, with a bad one 0."""
        low, high, without = self._ranges.of(view.table)
        length = float(view.request.prompt_tokens)
        width = high - low
        slack = (high - length) / np.where(width > 0, width, 1.0)
        inside = np.where(width == 0, 1.0, 0.3 + 0.7 * (0.7 / (1.0 + width / 10_000.0) + 0.3 * slack))
        distance = np.where(length < low, low - length, length - high)
        outside = 0.3 / (1.0 + np.abs(distance) / 1000.0)
        score = np.where((low <= length) & (length <= high), inside, outside)
        return np.where(np.isnan(low), without, score)


TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="label-selector-filter",
        kinds=_FILTER,
        parameters=LabelSelector,
        summary="keeps endpoints that a Kubernetes label selector selects",
        build=LabelSelectorFilter,
        aliases=("by-label", "by-label-selector"),
    ),
    PluginType(
        name="decode-filter",
        kinds=_FILTER,
        parameters=NoParameters,
        summary=f"keeps endpoints whose {ROLE_LABEL} includes decode, and those without the label",
        build=DecodeFilter,
    ),
    PluginType(
        name="prefill-filter",
        kinds=_FILTER,
        parameters=NoParameters,
        summary=f"keeps endpoints whose {ROLE_LABEL} includes prefill",
        build=PrefillFilter,
    ),
    PluginType(
        name="encode-filter",
        kinds=_FILTER,
        parameters=NoParameters,
        summary=f"keeps endpoints whose {ROLE_LABEL} includes encode",
        build=EncodeFilter,
    ),
    PluginType(
        name="context-length-aware",
        kinds=frozenset({PluginKind.FILTER, PluginKind.SCORER}),
        parameters=ContextLengthParameters,
        summary="prefers endpoints labelled for prompts of this length",
        build=ContextLength,
    ),
    PluginType(
        name="header-based-testing-filter",
        kinds=_FILTER,
        parameters=NoParameters,
        summary="keeps endpoints that the header test-epp-endpoint-selection names; tests only: clients can choose",
        build=TestSelectionFilter,
    ),
)
