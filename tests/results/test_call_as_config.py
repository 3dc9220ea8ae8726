"""Calls for nets and tables: what is refused, in the words of the call, before anything is trained."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie import Torch, api
from coterie.errors import CoterieError
from coterie.evidence import training_comparison

RNG = np.random.default_rng(3)
X = RNG.normal(size=(80, 3)).astype(np.float32)
CLIENT = np.repeat(["basel", "bern", "chur", "zug"], 20)
Y = (X[:, 0] * np.where(CLIENT < "c", 1, -1) > 0).astype(int)
TABLE = pd.DataFrame({"y": X[:, 1] + Y, "x": X[:, 0], "town": CLIENT})

NETS = [
    ({"rounds": 0}, "rounds must be a whole number from 1, not 0"),
    ({"rounds": {"evaluate_every": 0}}, "evaluate_every of rounds must be"),
    ({"test_fraction": 1.0}, "test_fraction must be a number"),
    ({"seed": []}, "seed must be a whole number from 0, or several different ones, not []"),
    ({"seed": True}, "seed must be a whole number from 0"),
    ({"method": ["fedavg"]}, "one method, a name: compare"),
    ({"engine": "gpu"}, "engine must be inprocess"),
    ({"engine": {"thread": 2}}, "engine has no key 'thread'"),
    ({"privacy": {"eps": 1.0}}, "privacy has no key 'eps'"),
    ({"privacy": {"epsilon": 1.0}}, "privacy needs clip"),
    ({"network": "model", "method": "similarity-network"}, "network must be"),
    ({"network": {"k": 2}}, "fedavg cannot use network: take similarity-network"),
    ({"method": "fedper"}, "say which in shared or personal"),
    ({"method": "fedper", "personal": ["foo*"]}, "'foo*', as shared or personal says, matches no layer"),
    ({"personal": ["0"]}, "no use for shared or personal"),
    ({"partition": "iid"}, "The rows have clients, and partition 'iid' would deal them to others"),
    ({"partition": {"partition": "shards", "shards": 2}}, "leave partition out"),
    ({"partition": {"column": "town", "clients": 3}}, "clients of partition changes nothing"),
    ({"method": "group-models"}, "needs known groups: say group"),
    ({"method": "fedper", "personal": [3]}, "personal must be a list of texts, not [3]"),
]


@pytest.mark.parametrize(("options", "message"), NETS)
def test_a_call_for_a_net_is_refused_in_its_own_words(options, message):
    with pytest.raises(CoterieError) as found:
        coterie.fit((X, Y), Torch("softmax"), **{"client": CLIENT, "rounds": 1, "method": "fedavg"} | options)
    assert message in str(found.value)
    assert not {"[run]", "[data]", "[layout]", "[engine]", "[privacy]", "[network]"} & set(str(found.value).split())


TABLES = [
    ({"method": ["ditto", "pooled"]}, "one method, a name: compare"),
    ({"method": "ditto", "rounds": 1.5}, "rounds must be a whole number"),
    ({"rounds": 5}, "rounds are options of the methods"),
    ({"main": "bern"}, "main goes with the methods weighted-averaging, bias-correction"),
    ({"method": "hierarchical", "main": "bern"}, "main goes with the methods"),
    ({"client": TABLE["town"]}, "client must name a column of the table, not be one"),
    ({"cluster": TABLE["town"]}, "cluster must name a column of the table, not be one"),
    ({"client": CLIENT}, "client must be the name of one column, not an array of shape (80,)"),
]


@pytest.mark.parametrize(("options", "message"), TABLES)
def test_a_call_for_a_table_is_refused_in_its_own_words(options, message):
    with pytest.raises(CoterieError) as found:
        coterie.fit(TABLE, "y ~ x", **{"client": "town", "splits": 1} | options)
    assert message in str(found.value) and "\n" not in str(found.value)


def test_arrays_with_a_formula_are_sent_to_torch():
    with pytest.raises(CoterieError, match=r"arrays go with coterie\.Torch"):
        coterie.fit((X, Y), "y ~ x", client="town")


@pytest.mark.parametrize("kind", ["table", "net"])
def test_methods_to_compare_are_names_and_no_method_is_named_beside_them(kind):
    call = (TABLE, "y ~ x", "town") if kind == "table" else ((X, Y), Torch("softmax"), CLIENT)
    for methods in ([], 3, [3]):
        with pytest.raises(CoterieError, match="methods must be names"):
            coterie.compare(*call, methods=methods)
    with pytest.raises(CoterieError, match="instead of method"):
        coterie.compare(*call, method="ditto")
    found = coterie.compare(*call, methods="ditto", rounds=2, seed=np.int64(1))
    assert set(found.index) == {"local", "pooled", "ditto"}


def test_a_number_of_numpy_is_a_number():
    told = coterie.fit((X, Y, CLIENT), Torch("softmax"), method="fedavg", rounds=np.int64(2), seed=np.int64(3))
    assert told.config()["run"]["seeds"] == [3] and told.config()["run"]["rounds"] == 2
    same = coterie.fit((X, Y, CLIENT), Torch("softmax"), method="fedavg", rounds=2, seed=3)
    np.testing.assert_array_equal(told.theta, same.theta)
    again = coterie.fit(TABLE, "y ~ x", client="town", method="ditto", rounds=np.int64(2), splits=0)
    assert again.settings["training"]["rounds"] == 2


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("group-models", {}, "needs known groups"),
        ("fedper", {}, "needs layers that are personal"),
        ("fedper", {"personal": ["foo*"]}, "matches no layer"),
        ("similarity-network", {"network": {"edges": [("bern", "nowhere")]}}, "nowhere"),
        ("weighted-averaging", {"main": "nowhere"}, "nowhere"),
        ("async-l2gd", {"privacy": {"clip": 1.0, "epsilon": 8.0}}, "leave privacy out"),
    ],
)
def test_nothing_is_trained_before_a_method_that_cannot_be_is_refused(method, options, message, monkeypatch):
    monkeypatch.setattr(training_comparison, "train", lambda *_: pytest.fail("trained before it was refused"))
    with pytest.raises(CoterieError, match=message):
        coterie.compare((X, Y, CLIENT), Torch("softmax"), methods=["fedavg", method], rounds=1, **options)


def test_models_of_what_was_in_memory_say_how_they_are_loaded(tmp_path):
    nn = pytest.importorskip("torch.nn")

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    net = nn.Linear(3, 2)
    coterie.fit((X, Y), Torch(net), CLIENT, method="fedavg", rounds=1).save(tmp_path / "a")
    with pytest.raises(CoterieError, match="give it in the call, as model="):
        coterie.load(tmp_path / "a").predict(X[:2], "bern")
    assert coterie.load(tmp_path / "a", model=net).predict(X[:2], "bern").shape == (2,)
    coterie.fit((X, Y), Torch(net, loss), CLIENT, method="fedavg", rounds=1).save(tmp_path / "b")
    with pytest.raises(CoterieError, match="write it into a module"):
        coterie.load(tmp_path / "b", model=net).predict(X[:2], "bern")


def test_clients_that_are_numbers_are_named_by_numbers():
    rows = {i: (X[20 * i : 20 * i + 20], Y[20 * i : 20 * i + 20]) for i in range(4)}
    helped = coterie.fit(rows, Torch("softmax"), method="weighted-averaging", main=[np.int64(2)], rounds=1)
    np.testing.assert_array_equal(helped.client(2), helped.client("2"))
    edges = [(0, 1), (np.int64(2), 3, 2.0)]
    tied = coterie.fit(rows, Torch("softmax"), method="similarity-network", network={"edges": edges}, rounds=1)
    named = {"edges": [("0", "1"), ("2", "3", 2.0)]}
    same = coterie.fit(rows, Torch("softmax"), method="similarity-network", network=named, rounds=1)
    np.testing.assert_array_equal(tied.theta, same.theta)


def test_a_client_that_is_there_as_a_number_and_as_text_is_refused():
    with pytest.raises(CoterieError, match="has client 1 twice"):
        coterie.fit({1: (X[:20], Y[:20]), "1": (X[20:40], Y[20:40])}, Torch("softmax"), rounds=1)


def test_a_module_alone_is_sent_to_torch():
    with pytest.raises(CoterieError, match=r"is a formula, or coterie.Torch\(net\), not an object"):
        coterie.fit((X, Y), object(), client=CLIENT)


@pytest.mark.parametrize("kind", ["table", "net"])
def test_a_comparison_is_written_down_with_its_methods(kind, tmp_path):
    """The best of them is fitted again, and compared with the same others."""
    rows = (TABLE, "y ~ x", "town") if kind == "table" else ((X, Y), Torch("softmax"), CLIENT)
    asked = {"methods": ["ditto", "fedavg"], "rounds": 3, "seed": 2}
    found = api.compared(*rows, **asked)
    written = found.config()
    assert written["method"]["compare"] == ["ditto", "fedavg"] and written["method"]["name"] == "auto"
    data = TABLE if kind == "table" else (X, Y, CLIENT)
    again = coterie.fit(data, written)
    assert again.config() == written and again.method == found.method
    want = found.comparison.drop(columns="seconds")
    pd.testing.assert_frame_equal(again.comparison.drop(columns="seconds"), want)
    pd.testing.assert_frame_equal(coterie.compare(data, written).drop(columns="seconds"), want)
    other = coterie.compare(data, written, methods=["fedavg"])
    assert set(other.index) == {"local", "pooled", "fedavg"}
    again.save(tmp_path / "kept")
    assert coterie.load(tmp_path / "kept").config() == written


@pytest.mark.parametrize("model", [{"formula": "y ~ x"}, {"path": "softmax"}])
def test_a_configuration_compares_methods_or_names_one(model):
    data = {"source": "x.csv", "client": "town"} if "formula" in model else {"source": "digits"}
    for method, words in (({"name": "ditto", "compare": ["fedavg"]}, "name = 'auto'"), ({"compare": 3}, "compare of")):
        with pytest.raises(CoterieError, match=words):
            coterie.fit({"data": data, "model": model, "method": method})
