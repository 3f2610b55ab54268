"""Asking again where an API server is busy, for commands that ask once and end. Watches have their own way."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, TypeVar

from poolpilot_kube.backoff import Backoff
from poolpilot_kube.errors import KubeError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TRIES: Final = 6
"""At most; some six seconds with the pauses between."""
_MOST_PAUSE_S: Final = 2.0

_T = TypeVar("_T")


def passing(error: KubeError) -> bool:
    """Whether the same question may be answered a moment later: busy, starting, or a connection that broke off."""
    if isinstance(error, RefusedError):
        return error.status == 429 or error.status >= 500
    return isinstance(error, UnreachableError)


async def patiently(
    ask: Callable[[], Awaitable[_T]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    rng: random.Random | None = None,
) -> _T:
    """What `ask` returns, or raises at the last try, or raises that will not pass."""
    backoff = Backoff(rng or random.Random(), most_s=_MOST_PAUSE_S)
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except KubeError as error:
            if not passing(error):
                raise
            await sleep(backoff.after_failure(getattr(error, "retry_after_s", None)))
    return await ask()
