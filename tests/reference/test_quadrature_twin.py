"""Quadrature over clients' deviations against a loop, an adaptive integral, differences, and lme4."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import poisson

import coterie
from coterie.errors import CoterieError
from coterie.likelihoods import derivatives
from coterie.objectives.quadrature import hermite, integrals
from tests.reference.test_glm_twin import make, rows

LME4 = json.loads((Path(__file__).parent / "lme4" / "quadrature.json").read_text())
NONE = np.zeros(5, dtype=np.int64)


def at_modes(o, unit, ell, w):
    """Modes of the one deviation of each client, which is of all columns, and Laplace's deviance."""
    L = np.zeros((1, 3, 3))
    L[0, :, 1] = ell
    A, _, value, u = o.modes(unit, L, NONE, np.arange(3), w[None], NONE, np.zeros((5, 3)))
    i, j = np.tril_indices(3)
    M = 1.0 + (A * np.where(i == j, 1.0, 2.0) * ell[i] * ell[j]).sum(axis=1)
    return w + np.outer(u[:, 1], ell), u[:, 1], value + np.log(M)


def literal(o, unit, ell, w, k, points=None):
    """``-2 log`` of client k's integral: by the rule's points, or by an adaptive integral."""
    r = rows(o)[k]
    X, y, weight, off, code = o.X[r] * unit, o.y[r], o.weights[r], o.offset[r], o.family.kind

    def exponent(v):
        eta = off + X @ (w + ell * v)
        return -sum(a * derivatives(code, e, b)[0] for a, e, b in zip(weight, eta, y, strict=True)) - 0.5 * v * v

    theta, u, laplace = at_modes(o, unit, ell, w)
    top, mode = exponent(u[k]), u[k]
    curvature = [derivatives(code, e, b)[2] for e, b in zip(off + X @ theta[k], y, strict=True)]
    M = 1.0 + sum(weight * curvature * (X @ ell) ** 2)
    assert laplace[k] == pytest.approx(-2.0 * top + np.log(M), rel=1e-9, abs=1e-9)
    if points is None:
        ends = mode - 12.0, mode + 12.0
        total = quad(lambda v: np.exp(exponent(v) - top), *ends, epsabs=0, epsrel=1e-12, limit=200)[0]
        return -2.0 * (np.log(total) + top) + np.log(2.0 * np.pi)
    t, weights = np.polynomial.hermite.hermgauss(points)  # physicists': the other scale
    total = sum(b * np.exp(a**2 + exponent(mode + np.sqrt(2.0 / M) * a) - top) for a, b in zip(t, weights, strict=True))
    return -2.0 * (np.log(total) + top) + np.log(np.pi * M)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("points", [1, 2, 9, 25])
def test_integrals(family, points):
    o, unit, _ = make(family, 3)
    ell, w = np.array([1.5, -0.6, 2.0]), np.array([0.4, 0.3, -0.5])
    theta, u, laplace = at_modes(o, unit, ell, w)
    more, _ = integrals(o, unit, ell, theta, u, points)
    expected = [literal(o, unit, ell, w, k, points) for k in range(5)]
    np.testing.assert_allclose(laplace + more, expected, rtol=1e-9, atol=1e-9)
    if points == 25:
        exact = [literal(o, unit, ell, w, k) for k in range(5)]
        np.testing.assert_allclose(laplace + more, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("points", [2, 5, 25])
def test_slopes_are_differences(family, points):
    o, unit, _ = make(family, 4)
    ell, w, h = np.array([1.0, 0.0, -0.7]), np.array([0.2, -0.3, 0.5]), 1e-5

    def deviance(tau, w):
        theta, u, laplace = at_modes(o, unit, ell * tau, w)
        return laplace + integrals(o, unit, ell * tau, theta, u, points)[0]

    theta, u, _ = at_modes(o, unit, ell, w)
    _, slopes = integrals(o, unit, ell, theta, u, points)
    steps = [(1.0 + h, w, 1.0 - h, w), *((1.0, w + h * e, 1.0, w - h * e) for e in np.eye(3))]
    differences = np.stack([(deviance(a, b) - deviance(c, d)) / (2.0 * h) for a, b, c, d in steps], axis=1)
    np.testing.assert_allclose(slopes, differences, rtol=1e-6, atol=1e-7)


def test_a_count_that_overflows_at_a_far_point_counts_for_nothing():
    o, unit, _ = make("poisson", 3, weights=False)
    ell, w = np.array([300.0, 0.0, 0.0]), np.zeros(3)
    theta, u, laplace = at_modes(o, unit, ell, w)
    more, slopes = integrals(o, unit, ell, theta, u, 25)
    assert np.isfinite(laplace + more).all()
    assert np.isfinite(slopes).all()


def test_weights_are_of_a_normal_variable():
    at, logs = hermite(7)
    share = np.exp(logs - 0.5 * at**2)
    np.testing.assert_allclose([share.sum(), share @ at**2, share @ at**4], [1.0, 1.0, 3.0])


def table(family):
    """The rows that lme4 had."""
    data = LME4[family]
    if family == "poisson":
        return pd.DataFrame({"id": np.arange(120) // 3, "x": data["z"], "y": data["y"]})
    pattern = np.repeat(np.arange(32), data["counts"])
    y = (pattern[:, None] >> np.arange(4)[::-1]) & 1
    x = np.tile(np.arange(-2, 2), len(pattern))
    client, g = (np.repeat(v, 4) for v in (np.arange(len(y)), pattern // 16))
    return pd.DataFrame({"id": client, "x": x, "g": g, "y": y.ravel()})


@cache
def fitted(family, points):
    frame = table(family)
    formula = " + ".join(["y ~ x", *(["g"] if "g" in frame else [])])
    about = {"client": "id", "family": family, "shared": ["x"], "method": "hierarchical", "splits": 0}
    return coterie.fit(frame, formula, **about, quadrature=points)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("points", [1, 9, 25])
def test_lme4(family, points):
    """All of it at the same nAGQ; but lme4's standard errors take the variance to be as sure as a quadratic has it."""
    theirs, fit = LME4[family]["fits"][str(points)], fitted(family, points)
    loglik = theirs["loglik"]
    if family == "poisson" and points > 1:  # lme4 leaves out what a saturated model has
        loglik += poisson.logpmf(table(family).y, table(family).y).sum()
    assert fit.log_likelihood == pytest.approx(loglik, rel=1e-7)
    errors = np.array(theirs["std_error"])
    np.testing.assert_allclose((fit.global_coefficients["estimate"] - theirs["fixef"]) / errors, 0.0, atol=1e-3)
    assert fit.variance_components["sd"][0] == pytest.approx(theirs["sd"], rel=1e-4)
    close = 0.03 if (family, points) == ("binomial", 25) else 0.1
    np.testing.assert_allclose(fit.global_coefficients["std_error"], errors, rtol=close)
    own = fit.model.client[:, 0] - fit.model.root[0]
    modes = own[[0, 1, 2, -1, -2, -3]]
    np.testing.assert_allclose(modes, theirs["ranef"], atol=1e-3)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_few_rows_a_client_have_quadrature_by_themselves(family):
    one, other = fitted(family, None), fitted(family, 25)
    assert one.log_likelihood == other.log_likelihood
    assert one.settings["quadrature"] == 25


def test_other_deviations_have_laplace_and_a_sentence():
    frame = table("binomial")
    about = {"client": "id", "family": "binomial", "method": "hierarchical", "splits": 0, "covariance": "diagonal"}
    slopes, plain = (coterie.fit(frame, "y ~ x + g", **about, quadrature=points) for points in (9, None))
    assert slopes.log_likelihood == plain.log_likelihood
    assert [note for note in slopes.notes if "Laplace" in note and "one term" in note]
    assert slopes.settings["quadrature"] == plain.settings["quadrature"] == 1


def test_where_laplace_is_off_is_said_with_by_how_much():
    """Of the estimate that is off farthest: the intercept lies .74 of its standard errors from the likelihood's."""
    rough, fine = (LME4["binomial"]["fits"][points] for points in ("1", "25"))
    off = abs(rough["fixef"][0] - fine["fixef"][0]) / fine["std_error"][0]
    note = next(note for note in fitted("binomial", 1).notes if "not to be trusted" in note)
    assert float(re.search(r"about (\S+) standard errors", note)[1]) == pytest.approx(off, abs=0.2)
    for fit in (fitted("binomial", 25), fitted("poisson", 1), fitted("poisson", 25)):
        assert not [note for note in fit.notes if "not to be trusted" in note]


def test_sites_add_up_to_the_table():
    frame, here = table("binomial"), fitted("binomial", 9)
    about = {"client": "id", "family": "binomial", "shared": ["x"], "method": "hierarchical", "splits": 0}
    sites = coterie.fit(frame, "y ~ x + g", **about, quadrature=9, engine={"kind": "loopback", "sites": 3})
    np.testing.assert_allclose(sites.log_likelihood, here.log_likelihood, rtol=1e-12)
    for name in ("estimate", "std_error", "df"):
        np.testing.assert_allclose(sites.global_coefficients[name], here.global_coefficients[name], rtol=1e-5)


def test_quadrature_of_a_known_integral_is_refused():
    with pytest.raises(CoterieError, match="gaussian family"):
        coterie.fit(table("binomial"), "y ~ x", client="id", quadrature=9)
