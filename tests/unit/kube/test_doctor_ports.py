"""Which ports a model server's pod declares, as the doctor sees it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from poolpilot_kube.doctor.check_pools import check_pools
from poolpilot_kube.doctor.models import ModelPod, Pool
from poolpilot_kube.doctor.reading import Cluster


def checks(**spec: Any) -> set[str]:
    """What is found of a pool whose target port is 8000, with one pod."""
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    pod = {"metadata": {"name": "a", "namespace": "n", "labels": {"app": "a"}}, "spec": spec, "status": ready}
    pool = {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": [{"number": 8000}]},
    }
    cluster = Cluster(pools=[msgspec.convert(pool, Pool)], pods={"n": [msgspec.convert(pod, ModelPod)]})
    return {one.check for one in check_pools(cluster)}


ENGINE = {"ports": [{"containerPort": 8200}]}
PROXY = {"ports": [{"containerPort": 8000}]}


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"containers": [PROXY]}, False),
        ({"containers": [ENGINE]}, True),
        # A decode pod: its proxy is a sidecar, the engine behind it has another port.
        ({"containers": [ENGINE], "initContainers": [{**PROXY, "restartPolicy": "Always"}]}, False),
        ({"containers": [ENGINE], "initContainers": [PROXY]}, True),
        # Nothing declared is nothing wrong.
        ({"containers": [{}]}, False),
    ],
)
def test_a_sidecar_may_have_the_target_port(spec: dict[str, Any], wrong: bool) -> None:
    assert ("target-port" in checks(**spec)) is wrong
