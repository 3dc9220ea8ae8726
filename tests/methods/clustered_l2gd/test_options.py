"""What may go wrong with a run over rounds: one sentence that says so and what to do, or a run that works anyway."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError

METHODS = ("async-l2gd", "async-al2sgd")


def shops(seed=4):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(12), rng.integers(5, 12, 12))
    x = rng.normal(size=shop.size)
    y = rng.normal(0, 1, 12)[shop] + x + rng.normal(size=shop.size)
    frame = pd.DataFrame({"shop": shop, "town": shop % 3, "land": 0 * shop, "x": x, "y": y, "size": 1.0 * shop})
    return frame.assign(won=(y > 0).astype(int), land=(shop % 3) // 2)


def fit(df=None, method="async-l2gd", formula="y ~ x", cluster="town", **options):
    options = {"gamma": 5.0, "alpha": 0.4, "splits": 0} | options
    return coterie.fit(shops() if df is None else df, formula, "shop", cluster, method=method, **options)


NEVER = ["some tie or some loss is never stepped on", "Leave p0 and p out to have them chosen."]
BAD = [
    # id, options of rounds, other options, what the sentence holds
    ("negative step size", {"eta": -0.1}, {}, ["eta of rounds must be a number above 0, not -0.1"]),
    ("no step size", {"eta": 0.0}, {}, ["eta of rounds must be a number above 0, not 0"]),
    ("step size is text", {"eta": "big"}, {}, ["eta of rounds must be a number above 0, not 'big'"]),
    ("infinite step size", {"eta": np.inf}, {}, ["eta of rounds must be a number above 0, not inf"]),
    ("not a step size", {"eta": np.nan}, {}, ["eta of rounds must be a number above 0, not nan"]),
    ("p0 above 1", {"p0": 1.5}, {}, ["p0 of rounds must be a number from 0 to 1"]),
    ("p0 below 0", {"p0": -0.1}, {}, ["p0 of rounds must be a number from 0 to 1"]),
    ("p above 1", {"p0": 0.1, "p": 2}, {}, ["p of rounds must be a number from 0 to 1"]),
    ("one p above 1", {"p0": 0.1, "p": [0.1, 0.1, 1.1]}, {}, ["p of rounds must be a number from 0 to 1"]),
    ("p is not a number", {"p0": 0.1, "p": [0.1, np.nan, 0.1]}, {}, ["p of rounds must be a number from 0 to 1"]),
    ("p is text", {"p0": 0.1, "p": "often"}, {}, ["p of rounds must be a number", "not 'often'"]),
    ("two p", {"p0": 0.1, "p": [0.1, 0.2]}, {}, ["p of rounds must be one number, or 3: one for each cluster, not 2"]),
    ("only global rounds", {"p0": 1}, {}, NEVER),
    ("only cluster rounds", {"p0": 0.1, "p": 1}, {}, NEVER),
    ("no global rounds", {"p0": 0}, {}, NEVER),
    ("no rounds at all", {"p0": 0, "p": 0}, {}, NEVER),
    ("no rounds, clusters apart", {"p0": 0, "p": [0.1, 0.0, 0.1]}, {"alpha": 0.0}, NEVER),
    ("p alone", {"p": 0.1}, {}, ["Give p0 together with p, or leave both out to have them chosen"]),
    ("rho 0", {"rho": 0}, {"method": "async-al2sgd"}, ["rho of rounds must be a number above 0 and up to 1"]),
    ("rho above 1", {"rho": 1.01}, {"method": "async-al2sgd"}, ["rho of rounds must be a number above 0 and up to 1"]),
    ("rho of Algorithm 1", {"rho": 0.1}, {}, ["rho is an option of async-al2sgd: leave it out here"]),
    ("eta of Algorithm 2", {"eta": 0.1}, {"method": "async-al2sgd"}, ["eta is an option of async-l2gd", "momentum"]),
    ("unknown", {"stpes": 10}, {}, ["no option 'stpes'", "Did you mean 'steps'"]),
    ("batch", {"batch": -1}, {}, ["batch of rounds must be a whole number from 0 to 1,000,000,000, not -1"]),
    ("half a row", {"batch": 0.5}, {}, ["batch of rounds must be a whole number from 0 to 1,000,000,000, not 0.5"]),
    ("steps", {"steps": 0}, {}, ["steps of rounds must be a whole number from 1 to 1,000,000,000, not 0"]),
    ("steps are true", {"steps": True}, {}, ["a whole number from 1 to 1,000,000,000, not True"]),
    ("seed", {"seed": "x"}, {}, ["seed of rounds must be a whole number from 0 to 1,000,000,000, not 'x'"]),
    ("looks", {"looks": 0}, {}, ["looks of rounds must be a whole number from 1 to 1,000,000,000, not 0"]),
    ("no seed", {"seed": None}, {}, ["seed of rounds must be a whole number", "not None"]),
    ("endless", {"steps": 10**30}, {}, ["steps of rounds must be a whole number from 1 to 1,000,000,000"]),
    ("more rows than there are", {"batch": 10**6}, {}, ["batch of rounds is 1,000,000, and no client has more than"]),
    ("one coin and p", {"one_coin": True, "p0": 0.1, "p": 0.1}, {}, ["no rounds within clusters: leave p out"]),
    ("ring of nobody", {"network": "ring"}, {}, ["network and ties are options of peers"]),
    ("accuracy", {"accuracy": 0}, {}, ["accuracy of rounds must be a number between 0 and 1, not 0"]),
    ("coordinator", {"coordinator": "boss"}, {}, ["coordinator of rounds must be central or peers, not 'boss'"]),
    ("network", {"network": "star"}, {}, ["network of rounds must be all-to-all or ring, not 'star'"]),
    ("ties", {"ties": "edge"}, {}, ["ties of rounds must be tails or heads, not 'edge'"]),
    ("one coin", {"one_coin": "yes"}, {}, ["one_coin of rounds must be true or false, not 'yes'"]),
    ("no mapping", "20000", {}, ["rounds", "whole number", "20000"]),
    ("exact method", {"steps": 10}, {"method": "hierarchical"}, ["rounds are options of", "name one as the method"]),
    ("any method", {"steps": 10}, {"method": "auto"}, ["rounds are options of the methods async-l2gd"]),
    ("shared, no round of all", {"p0": 0.0, "p": 0.2}, {"shared": "x"}, ["some loss is never stepped on"]),
    ("lam and alpha", {}, {"lam": 1.0}, ["not both"]),
    ("infinite gamma", {}, {"gamma": np.inf}, ["gamma must be finite", "'pooled'"]),
    ("a grid, no splits", {}, {"gamma": [1.0, 2.0]}, ["at least one split"]),
]  # fmt: skip


@pytest.mark.parametrize(("rounds", "options", "fragments"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_bad_options(rounds, options, fragments):
    with pytest.raises(CoterieError) as caught:
        fit(rounds=rounds, **options)
    text = str(caught.value)
    assert text.endswith((".", "?")) and "\n" not in text
    for fragment in fragments:
        assert fragment in text


def test_the_bound_that_is_said_is_the_bound():
    said = " ".join(fit(rounds={"eta": 1.0, "steps": 2}).notes)
    bound = float(re.search(r"eta = 1 is above ([\d.e-]+), the largest step", said)[1])
    assert fit(rounds={"eta": 0.99 * bound, "steps": 2000}).settings["rounds"]["status"] == "finished"


def sound(result):
    """A model without a hole in it."""
    m, about = result.model, result.settings["rounds"]
    for values in (m.client, m.root, m.root_cov, *m.nodes):
        assert np.isfinite(values).all()
    assert about["status"] == "finished" and np.isfinite(about["gap"])
    return about


@pytest.mark.parametrize("method", METHODS)
def test_a_cluster_with_one_client(method):
    df = shops()
    df["town"] = np.where(df["shop"] == 0, "alone", "rest")
    about = sound(fit(df, method))
    assert about["gap"] < 0.01 and about["p"][0] == 0.0  # with nobody to speak to


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("who", [[3], [0, 3, 6, 9], range(12)], ids=["a client", "a cluster", "everyone"])
def test_gamma_of_zero_leaves_a_client_alone(who, method):
    df = shops()
    gamma = {shop: 0.0 if shop in who else 5.0 for shop in range(12)}
    result = fit(df, method, gamma=gamma)
    assert sound(result)["gap"] < 0.01
    own = df[df["shop"] == who[0]]
    alone = np.linalg.lstsq(np.c_[np.ones(len(own)), own["x"]], own["y"])[0]
    scale = np.linalg.norm(result.model.client)
    assert np.linalg.norm(result.client_coefficients.loc[who[0]] - alone) < 0.011 * scale


@pytest.mark.parametrize("method", METHODS)
def test_fewer_rows_than_columns_and_no_tie(method):
    """Every direction that a client's two rows do not see is flat: no theorem gives a rate, and the run says so."""
    df = pd.concat([shops()[shops()["shop"] != 5], shops()[shops()["shop"] == 5].head(1)])
    gamma = {shop: 0.0 if shop == 5 else 5.0 for shop in range(12)}
    result = fit(df, method, gamma=gamma, rounds={"steps": 5_000})  # many more are chosen where no rate is known
    about = sound(result)
    assert about["mu"] == 0.0 and about["promised"] == np.inf
    assert "(mu_F = 0: fewer rows than columns" in result.notes[-1]
    assert ("a constant step" in result.notes[-1]) == (method == "async-l2gd")


@pytest.mark.parametrize("method", METHODS)
def test_separable_outcomes(method):
    df = shops()
    df["won"] = (df["x"] > 0).astype(int)
    gamma = {shop: 0.0 if shop == 5 else 1.0 for shop in range(12)}
    for ties in (gamma, 1.0):
        result = fit(df, method, "won ~ x", family="binomial", gamma=ties, rounds={"steps": 5_000})
        about = sound(result)
        assert about["mu"] == 0.0 and about["promised"] == np.inf
        assert "separated perfectly" in result.notes[-3] and "or separated outcomes" in result.notes[-1]


def test_divergence_is_said_and_no_model_has_a_hole():
    """Smoothness of counts is known near the start and the optimum only; a step as large as it allows may be too large.

    Heavy-tailed columns of unlike scale, 1 in some 400 such tables, and 0.99 of the largest step.
    """
    rng = np.random.default_rng(379)
    X = rng.standard_t(2, size=(48, 3)) * 10.0 ** rng.uniform(-1.5, 0.7, 3)
    X[:, 1] += X[:, 0] * rng.normal()
    beta = rng.normal(size=3) * 10.0 ** rng.uniform(-1, 1, 3)
    df = pd.DataFrame({"shop": np.repeat(np.arange(4), 12), "a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    df["y"] = rng.poisson(np.exp(np.clip(X @ beta, -30, 4)))
    options = {"formula": "y ~ 0 + a + b + c", "family": "poisson", "cluster": None, "gamma": 0.5, "alpha": None}
    eta = 0.99 / fit(df, rounds={"steps": 1}, **options).settings["rounds"]["smoothness"]
    result = fit(df, rounds={"eta": eta, "steps": 500}, **options)
    about = result.settings["rounds"]
    assert re.fullmatch(r"diverged by step \d+", about["status"])
    assert np.isfinite(result.model.client).all() and np.isfinite(about["gap"])
    assert "diverged by step" in result.notes[-1] and "give an eta under" in result.notes[-1]
    assert fit(df, rounds={"eta": 0.5 * eta, "steps": 500}, **options).settings["rounds"]["status"] == "finished"


def test_a_step_that_no_theorem_takes_runs_with_a_note():
    chosen = fit(rounds={"steps": 60}).model.info["rounds"]
    limit = 1.0 / chosen["smoothness"]
    for eta, covered in ((0.9 * limit, True), (1.5 * limit, False)):
        result = fit(rounds={"steps": 60, "eta": eta})
        found, said = result.model.info["rounds"], [n for n in result.notes if "the largest step" in n]
        assert found["eta"] == eta and found["status"] == "finished" and bool(said) is not covered
        assert np.isfinite(found["promised"]) == covered
    assert "Theorem 3.5, which itself takes" in said[0] and f"{limit:.3g}" in said[0]
    result = fit(rounds={"steps": 4000, "eta": 40.0 * limit})
    assert result.model.info["rounds"]["status"].startswith("diverged")
    assert any("diverged by step" in n and "leave eta out" in n for n in result.notes)
    assert np.isfinite(result.predict(shops())["prediction"]).all()
