"""Plugin types of llm-d's flow control, and one of our own. Run only under the feature gate flowControl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType

if TYPE_CHECKING:
    from collections.abc import Mapping

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

Fairness = Literal["virtual-token-counter", "global-strict", "round-robin", "program-aware"]
Ordering = Literal["fcfs", "edf", "slo-deadline"]


class ProgramAwareParameters(Struct, frozen=True, rename="camel"):
    """Of program-aware-fairness."""

    strategy: Literal["las"] = "las"
    las_weight_service: Annotated[float, Meta(ge=0)] = 0.8
    las_weight_head_wait: Annotated[float, Meta(ge=0)] = 0.2
    las_half_life_seconds: Positive = 60.0


class StaticLimitParameters(Struct, frozen=True, rename="camel"):
    """Of static-usage-limit-policy."""

    threshold: Annotated[float, Meta(gt=0, description="dispatch while the saturation is below")] = 1.0


class HoldbackParameters(Struct, frozen=True, rename="camel"):
    """Of priority-holdback-policy."""

    min_ceiling: Annotated[float, Meta(ge=0, description="of the lowest priority")]
    max_ceiling: Annotated[float, Meta(gt=0, description="of the highest priority")] = 1.0
    shape: Literal["linear"] = "linear"
    domain: Annotated[
        Literal["rank", "value"], Meta(description="the ceiling falls with the rank of a priority, or with its value")
    ] = "rank"

    def __post_init__(self) -> None:
        if self.min_ceiling > self.max_ceiling:
            raise ValueError(f"minCeiling ({self.min_ceiling:g}) must not be above maxCeiling ({self.max_ceiling:g})")


class ReflectiveParameters(Struct, frozen=True):
    """Of soft-reflective-ceiling-policy: none."""


class ProbabilisticParameters(Struct, frozen=True, rename="camel"):
    """Of probabilistic-admitter."""

    queue_depth_threshold: Positive = 5.0
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    power: Positive = 5.0
    k: Annotated[float, Meta(ge=0)] = 300.0


CeilingParameters = StaticLimitParameters | HoldbackParameters | ReflectiveParameters

FAIRNESS: Final[Mapping[str, Fairness]] = {
    "virtual-token-counter-fairness-policy": "virtual-token-counter",
    "global-strict-fairness-policy": "global-strict",
    "round-robin-fairness-policy": "round-robin",
    "program-aware-fairness": "program-aware",
}
ORDERING: Final[Mapping[str, Ordering]] = {
    "fcfs-ordering-policy": "fcfs",
    "edf-ordering-policy": "edf",
    "slo-deadline-ordering-policy": "slo-deadline",
}
CEILINGS: Final = ("static-usage-limit-policy", "priority-holdback-policy", "soft-reflective-ceiling-policy")
ADMITTERS: Final = ("probabilistic-admitter", "latency-slo-admitter")
NEED_THE_GATE: Final = (*FAIRNESS, *ORDERING, *CEILINGS)


def _policy(
    name: str, summary: str, parameters: type[Struct] = NoParameters, *, kind: PluginKind = PluginKind.FLOW_POLICY
) -> PluginType[Any]:
    unused = dict.fromkeys(("evictionTtlSeconds", "evictionSweepSeconds"), "tenants at rest are forgotten by number")
    return PluginType(
        name=name,
        kinds=frozenset({kind}),
        parameters=parameters,
        summary=summary,
        unused_parameters=unused if name == "program-aware-fairness" else {},
    )


FLOW_TYPES: Final[tuple[PluginType[Any], ...]] = (
    _policy("virtual-token-counter-fairness-policy", "next is the tenant that has been charged least"),
    _policy("global-strict-fairness-policy", "no isolation of tenants: one order for all"),
    _policy("round-robin-fairness-policy", "tenants take turns"),
    _policy("program-aware-fairness", "next is the tenant with the least service lately", ProgramAwareParameters),
    _policy("fcfs-ordering-policy", "by arrival"),
    _policy("edf-ordering-policy", "by arrival + TTL"),
    _policy("slo-deadline-ordering-policy", "by arrival + the SLO of the first token; requests without one come last"),
    _policy("static-usage-limit-policy", "one ceiling of saturation for all priorities", StaticLimitParameters),
    _policy("priority-holdback-policy", "a lower ceiling for lower priorities", HoldbackParameters),
    _policy(
        "soft-reflective-ceiling-policy",
        "ceilings that fall as the saturation rises: 1 − i·s/(N−1)",
        ReflectiveParameters,
    ),
    _policy(
        "probabilistic-admitter",
        "sheds negative priorities with probability min(k·saturation^power, 1)",
        ProbabilisticParameters,
        kind=PluginKind.REQUEST_CONTROL,
    ),
    _policy(
        "latency-slo-admitter",
        "sheds negative priorities that no endpoint is predicted to start within their SLO",
        kind=PluginKind.REQUEST_CONTROL,
    ),
)
