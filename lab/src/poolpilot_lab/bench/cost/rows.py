"""The result of one run as a row, and the file of rows: whole after every run, whatever happens next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from poolpilot_lab.bench.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. What a case does not measure is null."""

    run: int
    case: str
    picker: str
    """`none` is Envoy without a picker, which the case `latency` compares with."""
    transport: str | None
    body_mode: str | None
    endpoints: int
    concurrency: int | None
    """Clients of a closed loop; null where requests arrive at a rate of their own."""
    workers: int
    scrape: str | None
    requests: int
    """That got a complete answer."""
    rps: float | None
    """`requests` per second of the run."""
    cpu_us_per_request: float | None
    """CPU time of all of the picker's processes, `idle_cores` × time taken off, by `requests`."""
    idle_cores: float | None
    """CPU time per second of the picker without requests, in the same run."""
    refresh_hz: float | None
    """Metrics pages read per endpoint and second: without requests in the case `idle`, else while they ran."""
    envoy_cpu_us_per_request: float | None
    """As `cpu_us_per_request`, of Envoy."""
    p50_ms: float | None
    p99_ms: float | None
    rss_mb: float | None
    """Resident memory of the picker's processes at the end of the run, in units of 10⁶ bytes."""
    slope_bytes_per_request: float | None
    errors: int


class Results:
    """`results.json`: a list of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []

    def begin(self) -> Path | None:
        """Puts an older file aside; the name it has now, None if there was none."""
        older = None
        if self.path.exists():
            made = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.path.stat().st_mtime))
            older = self.path.with_name(f"{self.path.stem}-{made}{self.path.suffix}")
            self.path.replace(older)
        self._write()
        return older

    def add(self, row: Row) -> None:
        """Written before it returns."""
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        lines = b",\n".join(msgspec.json.encode(row) for row in self.rows)
        write_whole(self.path, b"[\n" + lines + b"\n]\n" if lines else b"[]\n")


def read(path: Path) -> list[Row]:
    """The rows of a file; msgspec.ValidationError if it is none."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])
