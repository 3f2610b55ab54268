"""The watched file of endpoints: swaps, in-place writes, bad files, and none of them emptying the pool."""

import asyncio
import os

import pytest

from engine_pages import until
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.discovery import FileDiscovery

ONE = "endpoints:\n- {address: 10.0.0.1, port: 8000}\n"
TWO = ONE + "- {address: 10.0.0.2, port: 8000}\n"
BAD = "endpoints:\n- {address: engine, port: 8000}\n"


class Pool:
    def __init__(self) -> None:
        self.sets: list[list[str]] = []

    def __call__(self, specs) -> None:
        self.sets.append([spec.address for spec in specs])


def discovery(path, pool, **options) -> FileDiscovery:
    return FileDiscovery(path, pool, engines=("vllm",), **options)


def look(source: FileDiscovery) -> None:
    source.take(source.look())


def replace(path, text) -> None:
    """Writes beside and renames over, as careful writers do."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def test_the_first_load(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(TWO)
    source = discovery(path, pool, now=lambda: 7.0)
    assert not source.status.ready
    assert [spec.address for spec in source.load()] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert pool.sets == [["10.0.0.1:8000", "10.0.0.2:8000"]]
    status = source.status
    assert (status.ready, status.endpoints, status.loads, status.loaded_ms, status.problems) == (True, 2, 1, 7.0, ())


@pytest.mark.parametrize("text", [None, BAD, "", "\xff"])
def test_a_bad_file_at_start_is_an_error(tmp_path, text):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    source = discovery(path, pool)
    with pytest.raises(ConfigurationError) as error:
        source.load()
    assert str(path) in str(error.value)
    assert pool.sets == []
    assert not source.status.ready


def test_a_renamed_file_is_taken_at_once(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(ONE)
    source = discovery(path, pool)
    source.load()
    look(source)
    replace(path, TWO)
    look(source)
    look(source)
    assert pool.sets == [["10.0.0.1:8000"], ["10.0.0.1:8000", "10.0.0.2:8000"]]


def test_a_config_map_is_a_symlink_that_is_swapped(tmp_path):
    for name, text in (("..1", ONE), ("..2", TWO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "endpoints.yaml").write_text(text)
        os.utime(tmp_path / name / "endpoints.yaml", (1_000, 1_000))
    data, path, pool = tmp_path / "..data", tmp_path / "endpoints.yaml", Pool()
    data.symlink_to("..1")
    path.symlink_to("..data/endpoints.yaml")
    source = discovery(path, pool)
    source.load()
    swap = tmp_path / "..data_tmp"
    swap.symlink_to("..2")
    swap.replace(data)
    look(source)
    assert pool.sets[-1] == ["10.0.0.1:8000", "10.0.0.2:8000"]


def test_a_file_written_in_place_is_taken_when_it_is_still(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(TWO)
    source = discovery(path, pool)
    source.load()
    three = TWO + "- {address: 10.0.0.3, port: 8000}\n"
    with path.open("w") as file:
        for part in (ONE, three[len(ONE) : len(TWO)], three[len(TWO) :]):
            file.write(part)
            file.flush()
            look(source)
            assert len(pool.sets) == 1, "half a file is also good YAML"
    look(source)
    assert len(pool.sets) == 2
    assert pool.sets[-1] == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    assert source.status.failures == 0


def test_a_truncated_file_never_empties_the_pool(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(TWO)
    source = discovery(path, pool)
    source.load()
    path.write_text("")
    look(source)
    look(source)
    assert pool.sets == [["10.0.0.1:8000", "10.0.0.2:8000"]]
    assert "empty" in source.status.problems[0]
    path.write_text("endpoints: []\n")
    look(source)
    look(source)
    assert pool.sets[-1] == []
    assert source.status.problems == ()


def test_a_bad_file_keeps_the_old_set_and_says_so_once(tmp_path, caplog):
    path, pool, now = tmp_path / "endpoints.yaml", Pool(), [0.0]
    path.write_text(ONE)
    source = discovery(path, pool, now=lambda: now[0])
    source.load()
    now[0] = 50.0
    replace(path, BAD)
    for _ in range(3):
        look(source)
        now[0] += 1.0
    status = source.status
    assert pool.sets == [["10.0.0.1:8000"]]
    assert (status.ready, status.endpoints, status.failures, status.failing_since_ms) == (True, 1, 1, 50.0)
    assert status.problems[0].startswith(f"{path}:2: endpoints[0].address: 'engine' is not an IP address")
    assert caplog.text.count("endpoints stay as they are") == 1
    replace(path, "nonsense: 1\n")
    look(source)
    assert (status.failures, status.failing_since_ms) == (2, 50.0)
    replace(path, TWO)
    look(source)
    assert (status.problems, status.failing_since_ms, status.endpoints) == ((), None, 2)


def test_a_file_that_goes_away_and_comes_back(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(ONE)
    source = discovery(path, pool)
    source.load()
    path.unlink()
    look(source)
    assert source.status.problems == (), "a moment without a file is part of some renames"
    look(source)
    look(source)
    assert source.status.problems == (f"{path}: no such file or no access",)
    assert source.status.failures == 1
    path.write_text(TWO)
    look(source)
    look(source)
    assert pool.sets[-1] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert source.status.problems == ()


def test_the_same_file_coming_back_clears_the_problem(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(ONE)
    source = discovery(path, pool)
    source.load()
    path.rename(tmp_path / "aside")
    look(source)
    look(source)
    assert source.status.problems
    (tmp_path / "aside").rename(path)
    look(source)
    look(source)
    assert source.status.problems == ()


def test_a_file_that_is_too_large(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(ONE)
    source = discovery(path, pool)
    source.load()
    replace(path, ONE + "#" * 2**20)
    look(source)
    assert source.status.problems == (f"{path}: larger than 1048576 bytes",)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigurationError, match="Is a directory"):
        discovery(tmp_path, Pool()).load()


async def test_watching(tmp_path):
    path, pool = tmp_path / "endpoints.yaml", Pool()
    path.write_text(ONE)
    source = discovery(path, pool, interval_ms=10.0)
    source.load()
    task = asyncio.create_task(source.run())
    try:
        replace(path, TWO)
        await until(lambda: len(pool.sets) == 2)
        replace(path, BAD)
        await until(lambda: source.status.problems)
        replace(path, ONE)
        await until(lambda: len(pool.sets) == 3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert pool.sets[-1] == ["10.0.0.1:8000"]


async def test_an_apply_that_fails_does_not_end_the_watch(tmp_path, caplog):
    path, seen = tmp_path / "endpoints.yaml", []

    def apply(specs):
        seen.append(len(specs))
        if len(seen) == 2:
            raise RuntimeError("boom")

    path.write_text(ONE)
    source = discovery(path, apply, interval_ms=10.0)
    source.load()
    task = asyncio.create_task(source.run())
    try:
        replace(path, TWO)
        await until(lambda: len(seen) >= 2)
        replace(path, ONE)
        await until(lambda: len(seen) >= 3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert "boom" in caplog.text
