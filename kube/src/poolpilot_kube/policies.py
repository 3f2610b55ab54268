"""Ready-made configurations by name: for a picker's `--policy` and the operator's `spec.config.policy`."""

from __future__ import annotations

from typing import Final

from poolpilot_kube.names import OUR_GROUP

KIND: Final = "EndpointPickerConfig"
API_VERSION: Final = f"{OUR_GROUP}/v1alpha1"
"""Of the configuration file; it is no resource of the API server."""
DEFAULT_POLICY: Final = "predicted-finish"

_PLUGINS: Final[dict[str, tuple[tuple[str, float | None], ...]]] = {
    DEFAULT_POLICY: (("predicted-finish-picker", None),),
    "random": (("random-picker", None),),
    "round-robin": (("round-robin-picker", None),),
    "least-request": (("least-request-picker", None),),
    "power-of-two": (("power-of-two-picker", None),),
    # What llm-d-router 0.10 runs when it is given no configuration.
    "llm-d-default": (
        ("queue-scorer", 2),
        ("kv-cache-utilization-scorer", 2),
        ("prefix-cache-scorer", 3),
        ("max-score-picker", None),
    ),
}

POLICIES: Final = tuple(_PLUGINS)


def policy_config(name: str) -> str:
    """The EndpointPickerConfig of a named policy, as YAML.

    Raises:
        KeyError: not one of POLICIES.
    """
    plugins = _PLUGINS[name]
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", "plugins:"]
    lines += [f"  - type: {plugin}" for plugin, _ in plugins]
    lines += ["schedulingProfiles:", "  - name: default", "    plugins:"]
    for plugin, weight in plugins:
        lines.append(f"      - pluginRef: {plugin}")
        if weight is not None:
            lines.append(f"        weight: {weight}")
    return "\n".join(lines) + "\n"
