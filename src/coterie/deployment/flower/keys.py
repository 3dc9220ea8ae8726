"""Who is who in a Flower deployment: one authority, the coordinator's certificate, and a key for each site.

Sites check the coordinator's certificate against the authority's; the coordinator knows sites by their public keys.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from coterie import files

_UNUSED = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
           "decipher_only")  # fmt: skip


def private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all, in a folder that only its owner may enter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    files.write(path, [data], mode=0o600)


def authority(folder: Path, name: str, days: float) -> None:
    """Make ``ca.key`` and ``ca.crt`` in ``folder`` unless they are there; valid for ``days``."""
    if (folder / "ca.key").exists():
        return
    key, subject = _new_key(), _name(f"{name} authority")
    signed = _certificate(subject, key, subject, key, days)
    private(folder / "ca.key", _written(key))
    private(folder / "ca.crt", signed)


def certificate(folder: Path, path: Path, host: str, days: float) -> None:
    """Make ``path``.crt and ``path``.key for a server at ``host``, signed by the authority in ``folder``.

    The certificate holds for ``host``, ``localhost`` and 127.0.0.1, for ``days`` days.
    """
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).subject
    issuer_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = _new_key()
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    server = (
        x509.SubjectAlternativeName(dict.fromkeys(names)),
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    private(path.with_suffix(".crt"), _certificate(_name(host), key, issuer, issuer_key, days, *server))
    private(path.with_suffix(".key"), _written(key))


def node_key(path: Path, public: Path) -> None:
    """Make a site's key, EC P-384 in OpenSSH's format, and the public half that the coordinator registers."""
    key = _new_key()
    private(path, _written(key, PrivateFormat.OpenSSH))
    private(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _written(key: ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, key: Any, issuer: x509.Name, issuer_key: Any, days: float, *server: x509.ExtensionType
) -> bytes:
    """A certificate of a ``server``, by the extensions of one, or of an authority."""
    now, ca = datetime.now(UTC), not server
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Begun an hour ago: clocks differ. One for tests that has ended begins before its end.
        .not_valid_before(min(now, now + timedelta(days=days)) - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )
    usage = x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **dict.fromkeys(_UNUSED, False))
    extensions: list[tuple[x509.ExtensionType, bool]] = [  # with those that strict checks of chains ask for
        *((one, False) for one in server),
        (x509.BasicConstraints(ca=ca, path_length=0 if ca else None), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA384()).public_bytes(Encoding.PEM)
