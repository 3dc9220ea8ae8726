"""Whether certificates hold: each by its dates, and a site's and its coordinator's at each other's end."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from coterie.errors import CoterieError

RENEW = (
    "certificates hold for a year, so make the federation anew with 'coterie federation init' in an empty folder, and "
    "give each site its new folder"
)
_OTHER = "this site's folder is of another federation, or the coordinator's is: ask the coordinator for this site's own"
_EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
_PATIENCE = 3.0  # seconds


def need_valid(path: Path, remedy: str = RENEW) -> None:
    """A CoterieError unless the certificate at ``path`` can be read and holds now."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
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


def need_trust(host: str, port: int, root: Path, pair: tuple[Path, Path] | None = None) -> None:
    """A CoterieError where a coordinator that listens is not of the authority ``root``, or refuses ``pair``.

    ``pair`` are the files of a site's own certificate and key, where the coordinator asks for them.
    """
    context, at = ssl.create_default_context(cafile=root), f"{host}:{port}"
    context.check_hostname = False
    if pair:
        context.load_cert_chain(pair[0], pair[1])
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
            why = RENEW if problem.verify_code == _EXPIRED else _OTHER
            raise CoterieError(
                f"The certificate of the coordinator at {at} is not trusted ({problem.verify_message}): {why}."
            ) from None
        except (ssl.SSLError, ConnectionError) as problem:
            if not met and isinstance(problem, ssl.SSLEOFError | ConnectionError):
                return  # a proxy before it, or a coordinator that just begins, hangs up before it says who it is
            reason = getattr(problem, "reason", None) or "it hung up"
            why = RENEW if "EXPIRED" in reason else _OTHER
            raise CoterieError(f"The coordinator at {at} refuses this site's certificate ({reason}): {why}.") from None
        except OSError:
            return  # it is slow
