"""The namespaces that a cluster lives in: a network in which 10.244.0.0/16 is local, and mounts that nobody else sees.

A program enters them when it is started, not later: `command` is what to put before it. As root that takes namespaces
of network, mounts and processes; for others also one of users, in which they are root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from poolpilot_lab.gotools import NotAvailable

_TRY_S: Final = 20
_NEEDED: Final = ("unshare", "nsenter", "ip", "sleep")


def command() -> list[str]:
    """What runs another command in fresh namespaces, and kills it and everything it started when it ends itself.

    Raises NotAvailable where that is forbidden or a program is missing, with what the kernel says.
    """
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise NotAvailable(f"a cluster of processes needs {', '.join(missing)} (util-linux, iproute2) on the PATH")
    own = ["--net", "--mount", "--fork", "--kill-child"]
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    said = ""
    # Some machines let nobody mount a /proc for new process namespaces: then what is left over is killed one by one.
    for processes in (["--pid", "--mount-proc"], []):
        called = ["unshare", *users, *own, *processes]
        # Also what a pod needs: another network inside, and an interface between the two.
        inside = "ip link set lo up && ip link add try0 type veth peer name try1 && unshare --net true"
        done = subprocess.run(
            [*called, "sh", "-c", inside], check=False, capture_output=True, text=True, timeout=_TRY_S
        )
        if done.returncode == 0:
            return called
        said = done.stderr.strip()
    raise NotAvailable(f"network namespaces cannot be made here: {said}")
