"""A real deployment whose sites make their own keys: one is revoked, one renewed and one added while a run goes on."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("nvflare")

import coterie
from coterie.deployment import folders, joining, logs
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.federation_toml import SCHEMA, Config
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.schema import propose, unite
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError
from tests.deployment import sites as here
from tests.deployment.hospitals import begin
from tests.deployment.nvflare.deployed import free_port

# NVFlare gives aiohttp an argument of an old name.
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")]

NAMES = ("a", "b", "c", "d")
PROGRAM = {
    "program": "async-l2gd",
    "task": {"formula": "score ~ age"},
    "options": {"gamma": 1.0, "rounds": {"steps": 1500}, "splits": 2},
}


@pytest.fixture
def place(tmp_path):
    """A federation of four sites with tables, whose keys they made themselves; it runs until the test ends."""
    config = Config("heart", "nvflare", port=free_port(), sites=NAMES)
    folders.init(tmp_path, config, min_group=1, at_home=NAMES)
    schemas = {}
    for number, name in enumerate(NAMES):
        own = tmp_path / "sites" / name
        here.table(number % 3).to_csv(own / "data.csv", index=False)
        Member(name, "data.csv", 1).write(own)
        schemas[name], _ = propose(here.table(number % 3), ("ward", "kind"), ("pain",))
        schemas[name].write(own / SCHEMA)
    unite(schemas)[0].write(tmp_path / "coordinator" / SCHEMA)
    started = [tmp_path / "coordinator", *(signed(tmp_path, name) for name in NAMES)]
    try:
        for own in started:
            start(own)
        until(lambda: set(nvflare.status(started[0])["sites"].values()) == {"online"})
        yield tmp_path
    finally:
        for folder in reversed(started):
            nvflare.stop(folder)


def start(folder):
    process = (nvflare.start_coordinator if folder.name == "coordinator" else nvflare.start_site)(folder)
    threading.Thread(target=process.wait, daemon=True).start()  # no process that ends stays a zombie


def signed(root, name):
    """A site's folder, with a key that it made and the federation signed."""
    own = root / "sites" / name
    joining.accept(own, joining.sign(root, joining.request(own)[0])[0])
    return own


def until(happens, seconds=400.0):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_goes_on_while_sites_are_revoked_renewed_and_added(place):
    home = place / "coordinator"
    run = begin(home, "disturbed", PROGRAM)
    assert RunConfig.read(run / "run.toml")
    ended = []

    def go():
        try:
            nvflare.run(home, "disturbed", 900.0)
            ended.append("")
        except CoterieError as problem:
            ended.append(str(problem))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()

    def stands():
        assert not ended, ended
        try:
            return logs.read_status(run)
        except CoterieError:
            return {"exchange": 0, "sites": []}

    until(lambda: stands()["exchange"] > 3)
    joining.add(place, "e")
    joining.revoke(place, "c", "stolen")
    until(lambda: "c" not in stands()["sites"] and stands()["exchange"] > 0)
    signed(place, "b")  # a new key, which counts from now on
    nvflare.stop(place / "sites" / "b")
    start(place / "sites" / "b")
    thread.join(900.0)
    assert ended == [""]
    states = [entry["state"] for entry in logs.read(run / logs.LOG) if "state" in entry]
    assert "begins anew" in states and logs.AGAIN in states  # without c, and in another job once b was started again
    assert nvflare.status(home)["sites"]["c"] == "offline"  # its client runs, and is refused
    begin(home, "undisturbed", PROGRAM)
    nvflare.run(home, "undisturbed", 600.0)
    found, expected = (coterie.load(home / "runs" / name / "result").model for name in ("disturbed", "undisturbed"))
    assert list(found.labels) == list(expected.labels) == ["a", "b", "d"]
    np.testing.assert_array_equal(found.client, expected.client)


def test_who_has_an_older_key_of_the_name_takes_no_part(place):
    home, stolen = place / "coordinator", place / "sites" / "b"
    joining.sign(place, joining.request(stolen)[0])  # another key counts, and what runs as b has the old one
    begin(home, "fit", PROGRAM)
    with pytest.raises(CoterieError, match=r"b cannot take part .*does not have the key that was signed for it last"):
        nvflare.run(home, "fit", 600.0)
