"""Keys that sites make: what travels, who may read what stays, and what is refused."""

from __future__ import annotations

import stat

import pytest

pytest.importorskip("cryptography")

from coterie.deployment import certificates, folders, joining, toml_files
from coterie.deployment.federation_toml import SCHEMA, Config
from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.flower.gate import Gate
from coterie.deployment.membership import Register, belonging
from coterie.errors import CoterieError
from tests.cli.harness import coterie
from tests.deployment.test_secure_sum_setup import holds_key

SITES = ("basel", "bern", "chur")


@pytest.fixture
def heart(tmp_path):
    """A federation whose sites are to make their own keys, over secure sums."""
    config = Config("heart", "flower", port=4711, sites=SITES, secure={"threshold": 2, "min_sites": 3})
    folders.init(tmp_path / "heart", config, at_home=SITES)
    return tmp_path / "heart"


def asked(heart, *names):
    """What sites send, signed; the paths of what comes back."""
    return [joining.sign(heart, joining.request(heart / "sites" / name)[0])[0] for name in names]


def test_keys_stay_at_their_sites_and_are_for_their_owners_alone(heart):
    assert not [path for path in (heart / "sites").rglob("*") if path.is_file() and holds_key(path)]
    assert belonging(heart / "coordinator") == ()
    for name, back in zip(SITES, asked(heart, *SITES), strict=True):
        own = heart / "sites" / name
        before = (own / joining.PENDING).read_bytes()
        with pytest.raises(CoterieError, match=r"request of .* is made: .* accept .* installs what comes back"):
            folders.need_key(own, flower)
        assert stat.S_IMODE((own / joining.PENDING).stat().st_mode) == 0o600
        assert not holds_key(own / f"{name}.request") and not holds_key(back)
        assert joining.accept(own, back)
        assert (own / flower.KEY).read_bytes() == before and not (own / joining.PENDING).exists()
        assert stat.S_IMODE((own / flower.KEY).stat().st_mode) == 0o600
    assert belonging(heart / "coordinator") == SITES
    elsewhere = [p for p in heart.rglob("*") if p.is_file() and p.parent.name in ("signed", "nodes", "coordinator")]
    assert elsewhere and not any(map(holds_key, elsewhere))


def test_the_identities_of_all_are_pinned_once_all_are_known(heart):
    first, second, last = asked(heart, *SITES)
    assert any("Compare it" in line for line in joining.accept(heart / "sites" / "basel", first))
    lines = [joining.accept(heart / "sites" / name, path)[-1] for name, path in (("bern", second), ("chur", last))]
    assert len(set(lines)) == 1 and (heart / "sites" / "bern" / "secure" / "peers.toml").exists()


def test_a_gate_follows_who_is_signed_renewed_and_revoked(heart):
    nodes = heart / "coordinator" / "flower" / "nodes"
    asked(heart, *SITES)
    gate = Gate("https://127.0.0.1:1", heart / "authority" / "ca.crt", nodes)

    def keys():
        gate._read_keys()
        return set(gate._keys)

    before = keys()
    assert len(before) == 3
    joining.accept(heart / "sites" / "bern", heart / "signed" / "bern.signed")
    asked(heart, "bern")  # its key is installed, so that it asks for another
    assert len(keys()) == 3 and len(before & keys()) == 2
    joining.revoke(heart, "chur", "a laptop was stolen")
    assert len(keys()) == 2
    assert "a laptop was stolen" in Register.read(heart / "coordinator").revoked["chur"]
    stolen = heart / "stolen.request"
    stolen.write_text((heart / "sites" / "chur" / "chur.request").read_text())
    refused = pytest.raises(CoterieError, match=r"was revoked \(.* a laptop was stolen\): ask for another")
    with refused:
        asked(heart, "chur")  # the same key again, which is still pending
    (heart / "sites" / "chur" / joining.PENDING).unlink()
    asked(heart, "chur")
    assert len(keys()) == 3 and belonging(heart / "coordinator") == SITES
    with refused:
        joining.sign(heart, stolen)  # though the site has another by now
    assert len(keys()) == 3


def test_a_site_is_added_and_one_removed_and_the_others_are_told(heart):
    asked(heart, *SITES)
    schema, before = heart / "coordinator" / SCHEMA, Config.read(heart / "sites" / "basel")
    toml_files.write(schema, {"columns": {"age": {"type": "number"}}})
    own = joining.add(heart, "davos")
    assert (own / SCHEMA).read_text() == schema.read_text() and not holds_key(own / "site.toml")
    assert "davos" not in belonging(heart / "coordinator")
    joining.accept(own, asked(heart, "davos")[0])
    before.write(heart / "sites" / "basel")  # which is elsewhere, and has heard of nothing
    said = joining.accept(heart / "sites" / "basel", heart / "signed" / "basel.signed")
    assert any("sites is" in line and "davos" in line for line in said)
    assert Config.read(heart / "sites" / "basel").secure == {"threshold": 3, "min_sites": 4}
    joining.remove(heart, "bern")
    assert belonging(heart / "coordinator") == ("basel", "chur", "davos")
    assert not list((heart / "signed").glob("bern.*"))
    joining.accept(own, heart / "signed" / "davos.signed")
    assert Config.read(own).sites == ("basel", "chur", "davos")


def test_what_does_not_belong_is_refused_and_changes_nothing(heart, tmp_path):
    back = asked(heart, *SITES)[0]
    basel, bern = heart / "sites" / "basel", heart / "sites" / "bern"
    with pytest.raises(CoterieError, match=r"is for site 'basel', and .* is the folder of 'bern'"):
        joining.accept(bern, back)
    signed = toml_files.into(joining.Signed, back, "it")

    def changed(**values):
        path = tmp_path / "changed.signed"
        toml_files.write(path, {**vars(signed), **values})
        return path

    for values, words in (
        ({"key": signed.key.replace("M", "N")}, "another key than this site's"),
        ({"files": {"../../.ssh/authorized_keys": "x"}}, "files that are none of a site's"),
        ({"files": {"flower/node.key": "x"}}, "files that are none of a site's"),
        ({"files": {"flower/ca.crt": "x"}}, "of another authority"),
        ({"config": {**signed.config, "name": "lung"}}, "is of federation 'lung'"),
    ):
        with pytest.raises(CoterieError, match=words):
            joining.accept(basel, changed(**values))
    assert not (basel / flower.KEY).exists() and not (tmp_path / ".ssh").exists()
    request = basel / "basel.request"
    text = request.read_text()
    for old, new, words in (
        ("basel", "nobody", "no site 'nobody'|identity of another"),
        ('federation = "heart"', 'federation = "lung"', "a request to 'lung'"),
        ("MII", "MIJ", "damaged or not signed"),
    ):
        request.write_text(text.replace(old, new, 1))
        with pytest.raises(CoterieError, match=words):
            joining.sign(heart, request)


@pytest.mark.parametrize("how", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_half_of_a_federation_is_not_left_in_the_way_of_the_next(tmp_path, monkeypatch, how):
    def ends(*_):
        raise how

    config = Config("heart", "flower", port=4711, sites=SITES)
    with monkeypatch.context() as patch, pytest.raises(type(how)):
        patch.setattr(flower, "init", ends)
        folders.init(tmp_path / "heart", config)
    assert not (tmp_path / "heart").exists()
    folders.init(tmp_path / "heart", config)
    with monkeypatch.context() as patch, pytest.raises(type(how)):
        patch.setattr(flower, "init", ends)
        folders.init(tmp_path / "heart", config)  # of one that is there nothing goes
    assert (tmp_path / "heart" / "federation.toml").exists()


def test_a_file_of_the_other_end_is_told_from_a_damaged_one(heart):
    own = heart / "sites" / "basel"
    asks, _ = joining.request(own)
    with pytest.raises(CoterieError, match="is a request: the federation signs it"):
        joining.accept(own, asks)
    back, _ = joining.sign(heart, asks)
    with pytest.raises(CoterieError, match="was signed already: its site accepts it"):
        joining.sign(heart, back)


def test_a_key_is_of_one_site_alone(tmp_path):
    heart = tmp_path / "heart"
    folders.init(heart, Config("heart", "flower", sites=SITES), at_home=SITES)
    asked(heart, *SITES)
    request, own = heart / "sites" / "basel" / "basel.request", (heart / "signed" / "bern.signed").read_text()
    request.write_text(request.read_text().replace('"basel"', '"bern"'))
    with pytest.raises(CoterieError, match=r"is that of site 'basel': ask 'bern' for one of its own"):
        joining.sign(heart, request)
    assert (heart / "signed" / "bern.signed").read_text() == own


def test_the_commands_say_what_to_do_next(tmp_path):
    heart = tmp_path / "heart"
    made = coterie("federation", "init", heart, "--engine", "flower", "--site", "a", "--site", "b", "--own-keys")
    assert made.code == 0 and "holds nothing secret" in made.out, made.err
    prints = []
    for name in ("a", "b"):
        asks = coterie("federation", "request", heart / "sites" / name)
        prints.append(asks.out.partition("Fingerprint: ")[2][:39])
        assert f"{name}.request" in asks.out
    signs = coterie("federation", "sign", heart, *(heart / "sites" / n / f"{n}.request" for n in "ab"))
    assert signs.code == 0 and all(text in signs.out for text in prints)
    assert coterie("federation", "accept", heart / "sites" / "a", heart / "signed" / "a.signed").code == 0
    again = coterie("federation", "accept", heart / "sites" / "a", heart / "signed" / "a.signed")
    assert again.out.strip() == "Nothing has changed."
    assert coterie("federation", "revoke", heart, "a", "--why", "lost").code == 0
    only = coterie("federation", "remove", heart, "a")
    assert only.code == 0 and "is the only site" in coterie("federation", "remove", heart, "b").err
    path = heart / "coordinator" / "flower" / "server.crt"
    before = path.read_bytes(), certificates.public_at(path.with_suffix(".key"))
    assert coterie("federation", "renew", heart).code == 0
    assert path.read_bytes() != before[0] and certificates.public_at(path.with_suffix(".key")) == before[1]
    nobody = coterie("federation", "sign", heart / "coordinator", heart / "sites" / "a" / "a.request")
    assert "has no authority" in nobody.err
