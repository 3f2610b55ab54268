"""`python -m poolpilot_kube.cleanup`: before a release goes, all that its operator made goes, pods first, rights last.

What the operator makes in pools' namespaces belongs to their pools, which stay, so nobody else would remove it. First
the release's Picker is deleted, and its operator removes in order what it made for it. Then the operator ends, while it
may still give its Lease back. What is left is deleted here: what was made for Pickers of others, which stay, and for
the release's where no operator runs. Exit codes: 0 all is gone, 1 something is left, 2 wrong flags or no credentials.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from poolpilot_kube.access import access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import AccessError, KubeError, RefusedError
from poolpilot_kube.names import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    OPERATOR_LABEL,
    OUR_GROUP,
    PICKER_LABEL,
    PICKER_NAMESPACE_LABEL,
)
from poolpilot_kube.objects import Object, Resource
from poolpilot_kube.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

NAMESPACED: Final = tuple(
    Resource(group, version, plural, Object)
    for group, version, plurals in (
        ("", "v1", ("services", "configmaps", "serviceaccounts")),
        ("discovery.k8s.io", "v1", ("endpointslices",)),
        ("apps", "v1", ("deployments",)),
        ("policy", "v1", ("poddisruptionbudgets",)),
        ("autoscaling", "v2", ("horizontalpodautoscalers",)),
        ("networking.k8s.io", "v1", ("networkpolicies",)),
        ("rbac.authorization.k8s.io", "v1", ("rolebindings", "roles")),
        ("monitoring.coreos.com", "v1", ("servicemonitors",)),
        ("cert-manager.io", "v1", ("certificates",)),
    )
    for plural in plurals
)
"""What an operator makes, in namespaces. Secrets are read and deleted by name: nothing here may list any."""
CLUSTER: Final = tuple(
    Resource("rbac.authorization.k8s.io", "v1", plural, Object) for plural in ("clusterrolebindings", "clusterroles")
)
"""And in none."""
_PICKERS: Final = Resource(OUR_GROUP, "v1alpha1", "pickers", Object)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", Object)
_PODS: Final = Resource("", "v1", "pods", Object)
_SECRETS: Final = Resource("", "v1", "secrets", Object)
ALSO: Final = ((_PODS, ("list",)), (_SECRETS, ("get", "delete")))
"""What is needed beside listing and deleting these: to wait for pods, and certificates by their name."""
_RIGHTS: Final = ("rolebindings", "roles", "clusterrolebindings", "clusterroles", "serviceaccounts")
"""In the order in which they go: pods that drain need them."""
_ASK_S: Final = 1.0
_GONE_S: Final = 60.0
"""How long what was deleted may take to go, and an operator to end."""
_DRAIN_S: Final = 90.0
"""How long pickers' pods may drain: more than their grace."""
_T = TypeVar("_T")


class _Items(msgspec.Struct):
    items: list[Object] | None = None


class _ScaleStatus(msgspec.Struct, frozen=True):
    selector: str = ""


class _Scale(msgspec.Struct):
    """What a Deployment answers to another number."""

    status: _ScaleStatus = _ScaleStatus()


class _Left(msgspec.Struct, frozen=True):
    """An object that is there."""

    plural: str
    path: str
    one: Object


class Cleanup:
    """What the operator of `namespace` made. `namespaces` empty: in all, and what is in none."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        picker: str = "",
        namespaces: Sequence[str] = (),
        *,
        operator: str = "",
        say: Callable[[str], None] = print,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`picker`: of the release, empty if it has none; `operator`: its Deployment, empty if it is not to end."""
        self._api = api
        self._namespace = namespace
        self._picker = picker
        self._operator = operator
        self._namespaces = namespaces or ("",)
        self._collections = [(resource, resource.path(one)) for one in self._namespaces for resource in NAMESPACED]
        self._collections += [] if namespaces else [(resource, resource.path()) for resource in CLUSTER]
        self._say = say
        self._now = now
        self._sleep = sleep

    async def run(self, timeout_s: float) -> list[str]:
        """What is left at the end, none if all went well. Raises KubeError where the API server does not play along."""
        await self._delete_picker(timeout_s)
        await self._end_operator()
        made = {OPERATOR_LABEL: self._namespace}
        left = await self._left(made)
        rights = [one for one in left if one.plural in _RIGHTS]
        if left:
            self._say(f"{len(left)} objects are left that the operator made; deleting them")
        for one in left:
            if one.plural not in _RIGHTS:
                await self._delete(one.path)
        if rights:
            await self._until(partial(self._pods_of, left), _DRAIN_S)
        for one in sorted(rights, key=lambda one: _RIGHTS.index(one.plural)):
            if one.plural == "serviceaccounts":
                await self._delete_certificate(one.one)
            await self._delete(one.path)
        return [one.path for one in await self._until(partial(self._left, made), _GONE_S)]

    async def _delete_picker(self, timeout_s: float) -> None:
        if not self._picker:
            return
        if await self._delete(f"{_PICKERS.path(self._namespace)}/{self._picker}", quiet=True):
            name = f"{self._namespace}/{self._picker}"
            self._say(f"Picker {name} is deleted; waiting for its operator to remove what it made for it")
        made = {PICKER_NAMESPACE_LABEL: self._namespace, PICKER_LABEL: self._picker}
        left = await self._until(partial(self._left, made), timeout_s)
        if left:
            self._say(f"the operator has left {len(left)} objects after {timeout_s:g} s")

    async def _end_operator(self) -> None:
        """While it still may give its Lease back, and so that it makes nothing again."""
        if not self._operator:
            return
        path = f"{_DEPLOYMENTS.path(self._namespace)}/{self._operator}/scale"
        try:
            body = {"spec": {"replicas": 0}}
            ask = partial(self._api.send, "PATCH", path, None, body, "application/merge-patch+json")
            said = await patiently(ask, sleep=self._sleep)
        except RefusedError as error:
            if error.status == 404:
                return
            raise
        selector = msgspec.json.decode(said, type=_Scale).status.selector
        if selector:
            self._say("waiting for the operator to end")
            await self._until(partial(self._listed, _PODS.path(self._namespace), selector), _GONE_S)

    async def _until(self, ask: Callable[[], Awaitable[list[_T]]], timeout_s: float) -> list[_T]:
        """What there still is, as soon as it is nothing, or in the end."""
        deadline = self._now() + timeout_s
        while (left := await ask()) and self._now() < deadline:
            await self._sleep(_ASK_S)
        return left

    async def _left(self, labels: Mapping[str, str]) -> list[_Left]:
        selector = ",".join(f"{key}={value}" for key, value in {MANAGED_BY_LABEL: MANAGED_BY, **labels}.items())
        found: list[_Left] = []
        for resource, path in self._collections:
            for one in await self._listed(path, selector):
                where = f"{resource.path(one.metadata.namespace)}/{one.metadata.name}"
                found.append(_Left(resource.plural, where, one))
        return found

    async def _pods_of(self, left: Sequence[_Left]) -> list[Object]:
        """Pods of the Pickers that objects were made for."""
        pickers = {_picker_of(one.one) for one in left} - {None}
        selector = f"{MANAGED_BY_LABEL}={MANAGED_BY},app.kubernetes.io/component=picker"
        pods = [one for name in self._namespaces for one in await self._listed(_PODS.path(name), selector)]
        return [one for one in pods if _picker_of(one) in pickers]

    async def _listed(self, path: str, selector: str) -> list[Object]:
        try:
            said = await patiently(partial(self._api.get, path, {"labelSelector": selector}), sleep=self._sleep)
        except RefusedError as error:
            # A kind that this cluster does not have.
            if error.status == 404:
                return []
            raise
        return msgspec.json.decode(said, type=_Items).items or []

    async def _delete_certificate(self, account: Object) -> None:
        """Nothing may list Secrets: a picker's is named like its ServiceAccount."""
        path = f"{_SECRETS.path(account.metadata.namespace)}/{account.metadata.name}-tls"
        try:
            said = await patiently(partial(self._api.get, path), sleep=self._sleep)
        except RefusedError as error:
            if error.status == 404:
                return
            raise
        labels = msgspec.json.decode(said, type=Object).metadata.labels
        if (labels.get(MANAGED_BY_LABEL), labels.get(OPERATOR_LABEL)) == (MANAGED_BY, self._namespace):
            await self._delete(path)

    async def _delete(self, path: str, *, quiet: bool = False) -> bool:
        """False where it was gone already."""
        if not quiet:
            self._say(f"deleting {path}")
        try:
            query = {"propagationPolicy": "Background"}
            await patiently(partial(self._api.send, "DELETE", path, query), sleep=self._sleep)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True


def _picker_of(one: Object) -> tuple[str, str] | None:
    labels = one.metadata.labels
    if PICKER_LABEL not in labels or PICKER_NAMESPACE_LABEL not in labels:
        return None
    return labels[PICKER_NAMESPACE_LABEL], labels[PICKER_LABEL]


def main(argv: list[str]) -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m poolpilot_kube.cleanup", description=__doc__, allow_abbrev=False)
    parser.add_argument("--namespace", required=True, help="of the release")
    parser.add_argument("--picker", default="", help="name of the release's Picker, if it has one")
    parser.add_argument("--operator", default="", metavar="DEPLOYMENT", help="is ended before the rest is deleted")
    parser.add_argument("--watch-namespaces", default="", metavar="A,B", help="as the operator has it; empty is all")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="for the operator to remove what is the Picker's (default: %(default)g)",
    )
    given = parser.parse_args(argv)
    try:
        found = access()
    except AccessError as error:
        sys.stderr.write(f"cleanup: {error}\n")
        return 2
    namespaces = [one for one in given.watch_namespaces.split(",") if one]
    try:
        left = asyncio.run(_run(KubeApi(found), given, namespaces))
    except KubeError as error:
        sys.stderr.write(f"cleanup: {error}\n")
        return 1
    for path in left:
        sys.stderr.write(f"cleanup: still there: {path}\n")
    return 1 if left else 0


async def _run(api: KubeApi, given: argparse.Namespace, namespaces: Sequence[str]) -> list[str]:
    async with api:
        job = Cleanup(api, given.namespace, given.picker, namespaces, operator=given.operator, say=_say)
        return await job.run(given.timeout)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
