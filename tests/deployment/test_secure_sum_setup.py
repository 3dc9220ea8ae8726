"""Who has which keys: identities are made at the sites, lists are pinned there, and files are for their owner alone."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

from coterie.deployment import folders, secure_sum_setup, toml_files
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.site_toml import Member
from coterie.engines.checkpoint_and_journal import Folder
from coterie.errors import CoterieError
from tests.cli.harness import coterie
from tests.messages import names

pytest.importorskip("cryptography")

SITES = ("basel", "bern", "chur")
INIT = [part for name in SITES for part in ("--site", name)]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def heart(tmp_path, monkeypatch):
    """A federation of three sites whose engine needs nothing, as ``init --secure`` leaves it."""
    monkeypatch.setattr(folders, "engine", lambda name: type("Engine", (), {"init": lambda *_: None}))
    assert coterie("federation", "init", tmp_path / "heart", "--engine", "flower", *INIT, "--secure").code == 0
    return tmp_path / "heart"


def sites(folder):
    return {name: folder / "sites" / name for name in SITES}


def exchanged(folder):
    """Every site's public file, in a folder through which they are handed out."""
    shared = folder.parent / "public"
    shared.mkdir(exist_ok=True)
    for name, home in sites(folder).items():
        assert coterie("federation", "identity", home).code == 0
        shutil.copy(home / "secure" / f"{name}.pub", shared)
    return sorted(shared.glob("*.pub"))


def test_the_coordinator_makes_no_identity_and_gets_none(heart):
    assert not list(heart.rglob("secure"))
    public = exchanged(heart)
    for home in sites(heart).values():
        assert coterie("federation", "identity", home, *public).code == 0
    secrets = {(home / "secure" / "identity").read_text().splitlines()[1] for home in sites(heart).values()}
    assert len(secrets) == 3
    outside = [path for path in heart.parent.rglob("*") if path.is_file() and path.name != "identity"]
    assert not any(secret in path.read_text() for path in outside for secret in secrets)
    assert not (heart / "coordinator" / "secure").exists()


def test_all_sites_that_pin_the_same_list_say_the_same_fingerprint(heart):
    public = exchanged(heart)
    said = {coterie("federation", "identity", home, *public).out.splitlines()[0] for home in sites(heart).values()}
    assert len(said) == 1 and said.pop().startswith("Pinned the identities of 3 sites: ")
    config = Config.read(heart)
    assert all(set(secure_sum_setup.ready(home, config, name)[1]) == set(SITES) for name, home in sites(heart).items())


def test_a_list_with_a_key_of_the_coordinators_has_another_fingerprint(heart, tmp_path):
    public = exchanged(heart)
    false = secure_sum_setup.make(tmp_path / "false", "bern")
    home = sites(heart)["basel"]
    ours = [path for path in public if path.name != "bern.pub"]
    lied = coterie("federation", "identity", home, *ours, false).out.splitlines()[0]
    assert lied != coterie("federation", "identity", sites(heart)["chur"], *public).out.splitlines()[0]
    # Pinned once, a key is not replaced by another list.
    assert "has another identity of bern" in coterie("federation", "identity", home, *public).message
    assert "two public identities of site 'bern'" in coterie("federation", "identity", home, *public, false).message


def test_what_is_wrong_with_a_list_is_said_in_a_sentence(heart, tmp_path):
    public, home = exchanged(heart), sites(heart)["basel"]
    assert "no public identity of chur" in coterie("federation", "identity", home, *public[:2]).message
    (tmp_path / "x.pub").write_bytes(b"\xff\x00")
    assert "is not the public identity" in coterie("federation", "identity", home, *public, tmp_path / "x.pub").message
    assert "cannot be read" in coterie("federation", "identity", home, *public, tmp_path / "no.pub").message
    stranger = secure_sum_setup.make(tmp_path / "s", "sion")
    assert "There is no site 'sion'" in coterie("federation", "identity", home, *public, stranger).message
    mine = secure_sum_setup.make(tmp_path / "m", "basel")
    assert "somebody else made it" in coterie("federation", "identity", home, mine, *public[1:]).message
    text = public[1].read_text().replace("bern", "chur")
    (tmp_path / "twin.pub").write_text(text)
    assert (
        "Two sites have the same" in coterie("federation", "identity", home, *public[:2], tmp_path / "twin.pub").message
    )
    assert not (home / "secure" / "peers.toml").exists()


def begun(home, config):
    """Its side of secure sums in a run that begins now."""
    return secure_sum_setup.secure_site(home, secure_sum_setup.agreed(home, config, "basel"), "basel", "r")


def test_a_site_starts_only_when_it_knows_who_is_who(heart):
    config, home = Config.read(heart), sites(heart)["basel"]
    Member("basel", allow=("models:make",)).write(home)
    assert "has no identity for secure sums yet" in coterie("federation", "start-site", home).message
    with pytest.raises(CoterieError, match="has no identity"):
        begun(home, config)
    public = exchanged(heart)
    assert "has no list of the identities" in coterie("federation", "start-site", home).message
    coterie("federation", "identity", home, *public)
    assert begun(home, config).name == "basel"
    more = Config(config.name, "flower", sites=(*SITES, "sion"), secure=config.secure)
    with pytest.raises(CoterieError, match=names("no list identities sites")):
        begun(home, more)  # a site was added
    toml_files.write(home / "secure" / "peers.toml", {"peers": {"basel": "zz"}})
    with pytest.raises(CoterieError, match="does not say who is who"):
        begun(home, config)


def test_a_whole_federation_on_one_machine_is_made_at_once(heart, tmp_path):
    ran = coterie("federation", "identity", heart)
    assert ran.code == 0 and "Fingerprint: " in ran.out
    kept = {name: (home / "secure" / "identity").read_bytes() for name, home in sites(heart).items()}
    assert coterie("federation", "identity", heart).out == ran.out
    assert kept == {name: (home / "secure" / "identity").read_bytes() for name, home in sites(heart).items()}


def test_without_secure_sums_there_is_nothing_to_make(heart):
    config = Config.read(heart)
    home = sites(heart)["basel"]
    Config(config.name, "flower", sites=SITES).write(home)
    assert "has no secure sums" in coterie("federation", "identity", home).message


@pytest.mark.soak("0o22-nvflare")
@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_files_with_keys_are_for_their_owner_alone(engine, umask, tmp_path):
    pytest.importorskip({"flower": "flwr"}.get(engine, engine))
    root = tmp_path / "heart"
    config = Config("heart", engine, sites=SITES, secure=secure_sum_setup.defaults(3))
    for _ in range(2):  # again, as where a site is added: nothing is opened to others
        folders.init(root, config)
        secure_sum_setup.init(config, list(sites(root).values()))
    found = [path for path in root.rglob("*") if path.is_file() and holds_key(path)]
    assert len([path for path in found if path.name == "identity"]) == 3
    assert len(found) >= 3 + 5  # the authority's, the coordinator's and each site's
    assert {mode(root), mode(root / "sites"), *map(mode, root.rglob("secure"))} == {0o700}
    assert {mode(path) for name in ("site.toml", "peers.toml") for path in root.rglob(name)} == {0o600}
    for path in found:
        assert mode(path) == 0o600, path
        above = path.parent
        assert mode(above) == 0o700, above


def holds_key(path):
    data = path.read_bytes()
    return path.suffix == ".key" or path.name in ("identity", "secret") or b"PRIVATE KEY" in data


def test_the_state_of_a_site_with_its_seeds_is_for_its_owner_alone(umask, tmp_path):
    import numpy as np

    folder = Folder(tmp_path / "state")
    folder.save({"secret": b"1"}, {"a": {"x": np.ones(2)}})
    assert mode(tmp_path / "state") == 0o700
    assert {mode(path) for path in (tmp_path / "state").iterdir()} == {0o600}
