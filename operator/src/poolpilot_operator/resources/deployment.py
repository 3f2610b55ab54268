"""The picker pods of one namespace: a Deployment under the restricted pod security standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.names import ADMIN_PORT, CONFIG_FILE, ENGINE_TOKEN_FILE, TLS_FOLDER
from poolpilot_operator.resources.naming import base_name, labels, metadata, pod_labels

if TYPE_CHECKING:
    from poolpilot_operator.models import Picker

USER: Final = 65_532
"""Number of the user `nonroot` of distroless images; any but 0 would do."""
NOTICE_S: Final = 5
"""How long a pod that ends still takes new streams: data planes need to hear that it ends."""
DRAIN_S: Final = 60
"""How long open requests may go on after that."""
DEFAULT_REQUESTS: Final = {"cpu": "500m", "memory": "512Mi"}
REPLICAS: Final = "poolpilot.dev/replicas"
"""Annotation of the Deployment: who sets its replicas, `picker` or `autoscaler`."""


class Installation(msgspec.Struct, frozen=True):
    """What a Deployment needs to know beside the Picker."""

    namespace: str
    image: str
    served: tuple[str, ...]
    """Namespaces that the pods watch; empty is all."""
    listen_host: str = "[::]"
    """Before the port in flags; $(POD_IP) is known there."""
    config_map: str = ""
    tls_secret: str = ""
    """Empty: no TLS."""
    operator: str = ""
    """Its namespace: only its Services count."""
    assigned_users: bool = False
    """The cluster gives pods their user, and takes none that names one."""


def deployment(picker: Picker, wanted: Installation) -> dict[str, Any]:
    """Without `replicas` where an autoscaler sets them.

    Nothing of what running pods take up by themselves is in the template: configuration, certificate, credentials. Who
    changes one of these restarts nobody.
    """
    spec, name = picker.spec, base_name(picker.key, wanted.namespace)
    head = metadata(picker, wanted.namespace, name)
    head["annotations"] = {REPLICAS: "picker" if spec.autoscaling is None else "autoscaler"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": head,
        "spec": {
            **({"replicas": spec.replicas} if spec.autoscaling is None else {}),
            "selector": {"matchLabels": pod_labels(picker.key)},
            # A new pod must be ready before an old one goes: with one replica there is no other.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "minReadySeconds": 2,
            "revisionHistoryLimit": 5,
            "template": {
                "metadata": {
                    "labels": labels(picker.key, "picker"),
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(ADMIN_PORT),
                    },
                },
                "spec": _pod(picker, wanted, name),
            },
        },
    }


def _pod(picker: Picker, wanted: Installation, name: str) -> dict[str, Any]:
    spec, scheduling = picker.spec, picker.spec.scheduling
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": NOTICE_S + DRAIN_S + 10,
        "securityContext": {
            "runAsNonRoot": True,
            **({} if wanted.assigned_users else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(picker, wanted)],
        "volumes": _volumes(picker, wanted),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": pod_labels(picker.key)},
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        **({"nodeSelector": scheduling.node_selector} if scheduling.node_selector else {}),
        **({"tolerations": list(scheduling.tolerations)} if scheduling.tolerations else {}),
        **({"priorityClassName": scheduling.priority_class_name} if scheduling.priority_class_name else {}),
        **(
            {"imagePullSecrets": [{"name": one.name} for one in spec.image_pull_secrets]}
            if spec.image_pull_secrets
            else {}
        ),
    }


def _container(picker: Picker, wanted: Installation) -> dict[str, Any]:
    spec = picker.spec
    return {
        "name": "picker",
        "image": wanted.image,
        **({"imagePullPolicy": spec.image_pull_policy} if spec.image_pull_policy else {}),
        "args": arguments(picker, wanted),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"}],
        "resources": _resources(picker),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": _probe("/healthz", periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe("/healthz", periodSeconds=10, failureThreshold=3, timeoutSeconds=5),
        "readinessProbe": _probe("/readyz", periodSeconds=2, failureThreshold=2, timeoutSeconds=2),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
            {"name": "config", "mountPath": CONFIG_FILE.rpartition("/")[0], "readOnly": True},
            *([{"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}] if wanted.tls_secret else []),
            *(
                [{"name": "engine", "mountPath": ENGINE_TOKEN_FILE.rpartition("/")[0], "readOnly": True}]
                if spec.engine_credentials is not None
                else []
            ),
        ],
    }


def _resources(picker: Picker) -> dict[str, Any]:
    """As given. An autoscaler by CPU can do nothing where none is requested."""
    given = {name: value for name, value in picker.spec.resources.items() if value}
    if not given:
        return {"requests": DEFAULT_REQUESTS}
    requests, limits = given.get("requests") or {}, given.get("limits") or {}
    if picker.spec.autoscaling is not None and "cpu" not in requests.keys() | limits.keys():
        given["requests"] = {**requests, "cpu": DEFAULT_REQUESTS["cpu"]}
    return given


def arguments(picker: Picker, wanted: Installation) -> list[str]:
    """Flags of `poolpilot-picker`."""
    spec, host = picker.spec, wanted.listen_host
    return [
        f"--picker-name={picker.metadata.name}",
        f"--picker-namespace={picker.metadata.namespace}",
        *([f"--pool-namespaces={','.join(wanted.served)}"] if wanted.served else []),
        *([f"--operator-namespace={wanted.operator}"] if wanted.operator else []),
        f"--admin={host}:{ADMIN_PORT}",
        *([f"--listen={host}:0"] if host != "[::]" else []),
        f"--config-file={CONFIG_FILE}",
        *([f"--tls-cert={TLS_FOLDER}/tls.crt", f"--tls-key={TLS_FOLDER}/tls.key"] if wanted.tls_secret else []),
        *([f"--engine-api-key-file={ENGINE_TOKEN_FILE}"] if spec.engine_credentials is not None else []),
        f"--shutdown-notice={NOTICE_S}",
        f"--drain-timeout={DRAIN_S}",
    ]


def _volumes(picker: Picker, wanted: Installation) -> list[dict[str, Any]]:
    credentials = picker.spec.engine_credentials
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "config", "configMap": {"name": wanted.config_map}},
    ]
    if wanted.tls_secret:
        volumes.append({"name": "tls", "secret": {"secretName": wanted.tls_secret}})
    if credentials is not None:
        ref = credentials.secret_ref
        volumes.append(
            {
                "name": "engine",
                "secret": {"secretName": ref.name, "items": [{"key": ref.key or "token", "path": "token"}]},
            }
        )
    return volumes


def _probe(path: str, **more: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "admin"}, **more}
