"""Plugin types of llm-d-router and GIE that routing does not run: done anyway, harmless, or not honoured yet.

The table in docs/configuration.md is checked against this one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from poolpilot_picker.config.flow_plugins import FLOW_TYPES
from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class InflightLoadParameters(Struct, frozen=True, rename="camel"):
    """Of inflight-load-producer."""

    add_estimated_output_tokens: bool = False

    def __post_init__(self) -> None:
        if self.add_estimated_output_tokens:
            raise ValueError("addEstimatedOutputTokens is known but not supported yet; remove it or set it to false")


class MetricsSourceParameters(Struct, frozen=True, rename="camel"):
    """Of metrics-data-source: the defaults are what the picker does."""

    scheme: Literal["http"] = "http"
    path: Literal["/metrics"] = "/metrics"


class ExtractorParameters(Struct, frozen=True, rename="camel"):
    """Of core-metrics-extractor: the defaults are what the picker does."""

    engine_label_key: Literal["llm-d.ai/engine-type"] = "llm-d.ai/engine-type"
    default_engine: Literal["vllm"] = "vllm"


_NONE: Final[Mapping[str, str]] = MappingProxyType({})

_TELEMETRY = "telemetry is set in poolpilot.telemetry, engines by the label llm-d.ai/engine-type"
_INDEX = "the prefix index bounds itself and takes its capacity from each engine"
_ONE_PROFILE = "requests are served by one profile; remove it and keep the profile that should serve them"
_BY_LOAD = "bodies of this API are not read: its requests are routed by load"


def _type(
    name: str,
    kind: PluginKind,
    summary: str,
    standing: Standing = Standing.RUNS,
    note: str = "",
    *,
    parameters: type[Struct] = NoParameters,
    aliases: tuple[str, ...] = (),
    unused: Mapping[str, str] = _NONE,
    refused: Mapping[str, str] = _NONE,
) -> PluginType[Any]:
    return PluginType(
        name=name,
        kinds=frozenset({kind}),
        parameters=parameters,
        summary=summary,
        standing=standing,
        note=note,
        aliases=aliases,
        unused_parameters=unused,
        refused_parameters=refused,
    )


def _refused(kind: PluginKind, instead: str, *names: str) -> Iterable[PluginType[Any]]:
    return [_type(name, kind, "not supported yet", Standing.REFUSED, instead) for name in names]


def _each(names: str, note: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), note)


KNOWN: Final[tuple[PluginType[Any], ...]] = (
    _type("single-profile-handler", PluginKind.PROFILE_HANDLER, "one profile serves every request"),
    _type(
        "approx-prefix-cache-producer",
        PluginKind.DATA_PRODUCER,
        "predicts which endpoint holds how much of a prompt in its prefix cache; always on",
        unused=_each(
            "autoTune blockSizeTokens blockSize maxPrefixBlocksToMatch maxPrefixTokensToMatch lruCapacityPerServer",
            _INDEX,
        ),
    ),
    _type(
        "inflight-load-producer",
        PluginKind.DATA_PRODUCER,
        "counts the requests and tokens in flight per endpoint; always on",
        parameters=InflightLoadParameters,
        unused={
            "prefixMatchInfoProducerName": "there is one prefix index",
            **_each("outputRatio maxEstimatedOutputTokens", "output tokens are not counted as load"),
        },
    ),
    _type(
        "token-producer",
        PluginKind.DATA_PRODUCER,
        "estimates prompt tokens from the body; always on",
        aliases=("tokenizer",),
        unused=_each("estimate modelName", "tokens are estimated from the body and corrected by usage"),
        refused=_each("vllm udsTokenizerConfig", "tokens are estimated; remove it"),
    ),
    _type(
        "metrics-data-source",
        PluginKind.DATA_SOURCE,
        "polls the engines' metrics; always on",
        parameters=MetricsSourceParameters,
        unused=_each("interval insecureSkipVerify", _TELEMETRY),
        refused=_each("port caCertPath clientCertPath clientKeyPath", f"remove it: {_TELEMETRY}"),
    ),
    _type("models-data-source", PluginKind.DATA_SOURCE, "polls the engines' model lists; always on"),
    _type(
        "core-metrics-extractor",
        PluginKind.EXTRACTOR,
        "reads load, KV cache and adapters from the engines' metrics; always on",
        parameters=ExtractorParameters,
        refused=_each("engineConfigs", f"remove it: {_TELEMETRY}"),
    ),
    _type("models-data-extractor", PluginKind.EXTRACTOR, "reads the served models; always on"),
    _type("openai-parser", PluginKind.PARSER, "completions, chat, embeddings, responses; always on"),
    _type("anthropic-parser", PluginKind.PARSER, "messages of the Anthropic API; always on"),
    _type("passthrough-parser", PluginKind.PARSER, "what no parser knows is routed by load; always on"),
    *(
        _type(name, PluginKind.PARSER, "accepted", Standing.WARNS, _BY_LOAD)
        for name in ("vllmhttp-parser", "vllmgrpc-parser", "sglanghttp-parser", "vertexai-parser")
    ),
    *FLOW_TYPES,
    *(
        _type(name, PluginKind.DATA_SOURCE, "accepted", Standing.WARNS, "changes of endpoints always reach the picker")
        for name in ("k8s-notification-source", "endpoint-notification-source")
    ),
    *_refused(
        PluginKind.PROFILE_HANDLER,
        _ONE_PROFILE,
        "disagg-profile-handler",
        "pd-profile-handler",
        "data-parallel-profile-handler",
        "header-profile-handler",
    ),
    *_refused(
        PluginKind.DECIDER,
        _ONE_PROFILE,
        "prefix-based-pd-decider",
        "always-disagg-pd-decider",
        "always-disagg-multimodal-decider",
    ),
    *_refused(PluginKind.REQUEST_CONTROL, _ONE_PROFILE, "disagg-headers-handler", "prefill-header-handler"),
    *_refused(
        PluginKind.SCORER,
        "remove it, or use prefix-cache-scorer, which scores the predicted cache",
        "precise-prefix-cache-scorer",
    ),
    *_refused(
        PluginKind.SCORER,
        "remove it, or use predicted-finish-scorer, which predicts latency without a sidecar",
        "latency-scorer",
    ),
    *_refused(
        PluginKind.SCORER,
        "remove it",
        "topology-affinity-scorer",
        "header-label-affinity-scorer",
        "mm-embeddings-cache-scorer",
        "endpoint-attribute-scorer",
        "multicluster-queue-scorer",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-prefix-cache-scorer",
    ),
    *_refused(
        PluginKind.FILTER,
        "remove it",
        "slo-headroom-tier-filter",
        "endpoint-attribute-filter",
        "topology-affinity-filter",
        "disaggregatedset-rollout",
        "disaggregatedset-rollout-screener",
        "multicluster-session-affinity-filter",
    ),
    *_refused(
        PluginKind.DATA_PRODUCER,
        "remove it: the prefix cache is predicted from what was routed",
        "precise-prefix-cache-producer",
        "burst-prefix-cache-producer",
        "multicluster-approx-prefix-cache-producer",
    ),
    *_refused(
        PluginKind.DATA_PRODUCER,
        "remove it: predicted-finish-picker predicts latency without a sidecar",
        "predicted-latency-producer",
    ),
    *_refused(
        PluginKind.DATA_PRODUCER, "remove it and set headerName on session-affinity-scorer", "session-id-producer"
    ),
    *_refused(PluginKind.DATA_PRODUCER, "remove it", "p2p-source-producer", "mm-embeddings-cache-producer"),
    *_refused(
        PluginKind.REQUEST_CONTROL,
        "remove it",
        "request-attribute-reporter",
        "agent-identity",
        "destination-endpoint-served-verifier",
    ),
    *_refused(
        PluginKind.DISCOVERY,
        "remove it and give the picker its endpoints on the command line",
        "file-discovery",
        "multicluster-file-discovery",
    ),
    *_refused(PluginKind.DATA_SOURCE, "remove it", "dcgm-data-source", "multicluster-metrics-data-source"),
    *_refused(
        PluginKind.EXTRACTOR, "remove it", "dcgm-extractor", "topology-extractor", "multicluster-metrics-extractor"
    ),
)
"""Filters, scorers and pickers that run are in the routing room."""
