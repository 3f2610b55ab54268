"""`python -m poolpilot_kube.cleanup`: before a release goes, deletes its Picker and waits until what it made is gone.

What the operator makes in pools' namespaces belongs to their pools, which stay, so nobody else would remove it. The
operator does it as long as it runs; what is left after a while is deleted here. Exit codes: 0 all is gone, 1 something
is left, 2 wrong flags or no credentials.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.access import access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import AccessError, KubeError, RefusedError
from poolpilot_kube.names import MANAGED_BY, MANAGED_BY_LABEL, OUR_GROUP, PICKER_LABEL, PICKER_NAMESPACE_LABEL
from poolpilot_kube.objects import Object, Resource
from poolpilot_kube.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

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
"""What an operator makes, in namespaces. Not Secrets: they go with their Picker, and nothing here may list any."""
CLUSTER: Final = tuple(
    Resource("rbac.authorization.k8s.io", "v1", plural, Object) for plural in ("clusterrolebindings", "clusterroles")
)
"""And in none."""
_PICKERS: Final = Resource(OUR_GROUP, "v1alpha1", "pickers", Object)
_ASK_S: Final = 1.0
_GONE_S: Final = 60.0
"""How long what was deleted may take to go: a Deployment's pods drain first."""


class _Items(msgspec.Struct):
    items: list[Object] | None = None


class Cleanup:
    """One Picker's. `namespaces` empty: all, and what is in none."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        picker: str,
        namespaces: Sequence[str] = (),
        *,
        say: Callable[[str], None] = print,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._picker = (namespace, picker)
        self._collections = [
            (resource, resource.path(one)) for one in namespaces or ("",) for resource in NAMESPACED
        ] + ([] if namespaces else [(resource, resource.path()) for resource in CLUSTER])
        labels = {MANAGED_BY_LABEL: MANAGED_BY, PICKER_NAMESPACE_LABEL: namespace, PICKER_LABEL: picker}
        self._query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        self._say = say
        self._now = now
        self._sleep = sleep

    async def run(self, timeout_s: float) -> list[str]:
        """What is left at the end, none if all went well. Raises KubeError where the API server does not play along."""
        namespace, name = self._picker
        if await self._delete(f"{_PICKERS.path(namespace)}/{name}"):
            self._say(f"Picker {namespace}/{name} is deleted; waiting for its operator to remove what it made for it")
        left = await self._until_gone(timeout_s)
        if not left:
            return []
        self._say(f"the operator has left {len(left)} objects after {timeout_s:g} s; deleting them")
        for path in left:
            self._say(f"deleting {path}")
            await self._delete(path)
        return await self._until_gone(_GONE_S)

    async def _until_gone(self, timeout_s: float) -> list[str]:
        deadline = self._now() + timeout_s
        while (left := await self._left()) and self._now() < deadline:
            await self._sleep(_ASK_S)
        return left

    async def _left(self) -> list[str]:
        """Paths of what there is."""
        paths = []
        for resource, path in self._collections:
            try:
                said = await patiently(partial(self._api.get, path, self._query), sleep=self._sleep)
            except RefusedError as error:
                # A kind that this cluster does not have.
                if error.status == 404:
                    continue
                raise
            found = msgspec.json.decode(said, type=_Items).items or ()
            paths += [f"{resource.path(one.metadata.namespace)}/{one.metadata.name}" for one in found]
        return paths

    async def _delete(self, path: str) -> bool:
        """False where it was gone already."""
        try:
            query = {"propagationPolicy": "Background"}
            await patiently(partial(self._api.send, "DELETE", path, query), sleep=self._sleep)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True


def main(argv: list[str]) -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m poolpilot_kube.cleanup", description=__doc__, allow_abbrev=False)
    parser.add_argument("--namespace", required=True, help="of the Picker")
    parser.add_argument("--picker", required=True, help="its name")
    parser.add_argument("--watch-namespaces", default="", metavar="A,B", help="as the operator has it; empty is all")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for the operator (default: 60)")
    given = parser.parse_args(argv)
    try:
        found = access()
    except AccessError as error:
        sys.stderr.write(f"cleanup: {error}\n")
        return 2
    namespaces = [one for one in given.watch_namespaces.split(",") if one]
    try:
        left = asyncio.run(_run(KubeApi(found), given.namespace, given.picker, namespaces, given.timeout))
    except KubeError as error:
        sys.stderr.write(f"cleanup: {error}\n")
        return 1
    for path in left:
        sys.stderr.write(f"cleanup: still there: {path}\n")
    return 1 if left else 0


async def _run(api: KubeApi, namespace: str, picker: str, namespaces: Sequence[str], timeout_s: float) -> list[str]:
    async with api:
        return await Cleanup(api, namespace, picker, namespaces, say=_say).run(timeout_s)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
