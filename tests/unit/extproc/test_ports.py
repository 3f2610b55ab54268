"""A port that this process is to leave to another one."""

from __future__ import annotations

import socket
import sys

import pytest

from poolpilot_picker.extproc.ports import stop_listening

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), reuse_port=True)


def test_no_further_connections() -> None:
    with listening() as one, listening() as other:
        port = one.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, one.accept()[0] as served:
            assert stop_listening(port) == 1
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            client.sendall(b"still there")
            assert served.recv(100) == b"still there"
            with socket.create_connection(other.getsockname()):
                pass
        assert stop_listening(port) == 0


def test_the_successor_gets_all_that_come() -> None:
    with listening() as old:
        port = old.getsockname()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as new:
            # Both are of this process here; the first that is closed is the one to look at.
            old.shutdown(socket.SHUT_RDWR)
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port)):
                    new.settimeout(5.0)
                    new.accept()[0].close()
