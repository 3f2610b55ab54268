"""The External Metrics API of Kubernetes over a Prometheus, by the rules of an adapter's configuration."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.certificates import Authority

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"


async def asked(prometheus: str, query: str) -> list[float]:
    """What a query gives: a number for each series."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{prometheus}/api/v1/query", params={"query": query}) as answer,
    ):
        said = await answer.json()
        assert said["status"] == "success", said
        return [float(one["value"][1]) for one in said["data"]["result"]]


class MetricsApi:
    """Answers for the metrics that rules name."""

    def __init__(self, rules: Sequence[dict[str, Any]], prometheus: str) -> None:
        self._rules = {rule["name"]["as"]: rule for rule in rules}
        self._prometheus = prometheus

    def query(self, metric: str, namespace: str, labels: dict[str, str]) -> str:
        """PromQL for a metric of a namespace, as the adapter fills in its template."""
        rule = self._rules[metric]
        [(label, resource)] = rule["resources"]["overrides"].items()
        assert resource == {"resource": "namespace"}
        matchers = ",".join(f'{name}="{value}"' for name, value in {**labels, label: namespace}.items())
        series = rule["seriesQuery"].partition("{")[0]
        return str(rule["metricsQuery"]).replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers)

    async def _resources(self, _: web.Request) -> web.Response:
        named = [
            {"name": name, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            for name in self._rules
        ]
        page = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": named}
        return web.json_response(page)

    async def _value(self, request: web.Request) -> web.Response:
        metric, selector = request.match_info["metric"], request.query.get("labelSelector", "")
        labels = dict(part.split("=") for part in selector.split(",") if part)
        values = await asked(self._prometheus, self.query(metric, request.match_info["namespace"], labels))
        items = [
            {
                "metricName": metric,
                "metricLabels": {},
                "timestamp": "2026-01-01T00:00:00Z",
                "value": f"{round(1000 * one)}m",
            }
            for one in values
        ]
        page = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}
        return web.json_response(page)

    @contextlib.asynccontextmanager
    async def running(self, api: Api, authority: Authority, folder: Path) -> AsyncIterator[None]:
        """Serves it on loopback, and has the API server ask it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.server("metrics", ["localhost", "127.0.0.1"]).write(folder, "metrics"))
        app = web.Application()
        app.router.add_get(f"/apis/{GROUP}/{VERSION}", self._resources)
        app.router.add_get(f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{{metric}}", self._value)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        try:
            await api.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": "metrics", "namespace": "default"},
                    "spec": {"type": "ExternalName", "externalName": "localhost"},
                }
            )
            await api.apply(
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": {"name": f"{VERSION}.{GROUP}"},
                    "spec": {
                        "service": {"name": "metrics", "namespace": "default", "port": port},
                        "group": GROUP,
                        "version": VERSION,
                        "insecureSkipTLSVerify": True,
                        "groupPriorityMinimum": 100,
                        "versionPriority": 100,
                    },
                }
            )
            yield
        finally:
            await runner.cleanup()
