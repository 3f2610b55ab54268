"""Facts of a pool's engines, by prometheus-api-client: seldom, in a thread, each query with a limit.

Series are found by the labels `namespace` and `pod` that Prometheus' Kubernetes discovery gives.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from poolpilot_operator.history.advice import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S: Final = 20
"""Of one query."""
MOST_PODS: Final = 200
"""In one query; advice for larger pools is from so many of their pods."""

_QUERIES: Final = {
    "endpoints": "count(max by (pod) (max_over_time(vllm:num_requests_running{ENGINES}[10m])))",
    "kv_p95": "quantile_over_time(0.95, avg(vllm:kv_cache_usage_perc{ENGINES})[WINDOW:5m])",
    "waiting_p95": "quantile_over_time(0.95, avg(sum by (pod) (vllm:num_requests_waiting{ENGINES}))[WINDOW:5m])",
    "requests_s": "sum(rate(vllm:request_success_total{ENGINES}[WINDOW]))",
    "preemptions_s": "sum(rate(vllm:num_preemptions_total{ENGINES}[WINDOW]))",
    "prefix_queries_s": "sum(rate(vllm:prefix_cache_queries_total{ENGINES}[WINDOW]))",
    "output_p50": "histogram_quantile(0.5, sum by (le) (rate(vllm:request_generation_tokens_bucket{ENGINES}[WINDOW])))",
    "output_p90": "histogram_quantile(0.9, sum by (le) (rate(vllm:request_generation_tokens_bucket{ENGINES}[WINDOW])))",
    "between_tokens_p50_s": (
        "histogram_quantile(0.5, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{ENGINES}[WINDOW])))"
    ),
    "between_tokens_p99_s": (
        "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{ENGINES}[WINDOW])))"
    ),
}


class HistoryError(Exception):
    """Prometheus could not be asked."""


class Prometheus:
    """A client; its calls block."""

    def __init__(self, url: str, window: str = "1d") -> None:
        """`window`: as PromQL writes durations."""
        self.window = window
        self._client = PrometheusConnect(url=url.rstrip("/"), timeout=LIMIT_S)

    def ask(self) -> None:
        """Whether it answers at all. Raises HistoryError."""
        self._number("vector(1)")

    def facts(self, namespace: str, pods: Sequence[str]) -> Facts:
        """Of the engines in these pods. Raises HistoryError."""
        if not pods:
            return Facts()
        names = "|".join(re.escape(pod) for pod in sorted(pods)[:MOST_PODS])
        engines = f"namespace={_quoted(namespace)},pod=~{_quoted(names)}"
        found: dict[str, float | None] = {}
        for name, query in _QUERIES.items():
            found[name] = self._number(query.replace("ENGINES", engines).replace("WINDOW", self.window))
        return msgspec.convert(found, Facts)

    def _number(self, query: str) -> float | None:
        try:
            answer: list[dict[str, Any]] = self._client.custom_query(query, params={"timeout": f"{LIMIT_S}s"})
            values = [float(one["value"][1]) for one in answer]
        except (requests.RequestException, PrometheusApiClientException, LookupError, TypeError, ValueError) as error:
            raise HistoryError(str(error)[:500]) from error
        return values[0] if values and math.isfinite(values[0]) else None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
