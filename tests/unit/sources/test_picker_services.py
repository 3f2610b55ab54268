"""Which pools a Picker's Services ask for: ports, conflicts, and that nobody is moved by a newcomer."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_kube.names import POOL_ANNOTATION
from poolpilot_kube.objects import ObjectMeta, Service, ServicePort, ServiceSpec
from poolpilot_picker.sources.picker_services import settle


def service(
    name: str,
    pool: str = "",
    port: int | str | None = 20_001,
    *,
    age: int = 0,
    namespace: str = "ns",
    deleted: bool = False,
) -> Service:
    """Older ones have a higher age."""
    return Service(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            annotations={POOL_ANNOTATION: pool or name},
            creation_timestamp=f"2026-01-01T00:00:{59 - age:02d}Z",
            deletion_timestamp="2026-01-02T00:00:00Z" if deleted else None,
        ),
        spec=ServiceSpec(ports=(ServicePort(port=9002, target_port=port),) if port is not None else ()),
    )


def settled(*services: Service, **serving: int) -> tuple[dict[str, int], list[str]]:
    """(pool → port, reasons), of namespace `ns`."""
    found = settle(services, {("ns", pool): port for pool, port in serving.items()})
    return {pool: port for (_, pool), port in found.ports.items()}, [one.reason for one in found.refused]


def test_each_pool_has_the_port_of_its_service() -> None:
    assert settled(service("a"), service("b", port=20_002)) == ({"a": 20_001, "b": 20_002}, [])


def test_the_annotation_names_the_pool() -> None:
    assert settled(service("epp", "llama")) == ({"llama": 20_001}, [])


def test_a_service_that_is_being_deleted_asks_for_nothing() -> None:
    assert settled(service("a", deleted=True)) == ({}, [])


def test_of_two_pools_on_one_port_the_older_has_it() -> None:
    ports, [reason] = settled(service("a", age=1), service("b", age=2))
    assert ports == {"b": 20_001}
    assert reason == "Service a cannot have port 20001: it is that of InferencePool ns/b"


def test_who_is_served_stays_where_it_is() -> None:
    assert settled(service("a", age=1), service("b", age=2), a=20_001)[0] == {"a": 20_001}
    ports, [reason] = settled(service("old", "p", 20_002, age=5), service("new", "p", 20_001, age=1), p=20_001)
    assert ports == {"p": 20_001}
    assert reason == "Service old is not heeded: the pool is served on port 20001, as Service new says"


def test_a_service_that_is_not_heeded_takes_no_port() -> None:
    """Its port is free for another pool."""
    services = (service("a1", "a", 20_001, age=3), service("a2", "a", 20_002, age=2), service("b", "b", 20_002, age=1))
    assert settled(*services)[0] == {"a": 20_001, "b": 20_002}


def test_two_services_may_say_the_same() -> None:
    assert settled(service("one", "p"), service("two", "p")) == ({"p": 20_001}, [])


def test_pools_of_one_name_in_two_namespaces() -> None:
    found = settle([service("p"), service("p", port=20_002, namespace="other")], {})
    assert found.ports == {("ns", "p"): 20_001, ("other", "p"): 20_002}


def test_ports_that_are_none() -> None:
    allowed = "allowed are 20000 to 29999"
    for port, said in (
        (19_999, f"has the targetPort 19999; {allowed}"),
        (30_000, f"has the targetPort 30000; {allowed}"),
        ("grpc", f"has the targetPort 'grpc'; {allowed}"),
        (None, f"has no port; {allowed}"),
    ):
        assert settled(service("a", port=port)) == ({}, [f"Service a {said}"])


CLAIMS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(20_000, 20_003), st.integers(0, 9), st.booleans()), max_size=8
)


@given(CLAIMS, st.dictionaries(st.sampled_from("abc"), st.integers(20_000, 20_003)))
def test_any_services(claims: list[Any], serving: dict[str, int]) -> None:
    services = [
        service(f"s{number}", pool, port, age=age, deleted=deleted)
        for number, (pool, port, age, deleted) in enumerate(claims)
    ]
    ports, reasons = settled(*services, **serving)
    wanted = {(pool, port) for pool, port, _, deleted in claims if not deleted}
    assert set(ports.items()) <= wanted
    assert len(set(ports.values())) == len(ports), "a port has one pool"
    assert len(reasons) == sum(1 for pool, port, _, gone in claims if not gone and ports.get(pool) != port)
    for pool, port in wanted:
        assert pool in ports or port in ports.values(), "nobody is left out for nothing"
    if len(set(serving.values())) == len(serving):
        for pool, port in serving.items():
            assert (pool, port) not in wanted or ports[pool] == port, "who is served stays"
    again = settle(services, {("ns", pool): port for pool, port in ports.items()})
    assert {pool: port for (_, pool), port in again.ports.items()} == ports, "and so it stays"
