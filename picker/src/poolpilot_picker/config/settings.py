"""Our own settings, the section `poolpilot:` of an EndpointPickerConfig. Read by app when it composes the rooms."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from poolpilot_picker.config.step_models import StepModel

Share = Annotated[float, Meta(ge=0, le=1)]
Milliseconds = Annotated[float, Meta(gt=0)]


class ObservationSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How much of the responses the picker looks into."""

    share: Annotated[Share, Meta(description="share of the responses whose body is observed: first token, usage")] = (
        0.01
    )


class ReceiptSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Records of decisions: every candidate with every term, at GET /debug/decisions."""

    share: Annotated[Share, Meta(description="share of the decisions that are recorded without being asked for")] = 0.01
    header: Annotated[
        bool, Meta(description="answer a client that asks for a receipt with one in the response header")
    ] = False
    keep: Annotated[int, Meta(ge=0, le=1_000_000, description="receipts held in memory; the oldest go first")] = 1000


class FallbackSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Further endpoints behind the chosen one, for gateways that try them in order."""

    max_num_of_endpoints: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="endpoints in the destination header, for pickers that do not say it themselves; more than 1 "
            "only where the gateway reads a list (Envoy: override_host, not ORIGINAL_DST); "
            "unset: 3 with --eds-dir, else 1"
        ),
    ] = None


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How engines are polled."""

    busy_interval_ms: Annotated[Milliseconds, Meta(description="between two samples of an endpoint with work")] = 200.0
    idle_interval_ms: Annotated[Milliseconds, Meta(description="between two samples of an idle endpoint")] = 1500.0
    timeout_ms: Annotated[Milliseconds, Meta(description="a sample that takes longer is given up")] = 1000.0
    stale_after_ms: Annotated[
        Milliseconds, Meta(description="an endpoint whose newest sample is older counts as unknown, not as idle")
    ] = 10_000.0

    def __post_init__(self) -> None:
        if self.busy_interval_ms > self.idle_interval_ms:
            raise ValueError(
                f"busyIntervalMs ({self.busy_interval_ms:g}) must not be above "
                f"idleIntervalMs ({self.idle_interval_ms:g})"
            )
        if self.stale_after_ms <= self.idle_interval_ms:
            raise ValueError(
                f"staleAfterMs ({self.stale_after_ms:g}) must be above idleIntervalMs ({self.idle_interval_ms:g}), "
                "or idle endpoints would always be unknown"
            )


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Bounds on what one request may cost the picker."""

    max_body_bytes: Annotated[
        int,
        Meta(ge=1024, description="largest request body that is read; should be at least the gateway's buffer limit"),
    ] = 52_428_800
    held_body_bytes: Annotated[
        Annotated[int, Meta(ge=1_048_576)] | None,
        Meta(
            description="request bodies that the picker holds at a time, those of its queue among them; "
            "unset: a quarter of the container's memory limit"
        ),
    ] = None


class StepModelSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How fast engines are before anything is learned of them."""

    profiles: Annotated[
        dict[str, StepModel],
        Meta(description="step models by name, besides the built-in ones; endpoints name one in poolpilot.dev/profile"),
    ] = {}
    prior: Annotated[
        StepModel | None, Meta(description="of an endpoint without a profile; unset: generic, scaled by a GPU label")
    ] = None


class EjectionSection(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """When an endpoint that fails is left out for a while."""

    most_share: Annotated[
        Share, Meta(description="share of the pool that may be left out at a time, rounded down; 0: none ever is")
    ] = 0.5
    consecutive_failures: Annotated[int, Meta(ge=1, description="failures in a row that eject an endpoint")] = 5
    failure_share: Annotated[
        float, Meta(gt=0, le=1, description="failures among an endpoint's latest answers that eject it")
    ] = 0.5
    failure_answers: Annotated[int, Meta(ge=1, description="answers before failureShare is looked at")] = 20
    slow_factor: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        Meta(
            description="slower against its prediction than the pool's median by so much ejects an endpoint; "
            "unset: time ejects none"
        ),
    ] = None
    first_ms: Annotated[Milliseconds, Meta(description="how long an endpoint is left out; twice as long each time")] = (
        10_000.0
    )
    most_ms: Annotated[Milliseconds, Meta(description="the longest that it is left out")] = 300_000.0
    trial_ms: Annotated[
        Milliseconds, Meta(description="between two requests of an endpoint that comes back on trial")
    ] = 1_000.0
    trial_requests: Annotated[int, Meta(ge=1, description="requests served in a row that end the trial")] = 3

    def __post_init__(self) -> None:
        if self.first_ms > self.most_ms:
            raise ValueError(f"firstMs ({self.first_ms:g}) must not be above mostMs ({self.most_ms:g})")


class TenantSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Limits of a tenant. Unset: none."""

    tokens: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="prompt and output tokens per window; 429 beyond")
    ] = None
    window_seconds: Annotated[float, Meta(gt=0, description="the window of the token budget")] = 60.0
    active_sequences: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="sequences in flight at once; further requests wait")
    ] = None
    queue_share: Annotated[float, Meta(gt=0, le=1, description="share of the queue's places; 429 beyond")] = 1.0
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="the most that a request's max_tokens may be")
    ] = None
    max_tokens_beyond: Annotated[
        Literal["reject", "clamp"],
        Meta(description="a request that asks for more gets 400, or its body is lowered to maxTokens"),
    ] = "reject"
    weight: Annotated[float, Meta(gt=0, description="share beside other tenants")] = 1.0


class FlowControlSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the section flowControl has no word for."""

    gateway_timeout_ms: Annotated[
        Milliseconds,
        Meta(
            description="how long the gateway waits for an answer: its max_message_timeout, or message_timeout where "
            "it has none; no request waits for longer than 0.8 of it"
        ),
    ] = 600_000.0
    ageing_ms: Annotated[
        Milliseconds, Meta(description="a request that has waited so long goes ahead of higher priorities")
    ] = 15_000.0
    start_within_ms: Annotated[
        Milliseconds, Meta(description="prefill work that may be queued at an endpoint ahead of a request")
    ] = 500.0
    kv_share: Annotated[
        float, Meta(gt=0, le=1, description="share of an endpoint's KV cache that its predicted peak may fill")
    ] = 0.95
    endpoint_requests: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="requests in flight at an endpoint; unset: as it can")
    ] = None
    endpoint_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="uncached prompt tokens in flight at an endpoint; unset: as it can"),
    ] = None
    short_tokens: Annotated[int, Meta(ge=0, description="uncached prompt tokens of a short request, at most")] = 2_048
    short_reserve: Annotated[
        float, Meta(ge=0, lt=1, description="share of each endpoint's bounds that only short requests use")
    ] = 0.1
    sheddable: Annotated[
        Literal["queue", "drop"],
        Meta(description="requests of negative priority, when the pool is saturated: they wait, or get 429 at once"),
    ] = "queue"
    sheddable_share: Annotated[
        float,
        Meta(
            gt=0, le=1, description="share of each endpoint's bounds for requests of negative priority, beside others"
        ),
    ] = 0.45
    retry_share: Annotated[Share, Meta(description="retries per request for which fallbacks are named")] = 0.2
    retry_burst: Annotated[float, Meta(ge=1, description="retries that may come at once")] = 10.0
    priorities: Annotated[
        dict[str, int], Meta(description="priority by objective name, where no InferenceObjective says it")
    ] = {}
    ttl_ms: Annotated[
        dict[str, Milliseconds], Meta(description="TTL by priority, for those that differ from defaultRequestTTL")
    ] = {}
    default_tenant: TenantSettings = TenantSettings()
    tenants: Annotated[
        dict[str, TenantSettings], Meta(description="limits by tenant (x-llm-d-inference-fairness-id)")
    ] = {}

    def __post_init__(self) -> None:
        for key in self.ttl_ms:
            if not key.removeprefix("-").isdecimal():
                raise ValueError(f"ttlMs: {key!r} is not a priority; allowed is a whole number")


class PoolPilotSettings(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The section `poolpilot:`. Everything has a default."""

    response_observation: ObservationSettings = ObservationSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    fallbacks: FallbackSettings = FallbackSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    limits: LimitSettings = LimitSettings()
    step_models: StepModelSettings = StepModelSettings()
    ejection: EjectionSection = EjectionSection()
    flow_control: FlowControlSettings = FlowControlSettings()
    strip_request_headers: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9!#$%&'*+.^_`|~-]*$")], ...],
        Meta(
            description="request headers (lower case) removed before the pod sees them, besides those that only a "
            "picker may set"
        ),
    ] = ()
