"""A federation's folder as rows: the words of a table, and its result."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie import api
from coterie.deployment import calls_over_sites, folders
from coterie.deployment.coordinator import run
from coterie.deployment.coordinator.run_toml import program_of_call
from coterie.errors import CoterieError
from tests.cli.harness import coterie as command
from tests.deployment.sites import FORMULA, build, tables, transport
from tests.messages import names


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A federation whose sites answer in this process."""
    build(tmp_path / "heart")

    def carry(folder, run_id, timeout):
        run.run(transport(tmp_path / "heart"), folder, run_id)

    monkeypatch.setattr(folders, "engine", lambda name: SimpleNamespace(run=carry, need_trust=lambda home: None))
    return tmp_path / "heart"


def together():
    return pd.concat([frame.assign(site=name) for name, frame in tables().items()], ignore_index=True)


def test_a_fit_over_sites_is_that_of_one_table(place):
    there = coterie.fit(place, FORMULA, covariance="isotropic")
    here = coterie.fit(together(), FORMULA, "site", covariance="isotropic", method="hierarchical", splits=0)
    assert there.method == "hierarchical" and there.comparison.empty
    pd.testing.assert_frame_equal(there.client_coefficients, here.client_coefficients, rtol=1e-10)
    same = coterie.fit(there.config())
    pd.testing.assert_frame_equal(same.client_coefficients, there.client_coefficients, rtol=1e-12)
    assert same.config() == there.config()
    elsewhere = there.config() | {"data": there.config()["data"] | {"source": "nowhere"}}
    assert coterie.fit(place, elsewhere).config() == there.config()
    again = coterie.fit(place / "coordinator", FORMULA, "ward", "kind", method="pooled", engine={"name": "mine"})
    assert again.model.client_name == "ward" and (place / "coordinator" / "runs" / "mine" / "result").is_dir()


def test_a_network_of_sites_is_named_by_their_labels(place):
    ties = pd.DataFrame({"from": ["basel"], "to": ["chur"]})
    asked = {"network": {"edges": ties, "lam": 0.3}, "method": "similarity-network", "splits": 0}
    there, here = coterie.fit(place, FORMULA, **asked), coterie.fit(together(), FORMULA, "site", **asked)
    pd.testing.assert_frame_equal(there.client_coefficients, here.client_coefficients, rtol=1e-9, atol=1e-9)


def test_a_comparison_over_sites_is_that_of_one_table(place):
    there = coterie.compare(place, FORMULA, methods=["hierarchical"], seed=3)
    here = coterie.compare(together(), FORMULA, "site", splits=1, seed=3)
    assert list(there.index) == ["local", "pooled", "hierarchical"]
    np.testing.assert_allclose(there["loss_clients"], here["loss_clients"][there.index], rtol=1e-10)


@pytest.mark.parametrize("by", [{"order_by": "age"}, {"given_split": "side"}, {"split_by": "pain"}])
def test_sites_hold_out_what_a_column_says_as_of_one_table(tmp_path, monkeypatch, by):
    frames = tables()
    for frame in frames.values():
        frame["side"] = np.where(np.arange(len(frame)) % 4 == 1, "test", "train")
    build(tmp_path / "heart", frames, labels=("ward", "kind", "side"))
    engine = SimpleNamespace(
        run=lambda folder, name, timeout: run.run(transport(tmp_path / "heart"), folder, name),
        need_trust=lambda home: None,
    )
    monkeypatch.setattr(folders, "engine", lambda name: engine)
    together = pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)
    there = api.compared(tmp_path / "heart", "score ~ age", methods=["pooled"], seed=3, **by)
    here = api.compared(together, "score ~ age", "site", methods=["pooled"], splits=1, seed=3, **by)
    np.testing.assert_allclose(
        there.comparison["loss_clients"], here.comparison["loss_clients"][there.comparison.index], rtol=1e-10
    )


def test_a_comparison_over_sites_is_written_down_with_its_methods(place):
    found = api.compared(place, FORMULA, methods=["own-intercept", "james-stein"], seed=3)
    written = found.config()
    assert written["method"] == {"name": "auto", "compare": ["own-intercept", "james-stein"]}
    again = coterie.fit(written)
    assert again.config() == written and again.method == found.method
    pd.testing.assert_frame_equal(again.comparison.drop(columns="seconds"), found.comparison.drop(columns="seconds"))
    same = coterie.compare(written)
    np.testing.assert_array_equal(same["loss_rows"], found.comparison["loss_rows"])


DRAWN = {"async-l2gd": {"steps": 12, "batch": 3}, "fedavg": {"rounds": 3, "B": 3, "C": 0.5}}


@pytest.mark.soak("async-l2gd-seed1", "fedavg-seed0")
@pytest.mark.parametrize("seed", [{}, {"seed": 7}])
@pytest.mark.parametrize("method", DRAWN)
def test_rows_and_coins_are_drawn_by_the_seed_of_the_rounds_or_of_the_call(place, method, seed):
    asked = {"method": method, "seed": 3, "rounds": DRAWN[method] | seed, "splits": 0}
    asked |= {"gamma": 1.0} if method == "async-l2gd" else {}
    there, here = coterie.fit(place, FORMULA, **asked), coterie.fit(together(), FORMULA, "site", **asked)
    pd.testing.assert_frame_equal(there.client_coefficients, here.client_coefficients, rtol=1e-9)
    other = coterie.fit(together(), FORMULA, "site", **asked | {"rounds": DRAWN[method] | {"seed": 8}})
    assert not np.allclose(here.client_coefficients, other.client_coefficients, rtol=1e-9)


def test_advice_of_one_split_has_no_interval_and_is_shown(place, tmp_path):
    ran = command("advise", place, "--formula", FORMULA, "--splits", 1, "--out", tmp_path / "a.csv")
    assert ran.code == 0, ran.err
    table = pd.read_csv(tmp_path / "a.csv")
    assert table["gain"].notna().all() and table[["gain_low", "gain_high"]].isna().all(axis=None)


def test_advice_without_a_seed_has_that_of_the_federation(place):
    for home in (place / "coordinator", *(place / "sites").iterdir()):
        text = (home / "federation.toml").read_text()
        (home / "federation.toml").write_text(
            "seed = 5\n" + "".join(line for line in text.splitlines(keepends=True) if not line.startswith("seed"))
        )
    assert coterie.advise(place, FORMULA, splits=1).settings["seed"] == 5
    assert coterie.advise(place, FORMULA, splits=1, seed=3).settings["seed"] == 3


ADVICE = {"splits": 2, "seed": 3, "collaborators": 2}


def test_advice_over_sites_is_that_of_one_table(place, tmp_path):
    there, here = coterie.advise(place, FORMULA, **ADVICE), coterie.advise(together(), FORMULA, "site", **ADVICE)
    pd.testing.assert_frame_equal(there.clients, here.clients, rtol=1e-8, atol=1e-10, check_dtype=False)
    pd.testing.assert_frame_equal(there.weights, here.weights, rtol=1e-8, check_dtype=False)
    losses = ["loss_rows", "loss_clients", "gain_over_local", "gain_over_pooled"]
    pd.testing.assert_frame_equal(there.evidence[losses], here.evidence[losses], rtol=1e-8, atol=1e-12)
    assert there.sentences[:4] == here.sentences[:4] and "more exchanges" in there.sentences[-1]
    asked = (place, "--formula", FORMULA, "--splits", 2, "--seed", 3, "--collaborators", 2)
    ran = command("advise", *asked, "--out", tmp_path / "a.csv", "--for", "basel")
    assert ran.code == 0, ran.err
    assert "basel itself" in ran.out
    np.testing.assert_allclose(pd.read_csv(tmp_path / "a.csv")["gain"], here.clients["gain"], rtol=1e-8)


def test_of_sites_that_speak_of_no_single_client_advice_has_what_sums_say(place):
    """Of a ward of 20 rows 5 are held out, and min_group is 8: only sums over the wards of a site leave."""
    for home in (place / "sites").iterdir():
        (home / "site.toml").write_text((home / "site.toml").read_text().replace("min_group = 5", "min_group = 8"))
    there = coterie.advise(place, FORMULA, "ward", splits=2)
    assert list(there.evidence.index) == ["local", "pooled"] and "gain" not in there.clients
    assert any("Left out: weighted-averaging" in one for one in there.sentences)
    assert any("as sums over clients" in one for one in there.sentences)
    here = coterie.compare(together(), FORMULA, "ward", methods=["local"], splits=1)
    np.testing.assert_allclose(there.evidence["loss_rows"], here["loss_rows"][["local", "pooled"]], rtol=1e-8)


def test_the_command_shows_what_it_shows_of_a_table_and_keeps_it(place, tmp_path):
    asked = (place, "--formula", FORMULA, "--covariance", "isotropic", "--splits", 1)
    ran = command("fit", *asked, "--out", tmp_path / "model")
    assert ran.code == 0, ran.err
    assert "Recommended: " in ran.out and f"Report: {tmp_path / 'model' / 'report.html'}" in ran.out
    kept = coterie.load(tmp_path / "model")
    assert kept.comparison.index.tolist() == ["local", "pooled", "hierarchical"]
    ran = command("compare", *asked, "--out", tmp_path / "c.csv")
    assert ran.code == 0, ran.err
    assert pd.read_csv(tmp_path / "c.csv")["method"].tolist() == kept.comparison.index.tolist()
    ran = command("fit", *asked, "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and [row["method"] for row in found["comparison"]] == kept.comparison.index.tolist()
    assert found["exchanges"] and found["recommended"] == kept.recommended


def test_a_run_that_sites_keep_and_the_coordinator_does_not_needs_another_name(place):
    coterie.fit(place, FORMULA, method="pooled")
    shutil.rmtree(place / "coordinator" / "runs")
    with pytest.raises(CoterieError, match=r"keep a run 'pooled-1' .* no record of.* another name \(--name\)\.$"):
        coterie.fit(place, FORMULA, method="pooled")
    assert coterie.fit(place, FORMULA, method="pooled", engine={"name": "other"}).method == "pooled"


SLIPS = [
    (
        lambda place: coterie.fit(place, coterie.Torch("mlp")),
        "Sites code call table target net of the package module:function objective",
    ),
    (lambda place: coterie.fit(place, FORMULA, order_by="age"), "order_by changes nothing splits is 0"),
    (lambda place: coterie.fit(place, FORMULA, order_by="week", splits=1), "schema has no column 'week'"),
    (lambda place: coterie.fit(place, FORMULA, engine="ray"), "folder engine leave engine='ray' out"),
    (lambda place: coterie.fit(place, FORMULA, engine={"nam": "x"}), "no option 'nam' Did you mean 'name'"),
    (lambda place: coterie.fit(place, FORMULA, group="ward"), "group goes with coterie.Torch say cluster"),
    (
        lambda place: coterie.compare(place, FORMULA, methods=["ditto", "apfel"]),
        "no method 'apfel' Did you mean 'apfl'",
    ),
    *(
        (lambda place, asked=asked: coterie.fit(place, FORMULA, **asked), said)
        for asked, said in (
            ({"order_by": "age", "split_by": "pain"}, "order_by split_by each say which rows name one"),
            ({"method": None}, "method name one not None"),
            ({"client": ["ward", "kind"]}, "client name one column"),
            ({"offset": [3]}, "offset columns text not 3"),
            ({"weights": ["age", "score"]}, "weights one column"),
            ({"client": "ward", "cluster": "ward"}, "'ward' client cluster leave out"),
            ({"cluster": ["ward", "ward"]}, "'ward' named twice"),
            ({"offset": "score"}, "'score' is the outcome"),
            ({"offset": "age"}, "'age' offset formula keep one"),
        )
    ),
    *(
        (lambda place, left=left, more=more: coterie.fit(place, f"{left} ~ 1", **more), said)
        for left, more, said in (
            ("age | trials(pain)", {"family": "binomial"}, "'pain' category trials"),
            ("age | trials(12)", {"family": "binomial"}, "'12' no column"),
            ("cbind(age, score)", {}, "successes of trials family binomial"),
            ("cbind(age, score)", {"family": "binomial", "weights": "age"}, "'age' outcome"),
        )
    ),
    (lambda place: program_of_call(FORMULA, {"method": "a:b", "reml": False}), "reml is for methods rounds"),
]


@pytest.mark.parametrize(("call", "said"), SLIPS, ids=[said for _, said in SLIPS])
def test_what_sites_do_not_take_is_said_before_they_are_asked(call, said, place):
    with pytest.raises(CoterieError, match=names(said)):
        call(place)
    assert not list((place / "coordinator").glob("runs/*"))


def test_a_run_that_fails_says_that_a_certificate_has_ended(tmp_path, monkeypatch):
    build(tmp_path)
    trouble = "The certificate server.crt ended on 2026-01-01: make the federation anew."

    def fails(text):
        def fail(*_):
            raise CoterieError(text)

        return fail

    for said, known, found in (("Sites are away.", trouble, 1), (f"Away. {trouble}", trouble, 1), ("Away.", "", 0)):
        engine = SimpleNamespace(run=fails(said), need_trust=fails(known) if known else lambda home: None)
        monkeypatch.setattr(folders, "engine", lambda name, engine=engine: engine)
        with pytest.raises(CoterieError) as raised:
            calls_over_sites.carried_out(tmp_path / "coordinator", {"program": "pooled", "task": {"formula": FORMULA}})
        assert str(raised.value).startswith(said) and str(raised.value).count(trouble) == found
