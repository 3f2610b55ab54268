"""Rows of a cost bench, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from poolpilot_lab.bench.cost.rows import Row


def row(**changes: Any) -> Row:
    """A run of ours in the case `short`."""
    fields: dict[str, Any] = {
        "run": 1,
        "case": "short",
        "picker": "poolpilot",
        "transport": "wire",
        "body_mode": "full-duplex",
        "endpoints": 4,
        "concurrency": 16,
        "workers": 1,
        "scrape": "full-50ms",
        "requests": 1000,
        "rps": 500.0,
        "cpu_us_per_request": 40.0,
        "idle_cores": 0.01,
        "refresh_hz": 20.0,
        "envoy_cpu_us_per_request": 80.0,
        "p50_ms": 2.0,
        "p99_ms": 5.0,
        "rss_mb": 60.0,
        "slope_bytes_per_request": None,
        "errors": 0,
    }
    return Row(**{**fields, **changes})


def go(**changes: Any) -> Row:
    """A run of Go's picker in the case `short`."""
    return row(**{"picker": "gie-epp", "transport": None, "cpu_us_per_request": 200.0, **changes})
