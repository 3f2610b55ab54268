"""How the controller manager and the scheduler of one control plane are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.control_plane.programs import Programs

CONTROLLERS: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"


def controllers_argv(called: Programs, host: str, port: int, kubeconfig: Path, keys: Path) -> list[str]:
    """`keys`: folder with the key that signs tokens and the authority's certificate."""
    return [
        *called.controllers,
        *_common(host, port, kubeconfig, keys / "controllers"),
        f"--service-account-private-key-file={keys / 'tokens.key'}",
        f"--root-ca-file={keys / 'authority.crt'}",
        "--use-service-account-credentials=true",
        # With the defaults, meant for large clusters, the first ServiceAccount comes after five seconds.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--endpointslice-updates-batch-period=0s",
        "--endpoint-updates-batch-period=0s",
        # Else it makes one in /usr/libexec.
        f"--flex-volume-plugin-dir={keys.parent / 'flex'}",
    ]


def scheduler_argv(called: Programs, host: str, port: int, kubeconfig: Path, keys: Path) -> list[str]:
    """`keys`: folder in which it makes a certificate of its own."""
    return [*called.scheduler, *_common(host, port, kubeconfig, keys / "scheduler")]


def _common(host: str, port: int, kubeconfig: Path, keys: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={host}",
        f"--secure-port={port}",
        f"--cert-dir={keys}",
    ]
