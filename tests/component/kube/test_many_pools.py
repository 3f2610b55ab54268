"""A picker of many pools beside a real API server: pools come, go, move and are renamed while it runs."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from api_faults import fault_proxy, plain_kubeconfig
from control_planes import definitions
from extproc_client import BUFFERED, NONE, STREAMED, DataPlane, chat
from kube_pods import allow
from picker_pools import LABELS, PICKER, Pools, health, pool_ports, service
from picker_program import PickerProgram, replace
from poolpilot_picker.config.policies import policy_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B, C, D = (f"127.0.1.{number}" for number in range(1, 5))
"""Nobody listens there."""
NOBODY = 'reason="rejected-no-endpoints"'
READ = ["list", "watch"]
RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods", "services"], "verbs": READ},
    {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": READ},
    {
        "apiGroups": ["llm-d.ai", "inference.networking.x-k8s.io"],
        "resources": ["inferenceobjectives", "inferencemodelrewrites"],
        "verbs": READ,
    },
]
"""What docs/kubernetes.md says, and nothing else."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ready(plane: ControlPlane) -> ControlPlane:
    """The user `picker` may read what a picker reads, everywhere."""
    async with plane.api() as api:
        await api.define(definitions())
        await allow(api, "picker", RULES)
    return plane


@pytest_asyncio.fixture(loop_scope="module")
async def pools(ready: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[Pools]:
    """A namespace of the test's own."""
    async with ready.api() as api:
        made = Pools(api, f"ns-{abs(hash(request.node.name)) % 10**8}")
        await made.there.made()
        yield made


def program(plane: ControlPlane, folder: Path, *flags: str) -> PickerProgram:
    namespace, name = PICKER
    return PickerProgram(
        folder,
        *("--picker-name", name, "--picker-namespace", namespace, "--policy", "round-robin"),
        *("--kubeconfig", str(plane.kubeconfig_of("picker")), *flags),
    )


async def standing(picker: PickerProgram, pools: Pools) -> dict[str, tuple[int, str]]:
    """Pool → (port, why it is not served), of one namespace."""
    listed = (await picker.json("/pools"))["pools"]
    found = {one["name"]: (one["port"], one["reason"]) for one in listed if one["namespace"] == pools.name}
    for one in listed:
        assert one["serving"] == (not one["reason"])
    return found


async def is_standing(picker: PickerProgram, pools: Pools, **wanted: tuple[int, str]) -> None:
    """Waits until the pools of the namespace stand so."""
    seen: dict[str, tuple[int, str]] = {}

    async def so() -> bool:
        nonlocal seen
        seen = await standing(picker, pools)
        return seen == wanted

    try:
        await picker.until(so, "other than wanted")
    except AssertionError as error:
        raise AssertionError(f"{seen} instead of {wanted}: {error}") from None


async def becomes_ready(picker: PickerProgram) -> None:
    """Waits until everything has been listed: pools may stand before that, as their Services are known."""

    async def so() -> bool:
        return (await picker.get("/readyz"))[0] == 200

    await picker.until(so, "not ready")


async def endpoints(picker: PickerProgram, pools: Pools, pool: str) -> list[str]:
    """Addresses of a pool."""
    rows = (await picker.json("/debug/endpoints"))["pools"].get(f"{pools.name}/{pool}", [])
    return sorted(row["endpoint"] for row in rows if not row["draining"])


async def has(picker: PickerProgram, pools: Pools, pool: str, *hosts: str) -> None:
    """Waits until a pool has these endpoints."""

    async def so() -> bool:
        return await endpoints(picker, pools, pool) == sorted(f"{host}:9" for host in hosts)

    await picker.until(so, f"the endpoints of {pool}")


async def place(port: int) -> str:
    """Where a request on this port goes."""
    async with DataPlane(port) as envoy:
        stream = envoy.open(BUFFERED, NONE)
        placed = await stream.place()
        stream.reset()
        return placed


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_each_pool_on_its_port(pools: Pools, ready: ControlPlane, tmp_path: Path, transport: str) -> None:
    first, second = pool_ports(2)
    await pools.serve("one", first)
    await pools.run("one", A)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name, "--transport", transport) as picker:
        await becomes_ready(picker)
        await is_standing(picker, pools, one=(first, ""))
        assert await place(first) == f"{A}:9"
        for name in ("", "one", f"{pools.name}/one", "inference-extension"):
            assert await health(first, name) == "SERVING"
        for wrong in ("wait=61", "wait=.", "since=-1", "since=x", "since=1&since=2", "limit=3"):
            status, _, text = await picker.get(f"/pools?{wrong}")
            assert status == 400 and "allowed is" in text, wrong
        version = (await picker.json("/pools"))["version"]
        # A pool that is added, and one whose pods come later.
        await pools.serve("two", second)
        page = await picker.json(f"/pools?since={version}&wait=30")
        assert page["version"] > version
        await is_standing(picker, pools, one=(first, ""), two=(second, ""))
        assert await health(second, "one") != "SERVING", "another pool's name on this port"
        await pools.run("two", B, C)
        await has(picker, pools, "two", B, C)
        assert {await place(second) for _ in range(4)} == {f"{B}:9", f"{C}:9"}
        assert await place(first) == f"{A}:9"
        samples = await picker.samples()
        one, two = f"{pools.name}/one", f"{pools.name}/two"
        assert samples[f'llm_d_epp_ready_endpoints{{name="{two}"}}'] == 2
        totals = {series: value for series, value in samples.items() if series.startswith("llm_d_epp_request_total{")}
        assert {series.partition('pool="')[2].partition('"')[0]: value for series, value in totals.items()} == {
            one: 2.0,
            two: 4.0,
        }
        assert samples[f'poolpilot_pool_serving{{name="{one}"}}'] == 1
        helps = [line for line in (await picker.get("/metrics"))[2].splitlines() if line.startswith("# HELP")]
        assert len(helps) == len(set(helps)), "each family once"


async def counted(picker: PickerProgram, pools: Pools, pool: str, endpoints: int) -> None:
    """Waits until /pools says that a pool is served and has so many endpoints."""

    async def so() -> bool:
        listed = (await picker.json("/pools"))["pools"]
        found = {(one["namespace"], one["name"]): (one["serving"], one["endpoints"]) for one in listed}
        return found.get((pools.name, pool)) == (True, endpoints)

    await picker.until(so, f"{pool} has not {endpoints} endpoints")


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_a_pool_that_is_scaled_to_zero_and_back(
    pools: Pools, ready: ControlPlane, tmp_path: Path, transport: str
) -> None:
    """What an autoscaler does: the pool is served all along, and who asks meanwhile is told why not."""
    [port] = pool_ports(1)
    await pools.serve("one", port)
    await pools.run("one", A, B)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name, "--transport", transport) as picker:
        await counted(picker, pools, "one", 2)
        refusals = f'poolpilot_requests_refused_total{{code="ServiceUnavailable",pool="{pools.name}/one",{NOBODY}}}'
        assert (await picker.samples())[refusals] == 0, "a rate needs a value before the first"
        async with DataPlane(port) as envoy:
            held = envoy.open(BUFFERED, NONE)
            placed = await held.place()
            for host in (A, B):
                await pools.there.terminate(f"one-{host.replace('.', '-')}")
            await counted(picker, pools, "one", 0)
            # Nothing is wrong with the picker: its answer is the best that there is.
            assert (await picker.get("/readyz"))[0] == 200
            assert await health(port, "one") == "SERVING"
            refused = envoy.open(BUFFERED, NONE)
            await refused.headers()
            await refused.must_read()
            await refused.body(chat())
            answer = (await refused.must_read()).immediate_response
            fields = {one.header.key: one.header.raw_value for one in answer.headers.set_headers}
            assert int(answer.status.code) == 503
            assert fields["x-llm-d-request-dropped-reason"] == b"rejected-no-endpoints"
            assert b"failed to find endpoint candidates" in answer.body
            # What runs on a pod that ends goes on.
            await held.answer(placed)
            await held.must_read()
            await held.done()
        samples = await picker.samples()
        assert samples[f'llm_d_epp_ready_endpoints{{name="{pools.name}/one"}}'] == 0
        # What an autoscaler reads is there, also now.
        labels = f'pool="{pools.name}/one",pool_name="one",pool_namespace="{pools.name}"'
        assert samples[f'poolpilot_pool_queue_size{{at="engines",{labels}}}'] == 0
        assert samples[f'poolpilot_pool_queue_size{{at="picker",{labels}}}'] == 0
        assert samples[f"poolpilot_pool_predicted_wait_seconds{{{labels}}}"] == 0
        assert samples[f"poolpilot_pool_saturation{{{labels}}}"] == 1
        assert samples[refusals] == 1
        await pools.run("one", C)
        await counted(picker, pools, "one", 1)
        assert await place(port) == f"{C}:9"


async def test_without_an_inference_pool_nothing_is_said_to_be_served(
    pools: Pools, ready: ControlPlane, tmp_path: Path
) -> None:
    [port] = pool_ports(1)
    await pools.api.apply(service(pools.name, "late", "late", port))
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        nothing = f"there is no InferencePool {pools.name}/late"
        await is_standing(picker, pools, late=(port, nothing))
        assert await health(port) == "NOT_SERVING"
        await pools.run("late", A)
        await pools.serve("late", port)
        await is_standing(picker, pools, late=(port, ""))
        # Pods come by another watch than pools.
        await has(picker, pools, "late", A)
        assert await place(port) == f"{A}:9"
        async with DataPlane(port) as envoy:
            held = envoy.open(BUFFERED, NONE)
            placed = await held.place()
            await pools.remove("late")
            await is_standing(picker, pools, late=(port, nothing))
            refused = envoy.open(BUFFERED, NONE)
            await refused.headers()
            await refused.must_read()
            await refused.body(chat())
            reply = await refused.must_read()
            assert int(reply.immediate_response.status.code) == 503
            await held.answer(placed)
            await held.must_read()
            await held.done()


async def test_a_pool_moves_and_keeps_what_is_known(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    first, second = pool_ports(2)
    await pools.serve("one", first)
    await pools.run("one", A)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await is_standing(picker, pools, one=(first, ""))
        await has(picker, pools, "one", A)
        async with DataPlane(first) as envoy:
            held = envoy.open(BUFFERED, NONE)
            placed = await held.place()
            await pools.serve("one", second)
            await is_standing(picker, pools, one=(second, ""))
            assert await health(first) == "", "the old port is closed"
            rows = (await picker.json("/debug/endpoints"))["pools"][f"{pools.name}/one"]
            assert [row["in_flight"] for row in rows] == [1.0], "the booking of the stream on the old port"
            assert await place(second) == f"{A}:9"
            await held.answer(placed)
            await held.must_read()
            await held.done()


async def test_a_port_that_becomes_another_pools(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """The Service names another pool: nobody who comes now is sent to the pods of the first."""
    [port] = pool_ports(1)
    await pools.serve("one", port)
    await pools.run("one", A)
    await pools.run("two", B)
    await pools.api.apply(pools.there.pool("two", {"pool": "two"}, 9))
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await is_standing(picker, pools, one=(port, ""))
        await has(picker, pools, "one", A)
        async with DataPlane(port) as envoy:
            held = envoy.open(BUFFERED, NONE)
            placed = await held.place()
            await pools.api.apply(service(pools.name, "one", "two", port))
            await is_standing(picker, pools, two=(port, ""))
            await has(picker, pools, "two", B)
            assert {await place(port) for _ in range(3)} == {f"{B}:9"}
            await held.answer(placed)
            await held.must_read()
            await held.done()


async def test_pods_that_are_relabelled_and_a_pool_that_selects_others(
    pools: Pools, ready: ControlPlane, tmp_path: Path
) -> None:
    first, second = pool_ports(2)
    await pools.serve("one", first)
    await pools.serve("two", second)
    await pools.run("one", A, B)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await has(picker, pools, "one", A, B)
        moved = f"one-{A.replace('.', '-')}"
        await pools.there.annotate(moved, {"pool": "two"}, {})
        await has(picker, pools, "two", A)
        await has(picker, pools, "one", B)
        # Two pools may select the same pods.
        await pools.api.apply(pools.there.pool("one", {"pool": "two"}, 9))
        await has(picker, pools, "one", A)
        await has(picker, pools, "two", A)
        await pools.there.terminate(moved)
        await has(picker, pools, "one")
        await has(picker, pools, "two")


async def test_services_that_cannot_be_heeded_are_told(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    first, second = pool_ports(2)
    await pools.serve("one", first)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await is_standing(picker, pools, one=(first, ""))
        await pools.serve("two", first)
        await pools.serve("wrong", 8080)
        await pools.api.apply(service(pools.name, "unnamed", None, second))
        await pools.api.apply(service(pools.name, "stranger", "stranger", second, {"poolpilot.dev/picker": "other"}))
        await is_standing(
            picker,
            pools,
            one=(first, ""),
            two=(first, f"Service two cannot have port {first}: it is that of InferencePool {pools.name}/one"),
            wrong=(8080, "Service wrong has the targetPort 8080; allowed are 20000 to 29999"),
            **{"": (second, "Service unnamed has no annotation poolpilot.dev/pool: it names the InferencePool")},
        )
        assert "not served" in (await picker.json("/readyz"))["detail"]["pools"]
        await becomes_ready(picker)
        await pools.leave("one")
        await pools.serve("wrong", second)
        await pools.api.delete(service(pools.name, "unnamed", None, second))
        await is_standing(picker, pools, two=(first, ""), wrong=(second, ""))


async def test_only_services_of_its_operator_are_heeded(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """Users may write Services with a Picker's labels: the operator must see all that count."""
    first, second, third = pool_ports(3)
    await pools.serve("one", first)
    unmanaged = {name: value for name, value in LABELS.items() if "managed-by" not in name}
    await pools.api.apply(service(pools.name, "two", "two", second, unmanaged))
    await pools.api.apply(service(pools.name, "three", "three", third, {**LABELS, "poolpilot.dev/operator": "x"}))
    flags = ("--pool-namespaces", pools.name, "--operator-namespace", "poolpilot")
    async with program(ready, tmp_path, *flags) as picker:
        await is_standing(picker, pools, one=(first, ""))


async def test_the_whole_cluster_with_one_watch_of_each(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """Two namespaces, and pools of one name in both."""
    first, second = pool_ports(2)
    other = Pools(pools.api, f"{pools.name}-other")
    await other.there.made()
    for where, port, host in ((pools, first, A), (other, second, B)):
        await where.serve("one", port)
        await where.run("one", host)
    async with program(ready, tmp_path) as picker:
        await is_standing(picker, pools, one=(first, ""))
        await is_standing(picker, other, one=(second, ""))
        assert (await place(first), await place(second)) == (f"{A}:9", f"{B}:9")
        await pools.there.remove(f"one-{A.replace('.', '-')}")
        await has(picker, pools, "one")
        await has(picker, other, "one", B)


async def test_without_rights_it_says_which_are_missing(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    async with program(ready, tmp_path, "--kubeconfig", str(ready.kubeconfig_of("stranger"))) as picker:

        async def says() -> bool:
            told = (await picker.json("/readyz"))["detail"]["discovery"]
            return 'User "stranger" cannot list resource "services"' in told and "not listed yet: Services" in told

        await picker.until(says, "the missing right is not told")
        assert (await picker.get("/readyz"))[0] == 503


async def test_a_port_that_somebody_else_has(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    [port] = pool_ports(1)
    await pools.serve("one", port)
    with socket.create_server(("127.0.0.1", port)):
        async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
            taken = f"cannot listen on 127.0.0.1:{port} for ext_proc: the port is taken"
            await is_standing(picker, pools, one=(port, taken))
            await becomes_ready(picker)  # the other pools are served
            assert taken in (await picker.json("/readyz"))["detail"]["pools"]


async def test_while_the_api_server_is_away_all_stays(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """Afterwards what was missed is made good, also a deletion whose event never comes."""
    first, second = pool_ports(2)
    await pools.serve("one", first)
    await pools.run("one", A, B)
    async with fault_proxy(ready.kubeconfig) as proxy:
        config = plain_kubeconfig(proxy, tmp_path / "proxy.json")
        flags = ("--pool-namespaces", pools.name, "--kubeconfig", str(config))
        async with program(ready, tmp_path, *flags) as picker:
            await is_standing(picker, pools, one=(first, ""))
            await has(picker, pools, "one", A, B)
            # Services, pools, pods, and the two kinds of rules that are there.
            await proxy.until(lambda: proxy.open_watches == 5)
            proxy.refuse_always = (503, {})
            await proxy.cut()
            await pools.there.remove(f"one-{A.replace('.', '-')}")
            await pools.serve("two", second)

            async def says() -> bool:
                return "what was known last stays in force" in (await picker.get("/readyz"))[2]

            await picker.until(says, "the problem is not told")
            assert (await picker.get("/readyz"))[0] == 200
            assert await endpoints(picker, pools, "one") == [f"{A}:9", f"{B}:9"]
            assert await place(first) in (f"{A}:9", f"{B}:9")
            proxy.refuse_always = None
            await has(picker, pools, "one", B)
            await is_standing(picker, pools, one=(first, ""), two=(second, ""))
            await proxy.until(lambda: proxy.open_watches == 5)
            # Nothing is heard of the deletion, and the versions to resume from have expired.
            proxy.transform = lambda line: []
            await pools.there.remove(f"one-{B.replace('.', '-')}")
            await pools.leave("two")
            proxy.transform = lambda line: [line]
            proxy.inject({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
            await has(picker, pools, "one")
            await is_standing(picker, pools, one=(first, ""))
        assert {one.method for one in proxy.asked} == {"GET"}, "a picker reads only"
        lists = {one.path for one in proxy.lists if one.path.endswith("/pods")}
        assert lists == {f"/api/v1/namespaces/{pools.name}/pods"}, "one list of pods for all pools"


async def test_the_rules_of_each_pool(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """A rewrite is executed, and the client's model put back into the answer; the other pool is left alone."""
    first, second = pool_ports(2)
    for pool, port, host in (("one", first, A), ("two", second, B)):
        await pools.serve(pool, port)
        await pools.run(pool, host)
    ref = {"poolRef": {"name": "one"}}
    meta = {"namespace": pools.name}
    await pools.api.apply(
        {
            "apiVersion": "llm-d.ai/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {**meta, "name": "urgent"},
            "spec": {**ref, "priority": 7},
        }
    )
    rule = {"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "target", "weight": 1}]}
    await pools.api.apply(
        {
            "apiVersion": "llm-d.ai/v1alpha2",
            "kind": "InferenceModelRewrite",
            "metadata": {**meta, "name": "rule"},
            "spec": {**ref, "rules": [rule]},
        }
    )
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await is_standing(picker, pools, one=(first, ""), two=(second, ""))
        for port, model in ((first, "target"), (second, "m")):
            async with DataPlane(port) as envoy:
                stream = envoy.open(BUFFERED, NONE)
                await stream.headers(x_llm_d_inference_objective="urgent")
                await stream.must_read()
                await stream.body(chat())
                reply = await stream.must_read()
                sent = reply.request_body.response.body_mutation.body
                assert sent == (chat(model="target") if model == "target" else b"")
                await stream.answer(A if port == first else B)
                head = await stream.must_read()
                if model == "target":
                    assert head.mode_override.response_body_mode == STREAMED
                    await stream.answer_body(b'{"model":"target"}', end=True)
                    told = await stream.must_read()
                    assert told.response_body.response.body_mutation.body == b'{"model":"m"}'
                await stream.done()
        totals = [series for series in await picker.samples() if series.startswith("llm_d_epp_request_total{")]
        labels = [series for series in totals if f'pool="{pools.name}/one"' in series]
        assert ['priority="7"' in labels[0], 'target_model_name="target"' in labels[0]] == [True, True]
        [other] = [series for series in totals if f'pool="{pools.name}/two"' in series]
        assert 'priority="0"' in other
        rewritten = [name for name in await picker.samples() if "model_rewrite_decisions_total{" in name]
        assert len(rewritten) == 1 and 'model_rewrite_name="rule"' in rewritten[0]


async def test_a_configuration_reaches_every_pool(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    """Also the pools that come later; one that is wrong changes nothing."""
    first, second = pool_ports(2)
    config = tmp_path / "config.yaml"
    config.write_text(policy_config("round-robin"))
    await pools.run("one", A, C)
    await pools.run("two", B, D)
    await pools.serve("one", first)
    namespace, name = PICKER
    flags = ("--picker-name", name, "--picker-namespace", namespace, "--pool-namespaces", pools.name)
    access = ("--kubeconfig", str(ready.kubeconfig_of("picker")))
    async with PickerProgram(tmp_path, *flags, *access, "--config-file", str(config)) as picker:
        await has(picker, pools, "one", A, C)
        await is_standing(picker, pools, one=(first, ""))
        assert not await predicted(picker, f"{pools.name}/one", first)
        replace(config, "kind: wrong")

        async def refused() -> bool:
            told = (await picker.json("/pools"))["configuration"]
            return "is refused" in told and told == (await picker.json("/readyz"))["detail"].get("configuration", "")

        await picker.until(refused, "what is wrong is not told")
        assert not await predicted(picker, f"{pools.name}/one", first)
        replace(config, policy_config("predicted-finish"))

        async def taken() -> bool:
            told = (await picker.json("/pools"))["configuration"]
            return told == "" and "configuration" not in (await picker.json("/readyz"))["detail"]

        await picker.until(taken, "the good one is not taken")
        await pools.serve("two", second)
        await has(picker, pools, "two", B, D)
        await is_standing(picker, pools, one=(first, ""), two=(second, ""))
        assert await predicted(picker, f"{pools.name}/one", first)
        assert await predicted(picker, f"{pools.name}/two", second)


async def predicted(picker: PickerProgram, pool: str, port: int) -> bool:
    """Whether a request is placed by what it costs."""
    async with DataPlane(port) as envoy:
        stream = envoy.open(BUFFERED, NONE)
        await stream.headers(x_poolpilot_receipt="1")
        await stream.must_read()
        await stream.body(chat())
        await stream.must_read()
        stream.reset()
    [decision, *_] = (await picker.json(f"/debug/decisions?pool={pool}"))["decisions"]
    assert decision["pool"] == pool
    return all("cost" in one.get("terms", {}) for one in decision["candidates"])


async def test_what_comes_is_taken_until_data_planes_have_noticed(
    pools: Pools, ready: ControlPlane, tmp_path: Path
) -> None:
    [port] = pool_ports(1)
    await pools.serve("one", port)
    await pools.run("one", A)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name, "--shutdown-notice", "3600") as picker:
        await is_standing(picker, pools, one=(port, ""))
        assert not (await picker.json("/pools"))["pools"][0]["terminating"]
        picker.terminate()

        async def ends() -> bool:
            [one] = (await picker.json("/pools"))["pools"]
            return one["terminating"] and not one["serving"] and one["reason"] == "the picker is shutting down"

        await picker.until(ends, "not said to end")
        assert await place(port) == f"{A}:9"
        picker.terminate()
        assert await picker.exits() == 0


async def test_it_stops_in_good_order(pools: Pools, ready: ControlPlane, tmp_path: Path) -> None:
    [port] = pool_ports(1)
    await pools.serve("one", port)
    await pools.run("one", A)
    async with program(ready, tmp_path, "--pool-namespaces", pools.name) as picker:
        await is_standing(picker, pools, one=(port, ""))
        async with DataPlane(port) as envoy:
            held = envoy.open(BUFFERED, NONE)
            placed = await held.place()
            picker.terminate()

            async def unready() -> bool:
                [one] = (await picker.json("/pools"))["pools"]
                return not one["serving"] and not one["terminating"]

            await picker.until(unready, "still said to take streams")
            version = (await picker.json("/pools"))["version"]
            poll = asyncio.create_task(picker.json(f"/pools?since={version}&wait=60"))
            await held.answer(placed)
            await held.must_read()
            await held.done()
        assert await picker.exits() == 0
        assert (await poll)["version"] == version, "answered, and the end has not waited for its time"
