"""Pods and sources as a node has them, for tests without an API server."""

from __future__ import annotations

import base64
from typing import Any, Final

from poolpilot_lab.kubelet.environment import Place
from poolpilot_lab.kubelet.objects import ConfigMap, NodePod, PodMeta, Secret

PLACE: Final = Place("node-1", "10.244.0.1", "10.244.1.7")


def pod(*containers: dict[str, Any], **spec: Any) -> NodePod:
    """The pod `serving/a`."""
    meta = PodMeta("a", "serving", "uid-a", labels={"app": "x", "b": 'say "hi"'}, annotations={"k/1": "v"})
    return NodePod(meta, {"containers": list(containers) or [{"name": "c", "image": "i"}], **spec})


class Sources:
    """ConfigMaps and Secrets of the namespace `serving`."""

    def __init__(self) -> None:
        self.config_maps: dict[str, dict[str, str]] = {}
        self.secrets: dict[str, dict[str, bytes]] = {}

    def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        found = self.config_maps.get(name) if namespace == "serving" else None
        return None if found is None else ConfigMap(PodMeta(name, namespace), found, {"raw": encoded(b"\xff\x00")})

    def secret(self, namespace: str, name: str) -> Secret | None:
        found = self.secrets.get(name) if namespace == "serving" else None
        data = {key: encoded(value) for key, value in (found or {}).items()}
        return None if found is None else Secret(PodMeta(name, namespace), data)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
