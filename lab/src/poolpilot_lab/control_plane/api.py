"""A Kubernetes API server over HTTP, as far as tests and benches need it: many objects at once, as plain dictionaries.

Not the client of the package kubernetes: that makes typed models of all it reads, one object after the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import aiohttp
import msgspec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping
    from types import TracebackType

Object: TypeAlias = dict[str, Any]
"""An object of the API as JSON has it."""
_MANAGER: Final = "poolpilot-lab"
_AT_ONCE: Final = 32
"""Requests under way: more only wait for each other, in a server that has two cores too."""
_WAIT_S: Final = 30.0
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


class ApiError(Exception):
    """The server refused; `status` is that of HTTP."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class _Kind:
    plural: str
    namespaced: bool


class Api:
    """One client. Server-side apply takes over every field it names. Names of resources come from the server."""

    def __init__(self, server: str, trust: ssl.SSLContext) -> None:
        """`server` as kubeconfig has it; `trust` knows the server's authority and shows who asks."""
        self._server = server
        self._trust = trust
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=_AT_ONCE)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_WAIT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> bytes:
        """The answer's body; ApiError for every status but 2xx, OSError or aiohttp.ClientError without an answer."""
        if self._session is None:
            raise RuntimeError("Api is used outside its context")
        content = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": content_type} if content is not None else None
        async with self._session.request(method, f"{self._server}{path}", data=content, headers=headers) as answer:
            said = await answer.read()
            if not answer.ok:
                raise ApiError(f"{method} {path}", answer.status, _message(said))
            return said

    async def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object:
        """An object; ApiError with status 404 if there is none."""
        identity = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        return _object(await self.call("GET", await self._path(identity)))

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """A new object; ApiError with status 409 if there is one of that name."""
        collection = (await self._path(manifest)).rpartition("/")[0]
        return _object(await self.call("POST", f"{collection}?fieldManager={_MANAGER}", manifest))

    async def apply(self, manifest: Mapping[str, Any]) -> Object:
        """Server-side apply."""
        path = f"{await self._path(manifest)}?fieldManager={_MANAGER}&force=true"
        return _object(await self.call("PATCH", path, manifest, content_type=_APPLY))

    async def set_status(self, manifest: Mapping[str, Any], status: Mapping[str, Any]) -> Object:
        """Merges `status` into the status of the object that `manifest` names, as a controller or a kubelet would."""
        path = f"{await self._path(manifest)}/status?fieldManager={_MANAGER}"
        return _object(await self.call("PATCH", path, {"status": status}, content_type=_MERGE))

    async def delete(self, manifest: Mapping[str, Any]) -> None:
        """At once, without a grace period."""
        await self.call("DELETE", f"{await self._path(manifest)}?gracePeriodSeconds=0")

    async def define(self, definitions: Iterable[Mapping[str, Any]]) -> None:
        """Applies CustomResourceDefinitions and waits until their kinds are served; TimeoutError if they never are.

        Afterwards the server has written all that it writes into their statuses.
        """
        async with asyncio.timeout(_WAIT_S):
            for definition in definitions:
                await self.apply(definition)
                spec = definition["spec"]
                kinds = [(f"{spec['group']}/{one['name']}", spec["names"]["kind"]) for one in spec["versions"]]
                for version, kind in kinds:
                    await self._served(version, kind)
                await self._settled(definition)

    async def _served(self, version: str, kind: str) -> None:
        while True:
            if await self._kind(version, kind) is not None:
                return
            await asyncio.sleep(0.05)

    async def _settled(self, definition: Mapping[str, Any]) -> None:
        """Controllers of the server write one condition each, some of them after the kind is served."""
        path = await self._path(definition)
        expected = {"NamesAccepted", "Established"}
        if definition["spec"]["group"].endswith((".k8s.io", ".kubernetes.io")):
            expected.add("KubernetesAPIApprovalPolicyConformant")
        while True:
            status = _object(await self.call("GET", path)).get("status") or {}
            if expected <= {one["type"] for one in status.get("conditions") or ()}:
                return
            await asyncio.sleep(0.05)

    async def _path(self, manifest: Mapping[str, Any]) -> str:
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        known = await self._kind(version, kind)
        if known is None:
            raise ApiError(f"{kind} of {version}", 404, "the server does not know this kind")
        where = f"/namespaces/{metadata.get('namespace') or 'default'}" if known.namespaced else ""
        return f"{_root(version)}{where}/{known.plural}/{metadata['name']}"

    async def _kind(self, version: str, kind: str) -> _Kind | None:
        if (version, kind) not in self._kinds:
            try:
                listed = _object(await self.call("GET", _root(version)))["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise
                return None
            for one in listed:
                if "/" not in one["name"]:
                    self._kinds[version, one["kind"]] = _Kind(one["name"], one["namespaced"])
        return self._kinds.get((version, kind))


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _object(said: bytes) -> Object:
    return msgspec.json.decode(said, type=Object)


def _message(said: bytes) -> str:
    try:
        return str(_object(said).get("message", ""))
    except msgspec.MsgspecError:
        return said.decode("utf-8", "replace").strip()
