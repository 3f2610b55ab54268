"""A package with plugins, installed beside the picker, is found by the real command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
EXAMPLE = re.search(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def package(tmp_path):
    """A folder that looks like an installed distribution with the page's example."""
    (tmp_path / "my_package.py").write_text(EXAMPLE)
    about = tmp_path / "my_plugins-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[poolpilot.plugins]\nrack = my_package:RACK_SCORER\n")
    return tmp_path


def config(package, *arguments):
    """Runs `poolpilot config` with the package on the path."""
    return subprocess.run(
        [sys.executable, "-m", "poolpilot", "config", *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_its_types_are_listed_and_checked(package):
    listed = config(package, "plugins", "rack-scorer")
    assert listed.stdout.splitlines() == [
        "rack-scorer (scorer): prefers the endpoints of one rack",
        "    rack: text, required",
        "    othersScore: a number, default 0.5",
    ]
    file = package / "f.yaml"
    file.write_text(
        "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: rack-scorer, parameters: {rack: 7, x: 1}}]\n"
    )
    checked = config(package, "check", str(file))
    assert checked.returncode == 2
    assert checked.stderr.splitlines() == [
        f'{file}:3:50: plugins[0].parameters.rack: expected text, found the number 7; put it in quotes: "7"',
        f"{file}:3:53: plugins[0].parameters.x: unknown field. Allowed: rack, othersScore",
    ]


def test_a_broken_package_is_named(package):
    (package / "my_package.py").write_text("import no_such_module\n")
    listed = config(package, "plugins")
    assert listed.returncode == 2
    assert listed.stderr == (
        "entry point rack (my_package:RACK_SCORER) of my-plugins 1.2 cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )
