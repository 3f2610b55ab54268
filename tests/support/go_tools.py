"""Programs in Go that tests need: built once into the user's cache, by the versions that a module pins."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BUILD_S = 600


def built(module: Path, package: str) -> Path:
    """The program of a package of `module`; built if it is not in the cache. Skips the test where there is no Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no Go compiler on the path: {package} cannot be built")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "poolpilot" / "go"
    program = base / f"{package.rstrip('/').rpartition('/')[2]}-{_fingerprint(module)}"
    if not program.exists():
        base.mkdir(parents=True, exist_ok=True)
        # Several test runs at once: the last one to finish wins.
        fresh = program.with_name(f"{program.name}.{os.getpid()}")
        built = subprocess.run(
            [go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", fresh, package],
            cwd=module,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        assert built.returncode == 0, f"go build {package} failed:\n{built.stderr}"
        fresh.replace(program)
    return program


def _fingerprint(module: Path) -> str:
    digest = hashlib.sha256(sys.platform.encode())
    for file in sorted(one for one in module.rglob("*") if one.is_file()):
        digest.update(file.relative_to(module).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
