"""A pytest inside namespaces reports through the one outside: what passes, fails, is skipped, and what ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from poolpilot_lab.gotools import NotAvailable
from poolpilot_lab.kubelet import host

if TYPE_CHECKING:
    from collections.abc import Callable

SUPPORT = Path(__file__).parents[2] / "support"
CONFTEST = """
from pathlib import Path
import pytest, namespaced
from poolpilot_lab.gotools import NotAvailable

async def prepare(chosen):
    {prepare}

OUTSIDE = None if namespaced.inside() else namespaced.Outside(Path(__file__).parent / "inner", prepare)

def pytest_configure(config):
    if namespaced.inside():
        config.pluginmanager.register(namespaced.Inside(config))

def pytest_collection_finish(session):
    if OUTSIDE is not None:
        OUTSIDE.chosen(session.items)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    return OUTSIDE.run(item) if OUTSIDE is not None else None

def pytest_sessionfinish():
    if OUTSIDE is not None:
        OUTSIDE.stop()
"""
TESTS = """
import os, socket, pytest
def test_a_network_of_its_own():
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
def test_failing():
    assert 1 == 2, "this is shown"
@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    assert number
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    try:
        host.command()
    except NotAvailable as error:
        pytest.skip(error.reason)
    (tmp_path / "inner").mkdir()
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {SUPPORT}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(prepare="pass"))
    (tmp_path / "inner/test_inner.py").write_text(TESTS)
    (tmp_path / "test_outer.py").write_text("def test_outside():\n    pass\n")
    return tmp_path


def run(project: Path, *args: str) -> str:
    argv = [sys.executable, "-m", "pytest", "-q", "-ra", f"--basetemp={project}/base", *args]
    # What somebody gives the outer run would change the words of this one.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, timeout=100).stdout


def test_what_happens_inside_is_told_outside(project: Path) -> None:
    said = run(project)
    assert "1 failed, 4 passed, 1 skipped" in said
    assert "this is shown" in said and "not today" in said


def test_a_choice_is_kept(project: Path) -> None:
    assert "2 passed, 4 deselected" in run(project, "-k", "numbers")
    assert "1 passed" in run(project, "inner/test_inner.py::test_numbers[2]")
    assert "stopping after 1 failures" in run(project, "-x")


def test_one_that_takes_everything_down_fails_alone_with_its_log(project: Path) -> None:
    (project / "inner/test_inner.py").write_text(
        "import os\ndef test_first(): pass\ndef test_deadly(): os.write(2, b'last words'); os._exit(3)\n"
        "def test_after(): pass\n"
    )
    said = run(project)
    assert "2 failed, 2 passed" in said and "the pytest inside is gone" in said


def test_what_cannot_be_prepared_is_skipped_with_the_reason(project: Path) -> None:
    (project / "conftest.py").write_text(CONFTEST.format(prepare="raise NotAvailable('no Go here')"))
    said = run(project)
    assert "1 passed, 5 skipped" in said and "no Go here" in said


def test_it_ends_with_the_one_outside(project: Path) -> None:
    """However that ends."""
    (project / "inner/test_inner.py").write_text(
        "import pathlib, time\ndef test_long():\n    pathlib.Path('begun').touch()\n    time.sleep(1000)\n"
    )
    outside = subprocess.Popen([sys.executable, "-m", "pytest", "-q", f"--basetemp={project}/base"], cwd=project)
    until((project / "begun").exists, "the pytest inside does not begin")
    outside.kill()
    outside.wait()
    until(
        lambda: not any(here(pid, project) for pid in os.listdir("/proc") if pid.isdecimal()),
        "the pytest inside goes on",
    )


def until(check: Callable[[], bool], otherwise: str) -> None:
    """Of things that no handle tells of."""
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def here(pid: str, project: Path) -> bool:
    """Whether a process works in the project."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(project)
    except OSError:
        return False
