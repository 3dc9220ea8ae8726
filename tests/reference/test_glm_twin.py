"""The GLM kernels against loops over rows, `scipy.stats`, `scipy.optimize` and differences."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from coterie.families import BINOMIAL, FAMILIES, STUDENT_T, family_named
from coterie.likelihoods import constant, derivatives
from coterie.objectives import glm
from coterie.objectives.glm import GLM

COUNTS = (4, 0, 7, 1, 5)
NAMES = [f"{name}(4)" if name == STUDENT_T.name else name for name in FAMILIES]


def make(family, seed=0, p=3, weights=True):
    rng = np.random.default_rng(seed)
    n = sum(COUNTS)
    stops = np.cumsum(COUNTS)
    starts = stops - COUNTS
    X, offset = rng.normal(size=(n, p)), 0.3 * rng.normal(size=n)
    w = rng.uniform(0.5, 3.0, n) if weights else np.ones(n)
    w[5] = 0.0 if weights else 1.0
    y = {"gaussian": rng.normal(size=n), "binomial": rng.integers(0, 2, n), "poisson": rng.poisson(2.0, n)}
    y |= {"negative-binomial": y["poisson"], "gamma": y["poisson"] + 0.3, "student-t(4)": y["gaussian"]}
    y, family = y[family], family_named(family)
    family = family.at(0.4) if family.unknown else family
    unit = np.array([1.0, 2.0, 0.3])[:p]
    return GLM(X, y.astype(float), offset, w, starts, stops, family), unit, rng


def rows(o):
    return [slice(a, b) for a, b in zip(o.starts, o.stops, strict=True)]


def density(family, y, eta, w):
    """Log density of rows; a weight is a precision (Gaussian) or a count of equal rows."""
    if family == "gaussian":
        ok = w > 0
        out = np.zeros(len(y))
        out[ok] = stats.norm.logpdf(y[ok], eta[ok], 1 / np.sqrt(w[ok]))
        return out
    if family == "binomial":
        return w * np.where(y > 0, stats.logistic.logcdf(eta), stats.logistic.logsf(eta))
    if family == "student-t(4)":
        return w * stats.t.logpdf(y, 4, eta, 0.4**0.5)
    mean = np.exp(np.clip(eta, -300.0, 300.0))
    if family == "negative-binomial":
        return w * stats.nbinom.logpmf(y, 1 / 0.4, 1 / (1 + 0.4 * mean))
    if family == "gamma":
        return w * stats.gamma.logpdf(y, 1 / 0.4, scale=0.4 * mean)
    return w * stats.poisson.logpmf(y, mean)  # SciPy's search tries absurd places


def literal(family, eta, y):
    """Score and curvature of rows, as the likelihood's derivatives are written."""
    if family == "student-t(4)":
        r, room = y - eta, 4 * 0.4
        return 5 * r / (room + r**2), 5 * (room - r**2) / (room + r**2) ** 2
    mean, d = np.exp(eta), 0.4
    if family == "gaussian":
        return y - eta, np.ones_like(eta)
    if family == "binomial":
        return y - mean / (1 + mean), mean / (1 + mean) ** 2
    if family == "negative-binomial":
        return (y - mean) / (1 + d * mean), mean * (1 + d * y) / (1 + d * mean) ** 2
    return ((y / mean - 1) / d, y / mean / d) if family == "gamma" else (y - mean, mean)


@pytest.mark.parametrize("family", NAMES)
def test_losses_and_constants_are_log_densities(family):
    o, _, rng = make(family)
    theta = rng.normal(size=(len(o), 3))
    ours = o.value(theta) + o.moments()["constant"]
    for i, r in enumerate(rows(o)):
        eta = o.offset[r] + o.X[r] @ theta[i]
        assert ours[i] == pytest.approx(-density(family, o.y[r], eta, o.weights[r]).sum(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("family", [family_named(name) for name in NAMES], ids=NAMES)
def test_row_derivatives_are_those_of_the_table(family):
    for y in (0.0, 1.0):
        for eta in (-3.0, -0.1, 0.0, 0.7, 4.0):
            found = glm.row_derivatives(family.kind, eta, y)
            assert found == pytest.approx(derivatives(family.kind, eta, y), rel=1e-15)


def test_binomial_does_not_overflow():
    assert glm.row_derivatives(BINOMIAL.kind, 800.0, 1.0)[0] == 0.0
    assert glm.row_derivatives(BINOMIAL.kind, -800.0, 1.0)[0] == 800.0
    assert glm.row_derivatives(BINOMIAL.kind, 800.0, 0.0)[:2] == (800.0, -1.0)


@pytest.mark.parametrize("family", NAMES)
def test_moments(family):
    o, _, _ = make(family)
    moments = o.moments()
    for i, r in enumerate(rows(o)):
        X, w = o.X[r], o.weights[r]
        assert moments["rows"][i] == np.count_nonzero(w)
        assert moments["w"][i] == pytest.approx(w.sum())
        assert moments["y"][i] == pytest.approx(w @ (o.y - o.offset)[r])
        np.testing.assert_allclose(moments["x"][i], w @ X, atol=1e-12)
        np.testing.assert_allclose(moments["xx"][i], w @ X**2, atol=1e-12)


def test_gram():
    o, unit, _ = make("gaussian")
    A, b, c = o.gram(unit, 0.7)
    i, j = np.tril_indices(3)
    for k, r in enumerate(rows(o)):
        X, w, v = o.X[r] * unit, o.weights[r], (o.y - o.offset)[r] - 0.7
        np.testing.assert_allclose(A[k], ((X.T * w) @ X)[i, j], atol=1e-12)
        np.testing.assert_allclose(b[k], (X.T * w) @ v, atol=1e-12)
        assert c[k] == pytest.approx(w @ v**2, abs=1e-12)


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("z", [[], [0], [2, 1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("size", [0.0, 0.8, 30.0])
def test_modes(family, z, size):
    """The mode of each client against SciPy's, from a poor start; the quadratic against differences at the mode."""
    o, unit, rng = make(family, 1)
    q, z = len(z), np.array(z, dtype=np.int64)
    L = size * np.tril(rng.normal(size=(2, q, q)))
    which, parent = np.array([0, 1, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    w = 0.4 * rng.normal(size=(2, 3))
    A, b, value, u = o.modes(unit, L, which, z, w, parent, 0.5 * rng.normal(size=(5, q)))
    i, j = np.tril_indices(3)
    for k, r in enumerate(rows(o)):
        X, y, weight, off = o.X[r] * unit, o.y[r], o.weights[r], o.offset[r]
        T = np.zeros((3, q))
        T[z] = L[which[k]]

        def loss(theta, X=X, y=y, weight=weight, off=off):
            eta = off + X @ theta
            return -density(family, y, eta, weight).sum()

        def objective(v, T=T, k=k, loss=loss):
            return loss(w[parent[k]] + T @ v) + 0.5 * v @ v

        theta = w[parent[k]] + T @ u[k]
        constant = o.moments()["constant"][k]
        assert value[k] == pytest.approx(2 * (objective(u[k]) - constant), rel=1e-10, abs=1e-9)
        if q:
            near = minimize(objective, u[k], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
            assert objective(u[k]) <= near + 1e-9
            if not family_named(family).convex:
                far = minimize(objective, np.zeros(q), method="Nelder-Mead").fun
                assert objective(u[k]) <= far + 1e-9
        eta = off + X @ theta
        score, v = literal(family, eta, y)
        H = (X.T * (weight * v)) @ X
        np.testing.assert_allclose(A[k], H[i, j], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(b[k], X.T @ (weight * score) + H @ theta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(T.T @ X.T @ (weight * score), u[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", NAMES)
def test_modes_from_a_start_that_overflows(family):
    o, unit, _ = make(family, 2)
    L, z = 2.0 * np.eye(3)[None], np.arange(3)
    zero = np.zeros(5, dtype=np.int64)
    good = o.modes(unit, L, zero, z, np.zeros((1, 3)), zero, np.zeros((5, 3)))
    bad = o.modes(unit, L, zero, z, np.zeros((1, 3)), zero, np.full((5, 3), 1e4))
    for a, b in zip(good, bad, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", NAMES)
def test_third_is_the_gradient_of_log_det(family):
    """``log|P + X'WX|`` of each client by its theta, with S the inverse of the matrix."""
    o, unit, rng = make(family, 3)
    theta, P = 0.5 * rng.normal(size=(5, 3)), np.diag([0.5, 1.0, 2.0])

    def hessian(k, at):
        r = rows(o)[k]
        X = o.X[r] * unit
        eta = o.offset[r] + X @ at
        _, v = literal(family, eta, o.y[r])
        return P + (X.T * (o.weights[r] * v)) @ X

    i, j = np.tril_indices(3)
    S = np.array([np.linalg.inv(hessian(k, theta[k]))[i, j] for k in range(5)])
    ours, h = o.third(unit, theta, S), 1e-5
    for k in range(5):
        for a in range(3):
            e = np.zeros(3)
            e[a] = h
            difference = np.linalg.slogdet(hessian(k, theta[k] + e))[1] - np.linalg.slogdet(hessian(k, theta[k] - e))[1]
            assert ours[k, a] == pytest.approx(difference / (2 * h), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("family", [name for name in NAMES if family_named(name).unknown])
def test_slopes_by_the_dispersion(family):
    """Of twice the loss, of ``x'Sx`` times curvatures and of delta times scores, by differences of their loops."""
    o, unit, rng = make(family, 4)
    theta, S, delta = (0.5 * rng.normal(size=(5, k)) for k in (3, 6, 3))
    i, j = np.tril_indices(3)

    def deviance(k, dispersion):
        kind, total = family_named(family).at(dispersion).kind, 0.0
        for r in range(o.starts[k], o.stops[k]):
            x, w = o.X[r] * unit, o.weights[r]
            f, s, v, _ = derivatives(kind, o.offset[r] + x @ theta[k], o.y[r])
            square = np.sum(S[k] * x[i] * x[j] * np.where(i == j, 1, 2))
            total += 2 * (w * f + constant(kind, o.y[r], w)) + w * (square * v + x @ delta[k] * s)
        return total

    ours, h = o.by_dispersion(unit, theta, S, delta), 1e-5
    for k in range(5):
        difference = deviance(k, 0.4 * np.exp(h)) - deviance(k, 0.4 * np.exp(-h))
        assert ours[k, 0] == pytest.approx(difference / (2 * h), rel=1e-6, abs=1e-7)


def test_take_repeats_and_reorders():
    o, _, rng = make("poisson")
    theta = rng.normal(size=(5, 3))
    order = np.array([4, 0, 0, 2])
    np.testing.assert_array_equal(o.take(order).value(theta[order]), o.value(theta)[order])
    owner = np.repeat(np.arange(5), COUNTS)  # rows lie client after client
    np.testing.assert_allclose(np.bincount(owner, o.row_losses(theta) * o.weights, 5), o.value(theta), rtol=1e-12)
    assert o.take(slice(1, 3)).counts.tolist() == [0, 7]
