"""Builds the compiled cores of picker and lab into their packages when a wheel is made or the project is installed for
editing.

Where there is no C compiler the wheel is made without them: the picker then decides with its reference in Python, and
the simulator runs its engine model in Python.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = {"picker/src": "poolpilot_picker.compiled", "lab/src": "poolpilot_lab.engine.compiled"}
ROOT = Path(__file__).parent
FOLDERS = {ROOT / root / package.replace(".", "/"): package for root, package in PACKAGES.items()}
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# No fused multiply-add: results must equal those of the reference to the last bit where they can.
FLAGS = ["-O2", "-g0", "-ffp-contract=off"] if os.name == "posix" else []


def outdated() -> list[Path]:
    """Sources whose compiled module is missing or older than they are."""
    stale = []
    for folder in FOLDERS:
        shared = max(one.stat().st_mtime for one in (Path(__file__), *folder.glob("*.pxd")))
        for source in sorted(folder.glob("*.pyx")):
            built = source.with_name(source.stem + SUFFIX)
            if not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime, shared):
                stale.append(source)
    return stale


def _module(source: Path) -> str:
    return f"{FOLDERS[source.parent]}.{source.stem}"


def compile_core() -> None:
    """Compiles what is outdated, in a temporary folder, and puts it beside its source in one step each.

    Raises whatever Cython or the compiler has to say.
    """
    sources = outdated()
    if not sources:
        return
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as temporary:
        modules = cythonize(
            [Extension(_module(one), [str(one)], extra_compile_args=FLAGS) for one in sources],
            build_dir=temporary,
            include_path=[str(ROOT / root) for root in PACKAGES],
            quiet=True,
        )
        command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = temporary
        command.ensure_finalized()
        command.run()
        for one in sources:
            made = Path(command.get_ext_fullpath(_module(one)))
            beside = one.with_name(f".{made.name}.{os.getpid()}")
            beside.write_bytes(made.read_bytes())
            beside.chmod(0o755)
            beside.replace(one.with_name(made.name))


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """The hook of hatchling."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and makes the wheel one for this interpreter; without a compiler it stays one for all."""
        if self.target_name != "wheel":
            return
        try:
            compile_core()
        except Exception as error:
            self.app.display_warning(f"the compiled core is not built, the picker will be slower: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for folder, package in FOLDERS.items():
            for source in folder.glob("*.pyx"):
                name = source.stem + SUFFIX
                build_data["force_include"][str(source.with_name(name))] = f"{package.replace('.', '/')}/{name}"
