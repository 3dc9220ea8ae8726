"""Who is who in a Flower deployment: one authority, the coordinator's certificate, and a key for each site.

Sites check the coordinator's certificate against the authority's; the coordinator knows sites by their public keys.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import files
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all, in a folder that only its owner may enter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    files.write(path, [data], mode=0o600)


def authority(folder: Path, name: str, days: float) -> None:
    """Make ``ca.key`` and ``ca.crt`` in ``folder`` unless they are there; valid for ``days``."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if (folder / "ca.key").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} authority")])
    certificate = _signed(_builder(subject, subject, key, days), key, key, ca=True)
    private(folder / "ca.key", _pem(key))
    private(folder / "ca.crt", certificate)


def certificate(folder: Path, path: Path, host: str, days: float) -> None:
    """Make ``path``.crt and ``path``.key for a server at ``host``, signed by the authority in ``folder``.

    The certificate holds for ``host``, ``localhost`` and 127.0.0.1, for ``days`` days.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    issuer_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP384R1())
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        address = x509.IPAddress(ipaddress.ip_address(host))
        names += [] if address in names else [address]
    except ValueError:
        names += [] if host == "localhost" else [x509.DNSName(host)]
    builder = _builder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)]), issuer.subject, key, days)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    private(path.with_suffix(".crt"), _signed(builder, key, issuer_key, ca=False))
    private(path.with_suffix(".key"), _pem(key))


def node_key(path: Path, public: Path) -> None:
    """Make a site's key, EC P-384 in OpenSSH's format, and the public half that the coordinator registers."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    encoding, form = serialization.Encoding, serialization.PrivateFormat
    private(path, key.private_bytes(encoding.PEM, form.OpenSSH, serialization.NoEncryption()))
    private(public, key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH))


def need_valid(path: Path, remedy: str) -> None:
    """A CoterieError unless the certificate at ``path`` can be read and holds now."""
    from cryptography import x509

    try:
        found: Certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise CoterieError(f"There is no certificate {path}: {remedy}.") from None
    except ValueError as problem:
        raise CoterieError(f"{path} is not a certificate: {remedy}.") from problem
    now = datetime.now(UTC)
    if now > found.not_valid_after_utc:
        raise CoterieError(f"The certificate {path} ended on {found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: {remedy}.")
    if now < found.not_valid_before_utc:
        begin = f"{found.not_valid_before_utc:%Y-%m-%d %H:%M}"
        raise CoterieError(f"The certificate {path} begins on {begin} UTC: set this computer's clock, or {remedy}.")


def _builder(subject: Any, issuer: Any, key: Any, days: float) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    # Begun an hour ago: clocks differ. One for tests that has ended begins before its end.
    begin = min(now, now + timedelta(days=days)) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + timedelta(days=days))
    )


def _signed(builder: Any, key: Any, issuer_key: Any, ca: bool) -> bytes:
    """The certificate with the extensions that strict checks of chains ask for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"),
        False,
    )  # fmt: skip
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    pem: bytes = builder.sign(issuer_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return pem


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return data
