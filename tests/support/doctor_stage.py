"""A sound set-up on an API server without controllers, as the doctor wants it, and the parts to break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_lab.control_plane.api import Api

Object = dict[str, Any]
POOLS: Final = "inference.networking.k8s.io/v1"
OURS: Final = "poolpilot.dev/v1alpha1"
GATEWAY_API: Final = "gateway.networking.k8s.io/v1"
ENVOY_GATEWAY: Final = "gateway.envoyproxy.io/v1alpha1"
ISTIO: Final = "networking.istio.io/v1"
DESTINATION: Final = "x-gateway-destination-endpoint"

FOREIGN: Final = (
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    ("gateway.envoyproxy.io", "v1alpha1", "EnvoyExtensionPolicy", "envoyextensionpolicies"),
    ("gateway.envoyproxy.io", "v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies"),
    ("gateway.envoyproxy.io", "v1alpha1", "ClientTrafficPolicy", "clienttrafficpolicies"),
    ("gateway.envoyproxy.io", "v1alpha1", "EnvoyPatchPolicy", "envoypatchpolicies"),
    ("networking.istio.io", "v1", "DestinationRule", "destinationrules"),
    ("networking.istio.io", "v1alpha3", "EnvoyFilter", "envoyfilters"),
    ("aigateway.envoyproxy.io", "v1alpha1", "AIGatewayRoute", "aigatewayroutes"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
)
"""Kinds of others that the charts and the doctor know."""


def open_definition(group: str, version: str, kind: str, plural: str, **metadata: Any) -> Object:
    """A kind whose objects may be anything: for kinds of others, whose real definitions are not here."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests", **metadata.get("annotations", {})},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}
                    },
                }
            ],
        },
    }


class Stage:
    """Objects of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def named(self, api_version: str, kind: str, name: str, **metadata: Any) -> Object:
        """The head of an object."""
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace, **metadata},
        }

    async def sound(self) -> None:
        """A Picker, a pool with a ready pod, its Service and EndpointSlice: all as operator and cluster leave them."""
        await self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        await self.picker()
        await self.pool()
        await self.pod()
        await self.service()
        await self.slice()

    async def picker(self, name: str = "default", status: Mapping[str, Any] | None = None, **spec: Any) -> Object:
        """With a status as of a content operator, or with that given; {} is none."""
        made = await self.api.apply({**self.named(OURS, "Picker", name), "spec": spec})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        content = {
            "observedGeneration": made["metadata"]["generation"],
            "conditions": [ready],
            "replicas": 1,
            "readyReplicas": 1,
        }
        if status is None or status:
            await self.api.set_status(made, {**content, **(status or {})})
        return made

    async def pool(self, name: str = "llama", picker: str | None = "default", **spec: Any) -> Object:
        """None as `picker` is no label; None as a field takes it out."""
        labels = {} if picker is None else {"poolpilot.dev/picker": picker}
        fields = {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": f"{name}-picker", "port": {"number": 9002}},
            **spec,
        }
        annotations = fields.pop("annotations", {})
        return await self.api.apply(
            {
                **self.named(POOLS, "InferencePool", name, labels=labels, annotations=annotations),
                "spec": {key: value for key, value in fields.items() if value is not None},
            }
        )

    async def pod(
        self, name: str = "llama-0", app: str = "llama", *, ready: bool = True, port: int = 8000, **metadata: Any
    ) -> None:
        """A model server."""
        pod = {
            **self.named("v1", "Pod", name, labels={"app": app}, **metadata),
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [{"name": "vllm", "image": "vllm", "ports": [{"containerPort": port}]}],
            },
        }
        await self.api.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": self.namespace}}
        )
        await self.api.apply(pod)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        await self.api.set_status(pod, {"phase": "Running", "podIP": "10.1.2.3", "conditions": [condition]})

    async def service(self, name: str = "llama-picker", **changes: Any) -> None:
        """As the operator makes it."""
        port = {"name": "grpc", "port": 9002, "targetPort": 20000, "appProtocol": "kubernetes.io/h2c"}
        labels = changes.pop("labels", {"app.kubernetes.io/managed-by": "poolpilot"})
        selector = changes.pop("selector", None)
        await self.api.apply(
            {
                **self.named("v1", "Service", name, labels=labels, annotations={"poolpilot.dev/pool": "llama"}),
                "spec": {"ports": [{**port, **changes}], **({"selector": selector} if selector else {})},
            }
        )

    async def slice(self, service: str = "llama-picker", *, ready: bool = True, port: int = 20000) -> None:
        """Leads to one picker pod."""
        await self.api.apply(
            {
                **self.named(
                    "discovery.k8s.io/v1", "EndpointSlice", service, labels={"kubernetes.io/service-name": service}
                ),
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.1.2.4"], "conditions": {"ready": ready}}],
                "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}],
            }
        )

    async def delete(self, api_version: str, kind: str, name: str) -> None:
        """One object."""
        await self.api.delete(self.named(api_version, kind, name))

    async def applied(self, api_version: str, kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> Object:
        """Any object with a spec."""
        return await self.api.apply({**self.named(api_version, kind, name, **metadata), "spec": spec})

    async def envoy_gateway(self, *, tls: bool = False, companions: bool = True, **processor: Any) -> None:
        """Route and policies as docs/gateways.md has them; None as a field takes it out."""
        await self.picker(**({} if tls else {"tls": {"mode": "Disabled"}}))
        await self.applied(
            GATEWAY_API,
            "HTTPRoute",
            "llm",
            {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [{"name": "llama", "port": 8000}]}]},
        )
        fields = {
            "backendRefs": [{"name": "llama-picker", "port": 9002}],
            "messageTimeout": "5s",
            "processingMode": {"request": {"body": "Buffered"}, "response": {}, "allowModeOverride": True},
            **processor,
        }
        target = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "llm"}]
        await self.applied(
            ENVOY_GATEWAY,
            "EnvoyExtensionPolicy",
            "llm",
            {"targetRefs": target, "extProc": [{key: value for key, value in fields.items() if value is not None}]},
        )
        if not companions:
            return
        await self.applied(
            ENVOY_GATEWAY,
            "BackendTrafficPolicy",
            "llm",
            {
                "targetRefs": target,
                "loadBalancer": {
                    "type": "RoundRobin",
                    "endpointOverride": {"extractFrom": [{"header": DESTINATION}]},
                },
            },
        )
        await self.client_policy()

    async def client_policy(self, **spec: Any) -> None:
        """Of the Gateway."""
        fields = {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
            "connection": {"bufferLimit": "32Mi"},
            "headers": {"earlyRequestHeaders": {"remove": [DESTINATION]}},
            **spec,
        }
        await self.applied(ENVOY_GATEWAY, "ClientTrafficPolicy", "gw", fields)

    async def inference_route(self, pool: str = "llama") -> None:
        """An HTTPRoute to an InferencePool."""
        reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
        await self.applied(
            GATEWAY_API,
            "HTTPRoute",
            "pool-route",
            {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [reference]}]},
        )
