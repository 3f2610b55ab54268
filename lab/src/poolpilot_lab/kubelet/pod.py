"""One pod: its network, volumes and containers, from the moment it is bound to the node until it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.kubelet import volumes
from poolpilot_lab.kubelet.container import Container, Pace
from poolpilot_lab.kubelet.environment import MissingError, Place, Sources, environment, expanded
from poolpilot_lab.kubelet.events import LOST, Events
from poolpilot_lab.kubelet.images import program
from poolpilot_lab.kubelet.launch import Launched, LaunchError
from poolpilot_lab.kubelet.network import Sandbox
from poolpilot_lab.kubelet.status import PodState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.kubelet.images import Images
    from poolpilot_lab.kubelet.objects import Json, NodePod

log: Final = logging.getLogger(__name__)

_MERGE: Final = "application/merge-patch+json"
_RETRY_S: Final = 0.5
_TOKEN_S: Final = 3607
"""A kubelet's own default for tokens."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a node gives to its pods."""

    name: str
    host: str
    """Address of the node."""
    api_server: tuple[str, int]
    """Where pods find it: not by the Service `kubernetes`, to spare the proxy their watches."""
    folder: Path
    images: Images
    sources: Sources
    pace: Pace
    allocatable: Mapping[str, str]
    software: tuple[Path, ...] = ()
    """Folders with the programs of images: seen in every container, also where a volume lies over them."""


class Pod:
    """Runs while `run` does."""

    def __init__(self, pod: NodePod, node: Node, api: Api, address: str, number: int) -> None:
        self.address = address
        self.pod = pod
        self._node = node
        self._api = api
        self._events = Events(api, pod.metadata, node.name)
        self._number = number
        self._place = Place(node.name, node.host, address)
        self._folder = node.folder / "pods" / pod.metadata.uid
        self._logs = node.folder / "logs" / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}"
        self._tokens: dict[str, str] = {}
        self._sandbox: Sandbox | None = None
        self._ending = asyncio.Event()
        self._stale = asyncio.Event()
        self._now = False
        policy = pod.spec.get("restartPolicy", "Always")
        self._grace_s = float(pod.spec.get("terminationGracePeriodSeconds", 30))
        self._containers = [self._container(one, policy) for one in pod.spec["containers"]]
        # A failed init container is started again unless the pod may never be.
        init = "Never" if policy == "Never" else "OnFailure"
        self._init = [
            self._container(one, one.get("restartPolicy", init)) for one in pod.spec.get("initContainers", ())
        ]
        self._sidecars = [one for one in self._init if one.sidecar]
        self._running: list[asyncio.Task[int]] = []
        """Of sidecars."""
        self.state = PodState(
            [one.status for one in self._containers],
            [one.status for one in self._init],
            [one.status for one in self._sidecars],
        )

    def _container(self, spec: Json, policy: str) -> Container:
        return Container(spec, policy, self, self._node.pace, self._grace_s)

    # ── what is heard of it ──────────────────────────────────────────────────

    def update(self, pod: NodePod) -> None:
        """The object changed: perhaps it is to end."""
        self.pod = pod
        if pod.metadata.deletion_timestamp is not None:
            self._ending.set()

    def gone(self) -> None:
        """The object is no longer there: nothing is waited for."""
        self._now = True
        self._ending.set()

    def refresh(self) -> None:
        """Brings the volumes up to date, while they are in use."""
        if self._sandbox is None or not self._folder.exists():
            return
        try:
            self._write_volumes()
        except MissingError as error:
            # What was there stays, as long as nothing replaces it.
            log.info("%s: %s", self, error)

    def log_file(self, container: str, run: int = -1) -> Path | None:
        """Output of a container's last run, or of the one before it (`run` -2); None if there is none."""
        folder = self._logs / container
        runs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem)) if folder.is_dir() else []
        return runs[run] if len(runs) >= -run else None

    def __str__(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    # ── its life ─────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until the object is gone, or nothing of a pod that is done has to be kept."""
        writing = asyncio.create_task(self._write_status())
        working = asyncio.create_task(self._work())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                # A fault of ours must not look like a pod that runs.
                working.result()
            await self._ending.wait()
            await self._stop()
        finally:
            tasks = (working, ending, writing, *self._running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in (*self._containers, *self._init):
                await one.stop(0.0)
            await self._clear()
        if not self._now:
            await self._forget()

    async def _work(self) -> None:
        self.changed()
        await self._prepare()
        for one in self._init:
            if one.sidecar:
                # The next one begins when it has started, and it runs beside all that follow.
                self._running.append(asyncio.create_task(one.run()))
                await one.begun()
                continue
            if await one.run() != 0:
                await self._done("Failed")
                return
            # Done is what readiness means for it.
            one.status.ready = True
        self.state.initialized, self.state.phase = True, "Running"
        self.changed()
        codes = await asyncio.gather(*(one.run() for one in self._containers))
        if not self._ending.is_set():
            await self._stop_sidecars(self._grace_s)
            await self._done("Failed" if any(codes) else "Succeeded")

    async def _done(self, phase: str) -> None:
        self.state.phase = phase
        await self._clear()
        self.changed()

    async def _prepare(self) -> None:
        """Network and volumes; waits for what is missing."""
        while True:
            try:
                self._check()
                if self._sandbox is None:
                    self._sandbox = await Sandbox.make(self.address, self._number)
                if not self._tokens:
                    await self._get_tokens()
                self._write_volumes()
            except (MissingError, LaunchError, ApiError, *LOST) as error:
                self.tell("FailedMount" if isinstance(error, MissingError) else "FailedCreatePodSandBox", str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            self.state.sandboxed = True
            self.changed()
            return

    def _check(self) -> None:
        """What this node cannot do is refused, not left out."""
        if self.pod.spec.get("hostNetwork"):
            raise LaunchError("hostNetwork: pods of this node have networks of their own")

    async def _stop(self) -> None:
        grace_s = 0.0 if self._now else self._grace_left_s()
        deadline = time.monotonic() + grace_s
        others = [one for one in (*self._containers, *self._init) if not one.sidecar]
        await asyncio.gather(*(one.stop(grace_s) for one in others))
        await self._stop_sidecars(max(deadline - time.monotonic(), 0.0))

    async def _stop_sidecars(self, grace_s: float) -> None:
        """After all that they stand beside, the last that came first; with what is left of the grace."""
        deadline = time.monotonic() + grace_s
        for one in reversed(self._sidecars):
            await one.stop(max(deadline - time.monotonic(), 0.0))

    def _grace_left_s(self) -> float:
        given = self.pod.metadata.deletion_grace_period_seconds
        return self._grace_s if given is None else float(given)

    async def _clear(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _forget(self) -> None:
        """The pod has ended: only now may its name be used again."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod.metadata.uid}}
        while True:
            try:
                await self._api.call("DELETE", self._path(), {"apiVersion": "v1", "kind": "DeleteOptions", **options})
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            except LOST as error:
                log.warning("%s: %s", self, error)
                await asyncio.sleep(_RETRY_S)
                continue
            return

    # ── status and Events ────────────────────────────────────────────────────

    def changed(self) -> None:
        """The status has to be written."""
        self._stale.set()

    def tell(self, reason: str, message: str) -> None:
        """An Event, for whoever describes the pod."""
        self._events.tell(reason, message)

    async def _write_status(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            status = self.state.json(self._place, self.pod.status)
            patch = {"metadata": {"uid": self.pod.metadata.uid}, "status": status}
            try:
                await self._api.call("PATCH", f"{self._path()}/status", patch, content_type=_MERGE)
            except ApiError as error:
                if error.status not in (404, 409):
                    log.warning("%s: status: %s", self, error)
            except LOST as error:
                log.warning("%s: status: %s", self, error)
                self._stale.set()
                await asyncio.sleep(_RETRY_S)

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.pod.metadata.namespace}/pods/{self.pod.metadata.name}"

    # ── files ────────────────────────────────────────────────────────────────

    async def _get_tokens(self) -> None:
        """Those that there are stay until all others have come: volumes may be written meanwhile."""
        fresh: dict[str, str] = {}
        for source in volumes.token_sources(self.pod):
            audience = source.get("audience", "")
            if audience not in fresh:
                fresh[audience] = await self._token(audience, source.get("expirationSeconds", _TOKEN_S))
        self._tokens = fresh

    async def renew(self) -> None:
        """New tokens, in the volumes at once; to be called well before the old ones end."""
        with contextlib.suppress(ApiError, *LOST):
            await self._get_tokens()
            self.refresh()

    async def _token(self, audience: str, seconds: int) -> str:
        meta = self.pod.metadata
        account = self.pod.spec.get("serviceAccountName", "default")
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {
            "audiences": [audience] if audience else [],
            "expirationSeconds": seconds,
            "boundObjectRef": bound,
        }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}/token"
        answer: dict[str, Any] = msgspec.json.decode(await self._api.call("POST", path, request))
        return str(answer["status"]["token"])

    def _write_volumes(self) -> None:
        for volume in self.pod.spec.get("volumes", ()):
            folder = self._volume(volume["name"])
            if volumes.is_empty_dir(volume):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o777)
            else:
                files = volumes.contents(self.pod, volume, self._node.sources, self._place, self._tokens)
                volumes.write(folder, files)

    def _volume(self, name: str) -> Path:
        return self._folder / "volumes" / name

    def _mounts(self, container: Json) -> list[Json]:
        kinds = {one["name"]: one for one in self.pod.spec.get("volumes", ())}
        mounts = []
        for one in container.get("volumeMounts", ()):
            volume = self._volume(one["name"])
            source = volume / one["subPath"] if one.get("subPath") else volume
            own = volumes.is_empty_dir(kinds[one["name"]])
            if one.get("subPath") and own:
                source.mkdir(parents=True, exist_ok=True)
            elif not source.exists():
                raise MissingError(f"volume {one['name']!r} has no {one.get('subPath')!r}")
            # A link into `..data` would not lead anywhere from within: the file itself is mounted, and stays as it is.
            source = source.resolve() if one.get("subPath") else source
            read_only = bool(one.get("readOnly")) or not own
            mounts.append({"source": str(source), "target": one["mountPath"], "read_only": read_only})
        hidden = [
            {"source": str(one), "target": str(one)}
            for one in self._node.software
            if any(one.is_relative_to(mount["target"]) for mount in mounts)
        ]
        return [*mounts, *hidden, *self._etc()]

    def _etc(self) -> list[Json]:
        texts = volumes.etc(self.pod, self.address)
        folder = self._folder / "etc"
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        return [{"source": str(folder / file), "target": f"/etc/{file}"} for file in texts]

    # ── processes ────────────────────────────────────────────────────────────

    def _environment(self, container: Json, image_env: Mapping[str, str]) -> dict[str, str]:
        host, port = self._node.api_server
        base = {
            "PATH": os.environ["PATH"],
            "HOME": "/",
            **image_env,
            "HOSTNAME": self.pod.metadata.name,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }
        node = self._node
        return environment(self.pod, container, node.sources, self._place, base, node.allocatable)

    async def launch(self, container: Json, run: int) -> Launched:
        """Starts a container. Raises MissingError, ImageError or LaunchError."""
        assert self._sandbox is not None, "containers start after their network"
        image = self._node.images.find(container["image"])
        env = self._environment(container, image.env)
        argv = [expanded(one, env) for one in program(image, container)]
        log_file = self._logs / container["name"] / f"{run}.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        return await Launched.start(
            argv,
            env=env,
            log=log_file,
            network=self._sandbox.pid,
            root=self._folder / "roots" / f"{container['name']}-{run}",
            mounts=self._mounts(container),
            read_only=bool(container.get("securityContext", {}).get("readOnlyRootFilesystem")),
            cwd=container.get("workingDir", "/"),
        )

    async def execute(self, launched: Launched, container: Json, argv: Sequence[str]) -> int:
        """Runs a command in a running container and returns its exit code."""
        image = self._node.images.find(container["image"])
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(launched.pid), "--mount", "--net", "--root", "--wd=/", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environment(container, image.env),
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
