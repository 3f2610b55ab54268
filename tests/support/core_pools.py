"""Builds pools with the default policy, requests with prefix chains, and samples, for tests of the decision core."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from xxhash import xxh64_intdigest

from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishPicker
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.flow.pool import Placement, Policy
    from poolpilot_picker.state.endpoints import Endpoint

START = 1_000_000.0
"""Any time at all: the monotonic clock does not start at 0."""
BLOCK = 64


class Failing:
    """Stands before an object and raises when one of its methods is called; a compiled object cannot be patched."""

    def __init__(self, whole: object, method: str, error: Exception) -> None:
        self._whole, self._method, self._error = whole, method, error

    def __getattr__(self, name: str) -> object:
        if name != self._method:
            return getattr(self._whole, name)

        def fail(*_: object, **__: object) -> None:
            raise self._error

        return fail

    def __len__(self) -> int:
        return len(self._whole)  # type: ignore[arg-type]


def spec(index: int, *, uid: str = "", port: int = 8000, **labels: str) -> EndpointSpec:
    """Endpoint 10.0.0.(index + 1)."""
    return EndpointSpec(host=f"10.0.0.{index + 1}", port=port, uid=uid, labels=labels)


def default_policy() -> Profile:
    """What runs when nothing is configured."""
    return Profile("default", picker=("predicted-finish-picker", PredictedFinishPicker()))


def make_pool(
    endpoints: int | Iterable[EndpointSpec],
    *,
    seed: int = 1,
    policy: Policy | None = None,
    settings: PoolSettings | None = None,
) -> Pool:
    """A pool of equal endpoints that have never been heard from."""
    pool = Pool("test", policy or default_policy(), random.Random(seed), settings or PoolSettings(receipt_share=0.0))
    pool.apply_endpoints(map(spec, range(endpoints)) if isinstance(endpoints, int) else endpoints)
    return pool


def chain(*parts: tuple[object, int], block: int = BLOCK) -> PrefixChain:
    """A prefix chain of parts (name, tokens), each cut into blocks; equal names at equal places share blocks."""
    seed = 0
    hashes, ends = [], []
    at = 0.0
    for name, tokens in parts:
        for _ in range(tokens // block):
            seed = xxh64_intdigest(repr(name).encode(), seed)
            at += block
            hashes.append(seed)
            ends.append(at)
    return PrefixChain(hashes=hashes, ends=ends)


def request(
    prompt_tokens: int = 500,
    *,
    model: str = "base",
    max_tokens: int | None = None,
    prefix: Iterable[tuple[object, int]] = (),
    sequences: int = 1,
    kind: RequestKind = RequestKind.CHAT,
    **more: object,
) -> InferenceRequest:
    """A chat request; `prefix`: parts of its prefix chain."""
    made = InferenceRequest(
        request_id="r",
        kind=kind,
        model=model,
        target_model=model,
        prompt_tokens=prompt_tokens,
        text_tokens=float(prompt_tokens),
        max_tokens=max_tokens,
        sequences=sequences,
        prefix=chain(*prefix),
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def feed(pool: Pool, endpoint: Endpoint, now: float, **values: object) -> None:
    """A fresh sample of one endpoint: by default its gauges are what our own account says."""
    slot = endpoint.slot
    values.setdefault("running", float(pool.table.inflight[slot]))
    values.setdefault("waiting", 0.0)
    values.setdefault("taken_ms", now)
    pool.apply_sample(endpoint, EngineSample(**values), now)  # type: ignore[arg-type]


def feed_all(pool: Pool, now: float, **values: object) -> None:
    """A fresh sample of every endpoint."""
    for endpoint in pool.table.wanted():
        feed(pool, endpoint, now, **dict(values))


def chosen(placement: Placement) -> str:
    """Where a placement is booked."""
    return placement.booking.endpoint.address
