"""Listening sockets that a library has opened and does not hand out. Only needed at the end of a process."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

_OWN_FILES: Final = Path("/proc/self/fd")


def stop_listening(port: int) -> int:
    """Makes this process take no further connections on a TCP port; those that are there stay. How many sockets it was.

    Nothing where the system has no /proc.
    """
    found = 0
    for name in os.listdir(_OWN_FILES) if _OWN_FILES.is_dir() else ():
        # The listing itself is among them, and gone by now.
        with contextlib.suppress(OSError):
            if os.readlink(_OWN_FILES / name).startswith("socket:"):
                # A copy of the descriptor: shutdown is for the socket, whoever has it.
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if _listens(one, port):
                        one.shutdown(socket.SHUT_RDWR)
                        found += 1
    return found


def _listens(one: socket.socket, port: int) -> bool:
    inet = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    return inet and bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and one.getsockname()[1] == port
