"""L2GD: against a loop over clients, the asynchronous algorithm with the same coins, its limits, and bad input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.fedavg import FedAvg
from coterie.methods.l2gd import L2GD
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTies
from tests.messages import names
from tests.methods.known_clusters import theta_of
from tests.reference import more_baselines_loop as loop
from tests.reference.test_local_training_twin import (
    IDS,
    KINDS,
    ROUNDS,
    SEED,
    WEIGHTS,
    M,
    by_rows,
    chosen,
    close,
    gradients,
    objective,
)

CLUSTERS = np.array([0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.0])
@pytest.mark.parametrize(("kind", "B", "C"), KINDS)
def test_it_is_the_loop_over_clients(kind, B, C, alpha):
    o = objective(kind)
    w = np.random.default_rng(1).normal(size=o.dim)
    method = L2GD(eta=0.1, lam=0.9, alpha=alpha, tau=3.0, B=B, C=C, seed=9)
    fed = InProcess(o, CLUSTERS, weights=WEIGHTS, ids=IDS, seed=SEED)
    (state,) = method.run(fed, [ROUNDS], method.init(fed, w))
    counts = [method.drawn(t) for t in range(ROUNDS)]
    assert len(set(counts)) > 1 and state["steps"] == sum(counts)
    who = chosen(C, 9)
    means, own = loop.l2gd(gradients(o, B), by_rows(o), w, 0.1, who, counts, 0.9, alpha, CLUSTERS, 3.0)
    np.testing.assert_allclose(state["w"], means, **close)
    models = method.models(fed, state)
    took = sorted(own)
    np.testing.assert_allclose(models[took], [own[i] for i in took], **close)
    assert len(took) == len(set(np.concatenate(who)))


@dataclass(frozen=True)
class Given:
    """Coins that are known."""

    heads: tuple[int, ...]

    def draw(self, seed, steps):
        return np.isin(steps, self.heads)


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_with_one_coin_it_is_the_asynchronous_algorithm(alpha):
    """Lyu, Hanzely, Kolar (2022), section 6: no rounds within clusters, p0 = 1 / (1 + tau)."""
    rng = np.random.default_rng(0)
    root, m, tau, lam, eta = rng.normal(size=(M, 3, 3)), M, 4.0, 0.6, 0.05
    o = Quadratic(root @ root.transpose(0, 2, 1) + np.eye(3), rng.normal(size=(m, 3)))
    fed, other = InProcess(o, CLUSTERS), InProcess(o, CLUSTERS)
    method = L2GD(eta=eta, lam=lam, alpha=alpha, tau=tau, seed=3)
    (state,) = method.run(fed, [12])
    counts = np.array([method.drawn(t) for t in range(12)])
    heads = np.cumsum(counts + 1)[:-1] - 1  # the first communication, of equal models, is none
    p0 = 1.0 / (1.0 + tau)
    ties = ClusterTies.of(CLUSTERS, 3, lam, None, alpha)
    there = AsyncL2GD(ties, p0, np.zeros(3), np.ones(3), eta * (1.0 - p0), vote=Given(tuple(heads)), closed=False)
    (_,) = there.run(other, [int(counts.sum() + len(heads))])
    np.testing.assert_allclose(method.models(fed, state), theta_of(other), rtol=1e-10, atol=1e-12)


def test_a_whole_pull_is_fedavg_and_no_tie_is_local():
    o = objective("glm")
    steps = L2GD(eta=0.1, lam=0.5, tau=20.0, seed=2)
    fed, plain = InProcess(o, weights=WEIGHTS, seed=SEED), InProcess(o, weights=WEIGHTS, seed=SEED)
    (state,) = steps.run(fed, [1])
    average = FedAvg(eta=0.1, E=steps.drawn(0))
    (other,) = average.run(plain, [1])
    np.testing.assert_allclose(state["w"][0], other["w"], rtol=1e-12)
    *_, state = steps.run(fed, [2], state)
    again = FedAvg(eta=0.1, E=steps.drawn(1))
    *_, other = again.run(plain, [2], other)
    np.testing.assert_allclose(state["w"][0], other["w"], rtol=1e-12)
    alone = replace(steps, lam=0.0)
    fed = InProcess(o, weights=WEIGHTS, seed=SEED)
    (state,) = alone.run(fed, [5])
    n, theta = state["steps"], np.zeros((M, o.dim))
    for i, gradient in enumerate(gradients(o, 0)):
        for s in range(n):
            theta[i] -= 0.1 * gradient(theta[i], s)
    np.testing.assert_allclose(alone.models(fed, state), theta, **close)


@pytest.mark.soak
def test_it_comes_near_the_optimum_of_its_objective():
    """A stationary point of the objective, to the noise that coins leave at this step size."""
    rng = np.random.default_rng(4)
    A, b = np.eye(2) * rng.uniform(1.0, 2.0, (M, 1, 1)), rng.normal(size=(M, 2))
    lam, alpha = 1.5, 0.3
    P = (1 - alpha) * (CLUSTERS[:, None] == CLUSTERS) / np.bincount(CLUSTERS)[CLUSTERS][:, None] + alpha / M
    H = np.zeros((M, 2, M, 2))
    for i in range(M):
        H[i, :, i, :] += A[i]
    H += lam * np.einsum("ij,ab->iajb", np.eye(M) - P, np.eye(2))
    best = np.linalg.solve(H.reshape(2 * M, 2 * M), b.ravel()).reshape(M, 2)
    fed = InProcess(Quadratic(A, b), CLUSTERS)
    method = L2GD(eta=0.002, lam=lam, alpha=alpha, tau=2.0)
    (state,) = method.run(fed, [4000])
    assert np.abs(method.models(fed, state) - best).max() < 0.02 * np.abs(best).max()


def test_local_steps_are_geometric():
    method = L2GD(eta=0.1, lam=0.1, tau=4.0)
    counts = np.array([method.drawn(t) for t in range(4000)])
    assert counts.mean() == pytest.approx(4.0, abs=4 * np.sqrt(20 / 4000))  # variance tau (1 + tau)
    assert (counts == 0).mean() == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 4000))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lam": -1.0}, names("lam number from 0")),
        ({"lam": 1.0, "alpha": 1.5}, names("alpha number 0 1")),
        ({"lam": 1.0, "tau": 0.0}, names("tau number above 0")),
        ({"lam": 1.0, "up": "topk:0.5"}, "would lose the same part of them in every round"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(CoterieError, match=words):
        L2GD(eta=0.1, **options)


def test_a_pull_beyond_the_mean_runs_with_a_note_and_a_divergence_is_a_status():
    """A communication takes ``1 - eta tau lam`` of every distance to the mean: above 2 these grow."""
    fed = InProcess(objective("quadratic"))
    assert L2GD(eta=0.1, lam=1.0).notes == []
    over = L2GD(eta=0.01, lam=15.0)
    assert "eta tau lam = 1.5, beyond the mean" in over.notes[0] and "run away" not in over.notes[0]
    state = list(over.run(fed, [200]))[-1]
    assert state["status"] == "running" and np.isfinite(over.models(fed, state)).all()
    assert "models run away" in L2GD(eta=0.1, lam=3.0).notes[0]
    last = list(L2GD(eta=lambda t: 0.01 * 10**t, lam=0.5).run(fed, [60]))[-1]
    assert last["status"].startswith("diverged")


def test_a_share_of_the_clients_stands_for_all_of_its_cluster():
    """90 and 10 clients that count alike, few of them in a round: the mean over all is that of the rows."""
    m, clusters = 100, np.repeat([0, 1], [90, 10])
    fed = InProcess(Quadratic(np.ones((m, 1, 1)), np.where(clusters == 0, 0.0, 10.0)[:, None]), clusters)
    method, seen = L2GD(eta=0.05, lam=1.0, alpha=1.0, tau=4.0, C=0.05), []
    for state in method.run(fed, range(1, 1501)):
        seen.append(float(method.mean(state)[0]))
        np.testing.assert_allclose(state["weight"] / state["weight"].sum(), [0.9, 0.1])
    assert np.mean(seen[300:]) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("why", ["no rows", "broken"])
def test_a_cluster_without_clients_that_count_pulls_nobody(why):
    rng = np.random.default_rng(0)
    counts = np.array([4, 4, 4, 0 if why == "no rows" else 4])
    stops = np.cumsum(counts)
    X, y = rng.normal(size=(stops[-1], 2)), rng.integers(0, 2, stops[-1]).astype(float)
    if why == "broken":
        X[-1, 0] = np.nan
    glm = GLM(X, y, np.zeros(len(y)), np.ones(len(y)), stops - counts, stops, "binomial")
    fed = InProcess(glm, np.array([0, 0, 0, 1]))
    method = L2GD(eta=0.1, lam=0.5, alpha=1.0, tau=4.0, seed=1)
    *_, state = method.run(fed, range(1, 8), method.init(fed, np.full(2, 50.0)))
    assert state["status"] == "running" and state["weight"][1] == 0.0
    np.testing.assert_allclose(method.mean(state), state["w"][0])
