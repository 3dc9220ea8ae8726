"""Rows of a configuration: which are held out, by their own word, by time, by person, or none at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.runs.config import Config
from coterie.runs.federated_data import federated
from coterie.runs.rows_and_models_in_memory import rows
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names

RNG = np.random.default_rng(7)
N = 120
WHO = np.array(["basel", "bern", "zug"])[np.arange(N) % 3]
X = np.column_stack([np.arange(N), RNG.normal(size=N)])  # the first column is the row's number
Y = RNG.integers(0, 2, N)
FOLD = np.array(["train", "train", "Validation", "TEST"])[RNG.integers(0, 4, N)]
DAY = RNG.permutation(N)
PERSON = np.arange(N) // 6  # with rows of every client
SOFT = coterie.Torch("softmax")


def problem(given=None, **more):
    data = {"source": rows({"X": X, "y": Y, "client": WHO} | (given or {})), **more}
    return TrainingProblem.of(Config.of({"data": data, "run": {"rounds": 1, "patience": 1}}), 3)


def numbers(part):
    """Which rows a part has, by client."""
    return [{*part.X[a:b, 0].astype(int).tolist()} for a, b in zip(part.starts, part.stops, strict=True)]


def of(mask):
    return [{*np.flatnonzero(mask & (who == WHO)).tolist()} for who in ("basel", "bern", "zug")]


def test_a_given_split_is_heeded_and_its_validation_rows_are_those_that_choose():
    found = problem({"split": FOLD})  # the array "split" is heeded without a word
    assert found.config.data["given_split"] == "split" and found.config.data["partition"] == "given"
    assert numbers(found.data.test) == of(FOLD == "TEST") and numbers(found.data.train) == of(FOLD != "TEST")
    inner = found.inside().data
    assert numbers(inner.test) == of(FOLD == "Validation") and numbers(inner.train) == of(FOLD == "train")
    held = problem({"fold": FOLD == "TEST"}, given_split="fold").data  # True is held out; validation is drawn
    assert numbers(held.test) == of(FOLD == "TEST")


def test_the_latest_rows_of_each_client_are_held_out_and_of_the_others_those_that_choose():
    found = problem({"day": DAY}, order_by="day", test=0.25)
    for train, test in zip(numbers(found.data.train), numbers(found.data.test), strict=True):
        assert len(test) == 10 and DAY[[*train]].max() < DAY[[*test]].min()
    for train, test in zip(numbers(found.inside().data.train), numbers(found.inside().data.test), strict=True):
        assert len(train) + len(test) == 30 and DAY[[*train]].max() < DAY[[*test]].min()
    dates = pd.to_datetime("2024-01-01") + pd.to_timedelta(DAY, unit="D")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "ill": Y, "town": WHO, "seen": dates.strftime("%d/%m/%Y")})
    of_table = coterie.Torch("softmax", target="ill", inputs=["a", "b"])
    table = coterie.fit(frame, of_table, client="town", order_by="seen", method="local", rounds=1, seed=3)
    assert any("seen" in note for note in table.notes)  # how dates were read
    assert table.clients["test_rows"].tolist() == [10, 10, 10]


def test_all_rows_of_a_person_are_on_one_side_in_every_client():
    found = problem({"who": PERSON}, split_by="who", test=0.4)
    for part in (found, found.inside()):
        train, test = ({*PERSON[[*set().union(*numbers(side))]]} for side in (part.data.train, part.data.test))
        assert train and test and not train & test


def test_people_are_drawn_by_their_names_and_not_by_who_else_is_there():
    """As sites draw them, which see their own people only: hence as numbers or as text, too."""
    one, text = (problem({"who": who}, split_by="who", test=0.4) for who in (PERSON, PERSON.astype(str)))
    assert numbers(one.data.test) == numbers(text.data.test)


def test_splits_go_along_with_rows_that_are_dealt():
    data = {"source": rows({"X": X, "y": Y, "split": FOLD}), "partition": "dirichlet", "clients": 4, "alpha": 5.0}
    found = federated(Config.of({"data": data}), 0)
    assert set().union(*numbers(found.test)) == {*np.flatnonzero(FOLD == "TEST").tolist()}
    assert found.said == {"partition": "dirichlet", "given_split": "split"}


def test_a_call_says_the_same_with_arrays_and_with_names():
    how = {"client": WHO, "method": "fedavg", "rounds": 2}
    one = coterie.fit((X, Y), SOFT, given_split=FOLD, **how)
    two = coterie.fit({"X": X, "y": Y, "fold": FOLD}, SOFT, given_split="fold", **how)
    assert (one.theta == two.theta).all() and one.clients["test_rows"].sum() == (FOLD == "TEST").sum()
    timed = coterie.fit((X, Y), SOFT, order_by=DAY, **how)
    again = coterie.fit({"X": X, "y": Y, "client": WHO, "order_by": DAY}, timed.config())
    assert (timed.theta == again.theta).all()


def test_a_final_fit_trains_on_all_rows_and_says_that_it_has_no_scores(tmp_path):
    result = coterie.fit((X, Y), SOFT, client=WHO, method="ditto", rounds=2, test_fraction=0)
    assert "none is held out" in result.reason and result.clients["rows"].sum() == N
    assert [*result.comparison.columns] == ["bytes", "seconds", "diverged", "chosen"]
    assert "loss" not in result.clients and not any(key.startswith("loss") for p in result.run.curve for key in p)
    result.report(tmp_path / "page.html")
    assert result.reason in (tmp_path / "page.html").read_text() and result.notes is not None
    result.save(tmp_path / "kept")
    kept = coterie.load(tmp_path / "kept")
    assert kept.reason == result.reason and (kept.predict(X[:5], "bern") == result.predict(X[:5], "bern")).all()
    with_test = coterie.fit((X, Y), SOFT, client=WHO, method="ditto", rounds=2, given_split=np.repeat("train", N))
    assert with_test.reason == result.reason


def test_a_final_fit_stops_and_chooses_by_rows_that_are_held_back():
    rounds = {"rounds": 3, "eta": [1e-9, 0.1], "patience": 1}
    scaled = X / X.max(axis=0)
    chosen = coterie.fit((scaled, Y), SOFT, client=WHO, method="fedavg", rounds=rounds, test_fraction=0)
    assert chosen.run.setting["eta"] in (1e-9, 0.1) and "validation" in chosen.run.curve[0]


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ({"split": np.where(FOLD == "train", "fit", FOLD)}, {}, names("'split' train test 'fit' name")),
        ({"split": np.where(WHO == "bern", "test", "train")}, {}, names("rows client bern held out train")),
        ({"split": FOLD}, {"validation": 0.5}, names("validation 'split' choices")),
        ({"day": DAY}, {"order_by": "dya"}, names("'dya' mean 'day'")),
        ({"day": np.where(DAY > 100, np.nan, DAY)}, {"order_by": "day"}, names("'day' no value rows")),
        ({"day": DAY}, {"order_by": "day", "split_by": "day"}, names("day both name one")),
        ({"day": np.stack([DAY, DAY], 1)}, {"order_by": "day"}, names("'day' shape one value")),
    ],
)
def test_what_cannot_be_split_by_is_said(given, more, message):
    with pytest.raises(CoterieError, match=message):
        problem(given, **more).inside()


def test_what_a_call_cannot_have():
    with pytest.raises(CoterieError, match=names("which best method test_fraction above 0")):
        coterie.fit((X, Y), SOFT, client=WHO, test_fraction=0)
    with pytest.raises(CoterieError, match=names("given_split test_fraction")):
        coterie.fit((X, Y), SOFT, client=WHO, test_fraction=0.5, given_split=FOLD)


def test_who_has_what_is_counted_drawn_and_kept(tmp_path):
    data = {"partition": "pathological", "clients": 8, "each": 3, "rows": 600, "test": 0.25}
    found = coterie.fit({"data": data, "model": {"path": "softmax"}, "run": {"rounds": 1}, "method": {"name": "local"}})
    counts = found.evidence.class_counts
    assert counts.sum() == 600 and ((counts > 0).sum(axis=1) == 3).all()
    found.save(tmp_path / "kept")
    kept = coterie.load(tmp_path / "kept")
    kept.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count(", class ") == 24 and "Who has what" in page  # a circle each
    assert np.array_equal(kept.evidence.class_counts, counts)


@pytest.mark.parametrize("net", [SOFT, coterie.Torch("mlp", args={"sizes": [2, 3, 2]}, dtype="float64")])
def test_a_row_of_weight_two_is_that_row_twice(net):
    scaled, twice = X / X.max(axis=0), np.r_[np.arange(N), np.arange(0, N, 4)]
    weights = np.where(np.arange(N) % 4 == 0, 2.0, 1.0)
    how = {"method": "fedavg", "rounds": {"rounds": 3, "B": 0, "eta": 0.1}}
    one = coterie.fit((scaled, Y), net, client=WHO, weights=7.0 * weights, given_split=FOLD, **how)
    two = coterie.fit((scaled[twice], Y[twice]), net, client=WHO[twice], given_split=FOLD[twice], **how)
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-10)
    same = [result.comparison[["accuracy", "loss"]].to_numpy() for result in (one, two)]
    np.testing.assert_allclose(*same, atol=1e-10)
    assert one.data_fingerprint != coterie.fit((scaled, Y), net, client=WHO, given_split=FOLD, **how).data_fingerprint


def test_rows_held_back_keep_their_weights_and_wrong_ones_are_said():
    weights = 1.0 + np.arange(N)
    found = problem({"w": weights}, weights="w").inside().data
    for part in (found.train, found.test):
        np.testing.assert_allclose(part.weights, (1.0 + part.X[:, 0]) / weights.mean())
    for wrong in (-weights, np.where(weights > 9, np.nan, 1.0), np.stack([weights, weights], 1)):
        with pytest.raises(CoterieError, match=names("'w' weigh row number data")):
            problem({"w": wrong}, weights="w")
    with pytest.raises(CoterieError, match=r"'w' must weigh one row at least by a number above 0: leave it out\.$"):
        problem({"w": np.zeros(N)}, weights="w")


DATASETS = """
import numpy as np

class Notes:
    def __init__(self, shift):
        self.shift = shift
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {"note": "ab" * (1 + (i + self.shift) % 3), "good": i % 2}

def source():
    return {"ann": Notes(0), "bob": Notes(1)}

def pairs():
    return {who: [(np.full(2, float(i)), i % 2) for i in range(8)] for who in ("ann", "bob")}

def pad(items):
    wide = max(len(item["note"]) for item in items)
    codes = [[ord(c) - 96 for c in item["note"]] + [0] * (wide - len(item["note"])) for item in items]
    return np.array(codes, dtype=float), np.array([item["good"] for item in items])

def lost(items):
    return pad(items[1:])
"""


def test_a_function_gives_datasets_by_client_and_another_puts_their_items_together(tmp_path):
    (tmp_path / "my_notes.py").write_text(DATASETS)

    def made(**data):
        return federated(Config.of({"data": data, "model": {"path": "softmax"}}, tmp_path), 0)

    found = made(source="my_notes:source", collate="my_notes:pad")
    assert found.labels == ("ann", "bob") and found.train.X.shape[1:] == (6,)
    rows = np.concatenate([found.train.X, found.test.X])
    lengths = sorted(2 * (1 + (i + shift) % 3) for shift in (0, 1) for i in range(8))
    assert sorted((rows > 0).sum(axis=1).tolist()) == lengths and len(rows) == 16
    assert made(source="my_notes:pairs").train.X.shape[1:] == (2,)
    for data, says in (
        ({"source": "my_notes:source"}, "Client ann must have"),
        ({"source": "my_notes:source", "collate": "my_notes:lost"}, "for 16 items"),
        ({"source": "my_notes:source", "collate": "my_notes:Notes"}, r"must make \(X, y\) of a list of items"),
        (
            {"source": "my_notes:pad", "args": {"items": [{"note": "a", "good": 1}]}, "collate": "my_notes:pad"},
            "puts items",
        ),
    ):
        with pytest.raises(CoterieError, match=says):
            made(**data)
