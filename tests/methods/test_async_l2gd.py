"""Algorithm 1: the paper's pseudo-code, over exchanges and compiled, for the same coins."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback
from coterie.federation import work
from coterie.methods import coins
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.async_l2gd_theory import fractions
from coterie.methods.ties import Ties
from coterie.numerics import keyed
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
from l2gd_loop import async_l2gd

SIZES = (4, 1, 7, 3, 5)


@work
def reveal(site):
    return {"theta": site.state["theta"]}


def theta_of(fed):
    return np.array(fed.ask(reveal)["theta"])


def table(family="gaussian", seed=0, d=3, sizes=SIZES, rows=(1, 9)):
    """Clients of unequal rows in clusters of unequal size."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    counts = rng.integers(*rows, len(clusters))
    stops = np.cumsum(counts)
    X, beta = rng.normal(size=(stops[-1], d)), rng.normal(size=(len(clusters), d))
    eta = np.sum(X * np.repeat(beta, counts, axis=0), axis=1)
    y = eta + rng.normal(size=len(eta))
    if family == "binomial":
        y = (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    if family == "poisson":
        y = rng.poisson(np.exp(np.clip(eta, -3, 2))).astype(float)
    return GLM(X, y, rng.normal(size=len(y)), rng.uniform(0.5, 2, len(y)), stops - counts, stops, family), clusters


def gradient(glm, batch=0, ids=None, seed=0):
    """Gradients row by row, as the definition has them; ``batch`` rows by the keyed draws."""

    def row(i, r, theta):
        x, at = glm.X[r], glm.offset[r] + glm.X[r] @ theta
        mean = at if glm.family == "gaussian" else np.exp(at)
        mean = mean / (1 + mean) if glm.family == "binomial" else mean
        return glm.weights[r] * (mean - glm.y[r]) * x

    def of(theta, t):
        out = np.zeros_like(theta)
        draws = keyed.uniform(seed, "rows", ids, t, batch) if batch else None
        for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
            rows = range(a, b) if not batch else a + np.floor(draws[i] * (b - a)).astype(int)
            out[i] = sum(row(i, r, theta[i]) for r in rows) * ((b - a) / batch if batch else 1)
        return out

    return of


def ties_of(kind, clusters):
    """Strengths of several shapes."""
    k, rng = clusters.max() + 1, np.random.default_rng(5)
    if kind == "equal":
        return Ties.of(clusters, k, 1.0, 2.0, None)
    gamma = rng.uniform(0.2, 2.0, len(clusters))
    if kind == "some alone":
        gamma[[0, 3, 9]] = 0.0
    return Ties.of(clusters, k, gamma, None, rng.uniform(0.1, 0.9, k))


def literal(glm, ties, method, n, batch=0, ids=None, seed=0):
    steps, k = np.arange(n), len(method.p)
    draws = coins.Coordinated(method.p0).draw(method.seed, steps), coins.cluster_coins(method.seed, steps, method.p)
    grad = gradient(glm, batch, ids, seed)
    return async_l2gd(
        grad, glm.X.shape[1], ties.clusters, ties.gamma, ties.alpha, method.eta, method.p0, method.p, method.tau, *draws
    ), k


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", ["equal", "own", "some alone"])
@pytest.mark.parametrize(("family", "batch"), [("gaussian", 0), ("gaussian", 2), ("binomial", 0), ("poisson", 3)])
def test_the_pseudo_code(family, batch, kind, together):
    glm, clusters = table(family)
    ties = ties_of(kind, clusters)
    p = np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    eta = 0.0003 if family == "poisson" else 0.004
    method = AsyncL2GD(ties, eta, 0.15, p, fractions(0.15, p), seed=2, batch=batch, together=together)
    ids = np.arange(100, 100 + len(clusters), dtype=np.uint64)
    fed = InProcess(glm, clusters, ids=ids, seed=11)
    *_, state = method.run(fed, [7, 60, 61, 200])
    expected, _ = literal(glm, ties, method, 200, batch, ids, 11)
    np.testing.assert_allclose(theta_of(fed), expected, rtol=1e-9, atol=1e-11)
    assert state["status"] == "running" and state["t"] == 200


def test_closed_form_is_the_steps():
    glm, clusters = table(rows=(1, 6), d=4)
    ties, p = ties_of("own", clusters), np.full(5, 0.2)
    out = []
    for closed in (True, False):
        fed = InProcess(glm, clusters)
        *_, _ = AsyncL2GD(ties, 0.004, 0.1, p, fractions(0.1, p), closed=closed).run(fed, [300])
        out.append(theta_of(fed))
    np.testing.assert_allclose(*out, rtol=1e-11, atol=1e-13)


def test_quadratics_that_have_no_minimum_drift_as_the_steps_do():
    A = np.zeros((2, 2, 2))
    A[:, 0, 0] = [2.0, 3.0]
    objective = Quadratic(A, np.array([[1.0, 1.0], [2.0, -1.0]]))
    ties, p = Ties.of(np.zeros(2, int), 1, 1.0, None, 1.0), np.zeros(1)
    out = []
    for closed in (True, False):
        fed = InProcess(objective)
        *_, _ = AsyncL2GD(ties, 0.05, 0.2, p, np.ones(1), closed=closed).run(fed, [100])
        out.append(theta_of(fed))
    np.testing.assert_allclose(*out, rtol=1e-11)
    assert np.abs(out[0]).max() > 1.0


@pytest.mark.parametrize("kind", ["equal", "own"])
def test_sites_and_stops_do_not_matter(kind):
    glm, clusters = table()
    ties, p = ties_of(kind, clusters), np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    method = AsyncL2GD(ties, 0.004, 0.15, p, fractions(0.15, p), batch=2)
    ends, counts = [], []
    for fed, stops in (
        (InProcess(glm, clusters), [90]),
        (InProcess(glm, clusters), [1, 30, 31, 90]),
        (Loopback(glm, clusters, sites=4), [90]),
    ):
        *_, state = method.run(fed, stops)
        ends.append(theta_of(fed))
        counts.append((state["between"], *state["within"]))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
    np.testing.assert_allclose(ends[2], ends[0], rtol=1e-12)
    assert counts[0] == counts[2]


@pytest.mark.parametrize("kind", ["equal", "own"])
def test_communications_are_the_exchanges(kind):
    """Exchange e carries every cluster's e-th communication: nothing is asked that is not a communication."""
    glm, clusters = table()
    ties, p = ties_of(kind, clusters), np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    method = AsyncL2GD(ties, 0.004, 0.15, p, fractions(0.15, p), together=False)
    fed = InProcess(glm, clusters)
    asked = []

    class Tap:
        clients, mark, restore, ask = fed.clients, fed.mark, fed.restore, fed.ask

        def total(self, work, **message):
            if "steps" in message:
                to = message["to"]
                asked.append(np.ones(5, bool) if to is None else to.mask)
            return fed.total(work, **message)

    *_, state = method.run(Tap(), [400])
    communications = int(state["within"].sum()) + 5 * state["between"]
    spoken = int(np.sum(asked))
    assert communications - 5 * state["between"] <= spoken <= communications + 5


def test_divergence_is_named_and_nothing_is_lost():
    glm, clusters = table()
    ties, p = ties_of("equal", clusters), np.full(5, 0.2)
    for together in (True, False):
        fed = InProcess(glm, clusters)
        method = AsyncL2GD(ties, 1e6, 0.2, p, fractions(0.2, p), together=together)
        *_, state = method.run(fed, [2, 4000, 8000])
        assert state["status"].startswith("diverged by step ") and state["t"] == 4000
        assert np.isfinite(theta_of(fed)).all()
