"""Pull within groups and push between them: known optima, a literal objective, limits, and when it has no minimum."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.group_penalty import GroupPenalty, pushes
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.messages import names

ALL = ("*",)


def quadratics(m=9, d=3, k=3, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    known = np.sort(np.arange(m) % k)
    A = root @ root.transpose(0, 2, 1) / d + np.eye(d)
    return Quadratic(A, rng.normal(size=(m, d)) + 3.0 * known[:, None]), known, rng.uniform(0.5, 2.0, m)


def last(method, fed, rounds):
    return list(method.run(fed, [rounds]))[-1]


def objective(o, theta, n, group, own, lam, mu, margin):
    """The objective word by word."""
    total = 0.0
    N = n.sum()
    centre = {g: np.average(theta[group == g][:, own], axis=0, weights=n[group == g]) for g in np.unique(group)}
    for i in range(len(theta)):
        x = theta[i]
        total += n[i] * (x @ o.A[i] @ x / 2 - o.b[i] @ x + lam / 2 * np.sum((x[own] - centre[group[i]]) ** 2))
    for g in centre:
        for h in centre:
            if g < h:
                far = np.linalg.norm(centre[g] - centre[h])
                share = n[group == g].sum() * n[group == h].sum() / N
                total += share * mu / 2 * (max(0.0, margin - far) ** 2 if np.isfinite(margin) else -(far**2))
    return total


@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_without_a_margin_the_optimum_is_that_of_a_linear_system(mu):
    """F is quadratic then: its Hessian, block by block, with z of all clients and nothing shared."""
    o, known, n = quadratics()
    (m, d), lam = o.b.shape, 0.8
    N = n.sum()
    within = np.diag(n) - sum(np.outer(v := n * (known == g), v) / v.sum() for g in range(3))
    between = sum(np.outer(v := n * (known == g), v) / v.sum() for g in range(3)) - np.outer(n, n) / N
    H = np.kron(lam * within - mu * between, np.eye(d))
    for i in range(m):
        H[i * d : (i + 1) * d, i * d : (i + 1) * d] += n[i] * o.A[i]
    best = np.linalg.solve(H, (n[:, None] * o.b).ravel()).reshape(m, d)
    method = GroupPenalty(eta=0.2, lam=lam, mu=mu, bend=1.0, personal=ALL, group=known)
    fed = InProcess(o, weights=n)
    np.testing.assert_allclose(method.models(fed, last(method, fed, 150)), best, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("tau", [1, 4])
def test_with_a_margin_and_a_shared_part_it_ends_where_nothing_falls_any_more(tau):
    o, known, n = quadratics()
    own, how = np.array([False, True, True]), {"lam": 0.5, "mu": 0.7, "margin": 9.0}
    method = GroupPenalty(eta=0.2, tau=1, personal=("1", "2"), group=known, **how)
    fed = InProcess(o, weights=n)
    theta = method.models(fed, last(method, fed, 250))
    assert np.ptp(theta[:, 0]) == 0.0

    def at(shift):
        moved = theta.copy()
        moved[:, 0] += shift[0]
        moved[:, 1:] += shift[1:].reshape(-1, 2)
        return objective(o, moved, n, known, own, **how)

    e = 1e-5
    unit = np.eye(1 + 2 * len(theta)) * e
    slope = np.array([at(u) - at(-u) for u in unit]) / (2 * e)
    assert np.abs(slope).max() < 1e-6
    centre = np.array([np.average(theta[known == g][:, 1:], axis=0, weights=n[known == g]) for g in range(3)])
    free = GroupPenalty(eta=0.2, lam=0.5, personal=("1", "2"), group=known)
    other = free.models(fed, last(free, fed, 250))
    before = np.array([np.average(other[known == g][:, 1:], axis=0, weights=n[known == g]) for g in range(3)])
    assert np.linalg.norm(centre[0] - centre[1]) > np.linalg.norm(before[0] - before[1])
    if tau > 1:  # local steps see means as the round began, and end nearby
        local = GroupPenalty(eta=0.05, tau=tau, personal=("1", "2"), group=known, **how)
        there = local.models(fed, last(local, fed, 250))
        assert np.abs(there - theta).max() < 0.1 * np.abs(theta).max()


def test_local_steps_are_exact_where_nothing_is_shared():
    o, known, n = quadratics()
    runs = [GroupPenalty(eta=0.2, tau=tau, lam=0.5, personal=ALL, group=known) for tau in (1, 5)]
    found = [method.models(fed := InProcess(o, weights=n), last(method, fed, 150)) for method in runs]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8, atol=1e-8)


def test_limits_of_the_pull():
    """lam = 0: every client alone. A large one: one model for each group."""
    o, known, n = quadratics()
    fed = InProcess(o, weights=n)
    method = GroupPenalty(eta=0.2, lam=0.0, personal=ALL, group=known)
    np.testing.assert_allclose(method.models(fed, last(method, fed, 150)), np.linalg.solve(o.A, o.b[..., None])[..., 0])
    fed = InProcess(o, weights=n)
    method = GroupPenalty(eta=8e-3, lam=100.0, personal=ALL, group=known)
    found = method.models(fed, last(method, fed, 500))
    for g in range(3):
        mine = known == g
        A, b = np.einsum("m,mij->ij", n[mine], o.A[mine]), n[mine] @ o.b[mine]
        np.testing.assert_allclose(found[mine].mean(axis=0), np.linalg.solve(A, b), rtol=0.05, atol=0.05)


def test_one_group_without_pull_shares_what_fedavg_does():
    o, _, n = quadratics()
    fed = InProcess(o, weights=n)
    state = last(GroupPenalty(eta=0.1, lam=0.0, personal=("2",), group=np.zeros(9, int)), fed, 30)
    other = last(FedAvg(eta=0.1, personal=("2",)), InProcess(o, weights=n), 30)
    np.testing.assert_allclose(state["w"], other["w"], rtol=1e-12)


def rows(ridge):
    """Two groups whose classes are told apart by opposite slopes."""
    rng = np.random.default_rng(3)
    m, n = 6, 30
    X = rng.normal(size=(m * n, 2))
    known = np.repeat([0, 1], 3)
    sign = np.repeat(np.where(known == 0, 1.0, -1.0), n)
    y = (rng.random(m * n) < 1.0 / (1.0 + np.exp(-sign * X[:, 0]))).astype(int)
    stops = n * np.arange(1, m + 1)
    return Softmax.of(X, y, stops - n, stops, 2, ridge=ridge), known


def test_without_a_margin_the_push_must_be_below_the_convexity():
    """Groups far apart: F rises with their distance below the ridge, and falls for ever above it."""
    ridge = 0.1
    o, known = rows(ridge)
    n, away = o.sizes(), np.where(known == 0, 1.0, -1.0)[:, None] * np.array([1.0, -1.0, 2.0, 0.5])

    def far(s, mu):
        c = s * np.stack([away[0], away[-1]])
        push = n[known == 0].sum() * n[known == 1].sum() / n.sum() * np.sum((c[0] - c[1]) ** 2)
        return (o.value(s * away).sum() - mu / 2 * push) / n.sum()

    for mu, settles in ((0.9 * ridge, True), (1.1 * ridge, False)):
        rise = np.diff([far(s, mu) for s in (1e3, 2e3, 4e3)])
        assert ((rise > 0.0) if settles else (rise < 0.0)).all()
    fed = InProcess(o)
    method = GroupPenalty(eta=0.5, lam=0.1, mu=3.0, bend=10.0, personal=ALL, group=known)  # which is not so
    centre = [state["centre"] for state in method.run(fed, [20, 40])]
    assert np.ptp(centre[1], axis=0).max() > 100.0 * np.ptp(centre[0], axis=0).max()
    assert method.notes == []
    for mu, bend in ((1.1 * ridge, ridge), (0.01, 0.0)):
        said = GroupPenalty(eta=0.5, lam=0.1, mu=mu, bend=bend, personal=ALL).notes[0]
        assert "drives groups apart for ever" in said and "give a margin" in said


def test_a_margin_bounds_any_push():
    o, known = rows(0.0)
    fed = InProcess(o)
    method = GroupPenalty(eta=0.01, lam=0.1, mu=50.0, margin=4.0, personal=ALL, group=known)
    state = last(method, fed, 600)
    far = np.linalg.norm(np.diff(state["centre"], axis=0))
    assert state["status"] == "running" and 3.5 < far < 4.5


def test_pushes_are_slopes_of_the_penalty():
    rng = np.random.default_rng(0)
    centre, N = rng.normal(size=(4, 3)), np.array([1.0, 2.0, 3.0, 0.5])

    def penalty(c, margin):
        total = 0.0
        for g in range(4):
            for h in range(g):
                far = np.linalg.norm(c[g] - c[h])
                total += N[g] * N[h] / N.sum() * (max(0.0, margin - far) ** 2 if np.isfinite(margin) else -(far**2))
        return 0.7 / 2 * total

    for margin in (2.0, np.inf):
        found = N[:, None] * pushes(centre, N / N.sum(), 0.7, margin)
        for g in range(4):
            for j in range(3):
                e = np.zeros((4, 3))
                e[g, j] = 1e-6
                assert found[g, j] == pytest.approx(
                    (penalty(centre + e, margin) - penalty(centre - e, margin)) / 2e-6, abs=1e-6
                )
    assert not pushes(np.zeros((2, 3)), np.array([0.5, 0.5]), 1.0, 2.0).any()


def test_bad_input():
    with pytest.raises(CoterieError, match="name them in personal"):
        GroupPenalty(eta=0.1, lam=0.1)
    with pytest.raises(CoterieError, match=names("margin number above 0")):
        GroupPenalty(eta=0.1, lam=0.1, personal=ALL, margin=0.0)
    with pytest.raises(CoterieError, match=names("whole number 0 9 clients")):
        GroupPenalty(eta=0.1, lam=0.1, personal=ALL, group=[0, 1]).init(InProcess(quadratics()[0]))


def test_without_a_margin_strong_convexity_in_z_is_no_hold():
    """With |z - a_g x_s|^2 / 2 groups part along x_s under any push; a ridge on z holds them."""
    a = np.array([1.0, 1.0, -1.0, -1.0])
    for ridge in (0.0, 1.0):
        A = np.array([[[x * x, -x], [-x, 1.0 + ridge]] for x in a])
        how = {"personal": ("1",), "group": np.array([0, 0, 1, 1]), "lam": 0.1, "mu": 0.5, "bend": 1.0}
        fed = InProcess(Quadratic(A, np.zeros((4, 2))))
        method = GroupPenalty(eta=0.2, **how)
        far = [np.abs(s["centre"]).max() for s in method.run(fed, [100, 200], method.init(fed, np.array([1.0, 0.1])))]
        assert far[1] > 100.0 * far[0] if ridge == 0.0 else far[1] < far[0] < 1.0
