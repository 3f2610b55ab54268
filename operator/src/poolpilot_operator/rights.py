"""The RBAC rules of operator and pickers, each with its reason: the one source for charts, Roles and documentation.

The operator grants a picker nothing that it does not hold itself, so it needs neither `escalate` nor `bind`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from poolpilot_kube.names import LEGACY_GROUP, OUR_GROUP, POOL_GROUP, ROUTER_GROUP

_READ: Final = ("list", "watch")
_OWN: Final = ("get", "list", "watch", "create", "patch", "delete")
_BY_NAME: Final = ("get", "create", "patch", "delete")
"""Of what is never listed."""


class Rule(msgspec.Struct, frozen=True):
    """One rule of a Role; `why` is for people."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str

    def as_rbac(self) -> dict[str, Any]:
        """As RBAC writes it."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


PICKER: Final = (
    Rule("", ("pods",), _READ, "the endpoints of its pools"),
    Rule("", ("services",), _READ, "which pools it serves, and on which port each"),
    Rule(POOL_GROUP, ("inferencepools",), _READ, "selector and target ports of its pools"),
    Rule(ROUTER_GROUP, ("inferenceobjectives", "inferencemodelrewrites"), _READ, "priorities and rewritten models"),
    Rule(LEGACY_GROUP, ("inferenceobjectives", "inferencemodelrewrites"), _READ, "the same in their older group"),
)
"""Of a picker, in the namespaces that it serves."""

OPERATOR: Final = (
    *PICKER,
    Rule(OUR_GROUP, ("pickers", "loraadapters"), _READ, "what is wanted"),
    Rule(OUR_GROUP, ("pickers/status", "loraadapters/status"), ("patch",), "what came of it"),
    Rule("", ("namespaces",), ("get",), "whether one is being deleted, before anything is made there"),
    Rule("", ("services",), _OWN, "one for each served pool"),
    Rule("discovery.k8s.io", ("endpointslices",), _OWN, "which picker pods serve a pool"),
    Rule("apps", ("deployments",), _OWN, "the picker pods"),
    Rule("", ("serviceaccounts", "configmaps"), _OWN, "who the pickers are, and their configuration"),
    Rule("rbac.authorization.k8s.io", ("roles", "rolebindings"), _OWN, "the pickers' rights where they serve"),
    Rule("policy", ("poddisruptionbudgets",), _OWN, "no drain of nodes takes all pickers"),
    Rule("autoscaling", ("horizontalpodautoscalers",), _OWN, "spec.autoscaling of a Picker"),
    Rule("networking.k8s.io", ("networkpolicies",), _OWN, "nothing but its ports is reached on a picker"),
    Rule("", ("secrets",), _BY_NAME, "certificates of pickers; credentials, by their name"),
    Rule("", ("events",), ("create",), "what a person should know"),
    Rule("monitoring.coreos.com", ("servicemonitors",), _BY_NAME, "metrics of pickers, where the kind exists"),
    Rule("cert-manager.io", ("certificates",), _BY_NAME, "tls.mode: CertManager"),
)
"""Of the operator, in the namespaces that it watches."""

OPERATOR_HOME: Final = (
    Rule("coordination.k8s.io", ("leases",), ("get", "create", "update"), "one operator writes at a time"),
)
"""Of the operator, in its own namespace."""

OPERATOR_CLUSTER: Final = (
    Rule(
        "rbac.authorization.k8s.io",
        ("clusterroles", "clusterrolebindings"),
        _OWN,
        "rights of a Picker that may serve every namespace",
    ),
)
"""Of the operator beside these, only where it watches all namespaces."""

ALL: Final = {
    "OPERATOR": OPERATOR,
    "OPERATOR_HOME": OPERATOR_HOME,
    "OPERATOR_CLUSTER": OPERATOR_CLUSTER,
    "PICKER": PICKER,
}
"""By the name that the documentation marks each table with."""


def table(rules: tuple[Rule, ...]) -> str:
    """As Markdown."""
    rows = [
        f"| {rule.group or '(core)'} | {', '.join(rule.resources)} | {', '.join(rule.verbs)} | {rule.why} |"
        for rule in rules
    ]
    return "\n".join(["| group | resources | verbs | for |", "| --- | --- | --- | --- |", *rows])
