"""What ServiceAccounts asked of the API server, from its audit log: of a release, or of each role over all tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True, order=True)
class Asked:
    """One kind of request, in RBAC's words."""

    group: str
    resource: str
    """With its subresource."""
    verb: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One request."""

    namespace: str
    account: str
    asked: Asked
    forbidden: bool
    """By RBAC. Not by the end of a namespace, which is a 403 too."""
    path: str
    asked_in: str
    """Namespace of what was asked for; empty where it is in none."""


ROLES: Final = ("operator", "picker", "cleanup", "test", "standalone")
"""Of our ServiceAccounts."""


def role_of(account: str) -> str:
    """Which of our programs runs as a ServiceAccount; empty for others'. By the names that charts and operator give."""
    if "poolpilot" not in account:
        return "picker" if account == "llama-picker" else ""
    if "standalone" in account:
        return "standalone"
    return next((role for role in ROLES if account.endswith(f"-{role}")), "picker")


class Audit:
    """The log of one API server, started with `flags`."""

    def __init__(self, folder: Path) -> None:
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(_POLICY))
        self._log = folder / "audit.log"
        self.expected: set[tuple[str, str, str]] = set()
        """Namespace of the account, group and resource of what a test forbids on purpose."""
        self.flags = [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-mode=blocking",
        ]

    def entries(self, namespace: str) -> list[Entry]:
        """Of the ServiceAccounts of a namespace, requests for resources only."""
        return [one for one in self._all() if one.namespace == namespace]

    def ours(self) -> list[Entry]:
        """Of all our accounts, in all namespaces."""
        return [one for one in self._all() if role_of(one.account)]

    def unexpected(self) -> list[Entry]:
        """What RBAC forbade to ours although no test meant it to."""
        return [
            one
            for one in self.ours()
            if one.forbidden and (one.namespace, one.asked.group, one.asked.resource) not in self.expected
        ]

    def _all(self) -> Iterator[Entry]:
        for line in self._log.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            reference = event.get("objectRef")
            *_, namespace, account = event["user"]["username"].split(":")
            if reference is None:
                continue
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            group, code = reference.get("apiGroup", ""), event.get("responseStatus", {}).get("code", 0)
            forbidden = event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
            # Server-side apply of an object that was not there needs the right to create it too.
            for verb in (event["verb"], "create") if event["verb"] == "patch" and code == 201 else (event["verb"],):
                yield Entry(
                    namespace,
                    account,
                    Asked(group, resource, verb),
                    forbidden,
                    event["requestURI"],
                    reference.get("namespace", ""),
                )
