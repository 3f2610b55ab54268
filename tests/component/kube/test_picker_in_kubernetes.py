"""The picker as a program beside a real API server, with no more rights than it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from control_planes import definitions
from extproc_client import BUFFERED, NONE
from kube_pods import Namespace, allow
from picker_program import PickerProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

VLLM = {"app": "vllm"}
A, B, C = (f"127.0.0.{number}" for number in (21, 22, 23))
"""Nobody listens there: the picker knows nothing of the pods but what the API says."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(plane: ControlPlane) -> AsyncIterator[Namespace]:
    """A namespace in which the user `picker` may read pods and pools, and nothing else."""
    async with plane.api() as api:
        await api.define(definitions())
        namespace = Namespace(api, "serving")
        await namespace.made()
        read = ["list", "watch"]
        rules: list[dict[str, Any]] = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": read},
            {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": read},
        ]
        await allow(api, "picker", rules, "serving")
        yield namespace


def flags(plane: ControlPlane, pool: str) -> list[str]:
    return [
        *("--pool-name", pool, "--pool-namespace", "serving"),
        *("--kubeconfig", str(plane.kubeconfig_of("picker")), "--policy", "round-robin"),
    ]


async def endpoints(picker: PickerProgram, *, draining: bool = False) -> list[str]:
    """Addresses of the pool `llama`, as the debug page has them."""
    rows = (await picker.json("/debug/endpoints"))["pools"]["llama"]
    return sorted(one["endpoint"] for one in rows if one["draining"] == draining)


async def test_from_no_pool_to_pods_that_come_and_go(there: Namespace, plane: ControlPlane, tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, *flags(plane, "llama")) as picker, picker.plane() as envoy:

        async def says(text: str) -> bool:
            return text in (await picker.get("/readyz"))[2]

        await picker.until(lambda: says("there is no InferencePool serving/llama"), "the reason is not told")
        assert (await picker.get("/readyz"))[0] == 503
        assert (await picker.get("/healthz"))[0] == 200
        assert await envoy.health("llama") == "NOT_SERVING"

        await there.api.apply(there.pool("llama", VLLM, 9))

        async def serves() -> bool:
            return await envoy.health("llama") == "SERVING"

        await picker.until(serves, "the pool is not served")
        await there.run("a", A, VLLM)
        await there.run("b", B, VLLM)

        async def has(*wanted: str) -> bool:
            return await endpoints(picker) == [f"{host}:9" for host in wanted]

        await picker.until(lambda: has(A, B), "the pods are not endpoints")

        stream = envoy.open(BUFFERED, NONE)
        place = await stream.place()
        gone, stays = ("a", B) if place == f"{A}:9" else ("b", A)
        await there.terminate(gone)
        await picker.until(lambda: has(stays), "a terminating pod is still an endpoint")
        for _ in range(3):
            other = envoy.open(BUFFERED, NONE)
            assert await other.place() == f"{stays}:9"
            other.reset()
        assert await endpoints(picker, draining=True) == [place], "its booking stays"
        await stream.answer(place)
        await stream.must_read()
        await stream.done()

        async def forgotten() -> bool:
            return await endpoints(picker, draining=True) == []

        await picker.until(forgotten, "the endpoint stays after its last booking")

        await there.api.delete(there.pool("llama", VLLM, 9))

        async def refuses() -> bool:
            return await envoy.health("llama") == "NOT_SERVING"

        await picker.until(refuses, "a pool that is gone is still served")
        assert picker.child.running


async def test_without_rights_it_says_which_are_missing(there: Namespace, plane: ControlPlane, tmp_path: Path) -> None:
    wanted = flags(plane, "llama")
    wanted[wanted.index("--kubeconfig") + 1] = str(plane.kubeconfig_of("stranger"))
    async with PickerProgram(tmp_path, *wanted) as picker:

        async def says() -> bool:
            told = (await picker.json("/readyz"))["detail"]["discovery"]
            return 'forbidden: User "stranger" cannot list resource "inferencepools"' in told

        await picker.until(says, "the missing right is not told")
        assert (await picker.get("/readyz"))[0] == 503


async def test_workers_find_the_same_endpoints(there: Namespace, plane: ControlPlane, tmp_path: Path) -> None:
    await there.api.apply(there.pool("shared", {"app": "shared"}, 9, 10))
    await there.run("s", C, {"app": "shared"})
    async with PickerProgram(tmp_path, *flags(plane, "shared"), "--workers", "2") as picker:

        async def placed() -> bool:
            samples = await picker.samples()
            return samples.get('llm_d_epp_ready_endpoints{name="shared"}') == 2

        await picker.until(placed, "the workers do not have the endpoints")
