"""Every option of a table's fit, given to every method: it changes the result, is noted, or is refused."""

from __future__ import annotations

import inspect
from functools import cache

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.methods.registry import FITTED
from coterie.options import declared
from coterie.results.fit_options import Columns, Options
from coterie.results.fit_result import FitResult
from tests.messages import names

K, N = 12, 12
EDGES = [(i, (i + 1) % K) for i in range(K)]
GIVEN = {
    "family": {"family": "poisson"},
    "covariance": {"covariance": "diagonal"},
    "cluster_variance": {"cluster_variance": "own"},
    "residual": {"residual": "by-client"},
    "reml": {"reml": False},
    "quadrature": {"quadrature": 3},
    "gamma": {"gamma": 0.5},
    "lam": {"gamma": 0.6, "lam": 2.0},
    "alpha": {"gamma": 0.6, "alpha": 0.5},
    "order_by": {"order_by": "t"},
    "split_by": {"split_by": "person"},
    "given_split": {"given_split": "fold"},
    "test_fraction": {"test_fraction": 0.5},
    "rounds": {"rounds": 7},
    "network": {"network": {"edges": EDGES, "lam": 0.02}},
    "offset": {"offset": "o"},
    "weights": {"weights": "w"},
    "shared": {"shared": ["x"]},
}
ADVICE = {
    "cluster": {"cluster": "g"},
    "within": {"cluster": "g", "within": "cluster"},
    "family": {"family": "poisson"},
    "collaborators": {"collaborators": 2},
    "prior": {"prior": 3.0},
    "splits": {"splits": 3},
    "test_fraction": {"test_fraction": 0.5},
    "order_by": {"order_by": "t"},
    "split_by": {"split_by": "person"},
    "seed": {"seed": 1},
    "offset": {"offset": "o"},
    "weights": {"weights": "w"},
    "missing": {"missing": "drop"},
}
PREDICTION = {"interval": {"interval": 0.8}, "type": {"type": "link"}, "missing": {"missing": "empty"}}
PREDICTION |= {"interval_of": {"interval": 0.8, "interval_of": "outcome"}}
FREE = {"formula", "client", "method", "splits", "strengths", "order", "groups", "given", "methods", "each"}
FREE |= {"cluster", "missing", "seed"}  # of what some methods rightly see nothing, whatever the rows
NEEDED = {"given-strengths": {"gamma": 0.7}, "similarity-network": {"network": {"edges": EDGES[1:], "lam": 0.01}}}
QUICK = ["local", "pooled", "own-intercept", "clusterwise", "hierarchical", "given-strengths", "james-stein", "fedavg"]


@cache
def rows():
    rng, client = np.random.default_rng(0), np.repeat(np.arange(K), N)
    x, order = rng.normal(size=K * N), rng.permutation(K * N)
    df = pd.DataFrame({"c": client, "g": client % 3, "x": x, "t": order, "person": order // 3, "fold": order % 3 == 0})
    df["w"], df["o"] = rng.uniform(0.5, 2.0, K * N), 0.3 * rng.normal(size=K * N)
    df["y"] = rng.poisson(
        np.exp(0.5 + 0.3 * x + 0.6 * rng.normal(size=K)[client] + 0.2 * rng.normal(size=K)[client] * x)
    )
    return df


@cache
def fitted(method, option, splits):
    given = NEEDED.get(method, {}) | (GIVEN[option] if option else {}) | {"splits": splits, "cluster": "g"}
    if FITTED[method].relation == "layers":
        given |= {"shared": ["(Intercept)"] if option == "shared" else ["x"]}
    try:
        found = coterie.fit(rows(), "y ~ x", "c", method=method, **given)
    except CoterieError:
        return None
    model = found.model
    numbers = [np.ravel(part) for part in (model.client, model.client_cov, model.sigma2)]
    return np.concatenate(numbers), found.comparison.drop(columns="seconds", errors="ignore"), found.notes


def test_every_option_is_tried():
    assert {*GIVEN, *FREE} == {*declared(Options), *declared(Columns), *FREE}


@pytest.mark.parametrize(
    ("method", "splits"),
    [pytest.param(m, s, marks=[] if m in QUICK and not s else pytest.mark.soak) for m in FITTED for s in (0, 1)],
)
def test_an_option_changes_something_is_noted_or_is_refused(method, splits):
    plain = fitted(method, "", splits)
    silent = []
    for option in GIVEN if plain else ():
        if option == "covariance" and FITTED[method].relation == "layers":
            continue  # one column varies, of which all structures are one
        given = fitted(method, option, splits)
        alike = given and np.array_equal(plain[0], given[0], equal_nan=True) and plain[1].equals(given[1])
        if alike and {*given[2]} <= {*plain[2]}:
            silent.append(option)
    assert silent == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"order_by": "t"}, "order_by changes nothing splits 0 ask for a split"),
        ({"reml": False, "family": "poisson"}, "reml changes nothing poisson leave it out"),
        ({"cluster_variance": "own", "cluster": None}, "cluster_variance name a cluster column"),
    ],
)
def test_what_changes_nothing_is_refused_with_the_remedy(given, said):
    with pytest.raises(CoterieError, match=names(said)):
        coterie.fit(rows(), "y ~ x", "c", **{"method": "pooled", "splits": 0, "cluster": "g"} | given)


def test_what_the_method_does_not_take_is_noted():
    assert [note for note in fitted("pooled", "covariance", 0)[2] if "covariance changes nothing" in note]
    assert [note for note in fitted("pooled", "lam", 0)[2] if "gamma changes nothing" in note]


@pytest.mark.parametrize("method", ["hierarchical", "james-stein", "fedavg"])
def test_quadrature_of_slopes_that_differ_is_noted(method):
    found = coterie.fit(rows(), "y ~ x", "c", method=method, family="poisson", splits=0, quadrature=5)
    assert [note for note in found.notes if "uadrature" in note]


@pytest.mark.parametrize("method", ["local", "pooled", "own-intercept", "clusterwise", "fedavg"])
def test_shared_columns_of_a_method_that_divides_none_are_noted(method):
    assert [note for note in fitted(method, "shared", 0)[2] if "shared changes nothing" in note]


@cache
def advised(**given):
    found = coterie.advise(rows(), "y ~ x", "c", **{"splits": 2} | given)
    return found.clients, found.weights, found.sentences


def test_every_option_of_advice_and_of_prediction_is_tried():
    assert {"rows", "model", "client", "engine", "net", *ADVICE} == {*inspect.signature(coterie.advise).parameters}
    assert {"self", "df", *PREDICTION} == {*inspect.signature(FitResult.predict).parameters}


@pytest.mark.parametrize("option", ADVICE)
@pytest.mark.parametrize("splits", [0, 2])
def test_an_option_of_advice_changes_something_or_is_refused(option, splits):
    """Without splits their seed says nothing, and rows that are complete lack nothing."""
    given = {"splits": splits} | ADVICE[option]
    if option == "missing" or (option == "seed" and not splits):
        return
    try:
        found = advised(**given)
    except CoterieError as e:
        assert option in ("test_fraction", "order_by", "split_by") and not splits and "changes nothing" in str(e)
        return
    plain = advised(splits=splits) if option != "within" else advised(splits=splits, cluster="g")
    assert not all(a.equals(b) for a, b in zip(plain[:2], found[:2], strict=True)) or plain[2] != found[2]


@pytest.mark.parametrize("method", [m for m in QUICK if m != "clusterwise"])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
@pytest.mark.parametrize("option", PREDICTION)
def test_an_option_of_a_prediction_changes_something_or_is_noted(method, family, option):
    result = coterie.fit(rows(), "y ~ x", "c", method=method, family=family, splits=0, **NEEDED.get(method, {}))
    odd = rows().head(9).assign(x=[np.nan, *range(8)]) if option == "missing" else rows().head(9)
    try:
        plain = result.predict(odd)
    except CoterieError:
        plain = None
    found = result.predict(odd, **PREDICTION[option])
    same = plain is not None and plain.equals(found[plain.columns]) and plain.shape == found.shape
    if option == "type" and family == "gaussian":
        assert same  # the link is the identity
    else:
        assert not same or {*found.attrs["notes"]} - {*plain.attrs["notes"]}
