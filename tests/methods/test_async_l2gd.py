"""Algorithm 1: the paper's pseudo-code, over exchanges and compiled, for the same coins."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import cluster_rounds
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTies
from tests.methods.known_clusters import gradient, table, theta_of, ties_of
from tests.reference.l2gd_loop import async_l2gd


def literal(glm, ties, method, n, batch=0, ids=None, seed=0):
    steps, k = np.arange(n), len(method.p)
    draws = (
        cluster_rounds.Coordinated(method.p0).draw(method.seed, steps),
        cluster_rounds.cluster_coins(method.seed, steps, method.p),
    )
    grad = gradient(glm, batch, ids, seed)
    return async_l2gd(
        grad, glm.X.shape[1], ties.clusters, ties.gamma, ties.alpha, method.eta, method.p0, method.p, method.tau, *draws
    ), k


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["equal", "own", "some alone"])
@pytest.mark.parametrize(("family", "batch"), [("gaussian", 0), ("gaussian", 2), ("binomial", 0), ("poisson", 3)])
def test_the_pseudo_code(family, batch, kind, compiled):
    glm, clusters = table(family)
    ties = ties_of(kind, clusters)
    p = np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    eta = 0.0003 if family == "poisson" else 0.004
    method = AsyncL2GD(ties, 0.15, p, fractions(0.15, p), eta, seed=2, batch=batch, compiled=compiled)
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
        *_, _ = AsyncL2GD(ties, 0.1, p, fractions(0.1, p), 0.004, closed=closed).run(fed, [300])
        out.append(theta_of(fed))
    np.testing.assert_allclose(*out, rtol=1e-11, atol=1e-13)


def test_quadratics_that_have_no_minimum_drift_as_the_steps_do():
    A = np.zeros((2, 2, 2))
    A[:, 0, 0] = [2.0, 3.0]
    objective = Quadratic(A, np.array([[1.0, 1.0], [2.0, -1.0]]))
    ties, p = ClusterTies.of(np.zeros(2, int), 1, 1.0, None, 1.0), np.zeros(1)
    out = []
    for closed in (True, False):
        fed = InProcess(objective)
        *_, _ = AsyncL2GD(ties, 0.2, p, np.ones(1), 0.05, closed=closed).run(fed, [100])
        out.append(theta_of(fed))
    np.testing.assert_allclose(*out, rtol=1e-11)
    assert np.abs(out[0]).max() > 1.0


@pytest.mark.parametrize("kind", ["equal", "own"])
def test_sites_and_stops_do_not_matter(kind):
    glm, clusters = table()
    ties, p = ties_of(kind, clusters), np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    method = AsyncL2GD(ties, 0.15, p, fractions(0.15, p), 0.004, batch=2)
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
    method = AsyncL2GD(ties, 0.15, p, fractions(0.15, p), 0.004, compiled=False)
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
    for compiled in (True, False):
        fed = InProcess(glm, clusters)
        method = AsyncL2GD(ties, 0.2, p, fractions(0.2, p), 1e6, compiled=compiled)
        *_, state = method.run(fed, [2, 4000, 8000])
        assert state["status"].startswith("diverged by step ") and state["t"] == 4000
        assert np.isfinite(theta_of(fed)).all()
