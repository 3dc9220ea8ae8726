"""Proposition 5.4: the root shrunk once, by its own covariance; what is below it follows."""

import numpy as np
import pytest

import coterie
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.methods import given_strengths, hierarchical, james_stein
from coterie.methods.james_stein import shrink
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.registry import applicable
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree
from papers.simulate import tree
from tests.methods import dense
from tests.methods.dense import table

ONE, TWO = ([0, 0, 1, 1, 2, 2],), ([0, 0, 1, 1, 2, 2], [0, 0, 1])
COUNTS = (9, 12, 8, 10, 14, 7)
SLOPES = np.arange(1, 5)


def proposition(seed, center, d=20, n=10):
    """``y_i ~ N(theta_i, I)``, ``theta_i ~ N(center, I)``: a federation, and the truth."""
    rng = np.random.default_rng(seed)
    theta = center + rng.normal(size=(n, d))
    y = theta + rng.normal(size=(n, d))
    starts = np.arange(n) * d
    glm = GLM(np.tile(np.eye(d), (n, 1)), y.ravel(), np.zeros(n * d), np.ones(n * d), starts, starts + d)
    return InProcess(glm), GroupedProblem(ClusterTree(), "gaussian", np.arange(d), None), theta, y


def test_it_is_the_formula_of_james_and_stein():
    fed, problem, _, y = proposition(1, 0.3)
    f = james_stein.fit(fed, problem, 1.0)
    w = y.mean(axis=0)
    s2 = f.sigma2 * 2 / 10  # a client's y has variance sigma^2 (1 + 1) about the centre
    factor = max(1 - 18 * s2 / (w @ w), 0.0)
    assert f.info["shrinkage"] == pytest.approx(factor, rel=1e-10)
    np.testing.assert_allclose(f.root, factor * w, rtol=1e-10)
    np.testing.assert_allclose(f.client, (y + factor * w) / 2, rtol=1e-10)
    assert f.sigma2 == pytest.approx(np.sum((y - w) ** 2) / 2 / (200 - 20))


@pytest.mark.soak("0.3")
@pytest.mark.parametrize("center", [0.0, 0.3, 3.0])
def test_risk(center):
    """Below BLUP's at every centre: at 0, 10.06 against 11 (11.01 simulated), for d = 20, n = 10."""
    risks = []
    for seed in range(120):
        fed, problem, theta, _ = proposition(seed, center)
        fits = [given_strengths.given(fed, problem, 1.0), james_stein.fit(fed, problem, 1.0)]
        risks.append([np.mean(np.sum((f.client - theta) ** 2, axis=1)) for f in fits])
    blup, ours = np.array(risks).T
    error = np.std(blup - ours) / np.sqrt(len(ours))
    assert np.mean(blup) == pytest.approx(11.0, abs=4 * np.std(blup) / np.sqrt(len(ours)))
    if center == 0.0:
        assert np.mean(ours) == pytest.approx(10.06, abs=4 * np.std(ours) / np.sqrt(len(ours)))
        assert np.mean(blup - ours) == pytest.approx(0.95, abs=4 * error)
    assert np.mean(blup - ours) > 2 * error if center < 1.0 else np.mean(blup - ours) > -2 * error


def test_a_general_covariance_agrees_with_the_simple_one():
    w = np.array([3.0, 0.5, -1.0, 0.2, 0.7])
    other, factor = shrink(w, 0.2 * np.eye(5), SLOPES)
    expected = max(1 - 2 * 0.2 / (w[1:] @ w[1:]), 0.0)
    assert factor == pytest.approx(expected)
    np.testing.assert_allclose(other, [3.0, *(expected * w[1:])])


def test_bocks_effective_dimension():
    C, w = np.diag([9.0, 4.0, 1.0, 1.0, 2.0]), np.array([3.0, 1.5, -1.0, 2.0, 0.7])
    _, factor = shrink(w, C, SLOPES)  # trace 8, largest 4: an effective dimension of 2
    assert factor == 1.0
    _, factor = shrink(w, np.diag([9.0, 2.0, 1.0, 1.0, 2.0]), SLOPES)
    assert factor == pytest.approx(1 - 1.0 / (w[1] ** 2 / 2 + 1 + 4 + 0.7**2 / 2))


def test_too_few_coordinates_are_left_alone():
    w = np.array([0.1, 0.1, 0.1])
    for columns in ([], [1], [0, 2]):
        same, factor = shrink(w, np.eye(3), np.array(columns, dtype=np.int64))
        assert factor == 1.0
        np.testing.assert_array_equal(same, w)
    assert shrink(np.zeros(4), np.eye(4), np.arange(4))[1] == 1.0
    assert shrink(np.ones(4), np.zeros((4, 4)), np.arange(4))[1] == 1.0


def test_what_is_not_shrunk_is_least_squares_given_what_is():
    """Of one model for all, columns that are moved give the same fit: the intercept follows the slopes."""
    t = table(71, counts=(30, 25, 40, 35, 28, 31), p=6, parents=ONE, sd=0.05, root=[2.0, 0.05, 0.0, 0.1, 0.0, 0.02])
    fits = []
    for shift in (0.0, 5.0):
        X = t.X + np.r_[0.0, shift * np.ones(5)]
        moved = dense.replace(t, X=X, z=[1, 2, 3, 4, 5])
        fits.append(james_stein.fit(*moved.setting(), np.inf, np.inf))
    assert fits[0].info["shrinkage"] < 0.9
    assert fits[1].info["shrinkage"] == pytest.approx(fits[0].info["shrinkage"], rel=1e-7)
    np.testing.assert_allclose(fits[0].root[1:], fits[1].root[1:], rtol=1e-6)
    assert fits[1].root[0] == pytest.approx(fits[0].root[0] - 5.0 * fits[0].root[1:].sum(), rel=1e-7)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("parents", [(), ONE, TWO], ids=["0", "1", "2"])
def test_below_the_root_all_is_at_the_minimum(family, parents):
    """Given its root, the objective (2.3) has no gradient by any cluster or client."""
    t = table(72, family, COUNTS, 5, parents, weights=True, offset=True, sd=0.3, root=0.05 * np.ones(5))
    gamma, lam = 4.0, [3.0, 2.0][: len(parents)]
    f = james_stein.fit(*t.setting(), gamma, lam)
    assert 0.0 <= f.info["shrinkage"] < 1.0
    levels = [f.client, *f.nodes, f.root[None]]
    above = [*(np.asarray(p) for p in parents), np.zeros(len(levels[-2]), dtype=int)]
    eta = t.off + np.sum(t.X * f.client[t.codes[0]], axis=1)
    score = t.w * dense.point(family, eta, t.y)[1]
    for level, (here, up) in enumerate(zip(levels[:-1], above, strict=True)):
        tie = [gamma, *lam][level]
        gradient = tie * (here - levels[level + 1][up])
        if level == 0:
            gradient -= np.array([score[t.codes[0] == i] @ t.X[t.codes[0] == i] for i in range(6)])
        else:
            below = above[level - 1]
            pull = [gamma, *lam][level - 1] * (levels[level - 1] - here[below])
            gradient -= np.array([pull[below == j].sum(axis=0) for j in range(len(here))])
        assert np.abs(gradient).max() < 1e-5


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_on_learned_variances(family, covariance):
    """As far as the root is not shrunk, it is the hierarchical fit."""
    t = table(73, family, (20,) * 12, 3, ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],), root=[0.5, 0.05, 0.05])
    plain = hierarchical.fit(*t.setting(), covariance)
    f = james_stein.fit(*t.setting(), covariance=covariance)  # two slopes: nothing is shrunk
    assert f.info["shrinkage"] == 1.0
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if family == "gaussian" else {"rtol": 1e-4, "atol": 1e-5}
    for name in ("root", "client", "client_cov", "root_cov", "D_client"):
        np.testing.assert_allclose(getattr(f, name), getattr(plain, name), **tolerance, err_msg=name)
    wide = table(74, family, (20,) * 12, 6, ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],), sd=0.1, root=0.02 * np.ones(6))
    f = james_stein.fit(*wide.setting(), covariance="isotropic")
    assert 0.0 <= f.info["shrinkage"] < 1.0
    assert np.linalg.norm(f.root[1:]) < np.linalg.norm(hierarchical.fit(*wide.setting(), "isotropic").root[1:])


def test_only_sums_leave_the_clients():
    """Below the new root, all is solved by one more sum."""
    t = table(75, counts=COUNTS, p=5, parents=ONE)
    counts = []
    for method in (given_strengths.given, james_stein.fit):
        fed, problem = t.setting()
        method(fed, problem, 1.0, 1.0)
        counts.append(fed.ledger.exchanges)
    assert counts[1] == counts[0] + 1


def test_it_is_compared_only_where_it_is_asked_for():
    problem = GroupedProblem(ClusterTree((np.zeros(3, dtype=np.int64),)), "gaussian", np.arange(4), 0)
    assert "james-stein" not in applicable(problem, True, True)
    assert "james-stein" in applicable(problem, True, False, "james-stein")
    assert "james-stein" in applicable(problem, False, True, "james-stein")
    assert "james-stein" not in applicable(problem, False, False, "james-stein")


def test_by_name():
    df, truth = tree(20, 4, 12, 4, sd_client=0.2, root=[1.0, 0.02, 0.02, 0.0, 0.0], seed=6)
    result = coterie.fit(df, truth["formula"], "client", "cluster", method="james-stein", splits=1)
    assert result.method == "james-stein"
    assert "james-stein" in result.comparison.index
    assert 0.0 <= result.settings["shrinkage"] < 1.0
    options = {"method": "james-stein", "splits": 1, "gamma": [1.0, 10.0], "lam": 2.0}
    result = coterie.fit(df, truth["formula"], "client", "cluster", **options)
    assert result.settings["strengths"]["gamma"] in (1.0, 10.0)
    assert "james-stein" not in coterie.compare(df, truth["formula"], "client", "cluster", splits=1).index
    with pytest.raises(CoterieError, match="leave residual out"):
        coterie.fit(df, truth["formula"], "client", method="james-stein", residual="by-client", splits=0)
