"""Images by name, and the command lines they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from poolpilot_lab.kubelet.images import Image, ImageError, Images, load_images, program, repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1.36", "docker.io/library/busybox"),
        ("envoyproxy/envoy:v1.40.0", "docker.io/envoyproxy/envoy"),
        ("ghcr.io/poolpilot/picker", "ghcr.io/poolpilot/picker"),
        ("ghcr.io/poolpilot/picker:v1@sha256:ab12", "ghcr.io/poolpilot/picker"),
        ("localhost/one:2", "localhost/one"),
        ("registry:5000/one", "registry:5000/one"),
        ("registry:5000/one/two:3", "registry:5000/one/two"),
    ],
)
def test_a_repository_is_found_in_any_reference(reference: str, name: str) -> None:
    assert repository(reference) == name


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({}, ["run", "--fast", "default"]),
        ({"args": ["other"]}, ["run", "--fast", "other"]),
        ({"command": ["sh"]}, ["sh"]),
        ({"command": ["sh"], "args": ["-c", "true"]}, ["sh", "-c", "true"]),
    ],
)
def test_command_and_args_replace_what_the_image_has(container: dict[str, Any], line: list[str]) -> None:
    assert program(Image(("run", "--fast"), ("default",)), container) == line


def test_what_is_not_there_is_named_with_what_is() -> None:
    with pytest.raises(ImageError, match=r"'other:1'.*known: docker.io/library/a, docker.io/library/b"):
        Images({"a": Image(), "b:2": Image()}).find("other:1")
    with pytest.raises(ImageError, match="no entrypoint"):
        program(Image(), {"image": "a"})


def test_a_file_names_them(tmp_path: Path) -> None:
    file = tmp_path / "images.json"
    file.write_text('{"a": {"entrypoint": ["x"], "env": {"K": "V"}}}')
    assert load_images(file).find("a:1") == Image(("x",), env={"K": "V"})
    file.write_text('{"a": {"entry": ["x"]}}')
    with pytest.raises(ImageError, match=r"images\.json.*entry"):
        load_images(file)
    with pytest.raises(ImageError, match="No such file"):
        load_images(tmp_path / "none")
