"""The deviance and its gradient against dense matrices and central differences of the dense deviance."""

import numpy as np
import pytest

from coterie.methods.hierarchical import structures
from coterie.methods.tree.penalised_tree import prepare
from coterie.methods.tree.sweep_up_and_down import zero_deviations
from coterie.methods.tree.variances import Variances
from tests.methods import dense
from tests.methods.dense import table

TREES = {0: (), 1: ([0, 0, 1, 1, 2, 2],), 2: ([0, 0, 1, 1, 2, 2], [0, 0, 1])}
STRUCTURES = ("isotropic", "two", "diagonal", "full")


def searched(t, name, own, reml):
    fed, problem = t.setting()
    setup = prepare(fed, problem.tree, t.family, problem.personal, problem.intercept)
    return fed, setup, Variances(setup, structures(name, problem), own, reml)


def somewhere(search, p, seed, zeros=False):
    """A point of the search: standard deviations of either sign, correlations, and w for a GLM."""
    rng = np.random.default_rng(seed)
    a = sum(g * len(s) for g, s in zip(search.groups, search.structures, strict=True))
    x = rng.normal(size=a) * 0.8
    if zeros:
        x[::2] = 0.0
    return np.concatenate([x, rng.normal(size=p) * 0.3]) if not search.setup.family.is_quadratic else x


def dense_deviance(t, setup, search, x, reml):
    """The deviance at x, in the table's own units from factors in standard units."""
    L, w = search.factors(x)
    L = [np.diag(setup.unit[t.personal]) @ Ll for Ll in L]
    if t.family == "gaussian":
        units = 2 * np.log(setup.unit).sum() if reml else 0.0
        return dense.gaussian(t, L, reml)[0] + units + np.log(t.w).sum()
    return dense.laplace(t, L, w * setup.unit)


def check(t, name, own=False, reml=False, seed=0, zeros=False):
    fed, setup, search = searched(t, name, own, reml)
    x = somewhere(search, t.X.shape[1], seed, zeros)
    u = zero_deviations(setup.tree, len(setup.z))
    deviance, s, sigma2 = search.evaluate(fed, x, u)
    assert deviance == pytest.approx(dense_deviance(t, setup, search, x, reml), rel=1e-7, abs=1e-6)
    gradient, *_ = search.slopes(fed, x, s, sigma2)
    expected, h = np.empty_like(x), 1e-4
    for i in range(len(x)):
        e = np.zeros_like(x)
        e[i] = h
        f = [dense_deviance(t, setup, search, x + k * e, reml) for k in (-2, -1, 1, 2)]
        expected[i] = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=2e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("depth", TREES)
@pytest.mark.parametrize("reml", [False, True])
def test_gaussian(depth, name, reml):
    check(table(3 + depth, p=3, parents=TREES[depth], weights=True, offset=True), name, reml=reml, seed=depth)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("depth", TREES)
def test_laplace(depth, name, family):
    check(table(7 + depth, family, p=3, parents=TREES[depth], weights=True, offset=True), name, seed=depth)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("depth", [1, 2])
def test_each_cluster_its_own_client_variances(depth, family):
    check(table(11, family, p=2, parents=TREES[depth]), "diagonal", own=True, seed=1)
    check(table(12, family, p=2, parents=TREES[depth]), "full", own=True, reml=family == "gaussian", seed=2)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("z", [[0], [1], [0, 2], [2, 1]])
def test_shared_columns(z, family):
    check(table(5, family, p=3, parents=TREES[1], z=z), "full", seed=4)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_some_variances_are_zero(family):
    check(table(6, family, p=3, parents=TREES[2]), "diagonal", seed=4, zeros=True)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_columns_in_odd_units(family):
    check(
        table(6, family, p=3, parents=TREES[1], scale=np.array([1.0, 1e4, 1e-3]), root=[0.2, 1e-5, 100.0], sd=0.0),
        "full",
    )
