"""Certificates and keys of a deployment: made, and checked by their dates and at each other's end.

Sites check the coordinator's certificate against their authority's; a Flower coordinator knows sites by public keys.
A site may make its own key and ask for a certificate, or prove that it has a key.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat, load_pem_public_key

from coterie import files
from coterie.errors import CoterieError

RENEW = (
    "certificates hold for a year, so the coordinator's owner renews its own by 'coterie federation renew', and a site "
    "asks for another by 'coterie federation request'"
)
_OTHER = "this site's folder is of another federation, or the coordinator's is: ask the coordinator for this site's own"
_CLOCK = "it begins later, by the clock of who looks at it: set the clocks of both computers"
_WHY = {9: _CLOCK, 10: RENEW}  # by OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_PATIENCE = 3.0  # seconds
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
_UNUSED = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
           "decipher_only")  # fmt: skip


def need_valid(path: Path, site: str = "") -> None:
    """A CoterieError unless the certificate at ``path`` can be read, holds now and is that of ``site``, where named."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise CoterieError(f"There is no certificate {path}: {RENEW}.") from None
    except ValueError as problem:
        raise CoterieError(f"{path} is not a certificate: {RENEW}.") from problem
    now = datetime.now(UTC)
    if now > found.not_valid_after_utc:
        raise CoterieError(f"The certificate {path} ended on {found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: {RENEW}.")
    if now < found.not_valid_before_utc:
        begin = f"{found.not_valid_before_utc:%Y-%m-%d %H:%M}"
        raise CoterieError(f"The certificate {path} begins on {begin} UTC: set this computer's clock, or {RENEW}.")
    named = [part.value for part in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if site and named != [site]:
        raise CoterieError(f"The certificate {path} is not that of site '{site}': 'accept' the site's own.")


def need_trust(host: str, port: int, root: Path, pair: tuple[Path, Path] | None = None) -> None:
    """A CoterieError where what listens is no coordinator of the authority ``root``, or refuses ``pair``.

    ``pair`` are the files of a site's own certificate and key, where the coordinator asks for them.
    """
    context, at = ssl.create_default_context(cafile=root), f"{host}:{port}"
    context.check_hostname = False
    if pair:
        try:
            context.load_cert_chain(pair[0], pair[1])
        except ssl.SSLError:
            raise CoterieError(
                f"The certificate {pair[0]} does not belong to {pair[1]}: 'accept' what was signed for this key."
            ) from None
    try:
        plain = socket.create_connection((host, port), timeout=_PATIENCE)
    except OSError:
        return  # it is away: the site connects when it is there
    met = False
    with plain:
        try:
            with context.wrap_socket(plain) as wrapped:
                met = True
                if pair:  # whether it takes them shows in its answer
                    wrapped.sendall(b"GET / HTTP/1.1\r\nHost: coterie\r\nConnection: close\r\n\r\n")
                    if not wrapped.recv(1):
                        raise ConnectionResetError
        except ssl.SSLCertVerificationError as problem:
            why = _WHY.get(problem.verify_code, _OTHER)
            raise CoterieError(
                f"The certificate of the coordinator at {at} is not trusted ({problem.verify_message}): {why}."
            ) from None
        except (ssl.SSLError, ConnectionError) as problem:
            if not met and isinstance(problem, ssl.SSLEOFError | ConnectionError):
                return  # a proxy before it, or a coordinator that just begins, hangs up before it says who it is
            reason = getattr(problem, "reason", None) or "it hung up"
            if not (met or "CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
                raise CoterieError(
                    f"What listens at {at} does not speak TLS as a coordinator does ({reason}): look at host and port "
                    "in federation.toml, and ask the coordinator whether they are right."
                ) from None
            told = {"EXPIRED": RENEW, "BAD_CERTIFICATE": _CLOCK, "hung up": f"{_OTHER}, or the clocks of both differ"}
            why = next((text for word, text in told.items() if word in reason), _OTHER)
            raise CoterieError(f"The coordinator at {at} refuses this site's certificate ({reason}): {why}.") from None
        except OSError:
            return  # it is slow


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


def load_authority(folder: Path) -> tuple[x509.Certificate, Any]:
    """The certificate and the key that :func:`authority` made."""
    return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), _loaded(folder / "ca.key")


def certificate(folder: Path, path: Path, host: str, days: float) -> None:
    """Make ``path``.crt and ``path``.key for a server at ``host``, signed by the authority in ``folder``.

    The certificate holds for ``host``, ``localhost`` and 127.0.0.1, for ``days`` days.
    """
    issuer, issuer_key = load_authority(folder)
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
    private(path.with_suffix(".crt"), _certificate(_name(host), key, issuer.subject, issuer_key, days, *server))
    private(path.with_suffix(".key"), _written(key))


def node_key(path: Path, public_path: Path) -> None:
    """Make a site's key for Flower, and the public half that the coordinator registers."""
    private(path, ssh_key())
    private(public_path, openssh(public_at(path)))


def ssh_key() -> bytes:
    """A site's key for Flower: EC P-384 in OpenSSH's format."""
    return _written(_new_key(), PrivateFormat.OpenSSH)


def openssh(key: str) -> bytes:
    """A public key in OpenSSH's format, in which Flower registers it."""
    return load_pem_public_key(key.encode()).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def rsa_key() -> bytes:
    """A site's key for NVFlare, which signs with RSA alone: 3,072 bits."""
    return _written(rsa.generate_private_key(65537, 3072))


def request(path: Path, name: str) -> str:
    """A certificate request (PKCS #10) for the key at ``path``, signed with it, in the ``name`` of a site."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.sign(_loaded(path), hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def requested(text: str) -> x509.CertificateSigningRequest:
    """A certificate request; a CoterieError where it is none, or who made it has not its key."""
    try:
        found = x509.load_pem_x509_csr(text.encode())
        if not found.is_signature_valid:
            raise InvalidSignature
    except (ValueError, TypeError, InvalidSignature) as problem:
        raise CoterieError(
            "The request is damaged or not signed with its own key: ask its site for it again."
        ) from problem
    return found


def public(key: Any) -> str:
    """The public half of a key, or of a certificate request, as text."""
    return str(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def public_at(path: Path) -> str:
    """The public half of the private key in a file."""
    return public(_loaded(path))


def fingerprint(data: bytes) -> str:
    """What tells bytes from any other, for people to compare: 128 bits of SHA-256."""
    text = hashlib.sha256(data).hexdigest()[:32]
    return "-".join(text[i : i + 4] for i in range(0, 32, 4))


def proof(path: Path, question: bytes) -> bytes:
    """What only who has the RSA key at ``path`` can answer to a question."""
    return bytes(_loaded(path).sign(question, _PSS, hashes.SHA256()))


def proved(key: str, question: bytes, answer: object) -> bool:
    """Whether an answer to a question is :func:`proof` of the key whose public half is ``key``."""
    try:
        load_pem_public_key(key.encode()).verify(answer, question, _PSS, hashes.SHA256())  # type: ignore[union-attr,call-arg,arg-type]
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


def renew(path: Path, issuer: x509.Certificate, issuer_key: Any, days: float) -> None:
    """Make the certificate at ``path`` anew, for the same key and names, from now on for ``days``."""
    old, now = x509.load_pem_x509_certificate(path.read_bytes()), datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer.subject, old.subject, old.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    made = builder.sign(issuer_key, old.signature_hash_algorithm)  # type: ignore[arg-type]
    private(path, made.public_bytes(Encoding.PEM))


def ends(path: Path) -> datetime | None:
    """When the certificate in a file ends; None where there is none."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc if path.exists() else None


def _loaded(path: Path) -> Any:
    data, pem = path.read_bytes(), serialization.load_pem_private_key
    load = serialization.load_ssh_private_key if b"OPENSSH" in data[:40] else pem
    try:
        return load(data, None)
    except (ValueError, TypeError) as problem:
        raise CoterieError(f"'{path}' is no private key: delete it, and ask for a certificate again.") from problem


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _written(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, form, serialization.NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, key: Any, issuer: x509.Name, issuer_key: Any, days: float, *server: x509.ExtensionType
) -> bytes:
    """A certificate of a ``server``, by the extensions of one, or of an authority."""
    now, ca = datetime.now(UTC), not server
    end = now + timedelta(days=days)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    # Begun an hour ago: clocks differ. One for tests that has ended begins before its end.
    builder = builder.not_valid_before(min(now, end) - timedelta(hours=1)).not_valid_after(end)
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
