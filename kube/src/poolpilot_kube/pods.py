"""What a model server's pod says of itself in annotations and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_kube.names import ACTIVE_PORTS, ENGINE_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping


def active_ports(annotations: Mapping[str, str]) -> set[int] | None:
    """Ports that a pod says it serves; None where it says nothing of it. What is not a port is passed over."""
    text = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
    if text is None:
        return None
    return {int(part) for part in text.replace(" ", "").split(",") if part.isascii() and part.isdecimal()}


def engine_label(labels: Mapping[str, str]) -> str | None:
    """What a pod's labels say its engine is."""
    return next((labels[name] for name in ENGINE_TYPE if name in labels), None)
