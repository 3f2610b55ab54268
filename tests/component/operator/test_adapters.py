"""LoRA adapters on stand-in vLLM servers: placed by room, served, brought again after a restart, and never taken away
from somebody else."""

from __future__ import annotations

import base64
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from engine_http import FAST
from kube_pods import Namespace
from operator_stage import eventually, quiet, running_operator, same, true
from poolpilot_kube.access import from_kubeconfig
from poolpilot_lab.engine.models import Adapter
from poolpilot_lab.engine.server import EngineServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_operator.app import Operator
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

LORA = replace(FAST, enable_lora=True, max_loras=2, runtime_lora=True, port=8000)


class Engines:
    """Pods of the pool `llama` in one namespace, each a server on an address of loopback."""

    def __init__(self, cluster: Cluster, namespace: str, stack: contextlib.AsyncExitStack) -> None:
        self.cluster, self.namespace = cluster, namespace
        self._stack = stack
        self._kube = Namespace(cluster.api, namespace)
        self._servers: dict[str, EngineServer] = {}
        self._number = int(namespace.rpartition("-")[2])

    def host(self, name: str) -> str:
        return f"127.11.{self._number % 250}.{1 + ord(name) - ord('a')}"

    async def run(self, name: str, **config: Any) -> None:
        """A pod begins to serve; one of that name that there was is gone."""
        await self.serve(name, **config)
        with contextlib.suppress(Exception):
            await self._kube.remove(name)
        pod = self._kube.pod(name, {"app": "llama"})
        slots = config.get("max_loras", LORA.max_loras)
        pod["spec"]["containers"][0]["args"] = ["--enable-lora", f"--max-loras={slots}"]
        await self.cluster.api.apply(pod)
        await self._kube.set_ready(name, self.host(name), ready=True)

    async def serve(self, name: str, **config: Any) -> None:
        """The server of a pod begins, anew if it ran."""
        await self.stop(name)
        server = EngineServer(replace(LORA, host=self.host(name), **config))
        await server.start()
        self._servers[name] = server
        self._stack.push_async_callback(server.close)

    async def remove(self, name: str) -> None:
        """The pod is gone."""
        await self._kube.remove(name)

    async def stop(self, name: str) -> None:
        if name in self._servers:
            await self._servers.pop(name).close()

    async def adapters(self, name: str, key: str = "") -> set[str]:
        """What a server answers to beside its base model."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"http://{self.host(name)}:8000/v1/models") as answer,
        ):
            return {one["id"] for one in (await answer.json())["data"] if one["parent"] is not None}

    async def all(self, *names: str) -> dict[str, set[str]]:
        return {name: await self.adapters(name) for name in names}

    async def want(self, name: str, **spec: Any) -> Any:
        wanted = {"poolRef": {"name": "llama"}, "source": {"path": f"/adapters/{name}"}, **spec}
        meta = {"name": name, "namespace": self.namespace}
        return await self.cluster.api.apply(
            {"apiVersion": "poolpilot.dev/v1alpha1", "kind": "LoraAdapter", "metadata": meta, "spec": wanted}
        )

    async def unwant(self, name: str) -> None:
        await self.cluster.delete("poolpilot.dev/v1alpha1", "LoraAdapter", self.namespace, name)

    async def status(self, name: str) -> dict[str, Any]:
        found = await self.cluster.get("poolpilot.dev/v1alpha1", "LoraAdapter", self.namespace, name)
        return (found or {}).get("status", {})

    async def told(self, name: str, type_: str, reason: str) -> dict[str, Any]:
        """The condition, as soon as it has that reason."""

        async def check() -> Any:
            found = (await self.status(name)).get("conditions", ())
            return next((one for one in found if (one["type"], one["reason"]) == (type_, reason)), None)

        return await eventually(check, f"{name}: {type_} {reason}")


@pytest_asyncio.fixture(loop_scope="module")
async def engines(cluster: Cluster, home: str) -> AsyncIterator[Engines]:
    async with contextlib.AsyncExitStack() as stack:
        await cluster.made_pool(home, "llama", picker=None)
        yield Engines(cluster, home, stack)


def look(operator: Operator, engines: Engines) -> None:
    """Looks again, as it does by itself every half minute."""
    operator.adapter_queue.add((engines.namespace, "llama"))


async def test_adapters_are_placed_by_room_and_moved_when_a_pod_goes(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines
) -> None:
    for name in "abc":
        await engines.run(name)
    names = [f"lora-{n}" for n in range(5)]
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        for name in names:
            await engines.want(name, endpoints=1)
        for name in names:
            ready = await engines.told(name, "Ready", "Loaded")
            assert ready["status"] == "True"
        there = await engines.all("a", "b", "c")
        assert sorted(len(found) for found in there.values()) == [1, 2, 2]
        assert set().union(*there.values()) == set(names)
        status = await engines.status("lora-0")
        [endpoint] = status["endpoints"]
        assert (endpoint["state"], endpoint["port"]) == ("Loaded", 8000)
        assert "lora-0" in there[endpoint["pod"]]
        # An engine that begins anew has forgotten everything.
        before = there["a"]
        await engines.serve("a")
        assert await engines.adapters("a") == set()
        look(operator, engines)
        await eventually(lambda: same(engines.adapters("a"), before))
        # A pod that goes leaves room for four: one adapter has none.
        await engines.stop("c")
        await engines.remove("c")

        async def moved() -> bool:
            found = await engines.all("a", "b")
            return all(len(one) == 2 for one in found.values())

        await eventually(moved)
        placed = set().union(*(await engines.all("a", "b")).values())
        [short] = set(names) - placed
        told = await engines.told(short, "Ready", "NoRoom")
        assert told["message"] == "there is room on 0 of 1 endpoints: every slot of the others is taken"
        await engines.run("d")
        await engines.told(short, "Ready", "Loaded")
        assert await engines.adapters("d") == {short}


async def test_only_what_was_loaded_by_us_is_unloaded_also_after_a_restart(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines, cluster: Cluster
) -> None:
    await engines.run("a", lora_modules=(Adapter("given", "/given"),))
    access = from_kubeconfig(plane.kubeconfig)
    async with running_operator(access, home, pods):
        await engines.want("given")
        await engines.want("mine")
        await engines.told("given", "Ready", "Loaded")
        await engines.told("mine", "Ready", "Loaded")
        assert await engines.adapters("a") == {"given", "mine"}
    # Deleted while nobody looks: no finalizer holds the object.
    await engines.unwant("given")
    await engines.unwant("mine")
    async with running_operator(access, home, pods) as operator:
        await eventually(lambda: same(engines.adapters("a"), {"given"}))
        # Counted when the engine's answer has come.
        await eventually(lambda: true(operator.adapter_reconciler.changes == {"unload": 1}))
        await eventually(lambda: same(cluster.get("v1", "ConfigMap", home, "poolpilot-adapters.llama"), None))


async def test_a_picker_may_have_any_name_beside_a_pool_with_adapters(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines, cluster: Cluster
) -> None:
    """Also `adapters-llama`: two that wrote into one ConfigMap would never rest."""
    await engines.run("a")
    await engines.want("mine")
    await cluster.made_picker(home, "adapters-llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await engines.told("mine", "Ready", "Loaded")
        await eventually(lambda: cluster.get("apps/v1", "Deployment", home, "poolpilot-adapters-llama"))
        await eventually(lambda: true(operator.idle))
        record = await cluster.get("v1", "ConfigMap", home, "poolpilot-adapters.llama")
        config = await cluster.get("v1", "ConfigMap", home, "poolpilot-adapters-llama")
        assert record is not None and set(record["data"]) == {"loaded.json"}
        assert config is not None and set(config["data"]) == {"config.yaml"}
        assert (await cluster.condition(home, "adapters-llama", "Programmed"))["status"] == "True"


async def test_a_pinned_adapter_takes_the_place_of_one_that_is_not(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines
) -> None:
    await engines.run("a", max_loras=1)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):
        await engines.want("first")
        await engines.told("first", "Ready", "Loaded")
        await engines.want("second")
        await engines.told("second", "Ready", "NoRoom")
        await engines.want("important", pinned=True)
        await engines.told("important", "Ready", "Loaded")
        await engines.told("first", "Ready", "NoRoom")
        assert await engines.adapters("a") == {"important"}
        await engines.want("other", pinned=True)
        await engines.told("other", "Ready", "NoRoom")
        assert await engines.adapters("a") == {"important"}


async def test_where_engines_do_not_load_while_they_run_it_is_said(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines, cluster: Cluster
) -> None:
    await engines.run("a", runtime_lora=False)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await engines.want("mine")
        told = await engines.told("mine", "LoadingSupported", "RuntimeLoadingOff")
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in told["message"]
        await engines.told("mine", "Ready", "LoadFailed")
        await eventually(lambda: cluster.event(home, "mine", "LoadFailed"))
        await engines.run("a")
        look(operator, engines)
        await engines.told("mine", "Ready", "Loaded")
        await engines.told("mine", "LoadingSupported", "RuntimeLoadingOn")


async def test_an_error_of_an_engine_is_shown_and_tried_again(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines
) -> None:
    # The base model has the adapter's name.
    await engines.run("a", served_model_names=("tiny", "mine"))
    await engines.run("b")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await engines.want("mine")
        told = await engines.told("mine", "Ready", "LoadFailed")
        assert "1 of 2 endpoints failed; a:8000:" in told["message"]
        status = await engines.status("mine")
        assert [one["state"] for one in status["endpoints"]] == ["Failed", "Loaded"]
        assert (status["wanted"], status["loaded"]) == (2, 1)
        await engines.run("a")
        look(operator, engines)
        await engines.told("mine", "Ready", "Loaded")


async def test_credentials_come_from_a_secret(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines, cluster: Cluster
) -> None:
    await engines.run("a", api_keys=("sesame",))
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await engines.want("mine", engineCredentials={"secretRef": {"name": "engine"}})
        said = await eventually(lambda: cluster.event(home, "mine", "SecretMissing"))
        assert "Secret engine does not exist" in said
        meta = {"name": "engine", "namespace": home}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta}
        await cluster.api.apply({**secret, "data": {"token": base64.b64encode(b"open\r\nsesame").decode()}})
        look(operator, engines)

        async def refused() -> bool:
            return "characters that no HTTP header may have" in str((await engines.status("mine")).get("conditions"))

        await eventually(refused)
        await cluster.api.apply({**secret, "data": {"token": base64.b64encode(b"sesame\n").decode()}})
        look(operator, engines)
        await engines.told("mine", "Ready", "Loaded")
        assert await engines.adapters("a", "sesame") == {"mine"}


async def test_adapters_that_cannot_be_placed_at_all(
    plane: ControlPlane, pods: PickerPods, home: str, engines: Engines, cluster: Cluster
) -> None:
    await engines.run("a")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await engines.want("lost", poolRef={"name": "nowhere"})
        told = await engines.told("lost", "Accepted", "PoolNotFound")
        assert "there is no InferencePool nowhere" in told["message"]
        await engines.want("odd", poolRef={"name": "llama", "kind": "Service", "group": ""})
        await engines.told("odd", "Accepted", "PoolRefUnsupported")
        await engines.want("one", adapterName="same")
        await engines.told("one", "Ready", "Loaded")
        await engines.want("two", adapterName="same")
        await engines.told("two", "Accepted", "NameTaken")
        await engines.want("wrong-base", baseModel="another")
        await engines.told("wrong-base", "Ready", "NoEndpoints")
        assert await engines.adapters("a") == {"same"}
        await quiet(operator)
        written = sum(operator.world.writer.writes.values())
        for _ in range(3):
            look(operator, engines)
            await eventually(lambda: true(operator.idle))
        assert sum(operator.world.writer.writes.values()) == written
        await cluster.made_pool(home, "nowhere", picker=None)
        await engines.told("lost", "Accepted", "Accepted")
