"""The endpoint file: whole or not at all, only on change, empty only on purpose."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from poolpilot_picker.envoy.eds import EdsError, EdsWriter
from poolpilot_picker.state.endpoints import EndpointSpec


def spec(host: str, port: int = 8000, uid: str = "") -> EndpointSpec:
    return EndpointSpec(host=host, port=port, uid=uid)


def addresses(path: Path) -> list[tuple[str, int]]:
    [resource] = json.loads(path.read_text())["resources"]
    return [
        (socket["address"], socket["port_value"])
        for endpoint in resource["endpoints"][0]["lb_endpoints"]
        for socket in [endpoint["endpoint"]["address"]["socket_address"]]
    ]


def test_it_writes_every_endpoint_once_and_names_the_cluster(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path / "eds", cluster="llama")
    assert writer.write([spec("10.0.0.2"), spec("10.0.0.1", 8001), spec("fd00::1"), spec("10.0.0.2", uid="reborn")])
    assert addresses(writer.path) == [("10.0.0.1", 8001), ("10.0.0.2", 8000), ("fd00::1", 8000)]
    assert json.loads(writer.path.read_text())["resources"][0]["cluster_name"] == "llama"
    assert [entry.name for entry in writer.path.parent.iterdir()] == ["eds.json"], "no draft is left behind"


def test_the_same_endpoints_in_another_order_change_nothing(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path)
    assert writer.write([spec("10.0.0.1"), spec("10.0.0.2")])
    before = writer.path.stat()
    assert not writer.write([spec("10.0.0.2"), spec("10.0.0.1")])
    after = writer.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_change_replaces_the_file_and_its_version(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path)
    writer.write([spec("10.0.0.1")])
    first, inode = json.loads(writer.path.read_text())["version_info"], writer.path.stat().st_ino
    assert writer.write([spec("10.0.0.1"), spec("10.0.0.2")])
    assert json.loads(writer.path.read_text())["version_info"] != first
    assert writer.path.stat().st_ino != inode, "renamed into place, not rewritten"
    writer.write([spec("10.0.0.1")])
    assert json.loads(writer.path.read_text())["version_info"] == first


def test_an_empty_pool_is_written_as_such(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path)
    assert writer.write([])
    assert addresses(writer.path) == []


def test_a_name_is_left_out_and_told_while_the_others_are_written(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path)
    with pytest.raises(EdsError, match=r"not an IP address: localhost:8000"):
        writer.write([spec("localhost"), spec("10.0.0.1")])
    assert addresses(writer.path) == [("10.0.0.1", 8000)]


def test_a_failed_write_keeps_the_old_file_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EdsWriter(tmp_path)
    writer.write([spec("10.0.0.1")])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", full)
        with pytest.raises(EdsError, match="No space left on device"):
            writer.write([spec("10.0.0.2")])
    assert addresses(writer.path) == [("10.0.0.1", 8000)]
    assert os.listdir(tmp_path) == ["eds.json"]
    assert writer.write([spec("10.0.0.2")])
    assert addresses(writer.path) == [("10.0.0.2", 8000)]


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EdsError, match=str(tmp_path / "file")):
        EdsWriter(tmp_path / "file" / "eds").write([spec("10.0.0.1")])


def test_a_file_that_somebody_else_changed_is_written_again(tmp_path: Path) -> None:
    writer = EdsWriter(tmp_path)
    writer.write([spec("10.0.0.1")])
    writer.path.write_text("{}")
    assert writer.write([spec("10.0.0.1")])
    assert addresses(writer.path) == [("10.0.0.1", 8000)]
