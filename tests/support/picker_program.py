"""The picker as a program: started with flags, spoken to by gRPC and HTTP, ended by signals."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from extproc_client import WAIT_S, DataPlane
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from types import TracebackType

STARTS_S = 60.0
"""For a process to start again, on a machine that has other things to do."""


class PickerProgram:
    """`python -m poolpilot_picker` on ports of its own, with its log in a file."""

    def __init__(self, folder: Path, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self.log_file = folder / "picker.log"
        argv = [sys.executable, "-m", "poolpilot_picker", "--print-ready", "--listen", "127.0.0.1:0"]
        argv += ["--admin", "127.0.0.1:0", *flags]
        self.child = Child("picker", argv, log=self.log_file, out=folder / "picker.out", env=env, cwd=folder)
        self.port = self.admin_port = 0
        self.ready: dict[str, Any] = {}

    async def start(self) -> Self:
        """Waits until it is ready."""
        self.child.start()
        self.ready = msgspec.json.decode(await self.child.line(60.0))
        self.port, self.admin_port = self.ready["port"], self.ready["admin_port"]
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.child.stop(grace_s=0)

    async def exits(self, within_s: float = WAIT_S) -> int | None:
        """Waits for its end; returns the exit code."""
        assert await self.child.ended(within_s), f"still runs\n{self.child.tail()}"
        return self.child.exit_code

    def terminate(self) -> None:
        """SIGTERM."""
        self.child.signal(signal.SIGTERM)

    def plane(self) -> DataPlane:
        """A channel to its data port."""
        return DataPlane(self.port)

    # ── the admin port ───────────────────────────────────────────────────────

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        """(status, content type, text) of a page."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            return response.status, response.headers.get("content-type", ""), await response.text()

    async def json(self, path: str) -> Any:
        """A page of JSON, whatever its status."""
        return msgspec.json.decode((await self.get(path))[2])

    async def samples(self) -> dict[str, float]:
        """The metrics page: series → value."""
        _, _, text = await self.get("/metrics")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within_s: float = WAIT_S) -> None:
        """Waits for something to come true."""
        deadline = time.monotonic() + within_s
        while not await condition():
            assert time.monotonic() < deadline, f"{what}\n{self.child.tail()}"
            await asyncio.sleep(0.05)

    # ── the log ──────────────────────────────────────────────────────────────

    def log(self) -> list[dict[str, Any]]:
        """Records of the log; every line must be one, but for gRPC's own."""
        lines = self.log_file.read_text().splitlines()
        return [msgspec.json.decode(line) for line in lines if line.startswith("{")]

    def said(self, level: str, text: str) -> bool:
        """Does the log have a record of this level with this text in it?"""
        return any(record["level"] == level and text in record["message"] for record in self.log())


def replace(file: Path, text: str) -> None:
    """Writes a file as careful people do: whole, by a rename."""
    draft = file.with_name(f".{file.name}.new")
    draft.write_text(text)
    draft.replace(file)
