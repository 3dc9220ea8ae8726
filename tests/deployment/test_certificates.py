"""Certificates at both ends of a connection: who is told what, before a process is started."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from coterie.deployment import certificates
from coterie.deployment.nvflare import provisioning
from coterie.errors import CoterieError


@contextmanager
def coordinator(server, ca, mutual):
    """A server with a certificate, which where ``mutual`` asks for one of the authority ``ca``; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.with_suffix(".crt"), server.with_suffix(".key"))
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
    found = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    found.socket = context.wrap_socket(found.socket, server_side=True, do_handshake_on_connect=False)
    found.handle_error = lambda *_: None
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found.server_address[1]
    finally:
        found.shutdown()
        found.server_close()
        thread.join(5.0)


def made(folder, days=365.0):
    certificates.authority(folder, "x", 365.0)
    monkeypatch = pytest.MonkeyPatch()
    for name, use in (("server", "SERVER_AUTH"), ("site", "CLIENT_AUTH")):
        monkeypatch.setattr(x509.oid.ExtendedKeyUsageOID, "SERVER_AUTH", getattr(x509.oid.ExtendedKeyUsageOID, use))
        certificates.certificate(folder, folder / name, "127.0.0.1", days)
        monkeypatch.undo()
    return folder


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    root = tmp_path_factory.mktemp("authorities")
    ours = made(root / "ours")
    shutil.copytree(ours, root / "ended")
    shutil.copytree(ours, root / "early")
    with pytest.MonkeyPatch.context() as patch:  # made by a clock that is two days ahead
        patch.setattr(
            certificates, "datetime", SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(days=2))
        )
        early = made(root / "early")
    return {"ours": ours, "theirs": made(root / "theirs"), "ended": made(root / "ended", -1.0), "early": early}


def pair(folder):
    return folder / "site.crt", folder / "site.key"


def need_trust(authorities, server="ours", root="ours", site="ours", mutual=True):
    own = pair(authorities[site]) if mutual else None
    with coordinator(authorities[server] / "server", authorities["ours"] / "ca.crt", mutual) as port:
        certificates.need_trust("127.0.0.1", port, authorities[root] / "ca.crt", own)
    return "trusted"


@pytest.mark.parametrize("mutual", [False, True])
def test_a_site_is_told_at_once_why_it_cannot_trust_a_coordinator(authorities, mutual):
    assert need_trust(authorities, mutual=mutual) == "trusted"
    with pytest.raises(CoterieError, match=r"not trusted .* another federation, .* ask the coordinator"):
        need_trust(authorities, root="theirs", site="theirs", mutual=mutual)
    with pytest.raises(CoterieError, match=r"not trusted .*expired.* 'coterie federation renew'"):
        need_trust(authorities, server="ended", mutual=mutual)
    with pytest.raises(CoterieError, match=r"not trusted .*not yet valid.* set the clocks"):
        need_trust(authorities, server="early", mutual=mutual)


@pytest.mark.parametrize(
    ("site", "why"), [("theirs", "another federation"), ("ended", "federation renew"), ("early", "set the clocks")]
)
def test_a_site_is_told_at_once_that_a_coordinator_refuses_it(authorities, site, why):
    with pytest.raises(CoterieError, match=rf"refuses this site's certificate .*({why}|clocks of both differ)"):
        need_trust(authorities, site=site)


def test_a_coordinator_that_is_away_is_no_fault(authorities):
    with coordinator(authorities["ours"] / "server", authorities["ours"] / "ca.crt", True) as port:
        pass
    assert certificates.need_trust("127.0.0.1", port, authorities["ours"] / "ca.crt") is None


def test_what_hangs_up_before_it_says_who_it_is_is_no_fault(authorities):
    """A proxy whose coordinator is not there yet takes connections and ends them."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=lambda: door.accept()[0].close(), daemon=True).start()
        own = pair(authorities["ours"])
        assert certificates.need_trust("127.0.0.1", door.getsockname()[1], authorities["ours"] / "ca.crt", own) is None


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_speaks_no_tls_is_not_taken_for_another_federation(authorities, said):
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer():
            with door.accept()[0] as met:
                met.sendall(said)
                met.recv(1 << 16)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        own = pair(authorities["ours"])
        with pytest.raises(CoterieError, match=r"does not speak TLS .* host and port in federation\.toml") as found:
            certificates.need_trust("127.0.0.1", door.getsockname()[1], authorities["ours"] / "ca.crt", own)
        thread.join(5.0)
    assert "another federation" not in str(found.value)


def test_handshakes_that_failed_lately_are_counted(tmp_path):
    def line(ago, what):
        return f"{datetime.now() - timedelta(seconds=ago)} - asyncio - DEBUG - {what}\n"

    assert provisioning.refused(tmp_path) == ""
    log = tmp_path / provisioning.REFUSED
    log.write_text(line(900, "refused: old") + line(6, "connection from x") + line(5, "refused: it hung up"))
    assert provisioning.refused(tmp_path) == ""  # of who asks whether it listens
    log.write_text(log.read_text() + "damaged - refused: \n" + line(1, "refused: unknown ca."))
    assert provisioning.refused(tmp_path).startswith("2 handshakes failed")
    assert "(unknown ca)" in provisioning.refused(tmp_path)


def test_a_certificate_that_is_anothers_is_said_so(authorities):
    ours, theirs = authorities["ours"], authorities["theirs"]
    pair = ours / "site.crt", theirs / "site.key"
    with pytest.raises(CoterieError, match=r"does not belong to .*site\.key: 'accept'"):
        certificates.need_trust("127.0.0.1", 1, ours / "ca.crt", pair)
    with pytest.raises(CoterieError, match="is not that of site 'basel'"):
        certificates.need_valid(ours / "site.crt", "basel")
    assert certificates.need_valid(ours / "site.crt", "127.0.0.1") is None
