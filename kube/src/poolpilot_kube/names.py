"""Names of groups, labels and annotations: ours, and those of others that we read."""

from __future__ import annotations

from typing import Final

OUR_GROUP: Final = "poolpilot.dev"
POOL_GROUP: Final = "inference.networking.k8s.io"
ROUTER_GROUP: Final = "llm-d.ai"
LEGACY_GROUP: Final = "inference.networking.x-k8s.io"
"""Where InferenceObjective and InferenceModelRewrite were before ROUTER_GROUP."""

PICKER_LABEL: Final = "poolpilot.dev/picker"
"""On an InferencePool: the name of the Picker that is to serve it."""

ACTIVE_PORTS: Final = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations of a pod, the first found counts: which of the pool's target ports it really serves."""

ENGINE_TYPE: Final = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Labels of a pod, the first found counts: which engine it runs."""

# ── what the operator makes for a served pool, and the picker reads ──────────

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "poolpilot"
"""Value of MANAGED_BY_LABEL on everything that the operator makes."""

PICKER_NAMESPACE_LABEL: Final = "poolpilot.dev/picker-namespace"
"""On what is made for a Picker or for a pool: the namespace of the Picker. PICKER_LABEL beside it is its name."""

OPERATOR_LABEL: Final = "poolpilot.dev/operator"
"""The namespace of an operator. On what it made: which one did. On a Picker: which one is to run it; any if absent."""

POOL_ANNOTATION: Final = "poolpilot.dev/pool"
"""On the Service of a served pool: the InferencePool, in the same namespace. The Service's `targetPort` is the port on
which the Picker's pods listen for this pool."""

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""On an EndpointSlice: the Service that it belongs to."""
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER: Final = "operator.poolpilot.dev"

POOL_PORTS: Final = range(20_000, 30_000)
"""Where Pickers' pods listen for their pools, one port each, unique for each Picker."""
DEFAULT_PICKER_PORT: Final = 9002
"""Port of a pool's Service where the pool's endpointPickerRef names none."""
ADMIN_PORT: Final = 9090
"""Where a Picker's pod answers /healthz, /readyz, /metrics and POOLS_PATH."""
POOLS_PATH: Final = "/pools"
"""What a picker says of its pools: {"version": V, "pools": [{"namespace", "name", "port", "serving", "reason"}]};
`?since=V&wait=SECONDS` waits for another version.
`configuration` says why the newest one is not in force, empty if it is."""
H2C: Final = "kubernetes.io/h2c"
"""`appProtocol` of HTTP/2 without TLS."""

CONFIG_FILE: Final = "/etc/poolpilot/config/config.yaml"
TLS_FOLDER: Final = "/etc/poolpilot/tls"
"""Holds tls.crt and tls.key."""
ENGINE_TOKEN_FILE: Final = "/etc/poolpilot/engine/token"  # noqa: S105 - where it is, not what it is

FIELD_MANAGER: Final = "poolpilot-operator"
"""Owner of the fields that the operator applies."""
