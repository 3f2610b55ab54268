"""The picker as a program: to be killed, paused and restarted while requests are on their way."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolpilot_lab.processes import Child, free_ports
from poolpilot_picker.envoy.settings import EnvoySettings, HostPort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ProgramPicker:
    """`python -m poolpilot_picker` on a fixed port, so that it comes back where Envoy looks for it."""

    def __init__(
        self,
        folder: Path,
        endpoints: Sequence[str] | Path,
        transport: str,
        *,
        name: str = "picker",
        drain_s: float = 20.0,
        writes_endpoints: bool = True,
        config: str = "",
        flags: Sequence[str] = (),
    ) -> None:
        """`endpoints`: addresses, or a file that names them. `writes_endpoints`: into `folder/eds`, for an Envoy that
        takes a list. `config`: text of its configuration file. `flags`: more of them."""
        [self.port] = free_ports(1)
        self.admin = 0
        self.eds = folder / "eds"
        self.eds.mkdir(exist_ok=True)
        argv = [
            sys.executable, "-m", "poolpilot_picker",
            "--listen", f"127.0.0.1:{self.port}",
            "--transport", transport,
            "--admin", "127.0.0.1:0",
            *(
                ("--endpoints-file", str(endpoints))
                if isinstance(endpoints, Path)
                else ("--endpoints", ",".join(endpoints))
            ),
            "--drain-timeout", str(drain_s),
            "--log-level", "warning",
            "--print-ready",
            *flags,
        ]  # fmt: skip
        if writes_endpoints:
            argv += ["--eds-dir", str(self.eds)]
        if config:
            file = folder / f"{name}.yaml"
            file.write_text(config)
            argv += ["--config-file", str(file)]
        self.child = Child(name, argv, log=folder / f"{name}.log", out=folder / f"{name}.out")

    async def start(self) -> ProgramPicker:
        """Starts it and waits until it says that it is ready."""
        self.child.start()
        said = json.loads(await self.child.line())
        assert said["port"] == self.port
        self.admin = said["admin_port"]
        return self

    def envoy(self, **more: Any) -> EnvoySettings:
        """Of an Envoy before it, which takes its list of endpoints."""
        return EnvoySettings(pickers=(HostPort("127.0.0.1", self.port),), eds_directory=str(self.eds), **more)

    async def kill(self) -> None:
        """As a crash: no goodbye to anybody."""
        self.child.kill()
        assert await self.child.ended(5)

    async def metric(self, name: str) -> float:
        """Sum of a metric over its labels; 0 where it is absent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
        writer.write(b"GET /metrics HTTP/1.0\r\nhost: a\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        values = re.findall(rf"^{name}(?:\{{[^\n]*\}})? (\S+)$", page, re.MULTILINE)
        return sum(map(float, values))

    async def until_metric(self, name: str, condition: Callable[[float], bool], within_s: float = 10.0) -> None:
        """Waits for a metric to fulfil a condition."""
        deadline = time.monotonic() + within_s
        while not condition(value := await self.metric(name)):
            assert time.monotonic() < deadline, f"{name} is still {value:g}"
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Waits until no stream is open, then checks that no request is booked."""
        await self.until_metric("llm_d_epp_extproc_streams_inflight", lambda open_streams: open_streams == 0)
        assert await self.metric("poolpilot_endpoint_inflight") == 0
        assert await self.metric("llm_d_epp_request_running") == 0
