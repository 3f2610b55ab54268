"""Files that flags name: the engines' token, certificates and keys. Read once, before anything starts."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.extproc.listener import TlsFiles
from poolpilot_picker.sources.credentials import BearerToken

if TYPE_CHECKING:
    from pathlib import Path


def token_of(file: Path | None, variable: str | None) -> BearerToken | None:
    """The bearer token for the engines. Raises ConfigurationError, with the flag's name."""
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise ConfigurationError("--engine-api-key-file and --engine-api-key-env exclude each other")
    try:
        return BearerToken(file=file, env=variable)
    except ConfigurationError as error:
        flag = "--engine-api-key-file" if file is not None else "--engine-api-key-env"
        raise ConfigurationError(*(f"{flag}: {problem}" for problem in error.problems)) from error


def tls_files(certificate: Path, key: Path, client_ca: Path | None) -> TlsFiles:
    """The files' contents. Raises ConfigurationError also where gRPC would only fail every handshake, silently."""
    files = TlsFiles(
        certificate=_pem(certificate, "--tls-cert"),
        key=_pem(key, "--tls-key"),
        client_ca=_pem(client_ca, "--client-ca") if client_ca is not None else None,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password an encrypted key is an error, not a question on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--tls-cert {certificate} with --tls-key {key}: a PEM certificate and its unencrypted PEM key are needed "
            f"({_reason(error)})"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"--client-ca {client_ca}: a PEM file of certificates is needed ({_reason(error)})"
            ) from error
    return files


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _pem(file: Path, flag: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{flag} {file}: cannot be read: {error.strerror}") from error
