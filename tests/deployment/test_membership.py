"""Sites that are added, removed, revoked and renewed while a run goes on: whose digits its result has."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.deployment import secure_sum_setup
from coterie.deployment.coordinator.run import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.membership import Register, belonging, wanted
from coterie.engines.retry_and_quorum import Refused
from tests.deployment import sites as here
from tests.deployment.hospitals import begin

PROGRAM = {"program": "hierarchical", "task": {"formula": "score ~ age"}, "options": {"covariance": "isotropic"}}
FOUR = (*here.NAMES, "davos")


@pytest.fixture
def place(tmp_path):
    """A federation of four sites; of secure sums where it is asked to be."""

    def made(secure=False, without=()):
        root = tmp_path / f"{secure}{len(without)}"
        frames = here.tables() | {"davos": here.table(0).assign(ward=lambda f: f["ward"].str.replace("basel", "davos"))}
        settings = {"threshold": 3, "min_sites": 3} if secure else {}
        here.build(root, {name: frame for name, frame in frames.items() if name not in without}, secure=settings)
        if secure:
            config = Config.read(root / "coordinator")
            secure_sum_setup.init(config, [here.home(root, name) for name in config.sites])
        return root

    return made


def fit(root, at=0, change=lambda home: None, names=FOUR, run_id="fit", refused=None, again=(), versions=None):
    """Run a fit over sites in this process, and make a ``change`` before message number ``at``; its model.

    Sites of ``again`` are made anew then, as where their processes are started again; some have other ``versions``.
    """
    home, carrier = root / "coordinator", here.transport(root, names)
    carrier._receivers |= {name: of(carrier._receivers[name], version) for name, version in (versions or {}).items()}
    begin(home, run_id, PROGRAM)
    sent, told = carrier.send, []

    def send(messages, timeout):
        told.append(sorted(messages))
        if len(told) == at:
            change(home)
            carrier._receivers |= {name: here.hosts(root, [name])[name].receive for name in again}
        return sent(messages, timeout)

    carrier.send = send
    run(carrier, home, run_id, refused=refused)
    return coterie.load(home / "runs" / run_id / "result"), told


def of(receive, version):
    """A site of another version."""

    def answer(data):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coterie.__version__", version)
            return receive(data)

    return answer


def same(found, expected):
    """That two models are the same to the last digit."""
    assert list(found.model.labels) == list(expected.model.labels)
    np.testing.assert_array_equal(found.model.client, expected.model.client)
    assert found.log_likelihood == expected.log_likelihood


def revoke(name):
    return lambda home: Register.read(home).without(name, "2026: stolen").write(home)


def to(*names):
    return lambda home: replace(Config.read(home), sites=names).write(home)


LONG = pytest.mark.soak


@pytest.mark.parametrize(
    "change", [revoke("chur"), pytest.param(to("basel", "bern", "davos"), marks=LONG)], ids=["revoked", "removed"]
)
@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=LONG)], ids=["clear", "secure"])
def test_a_run_that_a_site_leaves_has_the_digits_of_one_without_it(change, secure, place):
    root = place(secure)
    found, told = fit(root, 9, change)
    assert any("chur" in names for names in told[:8]) and not any("chur" in names for names in told[9:])
    shutil.rmtree(root / "coordinator" / "runs")
    for name in FOUR:
        shutil.rmtree(here.home(root, name) / "runs")
    same(found, fit(root)[0])  # one in which nothing happens; 'chur' belongs no more
    assert wanted(root / "coordinator", "fit") == ("basel", "bern", "davos")
    if not secure:  # and one that never had the site
        same(found, fit(place(without=("chur",)), names=("basel", "bern", "davos"))[0])


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=LONG)], ids=["clear", "secure"])
def test_a_site_that_joins_meanwhile_takes_part_in_the_next_run_only(secure, place):
    root = place(secure)
    alone, _ = fit(root, run_id="undisturbed")

    def joined(home):
        for folder in (home, *(here.home(root, name) for name in FOUR)):
            to(*FOUR, "emmen")(folder)

    found, told = fit(root, 9, joined, again=["bern"])  # 'bern' starts again, and reads who belongs now
    same(found, alone)
    assert all(set(names) <= set(FOUR) for names in told)
    assert belonging(root / "coordinator") == (*FOUR, "emmen") and wanted(root / "coordinator", "fit") == FOUR


def test_a_key_that_is_renewed_and_a_site_that_is_upgraded_change_no_digit(place):
    root = place()
    alone, _ = fit(root, run_id="undisturbed")
    changed = {"again": ["bern"], "versions": {"basel": "0.2.0"}}  # a neighbour of the coordinator's
    renewed, told = fit(root, 9, lambda home: Register.read(home).signed("bern", "a key").write(home), **changed)
    same(renewed, alone)
    assert not (root / "coordinator" / "runs" / "fit" / "journal-course-2").exists() and len(told) > 9


def test_a_site_that_does_not_prove_its_key_is_refused_by_name(place):
    with pytest.raises(Refused, match=r"bern cannot take part .*it does not have the key"):
        fit(place(), refused={"bern": "Site 'bern': it does not have the key."})


def test_a_site_whose_key_is_not_signed_yet_is_not_waited_for(tmp_path):
    Config("heart", "nvflare", sites=("a", "b")).write(tmp_path)
    Register(keys={"b": ""}).write(tmp_path)
    assert belonging(tmp_path) == ("a",)
    Register.read(tmp_path).signed("b", "key").write(tmp_path)
    assert belonging(tmp_path) == ("a", "b") and Register.read(tmp_path).revoked == {}
