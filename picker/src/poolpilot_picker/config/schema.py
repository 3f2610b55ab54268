"""The shape of an EndpointPickerConfig (llm-d-router 0.10, GIE 1.5): what is read before its meaning is checked."""

from __future__ import annotations

from typing import Annotated, Any, Final

import yaml
from msgspec import Meta, Struct, field

from poolpilot_kube.policies import API_VERSION as API_VERSION
from poolpilot_kube.policies import KIND as KIND
from poolpilot_picker.config.settings import PoolPilotSettings

API_VERSIONS: Final = (API_VERSION, "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
DEPRECATED_API_VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"

Name = Annotated[str, Meta(min_length=1)]


class PluginEntry(Struct, rename="camel"):
    """One of `plugins`. Parameters are read when the type is known."""

    type: Name
    name: str = ""
    parameters: yaml.Node | None = None


class PluginRef(Struct, rename="camel"):
    """Names a plugin of `plugins`."""

    plugin_ref: Name


class ProfilePlugin(Struct, rename="camel"):
    """A plugin's place in a profile."""

    plugin_ref: Name
    weight: float | None = None


class SchedulingProfile(Struct, rename="camel"):
    """Filters, scorers and one picker."""

    name: Name
    plugins: list[ProfilePlugin] = []


class DataSourceEntry(Struct, rename="camel"):
    """One of `dataLayer.sources`."""

    plugin_ref: Name
    extractors: list[PluginRef] = []


class DataLayer(Struct, rename="camel"):
    """Where telemetry comes from."""

    inject_defaults: bool = True
    sources: list[DataSourceEntry] = []
    discovery: PluginRef | None = None
    peer_discovery: PluginRef | None = None
    cross_replica_syncer_plugin_ref: str | None = None
    cross_replica_sync_interval: str | None = None


class SaturationDetector(Struct, rename="camel"):
    """Names a detector."""

    plugin_ref: str = "utilization-detector"


class PriorityBand(Struct, rename="camel"):
    """One band of the queue: `config.flow_section` says what its values mean."""

    priority: int = 0
    max_bytes: Any = None
    max_requests: Any = None
    fairness_policy_ref: str | None = None
    ordering_policy_ref: str | None = None


class FlowControl(Struct, rename="camel"):
    """The queue: `config.flow_section` says what its values mean."""

    max_bytes: Any = None
    max_requests: Any = None
    default_request_ttl: Any = field(default=None, name="defaultRequestTTL")
    no_endpoint_request_ttl: Any = field(default=None, name="noEndpointRequestTTL")
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: list[PriorityBand] = []
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: SaturationDetector | None = None
    enable_eviction: bool = False


class RequestHandler(Struct, rename="camel"):
    """Which bodies are understood."""

    parsers: list[PluginRef] = []


class EndpointPickerConfig(Struct, rename="camel"):
    """The document."""

    api_version: str
    kind: str
    feature_gates: list[str] = []
    plugins: list[PluginEntry] = []
    scheduling_profiles: list[SchedulingProfile] = []
    data_layer: DataLayer | None = None
    flow_control: FlowControl | None = None
    request_handler: RequestHandler | None = None
    saturation_detector: SaturationDetector | None = None
    parser: PluginRef | None = None
    poolpilot: PoolPilotSettings = PoolPilotSettings()
