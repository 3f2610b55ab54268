"""What stands for a container image on this machine: a local command, named in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEFAULT_REGISTRY: Final = "docker.io"


class ImageError(Exception):
    """There is no such image here."""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As a Dockerfile has it: a container's `command` replaces the entrypoint, and both; its `args` replace `cmd`."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: dict[str, str] = {}


class Images:
    """All images of a node, by repository. Tags and digests do not matter: there is one version of each, the local."""

    def __init__(self, images: Mapping[str, Image]) -> None:
        self._images = {repository(name): image for name, image in images.items()}

    def find(self, reference: str) -> Image:
        """Raises ImageError."""
        found = self._images.get(repository(reference))
        if found is None:
            known = ", ".join(sorted(self._images)) or "none"
            raise ImageError(f"image {reference!r}: nothing on this node stands for it (known: {known})")
        return found


def load_images(path: Path) -> Images:
    """From a JSON file: {"ghcr.io/poolpilot/picker": {"entrypoint": ["poolpilot-picker"]}}. Raises ImageError."""
    try:
        return Images(msgspec.json.decode(path.read_bytes(), type=dict[str, Image]))
    except (OSError, msgspec.MsgspecError) as error:
        raise ImageError(f"{path}: {error}") from None


def repository(reference: str) -> str:
    """The name without tag and digest, with the registry that is meant where none is given."""
    name = reference.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    name = f"{folder}{slash}{last.partition(':')[0]}"
    first, slash, _ = name.partition("/")
    if not slash:
        return f"{_DEFAULT_REGISTRY}/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"{_DEFAULT_REGISTRY}/{name}"


def program(image: Image, container: Mapping[str, Any]) -> list[str]:
    """The command line of a container, its variables not yet put in. Raises ImageError if there is none."""
    command, args = container.get("command") or (), container.get("args") or ()
    line = [*command, *args] if command else [*image.entrypoint, *(args or image.cmd)]
    if not line:
        raise ImageError(f"image {container.get('image')!r} has no entrypoint, and the container names no command")
    return line
