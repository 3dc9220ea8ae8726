"""Lyu, Hanzely, Kolar (2022), section 5: least risks beside Table 1's, and James and Stein's estimators."""

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess
from coterie.methods import given_strengths
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree
from papers.outcome import Settings
from papers.paper_001 import oracle, simulation, stein
from papers.pictures import render


def test_the_best_linear_unbiased_estimator_is_what_the_exact_solver_gives():
    data = simulation.simulate(5, 7)
    blue, bayes = oracle.posterior(data, known=False), oracle.posterior(data, known=True)
    np.testing.assert_allclose(blue.mean, simulation.ours(data), atol=1e-10)
    assert np.all(bayes.risk < blue.risk)
    assert np.mean(data.distances(bayes.mean) ** 2) == pytest.approx(bayes.risk.mean(), rel=0.03)


def test_the_posterior_is_that_of_the_stacked_model():
    data = simulation.simulate(1, 3)
    o, d, first = data.objective, simulation.COLUMNS, simulation.CLIENTS
    rows = slice(0, o.stops[first - 1])
    X, y, client = o.X[rows], o.y[rows], np.repeat(np.arange(first), o.counts[:first])
    prior = np.ones((first, first)) + np.eye(first)  # of one cluster's clients, its centre being N(0, I)
    V = np.einsum("rd,sd->rs", X, X) * prior[client][:, client] + np.eye(len(y))
    C = prior[0][client][:, None] * X  # covariance of y with client 0
    bayes = oracle.posterior(data, known=True)
    np.testing.assert_allclose(bayes.mean[0], C.T @ np.linalg.solve(V, y), atol=1e-9)
    assert bayes.risk[0] == pytest.approx(2.0 * d - np.trace(C.T @ np.linalg.solve(V, C)))


@pytest.mark.parametrize("m", [7, 40])
def test_working_alone_has_its_exact_risk(m):
    each = []
    for seed in range(2):
        data = simulation.simulate(seed, m)
        each.append(np.mean(data.distances(simulation.lt(data)) ** 2) / oracle.local_risk(data).mean())
    assert np.mean(each) == pytest.approx(1.0, abs=0.1)


def test_what_is_left_is_counted_from_bayes():
    seen = {name: np.array([3.0, 5.0]) for name in oracle.TITLES} | {"bayes": np.array([1.0, 3.0])}
    found = oracle.Risks(seen | {"lt": np.array([6.0, 8.0])}, {"bayes": 2.0, "our": 2.5, "lt": 7.0}, 0.0)
    assert found.excess("our") == (1.0, 0.0)
    assert found.closed("our") == pytest.approx(0.6)
    assert "100.00% (0.00%)" in oracle.table(10, found).rows[4]
    assert b"<svg" in render(lambda: oracle.draw({10: found}))


def test_the_method_at_gamma_1_is_the_estimator_of_the_proposition():
    rng, n, d = np.random.default_rng(0), 6, 5
    y, at = rng.normal(size=(n, d)), np.arange(n) * d
    glm = GLM(np.tile(np.eye(d), (n, 1)), y.ravel(), np.zeros(n * d), np.ones(n * d), at, at + d)
    fitted = given_strengths.given(InProcess(glm), GroupedProblem(ClusterTree(), "gaussian", np.arange(d), None), 1.0)
    np.testing.assert_allclose(fitted.client, 0.5 * (y + y.mean(axis=0)), atol=1e-12)


@pytest.mark.parametrize(("d", "length"), [(3, 0.0), (4, 1.5), (20, 3.0), (20, 0.0)])
def test_risks_are_those_of_many_draws(d, length):
    exact, seen = stein.risks(d, length, 10), stein.simulate(d, length, 10, 20_000, 7)
    for name, risk in exact.items():
        assert abs(seen.mean[name] - risk) < 4.0 * seen.error[name], name


def test_at_mu_0_the_mixture_is_one_number():
    assert stein.inverse_mean(10, 0.0) == pytest.approx(1 / 8)
    assert stein.shrunk_risk(10, 0.0, 0.5) == pytest.approx(0.5 * 2)  # James and Stein: 2 s^2, whatever d is
    from scipy.stats import ncx2

    expected = ncx2.expect(lambda q: 1.0 / q, args=(10, 6.0))
    assert stein.inverse_mean(10, 6.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n", [3, 10])
def test_domination_has_no_crossover_and_working_alone_has_one(n):
    for d in (3, 8, 30):
        for length in (0.0, 0.5, 2.0, 8.0, 30.0):
            r = stein.risks(d, length, n)
            assert r["oracle"] <= r["positive"] <= r["root"], (d, length)
            assert max(r["root"], r["paper"]) < r["blue"], (d, length)
    assert np.isnan(stein.crossover(2 * n, n))
    at = stein.crossover(4 * n, n)
    r = stein.risks(4 * n, at, n)
    assert r["alone"] == pytest.approx(r["blue"], rel=1e-9)
    assert stein.crossover(4000, n) / 4000**0.5 == pytest.approx((2 / (n - 1)) ** 0.5, rel=0.01)


def test_the_experiment_in_small():
    made = stein.run(Settings(quick=True))
    assert made.numbers["most_standard_errors"] < 4.0
    assert made.tables[2].rows[2][:4] == ("10", "never", "never", "never")
    assert b"<svg" in render(made.draw)
