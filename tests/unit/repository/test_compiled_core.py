"""The wheel with the compiled cores, and without them where there is no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MODULES = {
    f"{folder}/{source.stem}{SUFFIX}"
    for root, folder in (("picker/src", "poolpilot_picker/compiled"), ("lab/src", "poolpilot_lab/engine/compiled"))
    for source in (ROOT / root / folder).glob("*.pyx")
}


def build_wheel(tree: Path, into: Path, **environment: str) -> tuple[str, set[str], str]:
    """(name of the wheel, its files, what was said)."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, set(archive.namelist()), done.stdout + done.stderr


def test_the_wheel_is_for_this_interpreter_and_holds_the_compiled_core(tmp_path: Path) -> None:
    name, files, _ = build_wheel(ROOT, tmp_path)
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in name and "-none-any" not in name
    made = {file for file in files if file.endswith((".so", ".pyd"))}
    assert made == MODULES, "all of it, and nothing of another interpreter"
    assert {"poolpilot_picker/compiled/_columns.pyi", "poolpilot_picker/compiled/_prefix.pyi"} <= files


def test_without_a_compiler_the_wheel_is_made_without_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("picker", "operator", "kube", "lab", "cli"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    name, files, said = build_wheel(tree, tmp_path / "made", CC="/bin/false")
    assert name.endswith("-py3-none-any.whl")
    assert "poolpilot_picker/compiled/__init__.py" in files
    assert not [file for file in files if file.endswith((".so", ".pyd"))]
    assert "the compiled core is not built" in said
