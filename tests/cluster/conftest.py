"""Everything here runs inside namespaces of its own: see tests/support/namespaced.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import namespaced
from cluster_stage import cluster as cluster
from cluster_stage import prepare
from cluster_stage import space as space

if TYPE_CHECKING:
    from collections.abc import Generator

_FOLDER: Final = Path(__file__).parent
_OUTSIDE: Final = None if namespaced.inside() else namespaced.Outside(_FOLDER, prepare)


def pytest_configure(config: pytest.Config) -> None:
    if namespaced.inside():
        config.pluginmanager.register(namespaced.Inside(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(240, func_only=True))
    # It looks back on all others.
    items.sort(key=lambda item: item.path == _FOLDER / "test_rights.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    if _OUTSIDE is not None:
        _OUTSIDE.chosen(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    return _OUTSIDE.run(item) if _OUTSIDE is not None else None


def pytest_sessionfinish() -> None:
    if _OUTSIDE is not None:
        _OUTSIDE.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures learn that their test failed."""
    report = yield
    if report.failed:
        item.failed_in = report.when  # type: ignore[attr-defined]
    return report
