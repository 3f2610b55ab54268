"""Runs the tests of a folder in a pytest of its own, inside the namespaces of a local cluster, and reports them here.

A pytest plugin of two halves. Outside, the first test of the folder starts the inner pytest with all that were chosen,
and each waits for its own reports. Inside, reports go to a pipe. So `python -m pytest` runs everything, and a test in a
namespace is a test like any other: it may open sockets to pods and start programs there. Where namespaces are forbidden
or programs cannot be built, the tests are skipped with the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from poolpilot_lab.gotools import BuildFailedError, NotAvailable
from poolpilot_lab.kubelet import host
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from _pytest.reports import TestReport

_PIPE: Final = "POOLPILOT_TEST_REPORTS"
"""Names the file descriptor of the pipe, thus also: we are inside."""
_TAIL_LINES: Final = 30


def inside() -> bool:
    """Whether this is the inner pytest."""
    return _PIPE in os.environ


class Outside:
    """Stands in for the tests of a folder."""

    def __init__(self, folder: Path, prepare: Callable[[list[str]], Awaitable[object]]) -> None:
        """`prepare` makes what the chosen tests need the Internet for; NotAvailable skips them all."""
        self._folder = folder
        self._prepare = prepare
        self._inner: _Inner | None = None
        self._reason = ""
        self._chosen: list[str] = []

    def chosen(self, items: list[pytest.Item]) -> None:
        """What of it is to be run, in order."""
        self._chosen = [one.nodeid for one in items if self._ours(one)]

    def run(self, item: pytest.Item) -> bool | None:
        """The whole protocol of a test; None where it is not one of ours, or is to be skipped."""
        if not self._ours(item):
            return None
        if self._inner is None and not self._reason:
            self._begin(item)
        if self._reason:
            item.add_marker(pytest.mark.skip(reason=self._reason))
            return None
        assert self._inner is not None, "begun above"
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._inner.reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def stop(self) -> None:
        """With everything that it started."""
        if self._inner is not None:
            self._inner.stop()

    def _ours(self, item: pytest.Item) -> bool:
        return item.path.is_relative_to(self._folder)

    def _begin(self, item: pytest.Item) -> None:
        try:
            namespaces = host.command()
            asyncio.run(self._prepared())
        except BuildFailedError:
            raise
        except NotAvailable as error:
            self._reason = error.reason
            return
        self._inner = _Inner(item.config, namespaces, self._chosen)

    async def _prepared(self) -> None:
        await self._prepare(self._chosen)


class _Inner:
    """The pytest inside, and what it has said so far."""

    def __init__(self, config: pytest.Config, namespaces: list[str], chosen: list[str]) -> None:
        self._config = config
        self._reports: dict[str, list[TestReport]] = {}
        log = config._tmp_path_factory.mktemp("namespaced") / "pytest.log"  # type: ignore[attr-defined]
        read, write = os.pipe()
        argv = [*namespaces, sys.executable, "-m", "pytest", *chosen, "-p", "no:cacheprovider"]
        if config.option.basetemp:
            argv += ["--basetemp", f"{config.option.basetemp}/namespaced"]
        # Ends with this process, however that ends; with it all that it started.
        self._child = Child(
            "the pytest inside", argv, log=log, cwd=config.rootpath, env={_PIPE: str(write)}, pass_fds=(write,)
        ).start()
        os.close(write)
        self._pipe = os.fdopen(read, "r", encoding="utf-8")

    def reports(self, item: pytest.Item) -> Iterator[TestReport]:
        """Of one test, as they come, to its last."""
        while True:
            for report in self._reports.pop(item.nodeid, []):
                yield report
                if report.when == "teardown":
                    return
            line = self._pipe.readline()
            if not line:
                yield self._lost(item)
                return
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=json.loads(line))
            if isinstance(report.longrepr, list):
                # Where and why it was skipped; JSON has no tuples.
                report.longrepr = tuple(report.longrepr)
            self._reports.setdefault(report.nodeid, []).append(report)

    def stop(self) -> None:
        asyncio.run(self._child.stop(0.0))
        self._pipe.close()

    def _lost(self, item: pytest.Item) -> TestReport:
        said = f"the pytest inside is gone\n{self._child.tail(_TAIL_LINES)}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")


class Inside:
    """Sends reports out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pipe = os.fdopen(int(os.environ[_PIPE]), "w", encoding="utf-8")
        os.set_inheritable(self._pipe.fileno(), False)

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        """Each as soon as it is there."""
        data: dict[str, Any] = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.write(json.dumps(data) + "\n")
        self._pipe.flush()
