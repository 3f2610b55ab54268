"""Becomes a container's process: joins the pod's network, builds the container's root, and executes the program.

A script that the kubelet starts with `python -I -S`, thus of the standard library only and without imports of ours. Its
argument is a JSON object:

    argv, env, cwd   of the program
    network          process whose network namespace to join; "new" makes one; absent: stays
    root             empty folder to build the root in; absent: the machine's own root
    mounts           [{source, target, read_only}]: what lies where in the root; a target need not exist
    read_only        whether everything else is read-only
    report           file descriptor: nothing is written to it when the program starts, and the reason if it cannot

The root is the machine's own, by bind mounts, with `/run` and `/dev/shm` empty. Not by overlayfs: an ordinary user may
not mount that on a root of another file system. Where a mount needs a folder that the machine has not, the nearest
folder that is there gets a tmpfs with all that was in it bound in again.
"""

import ctypes
import json
import os
import sys

_NEW_MOUNTS = 0x00020000
_NEW_NETWORK = 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_READ_ONLY = 1
_DEATH_SIGNAL, _KILL = 1, 9
_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def main() -> None:
    """Never returns."""
    given = json.loads(sys.argv[1])
    report = given["report"]
    os.set_inheritable(report, False)
    try:
        _check(_libc.prctl(_DEATH_SIGNAL, _KILL, 0, 0, 0), "prctl")
        if os.getppid() != given["parent"]:
            raise OSError(f"the kubelet {given['parent']} is gone")
        _join(given.get("network"))
        if given.get("root"):
            _change_root(given["root"], given.get("mounts", []), given.get("read_only", False))
        os.chdir(given.get("cwd") or "/")
        _execute(given["argv"], given["env"])
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        os.write(report, f"{name}{error.strerror or error}".encode())
    os._exit(127)


def _execute(argv: "list[str]", env: "dict[str, str]") -> None:
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - a command, not a shell's line
    except OSError as error:
        # Not the last of all the places on the PATH where it was looked for.
        raise OSError(error.errno, error.strerror, argv[0]) from error


def _join(network: "int | str | None") -> None:
    if network == "new":
        _check(_libc.unshare(_NEW_NETWORK), "a new network namespace")
    elif network is not None:
        namespace = os.open(f"/proc/{network}/ns/net", os.O_RDONLY)
        _check(_libc.setns(namespace, _NEW_NETWORK), f"the network namespace of process {network}")
        os.close(namespace)


def _change_root(root: str, mounts: "list[dict[str, str]]", read_only: bool) -> None:
    _check(_libc.unshare(_NEW_MOUNTS), "a new mount namespace")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    own = _Root(root)
    # Outer ones first: a volume may be mounted in another one.
    mounts = sorted(mounts, key=lambda one: one["target"].count("/"))
    targets = [own.resolved(one["target"]) for one in mounts]
    inside = [any(other != target and target.startswith(f"{other}/") for other in targets) for target in targets]
    for one, target, within in zip(mounts, targets, inside, strict=True):
        if not within:
            own.make_point(target, os.path.isdir(one["source"]))
    if read_only:
        _set_read_only(root, _AT_RECURSIVE)
    # Processes share it, also where nothing else may be written.
    _mount("none", f"{root}/dev/shm", "tmpfs")  # noqa: S108 - of the container's own
    for one, target, within in zip(mounts, targets, inside, strict=True):
        if within:
            _make(root + target, os.path.isdir(one["source"]))
        _mount(one["source"], root + target, None, _BIND | _RECURSIVE)
        if one.get("read_only"):
            _set_read_only(root + target, 0)
    os.chroot(root)


class _Root:
    """The root in the making."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._ours: set[str] = set()
        """Folders in which things can be made: tmpfs."""
        self._mimic("/")
        _mount("none", f"{root}/run", "tmpfs")
        self._ours.add("/run")

    def resolved(self, target: str) -> str:
        """Without links in its folder, which would lead out of the root: /var/run is one."""
        folder, name = os.path.split(os.path.normpath(target))
        return os.path.join(os.path.realpath(folder), name)

    def make_point(self, target: str, is_folder: bool) -> None:
        """Sees to it that there is something to mount on."""
        there = self.root + target
        if os.path.lexists(there) and not os.path.islink(there) and os.path.isdir(there) == is_folder:
            return
        above = os.path.dirname(target)
        while not os.path.isdir(self.root + above):
            above = os.path.dirname(above)
        if not any(above == one or (one != "/" and above.startswith(f"{one}/")) for one in self._ours):
            self._mimic(above)
        if os.path.islink(there):
            os.unlink(there)
        _make(there, is_folder)

    def _mimic(self, folder: str) -> None:
        """A tmpfs with everything that is in a folder of the machine."""
        there = self.root if folder == "/" else self.root + folder
        _mount("none", there, "tmpfs")
        self._ours.add(folder)
        for name in os.listdir(folder):
            source, point = os.path.join(folder, name), os.path.join(there, name)
            if os.path.islink(source):
                os.symlink(os.readlink(source), point)
            elif os.path.isdir(source) or os.path.isfile(source):
                _make(point, os.path.isdir(source))
                _mount(source, point, None, _BIND | _RECURSIVE)


def _make(path: str, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _mount(source: str, target: str, kind: "str | None", flags: int = 0) -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None)
    _check(done, f"mount of {source if kind is None else kind} on {target}")


def _set_read_only(target: str, flags: int) -> None:
    wanted = _Attributes(set=_READ_ONLY)
    done = _libc.syscall(_MOUNT_SETATTR, -100, target.encode(), flags, ctypes.byref(wanted), ctypes.sizeof(wanted))
    _check(done, f"read-only {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main()
