"""The watch on the configuration file: what it offers, when, and what it says of a file that is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from extproc_client import WAIT_S
from poolpilot_picker import reloading
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.reloading import ConfigFile, read_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def offered() -> list[str]:
    return []


@pytest.fixture
def watched(tmp_path: Path, offered: list[str]) -> ConfigFile:
    return ConfigFile(tmp_path / "config.yaml", offered.append)


def test_a_text_is_offered_when_it_stays(watched: ConfigFile, offered: list[str]) -> None:
    """Of a file that is written in place the beginning may be good YAML, and mean something else."""
    for text in ("a: 1", "a: 1\nb:", "a: 1\nb: 2", "a: 1\nb: 2"):
        watched.look(text)
    assert offered == ["a: 1\nb: 2"]


def test_one_look_without_a_file_is_no_problem(watched: ConfigFile, caplog: pytest.LogCaptureFixture) -> None:
    watched.look("a")
    watched.missed("config.yaml: cannot be read: No such file or directory")
    assert watched.problem == ""
    watched.look("a")
    assert caplog.records == []


def test_a_file_that_stays_away_is_a_problem_said_once(
    watched: ConfigFile, offered: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(5):
        watched.missed("config.yaml: cannot be read: No such file or directory")
    said = "config.yaml: cannot be read: No such file or directory; the running configuration stays"
    assert watched.problem == said
    assert [record.message for record in caplog.records] == [said]
    watched.look("a")
    assert watched.problem == ""
    assert "can be read again" in caplog.records[-1].message
    assert offered == [], "half of it may be there"
    watched.look("a")
    assert offered == ["a"]


def test_a_fault_in_applying_does_not_end_the_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken: list[str] = []

    def offer(text: str) -> None:
        if text == "bad":
            raise ZeroDivisionError
        taken.append(text)

    watched = ConfigFile(tmp_path / "config.yaml", offer)
    for text in ("bad", "bad", "good", "good"):
        watched.look(text)
    assert taken == ["good"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: None, "No such file or directory"),
        (lambda file: file.mkdir(), "Is a directory"),
        (lambda file: file.write_bytes(b"ab\xff"), "not UTF-8 text at byte 2"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, make: object, reason: str) -> None:
    file = tmp_path / "config.yaml"
    make(file)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=f"config.yaml: cannot be read: {reason}"):
        read_text(file)


async def test_it_runs(
    tmp_path: Path, watched: ConfigFile, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "POLL_S", 0.01)
    running = asyncio.ensure_future(watched.run())
    async with asyncio.timeout(WAIT_S):
        while not watched.problem:
            await asyncio.sleep(0.01)
        (tmp_path / "config.yaml").write_text("a: 1")
        while not offered:
            await asyncio.sleep(0.01)
    running.cancel()
    assert set(offered) == {"a: 1"} and watched.problem == ""
