"""A cluster for tests: one for the session, a namespace for each test, and kubectl and Helm as a user types them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
import yaml

import cluster_gateway
from cluster_audit import Audit
from doctor_stage import open_definition
from poolpilot_kube.names import LEGACY_GROUP
from poolpilot_lab.control_plane.programs import programs
from poolpilot_lab.gotools import TOOLS, GoProgram, NotAvailable, built
from poolpilot_lab.kubelet import cluster as clusters
from poolpilot_lab.kubelet.images import Image
from poolpilot_lab.processes import envoy_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from poolpilot_lab.kubelet.cluster import Cluster

ROOT: Final = Path(__file__).parents[2]
HELM: Final = GoProgram(TOOLS / "helm", "helm.sh/helm/v4/cmd/helm")
REGISTRY: Final = "ghcr.io/poolpilot"
_WAIT_S: Final = 60.0
_PAUSE_S: Final = 0.05
OPTIONAL: Final = (
    ("cert-manager.io", "v1", "Certificate", "certificates"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("networking.istio.io", "v1", "DestinationRule", "destinationrules"),
    (LEGACY_GROUP, "v1alpha2", "InferenceObjective", "inferenceobjectives"),
    (LEGACY_GROUP, "v1alpha2", "InferenceModelRewrite", "inferencemodelrewrites"),
)
"""Group, version, kind and plural. Nobody acts on them here."""


class CommandError(Exception):
    """A command failed; the message shows what it said."""


def images(programs_folder: Path) -> dict[str, Image]:
    """What stands for the images that the charts and the tests name: ours are described by images/Dockerfile.

    Envoy Gateway calls its programs by name: they lie in `programs_folder`.
    """
    module = (sys.executable, "-m")
    path = {"PATH": f"{programs_folder}:/usr/bin:/bin"}
    env = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        f"{REGISTRY}/picker": Image((*module, "poolpilot_picker"), env=env),
        f"{REGISTRY}/operator": Image((*module, "poolpilot_operator"), env=env),
        f"{REGISTRY}/lab": Image((*module, "poolpilot"), env=env),
        "docker.io/envoyproxy/envoy": Image((str(envoy_path()),), env=path),
        cluster_gateway.IMAGE: Image(("envoy-gateway",), env=path),
        "docker.io/library/python": Image(entrypoint=(sys.executable,)),
        "docker.io/library/busybox": Image(cmd=("sh",)),
    }


async def prepare(chosen: Iterable[str]) -> None:
    """Builds what tests need and cannot be built inside, where there is no Internet. Raises NotAvailable."""
    called = await programs()
    if not (called.controllers and called.scheduler and called.kubectl):
        raise NotAvailable("KUBEBUILDER_ASSETS names a folder without controller manager, scheduler and kubectl")
    await built(HELM)
    if any("test_envoy_gateway" in one for one in chosen):
        await cluster_gateway.prepare()
    await programs()
    await built(HELM)


class Stage:
    """A running cluster and the programs to use it with."""

    def __init__(
        self, running: Cluster, kubectl: tuple[str, ...], helm: Path, audit: Audit, programs_folder: Path
    ) -> None:
        self.cluster = running
        self.audit = audit
        self.programs = programs_folder
        self._kubectl = kubectl
        self._helm = helm
        self._spaces = 0

    async def kubectl(self, *args: str, text: str | None = None) -> str:
        """What it prints. Raises CommandError."""
        return await self._run([*self._kubectl, f"--kubeconfig={self.cluster.plane.kubeconfig}", *args], text)

    async def helm(self, *args: str) -> str:
        """What it prints. Raises CommandError."""
        return await self._run([str(self._helm), f"--kubeconfig={self.cluster.plane.kubeconfig}", *args])

    async def apply(self, *manifests: Mapping[str, Any] | Path) -> None:
        """As kubectl does."""
        texts = [one.read_text() if isinstance(one, Path) else json.dumps(one) for one in manifests]
        await self.kubectl("apply", "--server-side", "-f", "-", text="\n---\n".join(texts))

    async def space(self, name: str) -> Space:
        """A new namespace in which pods can be made."""
        self._spaces += 1
        space = Space(self, f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}-{self._spaces}")
        await self.kubectl("create", "namespace", space.name)
        await until(lambda: space.has("serviceaccount", "default"), "the namespace has no ServiceAccount")
        return space

    async def _run(self, argv: list[str], text: str | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            said, complaint = await process.communicate(None if text is None else text.encode())
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            what = " ".join([Path(argv[0]).name, *argv[1:]])
            raise CommandError(f"{what}: exit code {process.returncode}\n{complaint.decode()}{said.decode()}")
        return said.decode()


class Space:
    """One namespace."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name

    async def kubectl(self, *args: str, text: str | None = None) -> str:
        """In this namespace. Raises CommandError."""
        return await self.stage.kubectl(f"--namespace={self.name}", *args, text=text)

    async def helm(self, *args: str) -> str:
        """In this namespace. Raises CommandError."""
        return await self.stage.helm(f"--namespace={self.name}", *args)

    async def apply(self, *manifests: Mapping[str, Any] | str) -> None:
        """Manifests as dictionaries, or as the text of a file."""
        texts = [one if isinstance(one, str) else json.dumps(one) for one in manifests]
        await self.kubectl("apply", "-f", "-", text="\n---\n".join(texts))

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object. Raises CommandError."""
        found: dict[str, Any] = json.loads(await self.kubectl("get", kind, name, "-o", "json"))
        return found

    async def list(self, kind: str, *args: str) -> list[dict[str, Any]]:
        """Objects, in order of their names."""
        items: list[dict[str, Any]] = json.loads(await self.kubectl("get", kind, *args, "-o", "json"))["items"]
        return items

    async def has(self, kind: str, name: str) -> bool:
        """Whether there is such an object."""
        return bool(await self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name"))

    async def pods(self, app: str) -> list[dict[str, Any]]:
        """Those with the label `app`, but for those that end."""
        return [
            one for one in await self.list("pods", "-l", f"app={app}") if "deletionTimestamp" not in one["metadata"]
        ]

    async def ready(self, app: str) -> dict[str, str]:
        """Names and addresses of ready pods."""
        return {one["metadata"]["name"]: one["status"]["podIP"] for one in await self.pods(app) if is_ready(one)}

    async def available(self, name: str, *, within_s: int = 120) -> None:
        """Waits for a rollout of a Deployment to end."""
        await self.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={within_s}s")

    async def described(self) -> str:
        """What a person would look at first, for tests that fail."""
        parts = [
            await self.kubectl("get", "all", "-o", "wide"),
            await self.kubectl("get", "events", "--sort-by=.lastTimestamp"),
        ]
        logs = sorted(self.stage.cluster.pod_logs.glob(f"{self.name}_*/*/*.log"))
        parts += ["\n".join([f"── {path}", *path.read_text(errors="replace").splitlines()[-25:]]) for path in logs]
        return "\n\n".join(parts)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod may get requests."""
    conditions: Iterable[Mapping[str, str]] = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def until(check: Callable[[], Awaitable[object]], otherwise: str, within_s: float = _WAIT_S) -> None:
    """Waits until `check` is true; fails with `otherwise` if it never is."""
    deadline = time.monotonic() + within_s
    while not await check():
        if time.monotonic() >= deadline:
            pytest.fail(f"{otherwise} after {within_s:g} s")
        await asyncio.sleep(_PAUSE_S)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One for all tests, with kinds of others that a cluster may have."""
    folder = tmp_path_factory.mktemp("cluster")
    audit = Audit(folder)
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "envoy").symlink_to(envoy_path())
    async with clusters.cluster(folder, images(bin_folder), flags=audit.flags) as running:
        called = await programs()
        stage = Stage(running, called.kubectl, await built(HELM), audit, bin_folder)
        await stage.apply(*(open_definition(*kind) for kind in OPTIONAL))
        await stage.kubectl(
            "wait", "crd", *(f"{kind[3]}.{kind[0]}" for kind in OPTIONAL), "--for=condition=Established"
        )
        yield stage


@pytest_asyncio.fixture(loop_scope="session")
async def space(cluster: Stage, request: pytest.FixtureRequest) -> AsyncIterator[Space]:
    """A namespace for one test; when the test fails, what happened in it is shown."""
    made = await cluster.space(request.node.name.removeprefix("test_"))
    yield made
    if getattr(request.node, "failed_in", "") == "call":
        with contextlib.suppress(CommandError):
            print(await made.described())
    await cluster.kubectl("delete", "namespace", made.name, "--wait=false")


CRDS: Final = sorted((ROOT / "crds").glob("*.yaml"))


def definitions() -> list[dict[str, Any]]:
    """All our CRDs."""
    return [yaml.safe_load(path.read_text()) for path in CRDS]
