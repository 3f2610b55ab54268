"""The memory limit of the container, by either version of control groups, and what bodies may take of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from poolpilot_picker.memory import LEAST_BYTES, body_budget, memory_limit

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
V1_NONE = "9223372036854771712"


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/\n", {"memory.max": str(GIB)}),
        ("0::/a/b\n", {"a/b/memory.max": str(GIB), "a/memory.max": "max"}),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": str(GIB), "memory.max": str(4 * GIB)}),
        ("0::/not/visible\n", {"memory.max": str(GIB)}),
        ("0::/../..\n", {"memory.max": str(GIB)}),
        ("5:memory:/docker/x\n4:cpu:/y\n", {"memory/docker/x/memory.limit_in_bytes": str(GIB)}),
        ("5:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": str(GIB), "memory/x/memory.limit_in_bytes": V1_NONE}),
        ("nonsense\n", {"memory.max": str(GIB)}),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, groups: str, files: dict[str, str]):
    assert memory_limit(machine(tmp_path, groups, files)) == GIB


@pytest.mark.parametrize("files", [{}, {"memory.max": "max"}, {"memory/memory.limit_in_bytes": V1_NONE}])
def test_without_a_limit_it_is_the_machines(tmp_path: Path, files: dict[str, str]):
    assert memory_limit(machine(tmp_path, "0::/\n", files)) == memory_limit(tmp_path / "nothing")
    assert memory_limit() > LEAST_BYTES


def test_bodies_take_a_quarter_divided_between_processes_or_what_is_configured():
    assert body_budget(None, limit=2 * GIB) == GIB // 2
    assert body_budget(None, 2, limit=2 * GIB) == GIB // 4
    assert body_budget(None, 2, limit=64 * 2**20) == LEAST_BYTES
    assert body_budget(1_000_000, 4, limit=2 * GIB) == 250_000
