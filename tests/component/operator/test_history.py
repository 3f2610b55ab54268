"""Advice from a real Prometheus that remembers six hours of engines; and none without it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import prometheus_program
from kube_pods import Namespace
from operator_stage import eventually, quiet, running_operator
from poolpilot_kube.access import from_kubeconfig
from poolpilot_operator.history.prometheus import Prometheus
from poolpilot_operator.history.reader import HistoryReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOURS = 6


def remembered(namespace: str) -> str:
    """What two busy engines said, and one that is not of the pool."""
    now = int(time.time())
    lines: dict[str, list[str]] = {}
    for minute in range(HOURS * 60 + 1):
        at = now - (HOURS * 60 - minute) * 60
        for pod, kv in (("engine-a", 0.9), ("engine-b", 0.96), ("other", 0.0)):
            labels = f'namespace="{namespace}",pod="{pod}"'
            answers = 60 * minute
            for name, more, value in (
                ("vllm:num_requests_running", "", 9.0),
                ("vllm:num_requests_waiting", "", 0.0),
                ("vllm:kv_cache_usage_perc", "", kv),
                ("vllm:request_success_total", "", float(answers)),
                ("vllm:num_preemptions_total", "", answers / 4),
                ("vllm:prefix_cache_queries_total", "", 0.0),
                ("vllm:request_generation_tokens_bucket", ',le="100"', answers / 2),
                ("vllm:request_generation_tokens_bucket", ',le="1000"', float(answers)),
                ("vllm:request_generation_tokens_bucket", ',le="+Inf"', float(answers)),
            ):
                lines.setdefault(name, []).append(f"{name}{{{labels}{more}}} {value} {at}")
    text = ""
    for name, said in lines.items():
        text += f"# TYPE {name} unknown\n" + "\n".join(said) + "\n"
    return text + "# EOF\n"


@pytest_asyncio.fixture(loop_scope="module")
async def prometheus(home: str, tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "said.txt").write_text(remembered(home))
    tool = await asyncio.to_thread(prometheus_program.found, "promtool")
    made = [tool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "said.txt", tmp_path / "data"]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    async with prometheus_program.running(tmp_path, "global: {scrape_interval: 1m}\n") as url:
        yield url


async def test_advice_is_in_the_pickers_status(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, prometheus: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(home, "llama")
    engines = Namespace(cluster.api, home)
    for name in ("engine-a", "engine-b"):
        await engines.run(name, "127.0.2.1", {"app": "llama"})
    await engines.run("other", "127.0.2.2", {"app": "other"})
    options = {"prometheus_url": prometheus, "history_s": 1.0}
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, **options) as operator:
        advice = await eventually(lambda: advised(cluster, home))
        assert {one["name"] for one in advice.values()} == {"llama"}
        assert advice["Replicas"]["message"].startswith(
            "3 engines instead of 2: in the busiest 5 % of 1d, KV caches were 93%"
        )
        assert advice["PrefixCaching"]["message"].endswith("--enable-prefix-caching")
        assert advice["MaxNumSeqs"]["message"].startswith("25% of requests were preempted")
        assert advice["OutputLength"]["message"].endswith("had at most 100 tokens, nine of ten 820")
        condition = await cluster.condition(home, "default", "MetricsHistoryAvailable")
        assert condition["status"] == "True"
        # The same again is written no more.
        await quiet(operator)
        written, changed = operator.world.writer.writes["Picker", "status"], list[tuple[str, str]]()
        await HistoryReader(operator.world, Prometheus(prometheus), changed.append).read()
        assert not changed
        operator.picker_queue.add((home, "default"))
        await quiet(operator)
        assert operator.world.writer.writes["Picker", "status"] == written


async def test_without_an_answer_everything_else_works(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(home, "llama")
    options = {"prometheus_url": "http://127.0.0.1:9", "history_s": 1.0}
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, **options):
        await eventually(lambda: cluster.service(home, "llama-picker"))

        async def told() -> bool:
            return (await cluster.condition(home, "default", "MetricsHistoryAvailable")).get("status") == "False"

        await eventually(told)
        assert (await cluster.condition(home, "default", "Programmed"))["status"] == "True"


async def advised(cluster: Cluster, namespace: str) -> dict[str, Any] | None:
    status = (await cluster.picker(namespace, "default")).get("status", {})
    return {one["topic"]: one for one in status.get("advice", ())} or None
