"""etcd, kube-apiserver and, if wanted, controllers and scheduler as child processes: gone without a trace."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from poolpilot_lab.control_plane.api import Api, ApiError
from poolpilot_lab.control_plane.certificates import Authority, KeyPair, signing_key, written
from poolpilot_lab.control_plane.controllers import CONTROLLERS, SCHEDULER, controllers_argv, scheduler_argv
from poolpilot_lab.control_plane.programs import programs
from poolpilot_lab.gotools import NotAvailable
from poolpilot_lab.processes import Child, free_ports, http_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from poolpilot_lab.control_plane.programs import Programs

SERVICES: Final = ipaddress.ip_network("10.96.0.0/16")
"""Cluster IPs: given to Services, served by nobody."""
ADMINS: Final = "system:masters"
_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
_START_S: Final = 120.0
"""Longest wait: three seconds on an idle machine, many times that beside other work on two cores."""


class ControlPlane:
    """A running control plane. Everything of it, keys included, lies in `folder`."""

    def __init__(
        self,
        called: Programs,
        folder: Path,
        host: str,
        ports: Sequence[int],
        flags: Sequence[str],
        *,
        controllers: bool = False,
    ) -> None:
        """Writes keys and kubeconfig, starts nothing. `ports`: four. `flags` are added to those of kube-apiserver."""
        etcd_port, port, *others = ports
        self.folder = folder
        self.server = f"https://{host}:{port}"
        """As in kubeconfig."""
        self.authority = Authority("control-plane")
        """Issues certificates that the API server and its clients trust."""
        self._keys = folder / "keys"
        self._etcd_at = host, etcd_port
        written(self._keys / "authority.crt", self.authority.certificate)
        self._admin = self.authority.client("admin", [ADMINS])
        self.kubeconfig = self._kubeconfig("admin", self._admin)
        """Of a user who may do everything."""
        self.etcd = Child("etcd", _etcd_argv(called, folder, host, etcd_port), log=folder / "etcd.log")
        argv = [*self._apiserver_argv(called, host, port), *flags]
        self.apiserver = Child("kube-apiserver", argv, log=folder / "kube-apiserver.log")
        self.controllers: list[Child] = []
        """Controller manager and scheduler, or neither."""
        if controllers:
            for name, argv_of, own_port in (
                (CONTROLLERS, controllers_argv, others[0]),
                (SCHEDULER, scheduler_argv, others[1]),
            ):
                argv = argv_of(called, host, own_port, self.kubeconfig_of(f"system:{name}"), self._keys)
                self.controllers.append(Child(name, argv, log=folder / f"{name}.log"))

    def kubeconfig_of(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for this user, who may do what RBAC grants."""
        return self._kubeconfig(user, self.authority.client(user, groups))

    def api(self) -> Api:
        """A client of a user who may do everything."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        context.load_cert_chain(*self._admin.write(self._keys, "admin"))
        return Api(self.server, context)

    async def start(self) -> None:
        """Returns when the API server is ready and has made its namespaces; ProcessError if it never is."""
        await self.etcd.start().ready(self._etcd_is_healthy, _START_S)
        self.apiserver.start()
        await self.ready()
        if self.controllers:
            for child in self.controllers:
                child.start()
            await self._controllers_work()

    async def _controllers_work(self) -> None:
        """They do when a namespace has its ServiceAccount: without it no pod can be made."""
        async with self.api() as api:

            async def check() -> bool:
                try:
                    await api.get("v1", "ServiceAccount", "default")
                except ApiError:
                    return False
                return True

            await self.controllers[0].ready(check, _START_S)

    async def ready(self) -> None:
        """Waits for an API server that is starting; ProcessError if it ends or takes too long."""
        async with self.api() as api:

            async def check() -> bool:
                try:
                    await api.call("GET", "/readyz")
                    await api.get("v1", "Namespace", "default")
                except (ApiError, aiohttp.ClientError):
                    return False
                return True

            await self.apiserver.ready(check, _START_S)

    async def stop(self) -> None:
        """Kills all: nothing is worth keeping, and on TERM the API server waits for the watches of its clients."""
        await asyncio.gather(*(one.stop(0.0) for one in (*self.controllers, self.apiserver, self.etcd)))

    async def _etcd_is_healthy(self) -> bool:
        return await http_status(*self._etcd_at, "/health") == 200

    def _kubeconfig(self, user: str, pair: KeyPair) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": self.server,
                        "certificate-authority-data": _base64(self.authority.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(pair.certificate),
                        "client-key-data": _base64(pair.key),
                    },
                }
            ],
        }
        # JSON is YAML. A user's name may hold what a file's must not.
        name = f"{user.replace(':', '-').replace('/', '-')}.kubeconfig"
        return written(self.folder / name, msgspec.json.encode(config))

    def _apiserver_argv(self, called: Programs, host: str, port: int) -> list[str]:
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        hosts = [host, str(SERVICES[1]), *names, "kubernetes.default.svc.cluster.local"]
        certificate, key = self.authority.server("kube-apiserver", hosts).write(self._keys, "apiserver")
        tokens_key, tokens_public = signing_key(self._keys, "tokens")
        argv = [
            *called.apiserver,
            f"--etcd-servers=http://{_host_port(*self._etcd_at)}",
            f"--bind-address={host}",
            f"--advertise-address={host}",
            f"--secure-port={port}",
            f"--cert-dir={self._keys}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self._keys / 'authority.crt'}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={tokens_public}",
            f"--service-account-signing-key-file={tokens_key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--profiling=false",
        ]
        if ipaddress.ip_address(host).is_loopback:
            # The Service `kubernetes` may not have an endpoint on loopback, and the server would not start.
            argv.append("--endpoint-reconciler-type=none")
        return argv


@contextlib.asynccontextmanager
async def control_plane(
    workdir: Path,
    *,
    host: str = "127.0.0.1",
    flags: Sequence[str] = (),
    controllers: bool = False,
    say: Callable[[str], None] | None = None,
) -> AsyncIterator[ControlPlane]:
    """A control plane of its own in a new folder in `workdir`, on free ports of `host`, until the context ends.

    Without `controllers` there is no controller manager and no scheduler: a pod's ServiceAccount must be made, and its
    status set, by whoever needs them. With them pods still need a node: see `poolpilot_lab.kubelet`. `say` hears of a
    build (see `programs`). Raises NotAvailable if the programs cannot be had, and ProcessError, with the end of the
    log, if one does not start.
    """
    called = await programs(say)
    if controllers and not (called.controllers and called.scheduler):
        raise NotAvailable("KUBEBUILDER_ASSETS names a folder without kube-controller-manager and kube-scheduler")
    ports = free_ports(4, host)
    plane = ControlPlane(called, _new_folder(workdir), host, ports, flags, controllers=controllers)
    try:
        await plane.start()
        yield plane
    finally:
        await plane.stop()


def _new_folder(workdir: Path) -> Path:
    workdir.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="control-plane-", dir=workdir)).resolve()


def _etcd_argv(called: Programs, folder: Path, host: str, port: int) -> list[str]:
    clients = f"http://{_host_port(host, port)}"
    return [
        *called.etcd,
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls=http://{_host_port(host, 0)}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
