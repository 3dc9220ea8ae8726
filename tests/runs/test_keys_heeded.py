"""Every key of [data], [run] and [privacy] is read, refused where it is of the wrong type, and never without effect."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.runs.config import Config
from coterie.runs.config_keys import SECTIONS
from coterie.runs.training_problem import TrainingProblem

RNG = np.random.default_rng(4)
CLIENT = np.repeat(["a", "b", "c", "d"], 15)
ROWS = {"X": RNG.normal(size=(60, 3)), "y": RNG.integers(0, 2, 60), "town": CLIENT, "street": np.roll(CLIENT, 7)}
ROWS |= {"group": np.repeat([0, 1], 30), "kind": np.repeat([1, 0, 1, 0], 15)}
ROWS |= {
    "fold": np.tile(["train", "train", "test"], 20),
    "day": np.arange(60)[::-1],
    "pair": np.arange(60) // 2,
    "mass": 1.0 + np.arange(60),
}
DIGITS = {"rows": 120, "clients": 4, "test": 0.4}
NOISY = {"clip": 0.5, "noise": 1.0}
CASES = {
    ("data", "source"): ({"source": "digits"}, "fashion-mnist"),
    ("data", "args"): ({}, {"n": 3}),
    ("data", "rows"): ({"data": DIGITS}, 100),
    ("data", "partition"): ({"data": DIGITS}, "shards"),
    ("data", "clients"): ({"data": DIGITS}, 5),
    ("data", "alpha"): ({"data": DIGITS | {"partition": "dirichlet"}}, 5.0),
    ("data", "least"): ({"data": DIGITS | {"partition": "dirichlet", "alpha": 0.3}}, 22),
    ("data", "shards"): ({"data": DIGITS | {"partition": "shards"}}, 3),
    ("data", "each"): ({"data": DIGITS | {"partition": "pathological", "each": 3}}, 4),
    ("data", "sigma"): ({"data": DIGITS | {"partition": "feature-noise"}}, 0.5),
    ("data", "column"): ({"data": {"source": "rows", "partition": "by_column", "column": "town"}}, "street"),
    ("data", "group"): ({"data": {"source": "rows", "partition": "by_column", "column": "town"}}, "kind"),
    ("data", "angles"): ({"data": DIGITS | {"partition": "rotated"}}, [0, 180]),
    ("data", "test"): ({"data": DIGITS}, 0.3),
    ("data", "weights"): ({"data": {"source": "rows", "column": "town"}}, "mass"),
    ("data", "given_split"): ({"data": {"source": "rows", "column": "town"}}, "fold"),
    ("data", "order_by"): ({"data": {"source": "rows", "column": "town"}}, "day"),
    ("data", "split_by"): ({"data": {"source": "rows", "column": "town"}}, "pair"),
    ("data", "validation"): ({"data": DIGITS, "method": {"eta": [0.1, 3.0]}}, 0.6),
    ("data", "seed"): ({"data": DIGITS}, 3),
    ("run", "rounds"): ({}, 3),
    ("run", "evaluate_every"): ({}, 2),
    ("run", "seeds"): ({}, [5]),
    ("run", "patience"): ({"run": {"rounds": 6}, "method": {"eta": 1e-9}}, 1),
    ("run", "keep"): ({"run": {"rounds": 6}, "method": {"eta": 3.0}}, "best"),
    ("privacy", "clip"): ({"privacy": NOISY}, 0.1),
    ("privacy", "noise"): ({"privacy": NOISY}, 2.0),
    ("privacy", "epsilon"): ({"privacy": {"clip": 0.5, "epsilon": 8.0}}, 4.0),
    ("privacy", "delta"): ({"privacy": NOISY}, 1e-3),
    ("privacy", "unit"): ({"privacy": NOISY}, "row"),
    ("privacy", "sampling"): ({"privacy": NOISY}, 0.5),
    ("privacy", "hide"): ({"privacy": NOISY}, "site"),
    ("privacy", "seed"): ({"privacy": NOISY}, 8),
}
"""Sections in which another value of a key is to change something, and that value."""
RIGHTLY = {("run", "strict"), ("privacy", "quorum"), ("data", "collate")}
"""What changes nothing where no client is broken and all answer; Datasets are in test_federated_data.py."""
KEYS = [(name, key) for name in ("data", "run", "privacy") for key in declared(SECTIONS[name])]
MATTER = [(name, key) for name, key in KEYS if declared(SECTIONS[name])[key].option.matters]


def sections(more, name=None, **keys):
    base = {"data": dict(DIGITS), "run": {"rounds": 2}, "method": {"name": "fedavg"}, "model": {"path": "softmax"}}
    for section, table in more.items():
        base[section] = (base.get(section, {}) if section in ("run", "method") else {}) | table
    return base | ({name: base.get(name, {}) | keys} if name else {})


@cache
def outcome(name, key, given):
    more, value = CASES[name, key]
    asked = sections(more, name, **({key: value} if given else {}))
    if name == "data" and key == "group":
        asked["method"] = {"name": "group-models"}
    if key == "validation":
        return (np.zeros(0), TrainingProblem.of(Config.of(asked), 0).inside().data.fingerprint)
    rows = ROWS if asked["data"].get("source") == "rows" else None
    if key == "column":
        rows = {name: array for name, array in ROWS.items() if name != "group"}
    found = coterie.fit(asked) if rows is None else coterie.fit(rows, asked)
    curve = [{k: v for k, v in point.items() if k != "seconds"} for point in found.run.curve]
    return np.asarray(found.theta), curve, found.run.status, found.run.privacy, found.run.rounds


def test_every_key_is_tried():
    assert {*CASES} | RIGHTLY == {*MATTER}


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(name, key):
    for wrong in ([[1, "a"]], object()):
        with pytest.raises(CoterieError, match=key):
            Config.of({name: {key: wrong}})


@pytest.mark.parametrize(("name", "key"), [one for one in CASES if one not in (("data", "source"), ("data", "args"))])
def test_another_value_of_a_key_changes_something_or_is_refused(name, key):
    plain = outcome(name, key, False)
    try:
        found = outcome(name, key, True)
    except CoterieError as problem:
        assert (name, key) == ("privacy", "unit") and key in str(problem)
        return
    same = plain[0].shape == found[0].shape and np.array_equal(plain[0], found[0])
    assert not same or plain[1:] != found[1:]


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, k in KEYS if declared(SECTIONS[n])[k].option.beside])
def test_a_key_without_what_it_goes_with_is_refused(name, key):
    other, taken = declared(SECTIONS[name])[key].option.beside
    unlike = next(value for value in ("iid", "by_column") if value not in taken)
    asked = {other: unlike, key: CASES[name, key][1]} | ({"column": "town"} if unlike == "by_column" else {})
    with pytest.raises(CoterieError, match=f"{key} of .*changes nothing"):
        Config.of({name: asked})


@pytest.mark.parametrize(
    "tables",
    [
        {"data": {"validation": 0.3}},
        {"data": {"source": "digits", "args": {"n": 3}}},
        {"data": {"source": "digits", "collate": "json:loads"}},
        {"data": {"source": "digits", "group": "kind"}},
        {"privacy": {"noise": 1.0}},
        {"privacy": NOISY, "method": {"name": "local"}},
        {"run": {"checkpoint_every": 5}},
    ],
)
def test_a_key_that_nothing_would_heed_is_refused(tables):
    asked = {name: sections({}).get(name, {}) | table for name, table in tables.items()}
    with pytest.raises(CoterieError):
        coterie.fit({"data": DIGITS, "run": {"rounds": 1}} | asked)
