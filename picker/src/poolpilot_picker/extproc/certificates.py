"""What a TLS port presents and trusts, as it is now: new connections take what is current, open ones go on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM contents for a TLS listener; `client_ca` asks for client certificates."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class Certificates:
    """The files in force. Ports that must be told of others follow them."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._followers: dict[Callable[[], None], None] = {}

    def replace(self, files: TlsFiles) -> None:
        """These from now on; they must be known to be good (`load_pair`, `load_client_ca`)."""
        self.files = files
        for follower in list(self._followers):
            follower()

    def follow(self, changed: Callable[[], None]) -> None:
        """Tells of every change, until `leave`."""
        self._followers[changed] = None

    def leave(self, changed: Callable[[], None]) -> None:
        """Tells no more."""
        self._followers.pop(changed, None)


def load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Gives a server's context its certificate and key. Raises OSError or ValueError where they are no pair."""
    with tempfile.TemporaryDirectory() as folder:
        # The library reads them from files only; the folder is for us alone.
        certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        certificate.write_bytes(files.certificate)
        key.write_bytes(files.key)
        context.load_cert_chain(certificate, key, password=_no_password)


def load_client_ca(context: ssl.SSLContext, client_ca: bytes) -> None:
    """Gives a context whom to trust. Raises OSError or ValueError where there is no certificate."""
    # Between the certificates there may be comments in any language.
    context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))


def _no_password() -> str:
    # Else the library would ask on the terminal.
    raise ValueError("the key is encrypted")
