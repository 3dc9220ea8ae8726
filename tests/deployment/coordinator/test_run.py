"""Programs of a deployed run: the same models as with all rows in one place, and ends that say what happened."""

import errno
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.deployment import logs
from coterie.deployment.coordinator.run import run
from coterie.deployment.coordinator.run_toml import digest
from coterie.deployment.federation_toml import Config
from coterie.deployment.logs import read_status
from coterie.deployment.site.site_toml import Disclosure, Member
from coterie.engines.checkpoint_and_journal import Journal
from coterie.engines.retry_and_quorum import BelowQuorum, Refused
from coterie.errors import CoterieError
from tests.cli.harness import coterie as coterie_command
from tests.deployment.hospitals import EXACT, FORMULA, TASK, begin, folders, heart, transport
from tests.messages import names


@pytest.fixture(scope="module")
def table():
    return heart()


@pytest.fixture(scope="module")
def place(tmp_path_factory, table):
    return folders(tmp_path_factory.mktemp("heart"), table)


@pytest.fixture(scope="module")
def exact(place):
    """The folder of a run of the exact fit."""
    coordinator, homes = place
    home = begin(coordinator, "exact", EXACT)
    run(transport(homes), coordinator, "exact")
    return home


def fitted(home):
    return coterie.load(home / "result")


def test_the_exact_fit_is_that_of_one_table(exact, table):
    home = exact
    here = coterie.fit(table, FORMULA, client="hospital", family="binomial", method="hierarchical", splits=0,
                       covariance="isotropic", missing="drop")  # fmt: skip
    there = fitted(home)
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(there.model.root, here.model.root, rtol=1e-10, atol=1e-12)
    assert there.log_likelihood == pytest.approx(here.log_likelihood, rel=1e-12)
    pd.testing.assert_frame_equal(there.global_coefficients, here.global_coefficients, rtol=1e-6)
    pd.testing.assert_frame_equal(there.summary().variances, here.summary().variances, rtol=1e-4)
    assert (there.parameters, there.rows) == (here.parameters, here.rows)
    np.testing.assert_allclose([there.aic, there.bic], [here.aic, here.bic], rtol=1e-10)
    with pytest.raises(coterie.CoterieError, match="rows stay at their sites"):
        there.residuals()
    np.testing.assert_allclose(there.model.client_cov, here.model.client_cov, rtol=1e-5, atol=1e-9)
    assert list(there.model.labels) == ["cleveland", "hungary", "switzerland", "va"]
    status = read_status(home)
    assert status["state"] == "finished" and status["exchange"] <= 50
    assert there.ledger["exchanges"] == status["exchange"]
    asked = table.dropna().rename(columns={"hospital": "site"})
    assert np.isfinite(there.predict(asked)["prediction"]).all()


def test_a_hospital_predicts_its_rows_as_the_page_says(exact, table, tmp_path, monkeypatch):
    text = (Path(__file__).parents[3] / "docs" / "hospitals.md").read_text(encoding="utf-8")
    said = re.search(r"^\$ coterie (predict .*?)```", text, re.DOTALL | re.MULTILINE)[1].replace("\\\n", "")
    words, *lines = said.splitlines()
    monkeypatch.chdir(tmp_path)
    table[table["hospital"] == "hungary"].drop(columns="hospital").to_csv("hungary.csv", index=False)
    shutil.copytree(exact, "heart/coordinator/runs/exact")
    assert coterie_command(*words.split()).out.splitlines() == lines
    found = pd.read_csv("predictions.csv")
    assert found["prediction"].notna().sum() == 293 and found.columns[0] == "site"


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
def test_weights_are_relative_to_the_mean_of_all_sites(family, tmp_path):
    """A constant factor is none, and the fit is that of one table, held-out losses too."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=240), "site": np.repeat(["basel", "bern", "chur"], 80)})
    frame["y"] = (frame.x + rng.normal(size=240) > 0).astype(int)
    frame["w"] = 1000.0 * rng.gamma(2.0, 1.0, 240) * (1.0 + (frame.site == "bern"))
    coordinator, homes = folders(tmp_path, frame, site="site", min_group=1)
    task = {"formula": "y ~ x", "family": family, "weights": "w"}
    home = begin(coordinator, "w", {"program": "given-strengths", "task": task, "options": {"gamma": 3.0, "splits": 1}})
    run(transport(homes), coordinator, "w")
    there = fitted(home)
    here = coterie.fit(
        frame, "y ~ x", client="site", family=family, weights="w", method="given-strengths", gamma=3.0, splits=1
    )
    assert there.weights == here.weights == "w" and there.mean_weight == pytest.approx(here.mean_weight)
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-10, atol=1e-12)
    losses = there.comparison["loss_clients"]
    np.testing.assert_allclose(losses, here.comparison["loss_clients"][losses.index], rtol=1e-10)
    assert read_status(home)["state"] == "finished" and there.ledger["exchanges"] > 2


def test_rounds_of_async_l2gd_are_those_of_one_process(place, table, monkeypatch):
    coordinator, homes = place
    where = list[str]()
    monkeypatch.setattr(logs.RunLog, "at", lambda self, text: where.append(text))
    options = {"gamma": 1.0, "rounds": {"steps": 15}}
    home = begin(coordinator, "rounds", {"program": "async-l2gd", "task": TASK, "options": options, "seed": 3})
    run(transport(homes), coordinator, "rounds")
    here = coterie.fit(table, FORMULA, client="hospital", family="binomial", method="async-l2gd", splits=0,
                       missing="drop", gamma=1.0, rounds={"steps": 15, "seed": 3})  # fmt: skip
    there = fitted(home)
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-10, atol=1e-12)
    said = [[n.split("coefficients are")[0] for n in f.notes if "After 15 steps" in n] for f in (there, here)]
    assert said[0] == said[1] and len(said[0]) == 1
    assert where[0].startswith("Steps: 1 of 15, ") and where[-1] == ""


def test_what_a_fit_says_of_itself_is_said_of_one_at_sites_too(exact, place, table):
    """A step that is too long, and variances of zero."""
    coordinator, homes = place
    options = {"gamma": 1.0, "rounds": {"steps": 20, "eta": 10.0}}
    home = begin(coordinator, "far", {"program": "async-l2gd", "task": TASK, "options": options, "seed": 3})
    run(transport(homes), coordinator, "far")
    assert any("above" in note and "eta" in note for note in fitted(home).notes), fitted(home).notes
    here = coterie.fit(table, FORMULA, client="hospital", family="binomial", method="hierarchical", splits=0,
                       missing="drop", covariance="diagonal")  # fmt: skip
    home = begin(coordinator, "zero", EXACT | {"options": {"covariance": "diagonal"}})
    run(transport(homes), coordinator, "zero")
    zero = [note.partition(" ")[2] for note in here.notes if "the variance is zero" in note]
    assert zero and [n.partition(" ")[2] for n in fitted(home).notes if "the variance is zero" in n] == [
        said.replace("(hospital)", "(site)") for said in zero
    ]


def test_perfect_separation_is_said_at_sites_too(tmp_path, table):
    coordinator, homes = folders(tmp_path, table)
    here = coterie.fit(table, "disease ~ num", client="hospital", family="binomial", method="pooled", splits=0)
    home = begin(coordinator, "separated", {"program": "pooled", "task": TASK | {"formula": "disease ~ num"}})
    run(transport(homes), coordinator, "separated")
    said, there = ([n for n in result.notes if "separated perfectly" in n] for result in (here, fitted(home)))
    assert said == there != []


def test_an_engine_runs_the_program_that_the_command_named_and_no_other(place):
    coordinator, homes = place
    home = begin(coordinator, "swapped", EXACT)
    expected = digest(coordinator, "swapped")
    (coordinator / "other.py").write_text("raise SystemExit('it ran')\n")
    begin(coordinator, "swapped", {"program": "other:rows", "task": TASK})
    for wrong in (expected, ""):
        with pytest.raises(CoterieError, match=names("run.toml' not command wrote give run name")):
            run(transport(homes), coordinator, "swapped", wrong)
    assert read_status(home)["state"] == "failed" and digest(coordinator, "nothing") == ""


def test_below_the_quorum_a_run_stops_and_goes_on(place, exact):
    coordinator, homes = place
    home = begin(coordinator, "paused", EXACT)
    full = transport(homes)
    lame = transport(homes)
    asked = [0]

    def receive(data, inner=lame._receivers["hungary"]):
        asked[0] += 1
        return inner(data) if asked[0] < 9 else None

    lame._receivers["hungary"] = receive
    config = Config.read(coordinator)
    replace(config, policy={"deadline": 0.2, "pause": 0.05}).write(coordinator)
    try:
        with pytest.raises(BelowQuorum, match="hungary: did not answer"):
            run(lame, coordinator, "paused")
        status = read_status(home)
        assert status["state"] == "below quorum" and "hungary" in status["why"] and status["exchange"] == 7
        run(full, coordinator, "paused")
    finally:
        config.write(coordinator)
    assert read_status(home)["state"] == "finished"
    straight = fitted(exact)
    np.testing.assert_array_equal(fitted(home).model.client, straight.model.client)


def test_an_exact_fit_waits_for_those_who_take_part_whatever_the_quorum(place, exact):
    """``min_clients`` says how many must be there at the start: exact sums leave nobody of them out, and it goes on."""
    coordinator, homes = place
    home, lame, asked = begin(coordinator, "lame", EXACT), transport(homes), [0]

    def receive(data, inner=lame._receivers["hungary"]):
        asked[0] += 1
        return inner(data) if asked[0] < 9 else None

    lame._receivers["hungary"] = receive
    config = Config.read(coordinator)
    replace(config, policy={"deadline": 0.2, "pause": 0.05, "min_clients": 3}).write(coordinator)
    try:
        with pytest.raises(BelowQuorum, match=names("hungary not answer all are needed run again")):
            run(lame, coordinator, "lame")
        assert read_status(home)["state"] == "below quorum" and "hungary" in read_status(home)["why"]
        run(transport(homes), coordinator, "lame")
    finally:
        config.write(coordinator)
    np.testing.assert_array_equal(fitted(home).model.client, fitted(exact).model.client)


def test_a_program_of_the_coordinators_own(place, table):
    coordinator, homes = place
    (coordinator / "programs_of_mine.py").write_text(
        "from coterie.methods.tree.penalised_tree import describe\n"
        "def rows(fed, twice):\n"
        "    return {'rows': fed.total(describe)['rows'] * twice, 'names': list(fed.names)}\n"
    )
    home = begin(coordinator, "mine", {"program": "programs_of_mine:rows", "task": TASK, "options": {"twice": 2}})
    run(transport(homes), coordinator, "mine")
    found = json.loads((home / "result" / "result.json").read_text())
    assert found == {"rows": 2.0 * len(table.dropna(subset=["oldpeak", "exang"])), "names": [h.name for h in homes]}


WRONG = {
    "no such program": ({"program": "hierarchicl", "task": TASK}, "Did you mean 'hierarchical'"),
    "no formula": ({"program": "hierarchical", "task": {}}, "needs a formula"),
    "an option that is none": (EXACT | {"options": {"covarianc": "two"}}, "Did you mean 'covariance'"),
    "another value": (EXACT | {"options": {"covariance": "round"}}, "covariance must be auto, "),
    "a column that is not there": (EXACT | {"task": TASK | {"formula": "disease ~ weight"}}, "weight"),
    "twice the same column": (EXACT | {"task": TASK | {"formula": f"{FORMULA} + center(age)"}}, "combination of"),
    "a method without clusters": (EXACT | {"program": "clusterwise", "options": {}}, "needs clusters"),
    "no strengths": (EXACT | {"program": "given-strengths", "options": {}}, "needs strengths: give gamma"),
    "a grid of strengths": (
        {"program": "given-strengths", "task": TASK, "options": {"gamma": [1.0, 2.0]}},
        "must be one strength",
    ),
}


@pytest.mark.parametrize("program, said", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_sentence(place, program, said):
    coordinator, homes = place
    name = f"wrong-{abs(hash(said)) % 10**8}"
    home = begin(coordinator, name, program)
    with pytest.raises(CoterieError, match=said):
        run(transport(homes), coordinator, name)
    status = read_status(home)
    assert status["state"] == "failed" or "below quorum" in status["state"]
    assert not (home / "result").exists()


def test_a_column_that_no_site_sees_vary_is_shared(tmp_path, table):
    table = table.assign(beds=table["hospital"].map({"cleveland": 900.0, "hungary": 500.0, "switzerland": 300.0,
                                                     "va": 700.0}))  # fmt: skip
    coordinator, homes = folders(tmp_path, table)
    task = TASK | {"formula": "disease ~ age + beds"}
    home = begin(coordinator, "run", EXACT | {"task": task})
    run(transport(homes), coordinator, "run")
    here = coterie.fit(table, task["formula"], client="hospital", family="binomial", method="hierarchical", splits=0,
                       covariance="isotropic")  # fmt: skip
    there = fitted(home)
    assert there.settings["shared"] == here.settings["shared"] == ["beds"]
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-9)


def test_only_works_that_the_owner_names_are_answered(tmp_path, table):
    coordinator, homes = folders(tmp_path, table)
    tree, own = "coterie.methods.tree.*", "coterie.deployment.coordinator.identifiability:view"
    replace(Member.read(homes[1]), ask=("coterie.methods.tree.client_work:finish",), total=(tree, own)).write(homes[1])
    begin(coordinator, "run", EXACT)
    run(transport(homes), coordinator, "run")
    begin(coordinator, "local", {"program": "local", "task": TASK})
    replace(Member.read(homes[1]), ask=(), total=(tree, own)).write(homes[1])
    with pytest.raises(BelowQuorum, match=r"hungary: .*does not let answers to coterie\.\S+ leave by ask"):
        run(transport(homes), coordinator, "local")
    with pytest.raises(CoterieError, match="list of patterns"):
        Member("hungary", ask=[3])


@pytest.mark.parametrize(("program", "room"), [("async-l2gd", "clustered_l2gd"), ("bias-correction", "collaboration")])
def test_works_over_rounds_that_an_owner_does_not_allow_are_refused_before_the_first_exchange(
    program, room, tmp_path, table
):
    coordinator, homes = folders(tmp_path, table)
    for home in homes:
        replace(Member.read(home), disclosure=Disclosure(min_level=1)).write(home)
    begin(coordinator, "run", {"program": program, "task": TASK, "options": {"rounds": {"steps": 10}}})
    with pytest.raises(CoterieError, match=names(f"owner coterie.methods.{room}.* works [disclosure] site.toml")):
        run(transport(homes), coordinator, "run")
    assert read_status(coordinator / "runs" / "run")["exchange"] == 0


def schools():
    rng = np.random.default_rng(5)
    n, m = 600, 24
    school = rng.integers(0, m, n)
    table = pd.DataFrame({"school": school + 100, "district": school % 5, "x": rng.normal(size=n)})
    table["y"] = 1.0 + table["x"] * (0.5 + 0.1 * school) + rng.normal(size=n)
    return table.assign(site=np.where(school < 7, "north", np.where(school < 20, "east", "south")))


def test_many_clients_in_clusters_that_span_sites(tmp_path):
    table = schools()
    coordinator, homes = folders(tmp_path, table, "site", ["school", "district"], min_group=40)
    task = {"formula": "y ~ x", "client": "school", "cluster": "district"}
    home = begin(coordinator, "run", {"program": "hierarchical", "task": task, "options": {"covariance": "diagonal"}})
    with pytest.raises(
        Refused, match=r"tells nothing of clients with fewer than 40 rows \(min_group\).* client column"
    ):
        run(transport(homes), coordinator, "run")
    assert not any("exchange" in entry for entry in logs.read(home / logs.LOG))  # nothing was asked of their rows
    for path in homes:
        replace(Member.read(path), min_group=1).write(path)
    run(transport(homes), coordinator, "run")
    here = coterie.fit(table, "y ~ x", client="school", cluster="district", method="hierarchical", splits=0,
                       covariance="diagonal")  # fmt: skip
    there = fitted(home)
    np.testing.assert_array_equal(there.model.labels, here.model.labels)
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-9)
    np.testing.assert_allclose(there.model.nodes[0], here.model.nodes[0], rtol=1e-9)
    pd.testing.assert_frame_equal(there.predict(table), here.predict(table), rtol=1e-9)


def test_a_full_disk_at_the_coordinator_is_said_and_nothing_is_lost(place, monkeypatch):
    coordinator, homes = place
    home = begin(coordinator, "full", EXACT)
    add, counted = Journal.add, []

    def full(self, *given):
        if len(counted) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        counted.append(given)
        return add(self, *given)

    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(CoterieError, match=r"no space left on device\): put that right, then run again"):
        run(transport(homes), coordinator, "full")
    assert read_status(home)["state"] == "failed"
    monkeypatch.setattr(Journal, "add", add)
    run(transport(homes), coordinator, "full")
    assert read_status(home)["state"] == "finished"
