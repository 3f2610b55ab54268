"""Asking again: what is worth it, how often, and with which pauses."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from poolpilot_kube.errors import AccessError, KubeError, RefusedError, UnreachableError
from poolpilot_kube.patience import TRIES, patiently

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY = RefusedError("GET /x", 429, "storage is (re)initializing", 1.0)
STARTING = RefusedError("GET /x", 503, "not yet")
CUT = UnreachableError("GET /x: broke off")
FORBIDDEN = RefusedError("GET /x", 403, "no")


async def asked(*answers: KubeError | str) -> tuple[str, list[float]]:
    """What comes of these answers, and the pauses."""
    left, pauses = list(answers), []

    async def ask() -> str:
        answer = left.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    said = await patiently(ask, sleep=sleep, rng=random.Random(1))
    assert left == []
    return said, pauses


async def test_an_answer_is_taken_at_once() -> None:
    assert await asked("yes") == ("yes", [])


async def test_a_busy_server_is_asked_again_and_its_wish_is_kept() -> None:
    said, pauses = await asked(BUSY, STARTING, CUT, "yes")
    assert said == "yes" and len(pauses) == 3
    assert pauses[0] >= 1.0, "Retry-After"
    assert all(pause <= 2.0 for pause in pauses[1:])


@pytest.mark.parametrize("error", [FORBIDDEN, AccessError("no token")])
async def test_what_will_not_pass_is_raised_at_once(error: KubeError) -> None:
    with pytest.raises(KubeError) as raised:
        await asked(error)
    assert raised.value is error


@pytest.mark.parametrize(
    "last", [lambda: STARTING, lambda: FORBIDDEN, lambda: CUT], ids=["starting", "forbidden", "cut"]
)
async def test_the_last_answer_counts(last: Callable[[], KubeError]) -> None:
    with pytest.raises(KubeError) as raised:
        await asked(*[BUSY] * (TRIES - 1), last())
    assert raised.value is last()
