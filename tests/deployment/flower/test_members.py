"""A running Flower coordinator: sites are revoked, added, renewed and removed, and it is never started again."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("flwr")

from coterie.deployment import folders, joining
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.processes import free_port

pytestmark = pytest.mark.soak


@pytest.fixture
def place(tmp_path):
    """A federation of two sites that made their own keys; it runs until the test ends."""
    folders.init(tmp_path, Config("heart", "flower", port=free_port(), sites=("a", "b")), at_home=("a", "b"))
    try:
        start(flower.start_coordinator(tmp_path / "coordinator"))
        for name in "ab":
            begin(tmp_path, name)
        yield tmp_path
    finally:
        for folder in (*(tmp_path / "sites").iterdir(), tmp_path / "coordinator"):
            flower.stop(folder)


def start(process):
    threading.Thread(target=process.wait, daemon=True).start()  # no process that ends stays a zombie


def begin(root, name):
    """Start a site, again where it runs, with a new key of its own that was signed."""
    own = root / "sites" / name
    joining.accept(own, joining.sign(root, joining.request(own)[0])[0])
    flower.stop(own)
    start(flower.start_site(own))


def until(root, **wanted):
    end, said = time.monotonic() + 300.0, {}
    while said != wanted:
        assert time.monotonic() < end, said
        time.sleep(1.0)
        said = flower.status(root / "coordinator")["sites"]


def test_who_belongs_changes_while_the_coordinator_runs(place):
    until(place, a="online", b="online")
    joining.revoke(place, "b", "stolen")
    until(place, a="online", b="offline")
    joining.add(place, "d")
    for name in ("d", "b", "a"):  # the new one, the revoked one with another key, one whose key is renewed
        begin(place, name)
    until(place, a="online", b="online", d="online")
    joining.remove(place, "d")
    until(place, a="online", b="online")
