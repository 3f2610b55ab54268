"""Helm for tests, built from the module tests/tools/helm, and what it renders."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

import go_tools
from poolpilot_lab.gotools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping

CHARTS: Final = Path(__file__).parents[2] / "charts"
PACKAGE: Final = "helm.sh/helm/v4/cmd/helm"
_LONGEST_S: Final = 100.0
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Said:
    """What a run of Helm left."""

    code: int
    out: str
    errors: str


@dataclass(frozen=True, slots=True)
class Helm:
    """The program, with folders of its own."""

    program: Path
    home: Path
    kubeconfig: Path | None = None
    kept: dict[str, str] = field(default_factory=dict)
    """What was rendered already: many tests look at the same."""

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> Said:
        """Runs it; `values` come as a file."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
        environment |= {f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        # Without one Helm would find that of whoever runs the tests.
        environment["KUBECONFIG"] = str(self.kubeconfig or self.home / "none")
        given = ["--values", "-"] if values else []
        done = subprocess.run(
            [str(self.program), *arguments, *given],
            env=environment,
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def rendered(
        self,
        chart: str,
        values: Mapping[str, Any] | None = None,
        *flags: str,
        release: str = "release",
        namespace: str = "home",
    ) -> list[dict[str, Any]]:
        """All objects of a chart, those of hooks and tests too, CRDs of `crds/` not."""
        key = json.dumps([chart, dict(values or {}), flags, release, namespace], sort_keys=True)
        if key not in self.kept:
            said = self.run("template", release, str(CHARTS / chart), "--namespace", namespace, *flags, values=values)
            assert said.code == 0, said.errors
            self.kept[key] = said.out
        return [one for one in yaml.load_all(self.kept[key], Loader=_LOADER) if one]

    def refused(self, chart: str, values: Mapping[str, Any]) -> str:
        """What it says of values that it does not take."""
        said = self.run("template", "release", str(CHARTS / chart), "--namespace", "home", values=values)
        assert said.code != 0, said.out
        return said.errors


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, without a cluster."""
    return Helm(go_tools.built(TOOLS / "helm", PACKAGE), tmp_path_factory.mktemp("helm"))
