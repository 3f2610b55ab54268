"""What a Picker gets beside its pods, in each namespace where it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolpilot_kube.names import ADMIN_PORT, CONFIG_FILE, OPERATOR_LABEL, POOL_PORTS
from poolpilot_kube.policies import DEFAULT_POLICY, policy_config
from poolpilot_operator.resources.naming import MADE_FOR, base_name, cluster_name, labels, metadata, pod_labels
from poolpilot_operator.rights import PICKER

if TYPE_CHECKING:
    from poolpilot_operator.models import Picker

_RBAC = "rbac.authorization.k8s.io"


def config_map(picker: Picker, namespace: str, given: str | None) -> dict[str, Any]:
    """`given` is the text of spec.config.configMapRef."""
    config = picker.spec.config
    text = given if given is not None else config.inline or policy_config(config.policy or DEFAULT_POLICY)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace)),
        "data": {CONFIG_FILE.rpartition("/")[2]: text},
    }


def account(picker: Picker, namespace: str) -> dict[str, Any]:
    """Who the pods are, also while they drain."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace), owned=False),
    }


def rights(picker: Picker, home: str, served: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the pods of namespace `home` may read: in the namespaces served, or everywhere if there are none."""
    rules = [rule.as_rbac() for rule in PICKER]
    subject = {"kind": "ServiceAccount", "name": base_name(picker.key, home), "namespace": home}
    found: list[dict[str, Any]] = []
    for namespace in served or ("",):
        scope = "" if namespace else "Cluster"
        name = base_name(picker.key, namespace) if namespace else cluster_name(picker.key)
        head = metadata(picker, namespace, name, owned=False)
        found += [
            {"apiVersion": f"{_RBAC}/v1", "kind": f"{scope}Role", "metadata": head, "rules": rules},
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": f"{scope}RoleBinding",
                "metadata": head,
                "roleRef": {"apiGroup": _RBAC, "kind": f"{scope}Role", "name": head["name"]},
                "subjects": [subject],
            },
        ]
    return found


def budget(picker: Picker, namespace: str) -> dict[str, Any]:
    """A drain of nodes takes one pod after the other."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": pod_labels(picker.key)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def autoscaler(picker: Picker, namespace: str) -> dict[str, Any] | None:
    """By the CPU of the pods; None where none is wanted."""
    wanted = picker.spec.autoscaling
    if wanted is None:
        return None
    name = base_name(picker.key, namespace)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(picker, namespace, name),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": wanted.min_replicas,
            "maxReplicas": wanted.max_replicas,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": wanted.target_cpu},
                    },
                }
            ],
            # A picker that goes loses what it has learned: not at every dip.
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        },
    }


def network_policy(picker: Picker, namespace: str) -> dict[str, Any]:
    """Nothing but its ports is reached, from anywhere: where gateways and monitoring are is not known here."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace)),
        "spec": {
            "podSelector": {"matchLabels": pod_labels(picker.key)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"protocol": "TCP", "port": POOL_PORTS[0], "endPort": POOL_PORTS[-1]},
                        {"protocol": "TCP", "port": ADMIN_PORT},
                    ]
                }
            ],
        },
    }


def metrics_service(picker: Picker, namespace: str) -> dict[str, Any]:
    """Where metrics of the pods are found."""
    head = metadata(picker, namespace, f"{base_name(picker.key, namespace)}-metrics")
    # Without the labels by which pickers find the Services of their pools.
    head["annotations"] = {MADE_FOR: "/".join(picker.key)}
    head["labels"] = {**_plain(picker), "app.kubernetes.io/component": "metrics"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": head,
        "spec": {
            "clusterIP": "None",
            "selector": pod_labels(picker.key),
            "ports": [{"name": "metrics", "protocol": "TCP", "port": ADMIN_PORT, "targetPort": "admin"}],
        },
    }


def monitor(picker: Picker, namespace: str) -> dict[str, Any]:
    """For the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace)),
        "spec": {
            "selector": {"matchLabels": {**_plain(picker), "app.kubernetes.io/component": "metrics"}},
            "endpoints": [{"port": "metrics", "interval": "15s"}],
        },
    }


def certificate(picker: Picker, namespace: str, secret: str, names: list[str], operator: str) -> dict[str, Any]:
    """For cert-manager; `operator`: its namespace."""
    issuer = picker.spec.tls.issuer_ref
    assert issuer is not None
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata(picker, namespace, base_name(picker.key, namespace)),
        "spec": {
            "secretName": secret,
            # cert-manager leaves the Secret when the Certificate goes: by these it is known as this Picker's.
            "secretTemplate": {"labels": {**labels(picker.key, "picker"), OPERATOR_LABEL: operator}},
            "dnsNames": names,
            "issuerRef": {"group": issuer.group, "kind": issuer.kind, "name": issuer.name},
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "usages": ["server auth"],
        },
    }


def _plain(picker: Picker) -> dict[str, str]:
    found = labels(picker.key, "metrics")
    return {name: value for name, value in found.items() if not name.startswith("poolpilot.dev/")} | {
        "app.kubernetes.io/instance": base_name(picker.key, picker.metadata.namespace)
    }
