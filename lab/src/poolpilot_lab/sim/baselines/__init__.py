"""The policies that poolpilot is compared with: each one small file with its source. A new one is a file and a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_lab.sim.baselines import (
    bounded_hash,
    dynamo,
    least_kv,
    least_request,
    least_waiting,
    llmd_blend,
    llmd_token_load,
    lmetric,
    lora_affinity,
    lpwl,
    mooncake,
    power_of_two,
    preble,
    predicted_latency,
    random,
    round_robin,
    session_sticky,
    sglang_cache_aware,
    smg_cache_aware,
    smg_least_load,
    vllm_cache_aware,
)

if TYPE_CHECKING:
    from poolpilot_lab.sim.baselines.base import Baseline

_MODULES: Final = (
    random,
    round_robin,
    least_request,
    power_of_two,
    least_kv,
    least_waiting,
    bounded_hash,
    session_sticky,
    llmd_blend,
    llmd_token_load,
    lora_affinity,
    dynamo,
    mooncake,
    lmetric,
    lpwl,
    preble,
    predicted_latency,
    sglang_cache_aware,
    vllm_cache_aware,
    smg_cache_aware,
    smg_least_load,
)

BASELINES: Final[dict[str, Baseline]] = {module.BASELINE.name: module.BASELINE for module in _MODULES}
"""By name, in the order of the report."""
