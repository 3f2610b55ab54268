"""Envoy Gateway for the cluster: its program, and its chart with the values that a release fills in."""

from __future__ import annotations

import shutil
from string import Template
from typing import TYPE_CHECKING, Final

from poolpilot_lab.gotools import TOOLS, GoProgram, built, source_folder

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM: Final = GoProgram(TOOLS / "envoy-gateway", "github.com/envoyproxy/gateway/cmd/envoy-gateway")
IMAGE: Final = "docker.io/envoyproxy/gateway"
_MODULE: Final = "github.com/envoyproxy/gateway"


async def prepare() -> None:
    """What needs the Internet. Raises NotAvailable."""
    await built(PROGRAM)
    await source_folder(PROGRAM.module, _MODULE)


async def put_program(folder: Path) -> None:
    """Under the name by which its pods call it; Envoy lies there already."""
    (folder / "envoy-gateway").symlink_to(await built(PROGRAM))


async def chart(folder: Path) -> Path:
    """The chart as it is published, made in a folder that is not there yet."""
    source = await source_folder(PROGRAM.module, _MODULE) / "charts/gateway-helm"
    # What lies in Go's cache may not be written.
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    for one in (folder, *folder.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)
    values = Template((folder / "values.tmpl.yaml").read_text())
    filled = values.substitute(GatewayImage=f"{IMAGE}:v1.9.1", GatewayImagePullPolicy="IfNotPresent")
    (folder / "values.yaml").write_text(filled)
    return folder
