"""Certificate, key and client CA of the data port: read at the start, and again when the files change.

In Kubernetes they are a mounted Secret, which the kubelet replaces as a whole. What is no good is refused, and what is
in force stays: a picker that answers with an old certificate is better than one that answers nobody.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.extproc.certificates import Certificates, TlsFiles, load_client_ca, load_pair
from poolpilot_picker.reloading import WatchedFiles

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


class TlsSource:
    """The files of `--tls-cert`, `--tls-key` and `--client-ca`. Raises ConfigurationError where they are no good."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        files = self._read()
        self._check(files)
        self.certificates = Certificates(files)
        """What is in force."""
        self.reloads = 0
        self.refused = 0
        """Contents that were no good."""
        self._problem = ""
        self._refusal: TlsFiles | None = None
        named = ", ".join(str(file) for file in (certificate, key, client_ca) if file is not None)
        self._files = WatchedFiles(named, self._read, self.offer, stays="the certificates in force stay")
        self.run = self._files.run
        """Watches them until cancelled."""

    @property
    def problem(self) -> str:
        """Why what the files hold is not in force; empty where it is."""
        return self._files.problem or self._problem

    def offer(self, files: TlsFiles) -> None:
        """Puts a content into force, if it is good."""
        if files == self.certificates.files:
            self._problem, self._refusal = "", None
            return
        if files == self._refusal:
            return
        try:
            self._check(files)
        except ConfigurationError as error:
            self.refused += 1
            self._refusal = files
            self._problem = f"{'; '.join(error.problems)}; the certificates in force stay"
            log.error(self._problem)
            return
        self._problem, self._refusal = "", None
        self.reloads += 1
        self.certificates.replace(files)
        log.info("certificates reloaded: new connections get them", extra={"certificate": str(self._certificate)})

    def _read(self) -> TlsFiles:
        return TlsFiles(
            certificate=_pem(self._certificate, "--tls-cert"),
            key=_pem(self._key, "--tls-key"),
            client_ca=_pem(self._client_ca, "--client-ca") if self._client_ca is not None else None,
        )

    def _check(self, files: TlsFiles) -> None:
        """Raises ConfigurationError also where gRPC would only fail every handshake, silently."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            load_pair(context, files)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"--tls-cert {self._certificate} with --tls-key {self._key}: a PEM certificate and its unencrypted PEM "
                f"key are needed ({_reason(error)})"
            ) from error
        if files.client_ca is not None:
            try:
                load_client_ca(context, files.client_ca)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"--client-ca {self._client_ca}: a PEM file of certificates is needed ({_reason(error)})"
                ) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _pem(file: Path, flag: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{flag} {file}: cannot be read: {error.strerror}") from error
