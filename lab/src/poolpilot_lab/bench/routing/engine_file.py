"""`--engine NAME|FILE`: a built-in profile, or a file with one model's coefficients.

The shape is that of one entry of a list of fitted engine models: `id`, `model`, `gpu`, `tp`, `prefill` (floor_ms, a_ms,
b_ms_per_token, c_ms_per_token2), `decode` (a_ms, b_ms_per_sequence, c_ms_per_context_token), `kv_cache` (tokens).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.engine.model import PROFILES, Profile


class _Prefill(msgspec.Struct):
    floor_ms: float
    a_ms: float
    b_ms_per_token: float
    c_ms_per_token2: float


class _Decode(msgspec.Struct):
    a_ms: float
    b_ms_per_sequence: float
    c_ms_per_context_token: float


class _KvCache(msgspec.Struct):
    tokens: int
    kind: str = "estimate"
    bytes_per_token_all_gpus: int = 131_072


class _Overhead(msgspec.Struct):
    per_step_ms: float = 1.3
    per_sequence_ms: float = 0.045


class _Engine(msgspec.Struct):
    id: str
    prefill: _Prefill
    decode: _Decode
    kv_cache: _KvCache
    model: str = ""
    gpu: str = ""
    tp: int = 1
    overhead: _Overhead = msgspec.field(default_factory=_Overhead)


def find_engine(name: str) -> Profile:
    """The profile of that name, or of the file at that path. Raises UsageError."""
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name)
    if not path.exists():
        raise UsageError(f"--engine: {name!r} is neither a file nor a known engine; known: {', '.join(PROFILES)}")
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=_Engine)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"--engine: {path}: {error}") from None
    numbers = {
        "prefill.b_ms_per_token": entry.prefill.b_ms_per_token,
        "decode.a_ms": entry.decode.a_ms,
        "kv_cache.tokens": entry.kv_cache.tokens,
    }
    for field, value in numbers.items():
        if not value > 0:
            raise UsageError(f"--engine: {path}: {field} is {value}; a number above 0 is allowed")
    return Profile(
        id=entry.id,
        model=entry.model,
        gpu=entry.gpu,
        tensor_parallel=entry.tp,
        prefill_floor_ms=entry.prefill.floor_ms,
        prefill_a_ms=entry.prefill.a_ms,
        prefill_b_ms=entry.prefill.b_ms_per_token,
        prefill_c_ms=entry.prefill.c_ms_per_token2,
        decode_a_ms=entry.decode.a_ms,
        decode_b_ms=entry.decode.b_ms_per_sequence,
        decode_c_ms=entry.decode.c_ms_per_context_token,
        kv_tokens=entry.kv_cache.tokens,
        kv_tokens_measured=entry.kv_cache.kind == "measured",
        kv_bytes_per_token=entry.kv_cache.bytes_per_token_all_gpus,
        step_overhead_ms=entry.overhead.per_step_ms,
        sequence_overhead_ms=entry.overhead.per_sequence_ms,
    )
