"""Runs an endpoint picker of the Go code base, whatever tells it of its endpoints, until it picks them all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.peers import picks
from poolpilot_lab.processes import Child, ProcessError, free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

POOL: Final = "bench"
NAMESPACE: Final = "default"
_START_S: Final = 60.0
_KNOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PeerPicker:
    """A running peer: ext_proc over plaintext HTTP/2 on 127.0.0.1:`port`, its own processes alone, and its log."""

    port: int
    pids: tuple[int, ...]
    log: Path


@contextlib.asynccontextmanager
async def running(
    name: str,
    program: Path,
    endpoints: Sequence[str],
    *,
    refresh_ms: int,
    workdir: Path,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[PeerPicker]:
    """`program` with the flags both need and `flags`, yielded when it is SERVING and has picked each endpoint once.

    Raises ProcessError, with the end of its log, if it does not come so far.
    """
    port, health_port, metrics_port = free_ports(3)
    log = workdir / f"{name}.log"
    argv = [
        str(program),
        f"--grpc-port={port}",
        f"--grpc-health-port={health_port}",
        f"--metrics-port={metrics_port}",
        f"--pool-name={POOL}",
        f"--pool-namespace={NAMESPACE}",
        f"--refresh-metrics-interval={refresh_ms}ms",
        "--secure-serving=false",
        "--metrics-endpoint-auth=false",
        # No collector listens here, and what its charts deploy says little per request.
        "--tracing=false",
        "--v=1",
        "--zap-encoder=json",
        *flags,
    ]

    async def serving() -> bool:
        return await picks.is_serving(health_port)

    async with Child(name, argv, log=log, env=env, cwd=workdir) as child:
        await child.ready(serving, _START_S)
        missing = await picks.unknown(port, endpoints, _KNOW_S)
        if missing:
            what = f"{len(missing)} of {len(endpoints)} endpoints, {missing[0]} for one"
            raise ProcessError(f"{name} does not pick {what}, after {_KNOW_S:g} s\n{child.tail()}")
        yield PeerPicker(port, (child.pid,), log)
