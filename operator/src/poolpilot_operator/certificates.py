"""Certificates that the operator signs itself, for gateways that verify nothing or trust this one certificate."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

LIFE: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
"""A new certificate is made so long before the old one ends."""
_EARLY: Final = timedelta(minutes=5)
"""Clocks differ."""


def names(service: str, namespace: str) -> list[str]:
    """What clients may call the pickers of a namespace."""
    return [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", service]


def made(dns_names: Sequence[str], now: datetime) -> dict[str, str]:
    """`data` of a Secret of type kubernetes.io/tls; ca.crt is the certificate itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns_names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in dns_names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "tls.crt": base64.b64encode(chain).decode(),
        "tls.key": base64.b64encode(private).decode(),
        "ca.crt": base64.b64encode(chain).decode(),
    }


def good(data: Mapping[str, str], dns_names: Sequence[str], now: datetime) -> bool:
    """Whether the certificate of a Secret can stay: ours to read, for these names, and not about to end."""
    try:
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        serialization.load_pem_private_key(base64.b64decode(data["tls.key"]), None)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = set(found.get_values_for_type(x509.DNSName))
    except (KeyError, ValueError, x509.ExtensionNotFound):
        return False
    return known >= set(dns_names) and certificate.not_valid_after_utc - now > RENEW_BEFORE


def problem(data: Mapping[str, str]) -> str:
    """What is wrong with tls.crt and tls.key of a Secret, so that no picker could start with them; empty if nothing."""
    try:
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    except (KeyError, ValueError) as error:
        return f"tls.crt is no certificate in PEM: {error}"
    try:
        private = serialization.load_pem_private_key(base64.b64decode(data["tls.key"]), None)
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        return f"tls.key is no private key in PEM without a password: {error}"
    if private.public_key() != certificate.public_key():
        return "tls.key is not the key of tls.crt"
    return ""
