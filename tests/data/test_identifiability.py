"""Columns that must be shared and columns that repeat others, against definitions written out."""

import numpy as np
import pandas as pd
import pytest

from coterie.data import identifiability
from coterie.data.clients import Clients
from coterie.data.identifiability import collinear, constant_within_clients, shared_terms
from coterie.data.prepare_table import prepare


def shared_twin(clients):
    """Client by client, from the definition."""
    shared = []
    for k, term in enumerate(clients.terms):
        x = clients.X[:, k]
        if term == "(Intercept)" or (np.ptp(x) == 0 and x[0] != 0):
            shared.append(False)
            continue
        blocks = [slice(a, b) for a, b in zip(clients.starts, clients.stops, strict=True) if b > a]
        constant = all(np.ptp(x[b]) == 0 for b in blocks)
        multiple = False
        for j in range(k):
            z = clients.X[:, j]
            if not shared[j] and np.ptp(z) > 0:
                ranks = [np.linalg.matrix_rank(np.column_stack([z[b], x[b]]), tol=1e-9) for b in blocks]
                only_z = all(np.any(z[b]) or not np.any(x[b]) for b in blocks)
                multiple |= max(ranks) <= 1 and only_z
        shared.append(constant or multiple)
    return shared


@pytest.fixture
def df():
    rng = np.random.default_rng(8)
    n = 600
    g = rng.integers(0, 90, n)
    x = rng.normal(size=n)
    return pd.DataFrame(
        {
            "g": g,
            "x": x,
            "z": rng.normal(size=n),
            "size": rng.normal(size=90)[g] * 100,
            "sector": np.where(g % 2, "a", "b"),
            "sometimes": np.where(g < 5, x, 1.0),
            "y": rng.normal(size=n),
        }
    )


FORMULAS = {
    "y ~ x": [],
    "y ~ x * sector": ["sector[T.b]", "x:sector[T.b]"],
    "y ~ size + x + x:size + z": ["size", "x:size"],
    "y ~ z:size + z": ["z:size"],
    "y ~ sometimes": [],
    "y ~ 0 + x + size": ["size"],
    "y ~ x + I(2 * x)": ["I(2 * x)"],
    "y ~ x + I(x**2)": [],
    "y ~ x + I(1e8 * x * size)": ["I(100000000.0 * x * size)"],
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_shared_columns(df, formula):
    clients, _ = prepare(df, formula, "g")
    found = constant_within_clients(clients)
    assert [t for t, s in zip(clients.terms, found, strict=True) if s] == FORMULAS[formula]
    assert found.tolist() == shared_twin(clients)


def test_a_column_that_varies_in_one_small_client_only_can_be_personal():
    g = np.repeat(np.arange(200), 3)
    x = g.astype(float)
    x[-1] += 1
    clients = Clients.from_arrays(np.column_stack([np.ones(600), x]), np.arange(600.0), g)
    assert constant_within_clients(clients).tolist() == [False, False]
    z = x * np.where(g == 7, -1, 2)
    z[0] += 1e-6
    w = np.random.default_rng(0).normal(size=600)
    v = w * np.repeat(np.arange(200) - 3, 3)
    u = v.copy()
    u[-1] += 1e-6
    clients = Clients.from_arrays(np.column_stack([w, v, u]), np.arange(600.0), g)
    assert constant_within_clients(clients).tolist() == [False, True, False]


def test_clients_without_rows_do_not_count(df):
    clients, _ = prepare(df, "y ~ x * sector", "g")
    some = clients.subset(clients.codes % 3 == 0)
    assert constant_within_clients(some).tolist() == [False, False, True, True]


def test_a_column_of_ones_is_an_intercept_whatever_its_name():
    clients = Clients.from_arrays(
        np.column_stack([np.full(6, 2.0), np.arange(6.0)]), np.arange(6.0), [0, 0, 0, 1, 1, 1]
    )
    assert constant_within_clients(clients).tolist() == [False, False]


def columns(**values):
    n = 500
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=n), "z": rng.normal(size=n), "w": rng.normal(size=n)}
    data |= {k: f(data) for k, f in values.items()}
    X = np.column_stack([np.ones(n), *data.values()])
    return Clients.from_arrays(X, rng.normal(size=n), np.arange(n) % 7, terms=["(Intercept)", *data])


COLLINEAR = [
    ("none", {}, None),
    ("sum", {"t": lambda d: d["x"] + d["z"]}, "Column 't' is a combination of 'x' and 'z'"),
    ("three", {"t": lambda d: d["x"] + d["z"] - 2 * d["w"]}, "a combination of 'x', 'z' and 'w'"),
    ("copy", {"t": lambda d: 3 * d["z"]}, "Column 't' is a multiple of 'z'"),
    ("shift", {"t": lambda d: 1 - d["z"]}, "Column 't' is a combination of '(Intercept)' and 'z'"),
    ("same", {"t": lambda d: np.full(500, 4.0)}, "Column 't' is the same in every row"),
    ("far, not same", {"t": lambda d: 1e15 + np.round(d["x"] * 10)}, "'t' lies more than 10,000,000,000 standard"),
    ("zero", {"t": lambda d: np.zeros(500)}, "Column 't' is 0 in every row"),
    ("huge and tiny", {"t": lambda d: 1e8 * d["x"], "u": lambda d: 1e-3 * d["z"]}, "Column 't' is a multiple of 'x'"),
    ("huge beside tiny", {"t": lambda d: 1e8 * d["x"] ** 2, "u": lambda d: 1e-3 * d["z"] ** 2}, None),
    ("huge plus tiny", {"t": lambda d: 1e8 * d["x"] + 1e-3 * d["z"] ** 2}, "Column 't' is a multiple of 'x'"),
    ("far from zero", {"t": lambda d: 2000 + d["x"] ** 2, "u": lambda d: 1e4 + 1e-2 * d["x"] ** 3}, None),
    ("nearly", {"t": lambda d: d["x"] + 1e-6 * d["z"] ** 2}, None),
    ("more nearly", {"t": lambda d: d["x"] + d["w"] + 1e-8 * d["z"] ** 2}, "combination of 'x' and 'w' to 7 digits"),
    ("rounding", {"t": lambda d: (d["x"] + d["z"]) * (1 + 1e-15)}, "combination"),
]


def test_of_many_columns_that_give_another_some_are_named():
    many = {f"v{j}": lambda d, j=j: np.cos((j + 1) * d["x"]) for j in range(9)}
    sentence = collinear(columns(**many, t=lambda d: sum(np.cos((j + 1) * d["x"]) for j in range(9))))
    assert "combination of 'v0', 'v1', 'v2', 'v3', 'v4' and 4 more: its" in sentence


@pytest.mark.parametrize(("values", "expected"), [c[1:] for c in COLLINEAR], ids=[c[0] for c in COLLINEAR])
def test_collinear(values, expected):
    sentence = collinear(columns(**values))
    if expected is None:
        assert sentence is None
    else:
        assert expected in sentence
        assert sentence.endswith("the formula.")
        assert "singular" not in sentence


def test_blocks_do_not_show(monkeypatch):
    clients = columns(t=lambda d: d["x"] + d["z"])
    whole = collinear(clients)
    monkeypatch.setattr("coterie.data.identifiability._BLOCK", 11)
    assert collinear(clients) == whole


def test_fewer_rows_than_columns():
    clients = Clients.from_arrays(np.random.default_rng(0).normal(size=(2, 3)), [1.0, 2.0], [0, 1])
    assert "2 rows for 3 columns" in collinear(clients)


def test_dummy_trap(df):
    clients, _ = prepare(df.assign(other=df["sector"]), "y ~ sector + other", "g")
    assert "'other[T.b]' is a multiple of 'sector[T.b]'" in collinear(clients)


def test_levels_of_a_category_are_not_compared_in_pairs(monkeypatch):
    compared = []
    multiple = identifiability._multiple
    monkeypatch.setattr(identifiability, "_multiple", lambda *a: compared.append(1) or multiple(*a))
    level = np.tile(np.arange(60), 10)
    X = np.column_stack([np.ones(600), np.arange(600.0), level[:, None] == np.arange(1, 60), 3.0 * (level == 7)])
    clients = Clients.from_arrays(X, np.zeros(600), np.repeat(np.arange(2), 300))
    assert np.flatnonzero(constant_within_clients(clients)).tolist() == [61]
    assert len(compared) == 2 * (59 + 2)  # each level with 1 and the numbers of the rows, the last with its level, too


@pytest.mark.parametrize(
    "name, found",
    [("I(x**2)", [2]), ("I( x ** 2 )", [2]), ("poly(z,2)", [3, 4]), ("g", [5, 6]), ("a b", [7]), ("ab", [8])],
)
def test_terms_to_share_may_be_written_with_other_spaces(name, found):
    terms = ["(Intercept)", "x", "I(x ** 2)", "poly(z, 2)[1]", "poly(z, 2)[2]", "g[T.b]", "g[T.c]", "a b", "ab"]
    assert np.flatnonzero(shared_terms(terms, [name])).tolist() == found
