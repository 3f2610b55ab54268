"""etcd and the Kubernetes components as programs: built from the module tests/tools/control-plane, or given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_lab.gotools import TOOLS, GoProgram, NotAvailable, built, required_version

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE: Final = TOOLS / "control-plane"
_GIVEN: Final = "KUBEBUILDER_ASSETS"
_VERSION: Final = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Programs:
    """How each is called, without flags."""

    etcd: tuple[str, ...]
    apiserver: tuple[str, ...]
    controllers: tuple[str, ...] = ()
    """kube-controller-manager; empty if $KUBEBUILDER_ASSETS has none, as usual. So are the next two."""
    scheduler: tuple[str, ...] = ()
    kubectl: tuple[str, ...] = ()


async def programs(say: Callable[[str], None] | None = None) -> Programs:
    """Those of the folder that $KUBEBUILDER_ASSETS names if it is set, else built (`gotools.built`; one key for all).

    Raises NotAvailable: no Go, a build that failed, or a folder without them.
    """
    given = os.environ.get(_GIVEN)
    if given:
        others = [_if_given(given, name) for name in ("kube-controller-manager", "kube-scheduler", "kubectl")]
        return Programs((_given(given, "etcd"),), (_given(given, "kube-apiserver"),), *others)
    version = await _kubernetes_version()
    major, minor, *_ = version.removeprefix("v").split(".")
    # Else the server calls itself v0.0.0-master, and kubectl and Helm refuse it.
    variables = {
        f"{_VERSION}.gitVersion": version,
        f"{_VERSION}.gitMajor": major,
        f"{_VERSION}.gitMinor": minor,
        f"{_VERSION}.gitTreeState": "clean",
        f"{_VERSION}.buildDate": "1970-01-01T00:00:00Z",
    }
    program = str(await built(GoProgram(MODULE, variables=variables), say))
    names = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    return Programs(*((program, name) for name in names))


async def _kubernetes_version() -> str:
    if not MODULE.is_dir():
        raise NotAvailable(f"a control plane cannot be built: {MODULE} is not there; it needs a source tree")
    return await required_version(MODULE, "k8s.io/kubernetes")


def _given(folder: str, name: str) -> str:
    program = Path(folder) / name
    if not os.access(program, os.X_OK):
        raise NotAvailable(f"{_GIVEN}={folder}: there is no program {name} in it")
    return str(program)


def _if_given(folder: str, name: str) -> tuple[str, ...]:
    try:
        return (_given(folder, name),)
    except NotAvailable:
        return ()
