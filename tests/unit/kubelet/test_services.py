"""Services: where to listen, where connections go, which names there are."""

from __future__ import annotations

from poolpilot_kube.objects import ObjectMeta, ServicePort
from poolpilot_kube.watch import Change
from poolpilot_lab.kubelet.objects import (
    EndpointSlice,
    NodeService,
    NodeServiceSpec,
    SliceConditions,
    SliceEndpoint,
    SlicePort,
)
from poolpilot_lab.kubelet.services import SERVICE_NAME, Services

KEY = ("serving", "llama")


def service(address: str, *, every: bool = False) -> NodeService:
    ports = (ServicePort(80, name="http"), ServicePort(9002, name="grpc"))
    spec = NodeServiceSpec(ports, cluster_ip=address, publish_not_ready_addresses=every)
    return NodeService(ObjectMeta("llama", "serving"), spec)


def piece(name: str, *addresses: str, ready: bool | None = True, family: str = "IPv4") -> EndpointSlice:
    meta = ObjectMeta(name, "serving", labels={SERVICE_NAME: "llama"})
    endpoints = tuple(SliceEndpoint((one,), SliceConditions(ready)) for one in addresses)
    return EndpointSlice(meta, family, endpoints, (SlicePort(8000, "http"), SlicePort(9002, "grpc")))


def known(one: NodeService, *slices: EndpointSlice) -> Services:
    services = Services()
    services.apply_services([Change(KEY, None, one)])
    services.apply_slices([Change(each.key, None, each) for each in slices])
    return services


def test_connections_go_to_ready_endpoints_of_the_right_port() -> None:
    services = known(
        service("10.96.0.7"),
        piece("a", "10.1.0.1", "10.1.0.2"),
        piece("b", "10.1.0.3", ready=False),
        piece("c", "10.1.0.4", ready=None),
        piece("d", "fd00::1", family="IPv6"),
    )
    assert services.listens() == {("10.96.0.7", 80): (KEY, "http"), ("10.96.0.7", 9002): (KEY, "grpc")}
    hosts = ["10.1.0.1", "10.1.0.2", "10.1.0.4"]
    assert services.endpoints(KEY, "http") == [(host, 8000) for host in hosts]
    assert services.endpoints(KEY, "grpc") == [(host, 9002) for host in hosts]
    assert services.endpoints(("other", "llama"), "http") == []


def test_without_a_ready_endpoint_those_that_terminate_and_serve_are_used() -> None:
    def ending(name: str, address: str, *, serving: bool | None, terminating: bool | None = True) -> EndpointSlice:
        conditions = SliceConditions(ready=False, serving=serving, terminating=terminating)
        bare = piece(name)
        return EndpointSlice(bare.metadata, "IPv4", (SliceEndpoint((address,), conditions),), bare.ports)

    ends = [
        ending("a", "10.1.0.1", serving=True),
        ending("b", "10.1.0.2", serving=False),
        ending("c", "10.1.0.3", serving=None),
        ending("d", "10.1.0.4", serving=True, terminating=False),
    ]
    services = known(service("10.96.0.7"), *ends)
    assert services.endpoints(KEY, "http") == [("10.1.0.1", 8000), ("10.1.0.3", 8000)]
    services = known(service("10.96.0.7"), *ends, piece("e", "10.1.0.5"))
    assert services.endpoints(KEY, "http") == [("10.1.0.5", 8000)]


def test_what_changes_and_goes_is_followed() -> None:
    services = known(service("10.96.0.7"), piece("a", "10.1.0.1"))
    services.apply_slices([Change(("serving", "a"), piece("a", "10.1.0.1"), piece("a", "10.1.0.2"))])
    assert services.endpoints(KEY, "http") == [("10.1.0.2", 8000)]
    services.apply_slices([Change(("serving", "a"), piece("a", "10.1.0.2"), None)])
    assert services.endpoints(KEY, "http") == []
    services.apply_services([Change(KEY, service("10.96.0.7"), None)])
    assert services.listens() == {} and services.resolve("llama.serving.svc.cluster.local") is None


def test_names() -> None:
    one = known(service("10.96.0.7"), piece("a", "10.1.0.1"))
    assert one.resolve("llama.serving.svc.cluster.local") == ["10.96.0.7"]
    for name in ("llama.serving.svc", "llama.other.svc.cluster.local", "x.llama.serving.svc.cluster.local", "x"):
        assert one.resolve(name) is None
    pieces = piece("a", "10.1.0.2", "10.1.0.1"), piece("b", "10.1.0.3", ready=False)
    assert known(service("None"), *pieces).resolve("llama.serving.svc.cluster.local") == ["10.1.0.1", "10.1.0.2"]
    assert known(service("None", every=True), *pieces).resolve("llama.serving.svc.cluster.local") == [
        "10.1.0.1",
        "10.1.0.2",
        "10.1.0.3",
    ]
