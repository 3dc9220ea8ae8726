"""Methods that know how clients are related, from a configuration: networks, main clients, clusters, over seeds."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.evidence.training_selection import usable
from coterie.methods.registry import TRAINED
from coterie.report.training_page import write_report
from coterie.runs.config import Config
from coterie.runs.config_keys import Torch
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.cells import CLASSES, INPUTS, arrays
from tests.messages import names

RELATED = ["similarity-network", "weighted-averaging", "bias-correction", "async-l2gd", "async-al2sgd"]
DATA = {"data": {"partition": "rotated", "clients": 6, "rows": 240, "angles": [0, 90]}}
SHORT = {"run": {"rounds": 2, "seeds": 2}}


def config(**sections):
    return Config.of({**DATA, **SHORT, **sections})


def test_two_seeds_are_compared_with_a_report(tmp_path):
    found = compare(
        config(model={"path": "mlp", "args": {"sizes": [64, 5, 10]}}, layout={"personal": ["head*"]}), RELATED
    )
    assert set(found.runs) == {"local", "pooled", *RELATED}
    assert np.isfinite(found.table["accuracy"]).all() and (found.table["bytes"].drop("pooled") > 0).all()
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in RELATED) and "not convex" in page


def test_all_are_compared_on_the_main_clients_of_one(tmp_path):
    found = compare(config(methods={"bias-correction": {"main": ["2", "5"]}}), ["fedavg", "bias-correction"])
    for runs in found.runs.values():
        assert [run.labels[i] for run in runs for i in np.flatnonzero(run.scores.weight)] in (
            ["2", "5"] * 2,
            ["5", "2"] * 2,
        )
    write_report(found, tmp_path / "report.html")
    other = {"weighted-averaging": {"main": ["1"]}, "bias-correction": {"main": ["2"]}}
    with pytest.raises(CoterieError, match=names("main client in common")):
        compare(config(methods=other), list(other))


@pytest.mark.parametrize("name", RELATED)
def test_what_needs_single_clients_is_refused_under_noise(name):
    private, open_one = (TrainingProblem.of(config(**p), 0) for p in ({"privacy": {"clip": 1.0, "noise": 1.0}}, {}))
    with pytest.raises(CoterieError, match=names(f"{name} privacy sums")):
        train(private, name, {})
    assert usable(open_one, name) and not usable(private, name)


def test_the_network_has_a_section_of_its_own():
    given = config(network={"space": "data", "k": 2, "lam": [0.1, 0.2]}).given("similarity-network")
    assert given == {"network": {"space": "data", "k": 2}, "lam": [0.1, 0.2]}
    assert len(TRAINED["similarity-network"].settings(given)) == 2
    tied = config(network={"edges": [["1", "2"], ["2", "3", 0.5]], "p": "inf"}, method={"name": "similarity-network"})
    assert (
        train(TrainingProblem.of(tied, 0), "similarity-network", tied.given("similarity-network")).status == "running"
    )
    for tables, message in (
        ({"network": {"spce": "data"}}, "[network] spce space"),
        ({"network": {"lam": 0.1}, "methods": {"similarity-network": {"lam": 0.2}}}, "lam once"),
        ({"network": {"k": 0}}, "k 1 0"),
        ({"network": 3}, "[network] table"),
    ):
        with pytest.raises(CoterieError, match=names(message)):
            config(**tables)


@pytest.mark.parametrize("name", ["weighted-averaging", "bias-correction", "async-al2sgd"])
def test_gradients_know_no_momentum(name):
    net = config(model={"path": "mlp", "args": {"sizes": [64, 5, 10]}, "momentum": 0.9})
    with pytest.raises(CoterieError, match=names(f"{name} momentum model")):
        compare(net, [name], alone=True)


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_a_client_whose_data_give_no_gradient_is_named(name):
    rng = np.random.default_rng(0)
    client = np.arange(80) % 4
    X, y = rng.normal(size=(80, 3)).astype(np.float32), np.arange(80) % 2
    X[client == 1] = np.nan
    found = coterie.fit((X, y), coterie.Torch("softmax"), client, method=name, rounds=2)
    assert set(found.run.quarantined) == {"1"} and found.run.rounds == 2
    assert any("left out" in note and "give no gradient, client 1" in note for note in found.notes)


@pytest.mark.parametrize("name", ["fedrod", "fedproto", "moon", "knn-per"])
def test_personal_layers_are_the_head_of_a_net_that_has_no_layer_of_this_name(name):
    """The same numbers as with the layers named to the method; a client that comes later, and rows, are read by it."""

    def net():
        return nn.Sequential(OrderedDict(body=nn.Linear(INPUTS, 5), act=nn.Tanh(), top=nn.Linear(5, CLASSES)))

    X, y, client = arrays()
    rounds = {"rounds": 2, **({"lam": 0.3} if name == "fedproto" else {})}
    said = {"head": ["top*"]} | ({"bias": ["top.bias"]} if "bias" in TRAINED[name].hyper_parameters else {})
    found, told = (
        coterie.fit((X, y), Torch(net), client, method=name, **how)
        for how in ({"rounds": rounds, "personal": ["top*"]}, {"rounds": rounds | said})
    )
    np.testing.assert_array_equal(found.theta, told.theta)
    np.testing.assert_array_equal(found.predict(X, "0"), told.predict(X, "0"))
    np.testing.assert_array_equal(found.adapt(X[:9], y[:9]).models, told.adapt(X[:9], y[:9]).models)
    assert not any("personal" in note or "layout" in note for note in found.notes)
    with pytest.raises(CoterieError, match=names("head* top.weight")):
        coterie.fit((X, y), Torch(net), client, method=name, rounds=rounds)
