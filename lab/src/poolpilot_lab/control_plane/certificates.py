"""Keys and certificates of one control plane: fresh every time, worth nothing once its folder is deleted."""

from __future__ import annotations

import datetime
import ipaddress
import os
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VALID: Final = datetime.timedelta(days=7)
_LEEWAY: Final = datetime.timedelta(hours=1)
"""Before now, for clocks that are set back."""


class KeyPair:
    """A certificate and its private key, PEM."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate.public_bytes(Encoding.PEM)
        self.key = private_pem(key)

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """To NAME.crt and NAME.key, the key for its owner alone; returns both."""
        return written(folder / f"{name}.crt", self.certificate), written(folder / f"{name}.key", self.key)


class Authority:
    """A certificate authority of its own. P-256 throughout: made in a millisecond, and everybody takes it."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = _key_usage(signs_certificates=True)
        self._certificate = (
            self._started(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def server(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """For a server reached at these DNS names and addresses."""
        return self._issued(name, (), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """For a client that Kubernetes takes for this user in these groups."""
        return self._issued(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issued(
        self, name: str, groups: Sequence[str], purpose: x509.ObjectIdentifier, hosts: Sequence[str]
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        fields = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*fields, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            self._started(subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return KeyPair(builder.sign(self._key, hashes.SHA256()), key)

    def _started(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        # Python ≥ 3.13 refuses certificates without the two key identifiers.
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LEEWAY)
            .not_valid_after(now + _VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def signing_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A key that signs tokens, to NAME.key, and its public half, to NAME.pub; returns both."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return written(folder / f"{name}.key", private_pem(key)), written(folder / f"{name}.pub", public)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def written(path: Path, content: bytes) -> Path:
    """Writes a file that only its owner may read, from its first moment on; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
