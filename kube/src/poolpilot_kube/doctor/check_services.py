"""Is the Service of every served pool there, ours, and does it lead to a picker?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_kube.doctor.check_pools import about, picker_of
from poolpilot_kube.doctor.findings import Finding, Level
from poolpilot_kube.names import DEFAULT_PICKER_PORT, H2C, MANAGED_BY, MANAGED_BY_LABEL, POOL_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import Pool
    from poolpilot_kube.doctor.reading import Cluster
    from poolpilot_kube.objects import Service


def check_services(cluster: Cluster) -> Iterator[Finding]:
    """Services and EndpointSlices of pools that ask for a Picker."""
    if not cluster.knows("services"):
        return
    for pool in cluster.pools:
        reference = pool.spec.endpoint_picker_ref
        if reference is None or reference.kind != "Service" or picker_of(pool, cluster) is None:
            continue
        service = cluster.services.get((pool.metadata.namespace, reference.name))
        if service is None:
            yield Finding(
                Level.ERROR,
                "service-missing",
                about(pool),
                f"its picker Service {reference.name} is not there",
                "kubectl describe inferencepool and picker say why; is the operator running?",
            )
        elif service.metadata.labels.get(MANAGED_BY_LABEL) != MANAGED_BY or service.spec.selector:
            yield Finding(
                Level.ERROR,
                "service-foreign",
                _named(service),
                f"bears the name of the endpointPickerRef of {about(pool)}, and was not made by poolpilot, "
                "which takes over no Service of others",
                "delete it, or name another in spec.endpointPickerRef",
            )
        elif service.metadata.annotations.get(POOL_ANNOTATION, pool.metadata.name) == pool.metadata.name:
            # That of another pool is told as shared.
            yield from _ports(pool, service)
            yield from _endpoints(pool, service, cluster)


def _named(service: Service) -> str:
    return f"Service {service.metadata.namespace}/{service.metadata.name}"


def _ports(pool: Pool, service: Service) -> Iterator[Finding]:
    reference = pool.spec.endpoint_picker_ref
    wanted = reference.port.number if reference is not None and reference.port is not None else DEFAULT_PICKER_PORT
    ports = {port.port: port for port in service.spec.ports}
    if wanted not in ports:
        yield Finding(
            Level.ERROR,
            "service-port",
            _named(service),
            f"has port {', '.join(map(str, ports)) or 'none'}; the endpointPickerRef of {about(pool)} names {wanted}",
            "the operator corrects it; if it does not, see whether it runs",
        )
    elif ports[wanted].app_protocol != H2C:
        yield Finding(
            Level.WARNING,
            "app-protocol",
            _named(service),
            f"port {wanted} has appProtocol {ports[wanted].app_protocol!r}; without {H2C} some gateways speak HTTP/1.1",
            "the operator corrects it; if it does not, see whether it runs",
        )


def _endpoints(pool: Pool, service: Service, cluster: Cluster) -> Iterator[Finding]:
    if not cluster.knows("endpointslices.discovery.k8s.io"):
        return
    slices = cluster.slices.get(service.key, [])
    ready = [
        endpoint
        for one in slices
        for endpoint in one.endpoints or ()
        if endpoint.conditions.ready and endpoint.addresses
    ]
    if not ready:
        yield Finding(
            Level.ERROR,
            "no-ready-picker",
            about(pool),
            f"no picker is ready to serve it: the EndpointSlices of Service {service.metadata.name} "
            f"{'have no ready endpoint' if slices else 'are not there'}",
            "kubectl get pods of its Picker, and their /readyz, say what they wait for",
        )
        return
    targets = {port.target_port for port in service.spec.ports if isinstance(port.target_port, int)}
    given = {port.port for one in slices for port in one.ports or ()}
    if targets and not targets & given:
        yield Finding(
            Level.ERROR,
            "slice-port",
            _named(service),
            f"its EndpointSlices lead to port {', '.join(map(str, sorted(given))) or 'none'}, "
            f"its targetPort is {', '.join(map(str, sorted(targets)))}",
            "the operator corrects it; if it does not, see whether it runs",
        )
