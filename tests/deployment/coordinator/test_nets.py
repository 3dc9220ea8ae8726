"""Methods compared on nets whose rows stay at sites: the comparison of one process, by the command and in Python."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.deployment import folders, logs
from coterie.deployment.coordinator.run import run
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import Schema
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError
from coterie.methods.registry import METHODS
from tests.cli.harness import coterie as command
from tests.deployment.hospitals import transport
from tests.deployment.sites import build, of_own_code, tables
from tests.deployment.sites import transport as sites
from tests.messages import names

SITES = ("east", "north", "west")
MODULE = """
import numpy as np
import torch
from coterie.objectives.deep import Deep


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def rows(site):
    rng = np.random.default_rng(sum(map(ord, site)))
    X = rng.normal(size=(90, 3))
    turn = 1.0 if site == "west" else -1.0
    y = (X[:, 0] + turn * X[:, 1] + 0.3 * rng.normal(size=90) > 0).astype(np.int64)
    return X, y, [f"{site}-{i}" for i in range(3)]


def make(path, site, dtype="float64"):
    X, y, labels = rows(site)
    starts = 30 * np.arange(3)
    made = Deep.of(net, X, y, starts, starts + 30, dtype=dtype)
    return made, labels, np.repeat("w" if site == "west" else "e", 3)
"""
STEPS = {"rounds": 4, "eta": 0.3, "B": 7}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A federation whose sites answer in this process, behind bytes."""
    config = Config("toy", "nvflare", sites=SITES, policy={"deadline": 0.2, "pause": 0.05})
    _, homes = of_own_code(tmp_path, config, "made_nets", MODULE)

    def carry(folder, run_id, timeout):
        run(transport(homes), folder, run_id)

    monkeypatch.setattr(folders, "engine", lambda name: SimpleNamespace(run=carry, need_trust=lambda home: None))
    return tmp_path


def here(methods, seeds, test=0.25, **more):
    """The same comparison with all rows in this process."""
    names: dict = {}
    exec(MODULE, names)  # noqa: S102
    made = [names["rows"](site) for site in SITES]
    rows = tuple(np.concatenate([one[k] for one in made]) for k in (0, 1))
    client = np.concatenate([np.repeat(one[2], 30) for one in made])
    net = coterie.Torch(names["net"], dtype="float64")
    return coterie.compare(rows, net, client=client, methods=methods, seed=seeds, test_fraction=test, **more)


def same(there, table, names):
    """The rows of some methods are alike in all but costs and their difference to the best, which may be pooled."""
    ours = [c for c in table.columns if c not in ("bytes", "seconds") and not c.startswith("to_best")]
    pd.testing.assert_frame_equal(there.loc[names, ours], table.loc[names, ours], rtol=1e-10, atol=1e-10)


def test_a_comparison_over_sites_is_that_of_one_process(place):
    net = coterie.Torch("made_nets:make")
    there = coterie.compare(place, net, methods=["fedavg", "ditto"], rounds=STEPS, seed=[3, 4])
    assert set(there.index) == {"local", "fedavg", "ditto"}
    names = ["local", "fedavg", "ditto"]
    same(there, here(names, [3, 4], rounds=STEPS), names)


def test_the_command_compares_two_methods_of_a_net_over_sites(place, tmp_path):
    asked = ["--objective", "made_nets:make", "--rounds", "rounds=4", "--rounds", "eta=0.3", "--rounds", "B=7"]
    ran = command(
        "compare", place, *asked, "--methods", "fedavg,ditto", "--seed", 3, "--out", tmp_path / "t.csv",
        "--report", tmp_path / "r.html",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    table = pd.read_csv(tmp_path / "t.csv", index_col="method")
    names = ["local", "fedavg", "ditto"]
    np.testing.assert_allclose(table.loc[names, "loss"], here(names, [3], rounds=STEPS).loc[names, "loss"], rtol=1e-10)
    assert "against" in ran.out and "<h1>" in (tmp_path / "r.html").read_text()


def test_pooled_is_refused_with_what_stands_for_it(place):
    with pytest.raises(CoterieError, match=r"pooled.*all rows in one place.*fedavg"):
        coterie.compare(place, coterie.Torch("made_nets:make"), methods=["pooled"])


def on_tables(tmp_path, monkeypatch):
    """Three hospitals with a table each, whose owners let methods over rounds read it; and the rows of all."""
    frames = tables()
    for frame in frames.values():
        frame["ill"] = (frame["score"] > frame["score"].median()).astype(int)
        frame["grade"] = np.array(["low", "middle", "high"])[np.digitize(frame["score"], [2.7, 3.3])]
        frame["counts"] = np.arange(len(frame)) % 3 + 0.5
    build(tmp_path / "heart", frames, labels=("ward", "kind"))
    engine = SimpleNamespace(
        run=lambda folder, run_id, timeout: run(sites(tmp_path / "heart"), folder, run_id), need_trust=lambda home: None
    )
    monkeypatch.setattr(folders, "engine", lambda name: engine)
    return tmp_path / "heart", pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)


def test_a_net_on_the_sites_own_tables_is_that_of_one_table(tmp_path, monkeypatch):
    place, together = on_tables(tmp_path, monkeypatch)
    args = {"sizes": [2, 3, 2]}
    net = coterie.Torch("mlp", args=args, target="ill", inputs=["age", "score"], dtype="float64")
    asked = {"rounds": {"rounds": 3, "eta": 0.01, "B": 5}, "seed": [2]}
    there = coterie.fit(place, net, method="ditto", **asked)
    here = coterie.fit(together, net, client="site", method="ditto", **asked)
    np.testing.assert_allclose(there.theta, here.theta, rtol=1e-10)
    same(there.comparison, here.comparison, ["ditto"])
    some = together[["age", "score"]].to_numpy(float)[:5]
    np.testing.assert_allclose(there.predict_proba(some, "bern"), here.predict_proba(some, "bern"), rtol=1e-10)


def test_text_of_three_classes_and_weights_of_rows_are_those_of_one_table(tmp_path, monkeypatch):
    place, together = on_tables(tmp_path, monkeypatch)
    for home in (place / "coordinator", *(place / "sites").iterdir()):  # so that no weight can be 0
        schema = Schema.read(home / "schema.toml")
        weighs = replace(schema.columns["counts"], low=0.1)
        replace(schema, columns=schema.columns | {"counts": weighs}).write(home / "schema.toml")
    net = coterie.Torch(
        "mlp", args={"sizes": [2, 3, 3]}, target="grade", inputs=["age", "score"], dtype="float64",
        metrics=["accuracy", "f1_macro"],
    )  # fmt: skip
    asked = {"rounds": {"rounds": 3, "eta": 0.01, "B": 5}, "seed": [2], "weights": "counts", "method": "ditto"}
    there, here = coterie.fit(place, net, **asked), coterie.fit(together, net, client="site", **asked)
    np.testing.assert_allclose(there.theta, here.theta, rtol=1e-10)
    same(there.comparison, here.comparison, ["ditto"])
    some = together[["age", "score"]].to_numpy(float)[:5]
    assert there.predict(some, "bern").tolist() == here.predict(some, "bern").tolist()
    assert there.class_names == here.class_names == ("high", "low", "middle")


def test_advice_on_nets_over_sites_has_fedavg_for_one_model_of_all(place):
    found = coterie.advise(place, coterie.Torch("made_nets:make"), rounds=STEPS | {"rounds": 2}, seed=[0, 1])
    assert set(found.clients.index) == {f"{site}-{i}" for site in SITES for i in range(3)}
    table = here(["fedavg"], [0, 1], rounds=STEPS | {"rounds": 2})
    assert found.clients["loss_pooled"].mean() == pytest.approx(1.0 - table["accuracy_clients"]["fedavg"])
    assert found.evidence.loc["pooled", "accuracy"] == pytest.approx(table["accuracy"]["fedavg"])
    assert found.sentences and found.settings["method"] in METHODS
    asked = ["--objective", "made_nets:make", "--rounds", "rounds=2", "--rounds", "eta=0.3", "--rounds", "B=7"]
    ran = command("advise", place, *asked, "--seed", 0, "--out", place / "a.csv")
    assert ran.code == 0, ran.err
    assert set(pd.read_csv(place / "a.csv")["client"]) == set(found.clients.index)


def test_a_comparison_that_was_cut_keeps_the_methods_that_were_done(place, monkeypatch):
    net, asked = coterie.Torch("made_nets:make"), {"methods": ["fedavg", "ditto"], "rounds": STEPS, "seed": [3]}
    homes, calls = [place / "sites" / name for name in SITES], [0, 0]

    def lame(dies):
        there = transport(homes)
        for site, inner in there._receivers.items():

            def receive(data, inner=inner):
                calls[0] += 1
                return None if calls[0] > dies else inner(data)

            there._receivers[site] = receive
        return there

    def carry(folder, run_id, timeout):
        calls[0] = 0
        run(lame(calls[1]), folder, run_id)

    monkeypatch.setattr(folders, "engine", lambda name: SimpleNamespace(run=carry, need_trust=lambda home: None))
    calls[1] = 10**9
    straight = coterie.compare(place, net, **asked)
    every = calls[0]
    name, calls[1] = {"name": "cut"}, int(0.7 * every)
    with pytest.raises(CoterieError):
        coterie.compare(place, net, **asked, engine=name)
    calls[1] = 10**9
    again = coterie.compare(place, net, **asked, engine=name)
    assert calls[0] < 0.4 * every
    same(again, straight, list(straight.index))
    np.testing.assert_allclose(again["bytes"], straight["bytes"], rtol=0.01)  # the run has another name
    finished = coterie.compare(place, net, **asked, engine=name)
    assert calls[0] == 0
    np.testing.assert_array_equal(finished["seconds"], again["seconds"])


def test_models_that_answer_by_more_than_a_net_are_read_at_their_sites(place):
    steps = STEPS | {"head": ["2*"], "bias": ["2.bias"], "k": 3}
    methods = ["knn-per", "fedem", "fedproto"]
    there = coterie.compare(place, coterie.Torch("made_nets:make"), methods=methods, rounds=steps, seed=[3])
    same(there, here(methods, [3], rounds=steps), methods)
    asked = [
        e for e in logs.read(place / "coordinator" / "runs" / "nets-1" / logs.LOG) if "remember" in str(e.get("work"))
    ]
    assert asked == []  # rows that a client remembers do not leave its site


def test_validation_rows_at_the_sites_choose_settings_and_when_to_stop(place):
    """In one process the same rows are held back, so that the same settings and rounds are chosen."""
    for home in (place / "sites").iterdir():  # of 30 rows, 4 to 6 are on each side
        replace(Member.read(home), min_group=4).write(home)
    steps = STEPS | {"eta": [0.01, 1.0], "patience": 1, "rounds": 2}
    there = coterie.compare(place, coterie.Torch("made_nets:make"), methods=["fedavg"], rounds=steps, seed=[3])
    same(there, here(["fedavg"], [3], rounds=steps), ["local", "fedavg"])
    assert "eta=1.0" in there["chosen"]["fedavg"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"client": "ward"}, "column rows in one place leave it out over sites"),
    ],
)
def test_what_sites_cannot_do_is_said_before_they_are_asked(place, more, what):
    with pytest.raises(CoterieError, match=names(what)):
        coterie.compare(place, coterie.Torch("made_nets:make"), methods=["ditto"], **more)
    assert not list((place / "coordinator" / "runs").glob("*"))


@pytest.mark.parametrize("kept", [{"secure": {"min_sites": 3}}, {"privacy": {"clip": 1.0, "noise": 1.0}}])
def test_what_hides_single_clients_is_not_compared(place, kept):
    for home in (place / "coordinator", *(place / "sites").iterdir()):
        Config(**{**Config.read(home).__dict__, **kept}).write(home)
    with pytest.raises(CoterieError, match=rf"Held-out scores .* leave .*{next(iter(kept))}.* out"):
        coterie.compare(place, coterie.Torch("made_nets:make"), methods=["ditto"])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"data": 1, "model": {"target": "y"}}, names("nets tables [options.data]")),
        ({"run": "x", "model": {"target": "y"}}, names("nets tables [options.run]")),
        ({"model": {"target": "yy"}}, names("schema no column 'yy' mean 'y'")),
        ({}, names("schema no column")),
    ],
)
def test_a_run_of_nets_whose_file_was_edited_is_refused_in_a_sentence(options, what):
    schema = Schema.of({"y": {"type": "category", "levels": ["a", "b"]}})
    with pytest.raises(CoterieError, match=what):
        RunConfig("nets", {"formula": "y ~ ."}, options).asked(schema)
