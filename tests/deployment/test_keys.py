"""Certificates and keys: who may read them, for whom they hold, and until when."""

import os
import ssl
import stat
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

pytest.importorskip("cryptography")

from coterie.deployment import certificates
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.flower.supervisor import UNSIGNED
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError


def config(*sites, host="127.0.0.1"):
    return Config("heart", "flower", host=host, port=4711, sites=sites)


def handshake(server, client, name):
    """A TLS handshake in memory: certificate and key of the server, authority of the client."""
    left, right = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(client))
    left.load_cert_chain(server.with_suffix(".crt"), server.with_suffix(".key"))
    right.verify_flags |= ssl.VERIFY_X509_STRICT
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    ends = [
        left.wrap_bio(pipes[0], pipes[1], server_side=True),
        right.wrap_bio(pipes[2], pipes[3], server_hostname=name),
    ]
    for _ in range(6):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        pipes[0].write(pipes[3].read())
        pipes[2].write(pipes[1].read())


def test_keys_are_for_their_owner_alone_and_a_site_can_be_added(tmp_path):
    flower.init(tmp_path, config("a", "b"))
    secrets = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix not in (".crt", ".pub", ".py", ".toml")]
    assert len(secrets) == 7  # the authority's, the server's, two nodes', and three of processes among themselves
    assert {stat.S_IMODE(p.stat().st_mode) for p in secrets} == {0o600}
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    flower.init(tmp_path, config("a", "b", "c"))
    assert all(p.read_bytes() == data for p, data in before.items())
    publics = sorted((tmp_path / "coordinator" / "flower" / "nodes").glob("*.pub"))
    assert [p.stem for p in publics] == ["a", "b", "c"] and len({p.read_bytes() for p in publics}) == 3
    assert publics[0].read_text().startswith("ecdsa-sha2-nistp384 ")
    # A site's folder holds its own key and nobody else's.
    assert sorted(p.name for p in (tmp_path / "sites" / "a" / "flower").iterdir()) == ["ca.crt", "node.key", "secret"]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "fed.example.org", "localhost"])
def test_the_certificate_holds_for_its_host(tmp_path, host):
    flower.init(tmp_path, config("a", host=host))
    server, ca = tmp_path / "coordinator" / "flower" / "server", tmp_path / "sites" / "a" / "flower" / "ca.crt"
    for name in (host, "127.0.0.1", "localhost"):
        handshake(server, ca, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        handshake(server, ca, "other.example.org")


def test_another_authority_and_an_ended_certificate_are_refused(tmp_path):
    flower.init(tmp_path / "one", config("a"))
    flower.init(tmp_path / "other", config("a"))
    server = tmp_path / "one" / "coordinator" / "flower" / "server"
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(server, tmp_path / "other" / "sites" / "a" / "flower" / "ca.crt", "127.0.0.1")
    certificates.certificate(tmp_path / "one" / "authority", server, "127.0.0.1", days=-1.0)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(server, tmp_path / "one" / "authority" / "ca.crt", "127.0.0.1")


def test_an_ended_certificate_starts_nothing_and_is_named(tmp_path):
    federation = config("a")
    flower.init(tmp_path, federation, days=-1.0)
    for folder in (tmp_path / "coordinator", tmp_path / "sites" / "a"):
        federation.write(folder)
    Member("a").write(tmp_path / "sites" / "a")
    with pytest.raises(CoterieError, match=r"server\.crt ended on .* UTC: certificates hold for a year, .* request"):
        flower.start_coordinator(tmp_path / "coordinator")
    with pytest.raises(CoterieError, match=r"ca\.crt ended on .* UTC: certificates hold for a year, .* request"):
        flower.start_site(tmp_path / "sites" / "a")
    (tmp_path / "coordinator" / "flower" / "server.crt").write_text("nothing")
    with pytest.raises(CoterieError, match="is not a certificate"):
        flower.start_coordinator(tmp_path / "coordinator")


def test_calls_that_were_refused_lately_are_told_at_either_side(tmp_path, monkeypatch):
    federation = config("a")
    flower.init(tmp_path, federation)
    home, own = tmp_path / "coordinator", tmp_path / "sites" / "a"
    for folder in (home, own):
        federation.write(folder)

    def said(folder, ago, what):
        when = f"{datetime.now() - timedelta(seconds=ago):%Y-%m-%d %H:%M:%S},123"
        (folder / "flower" / "log.txt").write_text(f"{when} WARNING {what}\n")

    for ago, what in ((90, f"refused x: {UNSIGNED}"), (1, "refused x: only sites are served here")):
        said(home, ago, what)
        assert flower.need_trust(home) is None
    said(home, 1, f"refused x: {UNSIGNED}")
    with pytest.raises(CoterieError, match=r"1 calls? with an unknown key .* its own folder"):
        flower.need_trust(home)
    said(own, 1, "supernode ended with code 1 (the key is not known) and starts again in 2 s")
    assert flower.need_trust(own) is None  # it does not run: of an earlier start
    monkeypatch.setattr(flower, "_running", lambda folder: 17)
    with pytest.raises(CoterieError, match=r"process ended with code 1 .the key is not known"):
        flower.need_trust(own)


def test_a_site_of_nvflare_whose_key_was_revoked_is_told_until_it_has_another(tmp_path, monkeypatch):
    """The line is that of a client of NVFlare 2.9 that was refused."""
    nvflare = pytest.importorskip("coterie.deployment.nvflare.operator_commands")
    Config("f", "nvflare", "127.0.0.1", 4711, ("a",)).write(tmp_path)
    own = tmp_path / "nvflare" / "startup" / "client.crt"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr(certificates, "need_valid", lambda path: None)
    monkeypatch.setattr(certificates, "need_trust", lambda *of: None)
    nvflare.need_trust(tmp_path)
    when = f"{datetime.now():%Y-%m-%d %H:%M:%S},607"
    line = f"{when} - Authenticator - ERROR - registration rejected: Client 'a' is disabled\n"
    (own.parents[1] / "log.txt").write_text(line)
    os.utime(own, (0, 0))
    with pytest.raises(CoterieError, match=r"let this site in \(Client 'a' is disabled\): if its key was revoked, ask"):
        nvflare.need_trust(tmp_path)
    own.touch()
    os.utime(own, (2e9, 2e9))  # signed anew
    nvflare.need_trust(tmp_path)
