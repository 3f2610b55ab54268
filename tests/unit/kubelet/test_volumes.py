"""Files of volumes: what is in them, and that they change all at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_pods import PLACE, Sources, pod
from poolpilot_lab.kubelet.environment import MissingError
from poolpilot_lab.kubelet.volumes import contents, token_sources, write

CERTIFICATE = {"secret": {"name": "tls", "items": [{"key": "tls.crt", "path": "c"}]}}
TOKEN = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}


def found(volume: dict[str, Any]) -> dict[str, bytes]:
    sources = Sources()
    sources.config_maps["map"] = {"a.yaml": "one", "b.yaml": "two"}
    sources.secrets["tls"] = {"tls.crt": b"\x01", "tls.key": b"\x02"}
    return contents(pod(), {"name": "v", **volume}, sources, PLACE, {"vault": "T"})


@pytest.mark.parametrize(
    ("volume", "files"),
    [
        ({"configMap": {"name": "map"}}, {"a.yaml": b"one", "b.yaml": b"two", "raw": b"\xff\x00"}),
        ({"configMap": {"name": "map", "items": [{"key": "b.yaml", "path": "x/y"}]}}, {"x/y": b"two"}),
        ({"secret": {"secretName": "tls"}}, {"tls.crt": b"\x01", "tls.key": b"\x02"}),
        ({"secret": {"secretName": "none", "optional": True}}, {}),
        (
            {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"n": b"a"},
        ),
        (
            {
                "projected": {
                    "sources": [TOKEN, {"secret": {"name": "tls", "items": [{"key": "tls.crt", "path": "c"}]}}]
                }
            },
            {"token": b"T", "c": b"\x01"},
        ),
    ],
)
def test_what_is_in_a_volume(volume: dict[str, Any], files: dict[str, bytes]) -> None:
    assert found(volume) == files


@pytest.mark.parametrize(
    ("volume", "reason"),
    [
        ({"configMap": {"name": "none"}}, "ConfigMap serving/none is not there"),
        ({"secret": {"secretName": "tls", "items": [{"key": "x", "path": "x"}]}}, "Secret serving/tls has no key 'x'"),
        ({"hostPath": {"path": "/"}}, "hostPath is not known"),
        ({"projected": {"sources": [{"clusterTrustBundle": {}}]}}, "clusterTrustBundle is not known"),
    ],
)
def test_what_is_missing_is_named(volume: dict[str, Any], reason: str) -> None:
    with pytest.raises(MissingError, match=reason):
        found(volume)


def test_tokens_that_are_wanted() -> None:
    assert list(token_sources(pod(volumes=[{"name": "v", "projected": {"sources": [TOKEN, {"secret": {}}]}}]))) == [
        TOKEN["serviceAccountToken"]
    ]


def visible(folder: Path) -> dict[str, bytes]:
    """As a program that lists the folder finds it."""
    named = [path for path in folder.rglob("*") if not path.relative_to(folder).parts[0].startswith("..")]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in named if path.is_file()}
    for top in [path for path in named if path.is_symlink() and path.is_dir()]:
        for path in top.resolve().rglob("*"):
            if path.is_file():
                files[f"{top.name}/{path.relative_to(top.resolve()).as_posix()}"] = path.read_bytes()
    return files


NAMES = st.sampled_from(["a", "b.yaml", "d/e", "d/f", "g/h/i"])
FILES = st.dictionaries(NAMES, st.binary(max_size=3))


@given(st.lists(FILES, min_size=1, max_size=4))
def test_a_folder_holds_what_was_last_written(states: list[dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name) / "v", None
        for files in states:
            assert write(folder, files) is (files != before)
            assert visible(folder) == files
            before = files
        kept = [one.name for one in folder.iterdir() if one.name.startswith("..")]
        assert len(kept) == 2, "no old state stays"


def test_readers_of_a_link_see_one_state(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"1"})
    data = tmp_path / "..data"
    old = data.resolve()
    assert (tmp_path / "a").readlink() == Path("..data/a")
    write(tmp_path, {"a": b"2", "b": b"2"})
    assert data.resolve() != old and not old.exists()
    assert (tmp_path / "a").read_bytes() == b"2"


def test_no_file_leads_out(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="leads out"):
        write(tmp_path / "v", {"../../x": b""})
    assert not (tmp_path / "x").exists()
