"""docs/operations.md says what the operator does: its rights, metrics, reasons and flags, no more and no less."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

import poolpilot_operator
from poolpilot_kube.access import Access
from poolpilot_kube.api import KubeApi
from poolpilot_operator import metrics
from poolpilot_operator.app import Operator, Options
from poolpilot_operator.main import parser
from poolpilot_operator.rights import ALL, table

PAGE: Final = (Path(__file__).parents[3] / "docs/operations.md").read_text()
SOURCES: Final = "\n".join(path.read_text() for path in Path(next(iter(poolpilot_operator.__path__))).rglob("*.py"))


@pytest.mark.parametrize("name", sorted(ALL))
def test_rights_are_as_in_the_code(name: str) -> None:
    assert f"<!-- rights: {name} -->\n\n{table(ALL[name])}\n" in PAGE


async def test_every_metric_is_documented() -> None:
    api = KubeApi(Access("http://127.0.0.1:1", None, lambda: None))
    operator = Operator(api, Options(namespace="home", identity="one"))
    page = metrics.page(operator).decode()
    names = set(re.findall(r"^# TYPE poolpilot_operator_(\w+) ", page, re.MULTILINE)) - {"info"}
    documented = set(re.findall(r"`(\w+)`", PAGE.partition("## Metrics")[2].partition("Worth an alert")[0]))
    assert names == {name for name in documented if name in names or name.endswith("_total")}
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "reason", re.findall(r'Problem\(\s*"(\w+)"', SOURCES) + re.findall(r'_TroubleError\(\s*"(\w+)"', SOURCES)
)
def test_every_reason_is_documented(reason: str) -> None:
    assert f"`{reason}`" in PAGE or reason == "Replacing"


def test_every_flag_is_documented() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings if flag.startswith("--")}
    documented = set(re.findall(r"`(--[a-z-]+)`", PAGE.partition("## Flags")[2].partition("## Upgrades")[0]))
    assert documented == flags - {"--help", "--version"}
