"""CFL against a literal second implementation, and its splits on groups that are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.cfl import CFL, bipartition
from coterie.methods.fedavg import FedAvg
from coterie.methods.groups.evaluation import correctly_grouped
from coterie.objectives.quadratic import Quadratic
from tests.engines.faults import Faults, Loopback
from tests.messages import names


def quadratics(groups=3, each=5, apart=6.0, seed=0):
    rng = np.random.default_rng(seed)
    m = groups * each
    A = np.eye(4) * rng.uniform(1.0, 2.0, (m, 1, 1))
    known = np.arange(m) % groups
    centre = apart * rng.normal(size=(groups, 4))
    return Quadratic(A, np.einsum("mij,mj->mi", A, centre[known] + 0.1 * rng.normal(size=(m, 4)))), known


def literal_bipartition(alpha):
    """Algorithm 1 word by word: join in falling order of similarity until two clusters are left."""
    n = len(alpha)
    clusters = [{i} for i in range(n)]
    pairs = sorted(itertools.combinations(range(n), 2), key=lambda p: -alpha[p])
    for i, j in pairs:
        if len(clusters) == 2:
            break
        joined = set()
        rest = []
        for c in clusters:
            if i in c or j in c:
                joined |= c
            else:
                rest.append(c)
        clusters = [*rest, joined]
    return sorted((sorted(c) for c in clusters), key=lambda c: c[0])


def literal_cfl(A, b, weights, eta, eps1, eps2, rounds, gamma=0.0):
    """Algorithms 2 and 4, one client after another; a quadratic takes one full step a round."""
    m = len(b)
    clusters, theta = [list(range(m))], [np.zeros(b.shape[1])]
    for _ in range(rounds):
        found, models = [], []
        for c, w in zip(clusters, theta, strict=True):
            delta = {i: -eta * (A[i] @ w - b[i]) for i in c}
            mean = sum(weights[i] * delta[i] for i in c) / sum(weights[i] for i in c)
            parts = [c]
            if np.linalg.norm(mean) < eps1 and max(np.linalg.norm(delta[i]) for i in c) > eps2:
                u = [delta[i] / np.linalg.norm(delta[i]) for i in c]
                alpha = np.array([[p @ q for q in u] for p in u])
                one, two = literal_bipartition(alpha)
                cross = max(alpha[p, q] for p in one for q in two)
                if np.sqrt((1.0 - cross) / 2.0) > gamma:
                    parts = [[c[p] for p in one], [c[p] for p in two]]
            for part in parts:
                models.append(w + sum(weights[i] * delta[i] for i in part) / sum(weights[i] for i in part))
                found.append(part)
        clusters, theta = found, models
    return clusters, theta


@pytest.mark.parametrize("seed", range(4))
def test_the_best_bipartition_is_single_linkage(seed):
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(9, 3))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    alpha = u @ u.T
    side, cross = bipartition(alpha)
    assert [sorted(np.flatnonzero(side == s)) for s in (0, 1)] == literal_bipartition(alpha)
    every = [np.array([0, *s]) for s in itertools.product((0, 1), repeat=8) if any(s)]
    assert cross == pytest.approx(min(alpha[np.ix_(s == 0, s == 1)].max() for s in every), abs=1e-12)


def test_bipartition_of_two_and_of_equal_ones():
    assert bipartition(np.array([[1.0, 0.3], [0.3, 1.0]]))[0].tolist() == [0, 1]
    side, cross = bipartition(np.ones((4, 4)))
    assert set(side) == {0, 1} and cross == 1.0


@pytest.mark.parametrize(("seed", "gamma"), [(0, 0.0), (1, 0.0), (2, 0.3), (3, 0.9)])
def test_runs_are_those_of_the_literal_one(seed, gamma):
    o, _ = quadratics(seed=seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, len(o))
    fed = InProcess(o, weights=weights)
    method = CFL(eta=0.3, eps1=0.2, eps2=0.6, gamma=gamma)
    state = list(method.run(fed, [60]))[-1]
    clusters, theta = literal_cfl(o.A, o.b, weights, 0.3, 0.2, 0.6, 60, gamma)
    assert {frozenset(np.flatnonzero(state["group"] == g)) for g in range(len(state["w"]))} == set(
        map(frozenset, clusters)
    )
    expected = np.empty(o.b.shape)
    for c, w in zip(clusters, theta, strict=True):
        expected[c] = w
    np.testing.assert_allclose(method.models(fed, state), expected, rtol=1e-10, atol=1e-12)


def test_hidden_groups_are_found_and_served():
    o, known = quadratics(groups=4, each=6)
    fed = InProcess(o)
    method = CFL(eta=0.3, eps1=0.2, eps2=0.6)
    state = list(method.run(fed, [100]))[-1]
    assert len(state["w"]) == 4 and correctly_grouped(state["group"], known) == 24
    for g in range(4):
        mine = state["group"] == g
        best = np.linalg.solve(o.A[mine].sum(axis=0), o.b[mine].sum(axis=0))
        np.testing.assert_allclose(state["w"][g], best, rtol=1e-5, atol=1e-6)


def test_clients_who_agree_stay_one_group_and_are_fedavg():
    o, _ = quadratics(groups=1, each=8)
    fed = InProcess(o)
    state = list(CFL(eta=0.3, eps1=0.2, eps2=0.6).run(fed, [40]))[-1]
    other = list(FedAvg(eta=0.3).run(InProcess(o), [40]))[-1]
    assert len(state["w"]) == 1
    np.testing.assert_allclose(state["w"][0], other["w"], rtol=1e-13)


def test_full_updates_travel_only_when_a_group_may_be_split():
    o, _ = quadratics(groups=1, each=8)
    fed, plain = Loopback(o, sites=2), Loopback(o, sites=2)
    list(CFL(eta=0.3, eps1=0.0, eps2=0.6).run(fed, [10]))
    list(FedAvg(eta=0.3).run(plain, [10]))
    assert fed.ledger.exchanges == plain.ledger.exchanges
    assert fed.ledger.bytes_up < 1.05 * plain.ledger.bytes_up


def test_nobody_is_split_off_while_somebody_is_away():
    o, _ = quadratics()
    away = Faults(request=lambda exchange, site: site == 1 and exchange > 1)
    fed = Loopback(o, sites=[[0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [1, 14]], retries=0, faults=away)
    state = list(CFL(eta=0.3, eps1=0.2, eps2=0.6).run(fed, [40]))[-1]
    assert state["status"] == "running" and len(state["w"]) == 1


def test_bad_input():
    with pytest.raises(CoterieError, match="leave C out"):
        CFL(eta=0.1, eps1=0.1, eps2=0.1, C=0.5)
    with pytest.raises(CoterieError, match=names("eps1 number 0")):
        CFL(eta=0.1, eps1=-0.1, eps2=0.1)
    with pytest.raises(CoterieError, match="give one first model"):
        CFL(eta=0.1, eps1=0.1, eps2=0.1).init(InProcess(quadratics()[0]), np.zeros((2, 4)))
