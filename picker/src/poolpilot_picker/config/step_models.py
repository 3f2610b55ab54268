"""What a step of an engine costs: coefficients by profile, from a GPU label, or a generic prior. Off the request's way.

Form and fits: least squares on NVIDIA AIConfigurator 0.12.0 step tables (Apache-2.0), backend vLLM, BF16; CPU overhead
of 1.3 ms a step and 0.045 ms a sequence included. The residuals learned online correct what a profile gets wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

OVERHEAD_STEP_MS: Final = 1.3
OVERHEAD_SEQUENCE_MS: Final = 0.045


class StepModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Coefficients in ms.

    step(B, K) = step_ms + sequence_ms·B + context_ms·K, prefill(u, p) = token_ms·u + token2_ms·(u² + 2·u·p), with B
    sequences decoding, K their context tokens, u uncached prompt tokens, p prompt tokens found in the cache.
    """

    step_ms: float
    sequence_ms: float
    context_ms: float
    token_ms: float
    token2_ms: float
    token_budget: int = 2048
    """max_num_batched_tokens."""
    max_sequences: int = 256
    """max_num_seqs, where telemetry does not tell."""
    kv_tokens: int = 300_000
    """KV cache size, where telemetry does not tell."""

    def step(self, sequences: float, context_tokens: float) -> float:
        """Duration of one decode step, ms."""
        return self.step_ms + self.sequence_ms * sequences + self.context_ms * context_tokens

    def prefill(self, uncached: float, cached: float) -> float:
        """Work of one prefill, ms, without the decode steps it shares."""
        return self.token_ms * uncached + self.token2_ms * (uncached * uncached + 2.0 * uncached * cached)


def _fit(a: float, b: float, c: float, tok: float, tok2: float, kv: int) -> StepModel:
    return StepModel(
        step_ms=a + OVERHEAD_STEP_MS,
        sequence_ms=b + OVERHEAD_SEQUENCE_MS,
        context_ms=c,
        token_ms=tok,
        token2_ms=tok2,
        kv_tokens=kv,
    )


PROFILES: Final[dict[str, StepModel]] = {
    "qwen3-32b-h100-tp2": _fit(13.5954, 0.0259737, 4.24026e-5, 0.0498246, 8.27268e-7, 307_328),
    "llama-3.1-8b-h100": _fit(6.37159, 0.011317, 4.14769e-5, 0.0200381, 4.05764e-7, 440_000),
    "llama-3.1-8b-a100": _fit(11.5615, 0.0313143, 8.23917e-5, 0.0546189, 1.52655e-6, 440_000),
    "llama-3.1-8b-l40s": _fit(22.2536, 0.0359405, 1.87337e-4, 0.0677632, 1.72429e-6, 185_000),
}


def _geometric_mean() -> StepModel:
    models = list(PROFILES.values())

    def mean(name: str) -> float:
        return math.exp(sum(math.log(getattr(model, name)) for model in models) / len(models))

    return StepModel(
        step_ms=mean("step_ms"),
        sequence_ms=mean("sequence_ms"),
        context_ms=mean("context_ms"),
        token_ms=mean("token_ms"),
        token2_ms=mean("token2_ms"),
    )


GENERIC: Final = _geometric_mean()
"""The prior of an endpoint of which nothing is known: geometric mean of the profiles. Only ratios between endpoints
decide, and those start equal and are learned; a prior wrong by 3 × costs little."""

PROFILE_LABEL: Final = "poolpilot.dev/profile"
GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "poolpilot.dev/gpu")

# Time of a GPU relative to the H100 in (decode step, prefill): 8B fits at batch 64 × 1,024 tokens, and 8,192 tokens.
GPU_RATIOS: Final[dict[str, tuple[float, float]]] = {
    "h100": (1.0, 1.0),
    "h200": (0.80, 1.0),
    "a100": (1.7, 2.8),
    "l40s": (3.7, 3.5),
}


def step_model(
    labels: Mapping[str, str], profiles: Mapping[str, StepModel] = PROFILES, prior: StepModel = GENERIC
) -> StepModel:
    """The model for an endpoint with these labels: a named profile, the prior scaled by the GPU's type, the prior."""
    named = profiles.get(labels.get(PROFILE_LABEL, ""))
    if named is not None:
        return named
    gpu = next((labels[key].lower() for key in GPU_LABELS if key in labels), "")
    for name, (decode, prefill) in GPU_RATIOS.items():
        if name in gpu:
            return msgspec.structs.replace(
                prior,
                step_ms=prior.step_ms * decode,
                sequence_ms=prior.sequence_ms * decode,
                context_ms=prior.context_ms * decode,
                token_ms=prior.token_ms * prefill,
                token2_ms=prior.token2_ms * prefill,
            )
    return prior
