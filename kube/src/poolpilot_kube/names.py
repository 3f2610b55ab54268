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
