"""The repository's layout: traps that would break it far from their cause, and what must stay in step by hand."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from poolpilot.main import SUBCOMMANDS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {
    "poolpilot": ROOT / "cli/src/poolpilot",
    "poolpilot_kube": ROOT / "kube/src/poolpilot_kube",
    "poolpilot_lab": ROOT / "lab/src/poolpilot_lab",
    "poolpilot_operator": ROOT / "operator/src/poolpilot_operator",
    "poolpilot_picker": ROOT / "picker/src/poolpilot_picker",
}
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter, started in a folder."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


# ── the operator/ trap ───────────────────────────────────────────────────────


@pytest.mark.parametrize("folder", ["operator", "picker", "kube", "lab", "cli"])
def test_no_module_stands_in_a_projects_folder(folder: str) -> None:
    """`operator/__init__.py` would replace the standard library's `operator` for whoever starts Python here."""
    assert list((ROOT / folder).glob("*.py")) == []
    assert list((ROOT / folder / "src").glob("*.py")) == []


@pytest.mark.parametrize("flags", [["-P"], []], ids=["-P", "plain"])
@pytest.mark.parametrize("folder", [".", "operator", "operator/src"])
def test_the_standard_librarys_operator_is_found_everywhere(folder: str, flags: list[str]) -> None:
    done = python(ROOT / folder, *flags, "-c", "import operator; operator.pos")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", [".", "operator"])
def test_the_picker_starts_everywhere(folder: str) -> None:
    done = python(ROOT / folder, "-m", "poolpilot_picker", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == PROJECT["project"]["version"]


# ── tests ────────────────────────────────────────────────────────────────────


def test_tests_are_no_package() -> None:
    """With import mode importlib a package would give two names to one module."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert "--import-mode=importlib" in PROJECT["tool"]["pytest"]["ini_options"]["addopts"]


def test_helpers_of_tests_hide_no_module_of_the_same_name() -> None:
    """They are on the import path of every test."""
    names = [path.stem for path in (ROOT / "tests/support").iterdir() if path.suffix == ".py"]
    assert set(names).isdisjoint(sys.stdlib_module_names)
    assert not [name for name in names if name.startswith("test_") or name in PACKAGES]


# ── the wheel ────────────────────────────────────────────────────────────────


def test_the_wheel_holds_the_five_packages(tmp_path: Path) -> None:
    done = python(ROOT, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert set(names) >= {f"{package}/py.typed" for package in PACKAGES}
    assert set(names) >= {f"{package}/__init__.py" for package in PACKAGES}
    sources = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
    }
    assert sources <= set(names), "every module is in it"
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", ".orig"))]


def test_every_package_is_named_where_packages_are_named() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {ROOT / one for one in wheel} == set(PACKAGES.values())
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == set(PACKAGES)
    assert set(PROJECT["tool"]["mypy"]["packages"]) == set(PACKAGES)


# ── requirements ─────────────────────────────────────────────────────────────


def test_there_is_a_requirement_file_for_each_extra() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    assert {path.stem for path in REQUIREMENTS} == extras | {"dev"}


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_are_hashed_and_name_no_host(file: Path) -> None:
    text = file.read_text()
    for word in (
        "http:",
        "https:",
        "--index-url",
        "--extra-index-url",
        "--find-links",
        "--trusted-host",
        " @ ",
        "git+",
    ):
        assert word not in text
    entries = re.split(r"\n(?=[a-z0-9])", text.strip(), flags=re.IGNORECASE)
    assert len(entries) > 10
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z0-9,-]+\])?==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def name_of(requirement: str) -> str:
    """The normalised name of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_hold_what_the_project_asks_for(file: Path) -> None:
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    wanted = extras.get(file.stem) or [one for part in (*extras.values(), *groups.values()) for one in part]
    if any(name_of(one) == "poolpilot" for one in wanted):
        wanted = [*wanted, *extras["picker"]]
    locked = {name_of(line) for line in file.read_text().splitlines() if line[:1].isalnum()}
    assert {name_of(one) for one in wanted} - {"poolpilot"} <= locked


# ── the front doors ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_is_there(name: str) -> None:
    command = SUBCOMMANDS[name]
    assert callable(importlib.import_module(command.module).main)
    assert command.extra in PROJECT["project"]["optional-dependencies"]


def targets() -> set[str]:
    """What `make` can make."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    return {match[1] for line in lines if (match := re.match(r"([a-z][a-z-]*):(?!=)", line))}


def test_the_makefile_lists_what_it_can_make() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets()
    described = set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
    assert described == targets(), "`make help` shows the rest"
    assert ".DEFAULT_GOAL := help" in text


WRITTEN = ["README.md", ".ci/run", *(f"docs/{one.name}" for one in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("file", WRITTEN)
def test_commands_that_are_written_down_exist(file: str) -> None:
    text = (ROOT / file).read_text()
    if file.endswith(".md"):
        code = re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)
        text = "\n".join([*code, *re.findall(r"`([^`\n]+)`", text)])
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", text)) <= targets()
    called = set(re.findall(r"(?:^|[\s/])poolpilot ([a-z][a-z-]+)", text, flags=re.MULTILINE))
    assert called <= set(SUBCOMMANDS) | {"help"}


def test_the_two_commands_of_the_readme_exist() -> None:
    assert {"demo", "test"} <= targets()


# ── code ─────────────────────────────────────────────────────────────────────

MODULES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if PACKAGES[package] in path.parents
        and not (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].strip()
    ]
    assert silent == []


def test_imports_go_downwards_only() -> None:
    """What `make lint` checks too."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
