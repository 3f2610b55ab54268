"""Files of a pod's volumes: what belongs in them (pure), and how they come to change all at once.

As in a real kubelet, a volume is a folder of links: `NAME -> ..data/NAME` and `..data -> ..N`, and a change makes a new
`..N` and moves the link `..data`. Programs that watch their configuration rely on it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from poolpilot_lab.kubelet.environment import MissingError, Place, Sources, field_value, found_keys, resource_value
from poolpilot_lab.kubelet.network import NAMES
from poolpilot_lab.kubelet.services import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from poolpilot_lab.kubelet.objects import Json, NodePod

DATA: Final = "..data"
_PROJECTED: Final = ("configMap", "secret", "downwardAPI", "serviceAccountToken")


def token_sources(pod: NodePod) -> Iterator[Json]:
    """The ServiceAccount tokens that a pod's volumes ask for."""
    for volume in pod.spec.get("volumes", ()):
        for source in volume.get("projected", {}).get("sources", ()):
            if "serviceAccountToken" in source:
                yield source["serviceAccountToken"]


def is_empty_dir(volume: Json) -> bool:
    """Of the pod's own, nothing is put in it. A generic ephemeral or persistent volume is not that."""
    return "emptyDir" in volume


def etc(pod: NodePod, address: str) -> dict[str, str]:
    """Files of /etc by which a pod knows its names and finds those of others."""
    search = f"{pod.metadata.namespace}.{DOMAIN} {DOMAIN} cluster.local"
    name = pod.spec.get("hostname") or pod.metadata.name
    return {
        "resolv.conf": f"nameserver {NAMES}\nsearch {search}\noptions ndots:5\n",
        "hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{address}\t{name}\n",
        "hostname": f"{name}\n",
    }


def contents(pod: NodePod, volume: Json, sources: Sources, place: Place, tokens: Mapping[str, str]) -> dict[str, bytes]:
    """Path and content of every file of a volume; `tokens` by audience. Raises MissingError."""
    if "projected" in volume:
        parts = volume["projected"].get("sources", ())
    elif any(name in volume for name in _PROJECTED[:3]):
        parts = (volume,)
    else:
        kinds = sorted(set(volume) - {"name"})
        raise MissingError(f"volume {volume['name']!r}: {', '.join(kinds)} is not known to this node")
    files: dict[str, bytes] = {}
    for part in parts:
        files |= _part(pod, part, sources, place, tokens)
    return files


def _part(pod: NodePod, part: Json, sources: Sources, place: Place, tokens: Mapping[str, str]) -> dict[str, bytes]:
    namespace = pod.metadata.namespace
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if field in part:
            source = part[field]
            name = source.get("secretName") or source["name"]
            found = found_keys(sources, namespace, kind, name, optional=source.get("optional", False))
            return _chosen(found or {}, source, f"{kind} {namespace}/{name}")
    if "downwardAPI" in part:
        return {one["path"]: _field(pod, one, place) for one in part["downwardAPI"].get("items", ())}
    if "serviceAccountToken" in part:
        token = part["serviceAccountToken"]
        return {token["path"]: tokens[token.get("audience", "")].encode()}
    raise MissingError(f"a projected volume of {', '.join(sorted(part))} is not known to this node")


def _chosen(found: dict[str, bytes], source: Json, what: str) -> dict[str, bytes]:
    if not source.get("items"):
        return found
    missing = [one["key"] for one in source["items"] if one["key"] not in found]
    if missing and not source.get("optional", False):
        raise MissingError(f"{what} has no key {missing[0]!r}")
    return {one["path"]: found[one["key"]] for one in source["items"] if one["key"] in found}


def _field(pod: NodePod, item: Json, place: Place) -> bytes:
    if "fieldRef" in item:
        return field_value(pod, item["fieldRef"]["fieldPath"], place).encode()
    reference = item["resourceFieldRef"]
    for container in pod.spec["containers"]:
        if container["name"] == reference.get("containerName"):
            return resource_value(container, reference, {}).encode()
    raise MissingError(f"resourceFieldRef: there is no container {reference.get('containerName')!r}")


def write(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Makes the folder hold these files and no others; whether that changed anything. Readers never see half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / DATA
    before = data.resolve() if data.is_symlink() else None
    if before is not None and _read(before) == dict(files):
        return False
    number = int(before.name.removeprefix("..")) + 1 if before is not None else 1
    fresh = folder / f"..{number}"
    for name, content in files.items():
        path = fresh / name
        if not path.resolve().is_relative_to(fresh.resolve()):
            raise MissingError(f"the path {name!r} of a volume leads out of it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    fresh.mkdir(exist_ok=True)
    link = folder / "..data_new"
    link.symlink_to(fresh.name)
    link.replace(data)
    _link(folder, {name.partition("/")[0] for name in files})
    if before is not None:
        shutil.rmtree(before)
    return True


def _link(folder: Path, names: set[str]) -> None:
    for one in folder.iterdir():
        if not one.name.startswith("..") and one.name not in names:
            one.unlink()
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{DATA}/{name}")


def _read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
