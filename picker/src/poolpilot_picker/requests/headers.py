"""Names of headers and metadata keys, in and out (Endpoint Picker Protocol 1.0, llm-d-router 0.10)."""

from __future__ import annotations

from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Picker → data plane: `ip:port`, or an ordered comma list whose later entries are fallbacks."""
SERVED: Final = "x-gateway-destination-endpoint-served"
"""Data plane → picker (metadata): the endpoint that served. Less trustworthy than the attributes."""
SUBSET: Final = "x-gateway-destination-endpoint-subset"
"""Data plane → picker (metadata): list or comma string of addresses to choose from."""

LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

REQUEST_ID: Final = "x-request-id"
IDEMPOTENCY_KEY: Final = "idempotency-key"
"""Client → picker: the same for all attempts of a request."""
CLIENT_RETRIES: Final = "x-stainless-retry-count"
"""Client → picker: how often this request was sent before, as the SDKs of OpenAI and Anthropic say it."""
MAX_RETRIES: Final = "x-envoy-max-retries"
"""Picker → Envoy: how often it may try again, whatever its route says. It goes no further."""
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
RETRY_AFTER: Final = "retry-after"
"""Picker → client: whole seconds after which a request that was dropped may have better luck."""
RECEIPT: Final = "x-poolpilot-receipt"
"""Client → picker: ask for a receipt of this decision. Picker → client, where configuration allows: the receipt."""

# New name first: it wins over its aliases.
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
TENANT: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
QUEUE_TTL: Final = "x-llm-d-inference-ttl"
"""How long the request may wait in the queue, a Go duration; only shortens what the configuration says."""
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
SLO_TTFT_MS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
SLO_TPOT_MS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
ROUTING_KEY: Final = ("x-poolpilot-routing-key", "x-session-id")
MODEL_NAME: Final = "x-gateway-model-name"
"""Set by a body-based router in front: the model where the body cannot tell (cut off, encoded, multipart)."""
VIDEO_FPS: Final = "x-llm-d-video-fps"
VIDEO_SECONDS: Final = "x-llm-d-video-duration-seconds"
VIDEO_RESOLUTION: Final = "x-llm-d-video-resolution"
TEST_SELECTION: Final = "test-epp-endpoint-selection"

LOAD_REPORT: Final = "endpoint-load-metrics"
"""Pod → picker (response header): an ORCA load report, where the client's request asked for one."""

BACKEND_ROUTING: Final = (
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
"""Headers that only a picker may set towards a pod: a client's own copies are removed."""

NEVER_FROM_CLIENTS: Final = (*BACKEND_ROUTING, SERVED, SUBSET)
"""A client's own copies are removed: pods and data plane trust them."""
