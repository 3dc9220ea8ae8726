"""FedAMP, pFedGraph, FedFomo, APPLE, FedSoft: against loops written from the papers, and whom they find."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.apple import APPLE
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedfomo import PAIR, FedFomo
from coterie.methods.fedsoft import FedSoft
from coterie.methods.pfedgraph import PFedGraph
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.holdout import halves
from coterie.objectives.mean_loss import gradient, value
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.messages import names
from tests.methods.test_more_baselines import first
from tests.reference import collaboration_loop as loop
from tests.reference.test_local_training_twin import (
    IDS,
    KINDS,
    SEED,
    Client,
    M,
    by_rows,
    chosen,
    close,
    epochs,
    every,
    gradients,
    objective,
    run,
)


@every
@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_fedamp(kind, B, C, attention):
    o = objective(kind)
    how = {"lam": 0.6, "alpha": 1.2, "sigma": 1.5, "attention": attention}
    how |= {"own": 0.3} if attention == "cosine" else {}
    state, models = run(FedAMP(eta=0.1, B=B, C=C, E=2, seed=9, **how), o, first(o))

    def weigh(W, i, known):
        return loop.attention(W, i, 1.2, 1.5) if attention == "distance" else loop.cosine(W, i, 0.3, 1.5)

    steps, taking = epochs(o, 2, B), chosen(C, 9)
    W = loop.weighed(gradients(o, B), first(o), 0.1, steps, taking, weigh, lambda theta, u: 0.5 * (theta - u))
    np.testing.assert_allclose(models, W, **close)
    np.testing.assert_array_equal(state["w"], models)


@every
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_pfedgraph(kind, B, C, lam):
    o = objective(kind)
    _, models = run(PFedGraph(eta=0.1, B=B, C=C, E=2, alpha=0.4, lam=lam, seed=9), o, first(o))
    n = by_rows(o)

    def weigh(W, i, known):
        p = np.array([n[j] for j in known]) / sum(n[j] for j in known)
        return loop.graph([w - first(o) for w in W], i, p, 0.4)

    def beside(theta, u):  # the gradient of -lam cos(theta, u), by central differences
        h, e = 1e-6, np.eye(len(theta))
        ends = [[loop.cos(theta + sign * h * v, u) for sign in (1, -1)] for v in e]
        return -lam * np.array([(a - b) / (2 * h) for a, b in ends])

    W = loop.weighed(gradients(o, B), first(o), 0.1, epochs(o, 2, B), chosen(C, 9), weigh, beside)
    np.testing.assert_allclose(models, W, rtol=1e-6, atol=1e-6)  # as near as the loop's solver comes


@every
def test_fedfomo(kind, B, C):
    o = objective(kind)
    method = FedFomo(eta=0.1, B=B, C=C, E=2, M=3, held=0.4, epsilon=0.3, seed=9)
    state, models = run(method, o, first(o))
    back, rest = halves(o, IDS, SEED, 0.4) or (o, o)

    def loss(i):
        return lambda theta: value(back.take(np.array([i])), theta[None])[0]

    def g(i):
        start = keyed_random.starts(SEED, "rows", IDS[i : i + 1])
        return lambda theta, s: gradient(rest.take(np.array([i])), theta[None], Draws(start, np.array([s]), B))[0]

    def offered(t, i, P):
        u = [keyed_random.uniform(9, "offered", PAIR * IDS[i : i + 1] + IDS[j], t, 1)[0, 0] for j in range(M)]
        explores = keyed_random.uniform(9, "explores", IDS[i : i + 1], t, 1)[0, 0] < 0.3
        others = sorted((j for j in range(M) if j != i), key=lambda j: u[j])
        return (others if explores else sorted(others, key=lambda j: -P[i, j]))[:3]

    grads = [g(i) for i in range(M)]
    W, P = loop.fedfomo(grads, [loss(i) for i in range(M)], first(o), 0.1, epochs(o, 2, B), chosen(C, 9), offered)
    assert (P > 0).sum() > M
    np.testing.assert_allclose(models, W, **close)
    np.testing.assert_allclose(state["weights"], P, rtol=1e-8, atol=1e-8)


@every
def test_apple(kind, B, C):
    o = objective(kind)
    state, models = run(APPLE(eta=0.3, B=B, C=C, E=2, eta_p=0.05, mu=0.4, L=3, seed=9), o, first(o))
    p0 = np.array(by_rows(o)) / sum(by_rows(o))
    grads = gradients(o, B)
    W, P, theta = loop.apple(grads, first(o), 0.3, epochs(o, 2, B), chosen(C, 9), p0, 0.05, 0.4, 3)
    np.testing.assert_allclose(state["w"], W, **close)
    np.testing.assert_allclose(state["weights"], P, **close)
    np.testing.assert_allclose(models, theta, **close)


@pytest.mark.parametrize(("kind", "B", "C"), [row for row in KINDS if row[0] != "quadratic"])
def test_fedsoft(kind, B, C):
    o = objective(kind)
    centres = 0.5 * np.random.default_rng(3).normal(size=(3, o.dim))
    method = FedSoft(eta=0.1, B=B, C=C, k=3, tau=2, lam=0.5, every=2, least=0.05, seed=2)
    state, models = run(method, o, centres)

    def rows(i):
        one, ridge = Client(o, i), getattr(o, "ridge", 0.0)
        return lambda theta: [one.row(r, theta)[0] / o.weights[r] - ridge * theta @ theta / 2 for r in one.rows]

    losses = [rows(i) for i in range(M)]
    grads, counts = gradients(o, B), [o.weights[o.starts[i] : o.stops[i]] for i in range(M)]
    w, own, u = loop.fedsoft(grads, losses, counts, by_rows(o), centres, 0.1, 2, chosen(C, 2), 0.5, 2, 0.05)
    assert any(0.1 < share.max() < 0.9 for share in u.values())
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, own, **close)
    group = [int(np.argmax(u[i])) if i in u else -1 for i in range(M)]
    np.testing.assert_array_equal(state["group"], group)


# -- whom they find


def two_groups(m=8, seed=0):
    """Quadratics of odd and even clients, whose optima are far apart."""
    rng = np.random.default_rng(seed)
    b = np.eye(3)[np.arange(m) % 2] + 0.1 * rng.normal(size=(m, 3))
    return Quadratic(np.tile(np.eye(3), (m, 1, 1)), b)


@pytest.mark.parametrize(
    "method",
    [
        FedAMP(eta=0.3, lam=0.05, alpha=0.05, sigma=0.2),
        FedAMP(eta=0.3, lam=0.5, sigma=10.0, attention="cosine"),
        PFedGraph(eta=0.3, alpha=0.4),
        FedFomo(eta=0.3, M=4),
        APPLE(eta=0.3, eta_p=0.05, mu=0.0),
    ],
    ids=["fedamp", "heurfedamp", "pfedgraph", "fedfomo", "apple"],
)
def test_clients_hear_those_of_their_group(method):
    fed = InProcess(two_groups())
    (state,) = method.run(fed, [30])
    weights = state["weights"] * (1.0 - np.eye(8))
    same = np.equal.outer(np.arange(8) % 2, np.arange(8) % 2)
    assert (weights * same).sum() > 3.0 * np.abs(weights * ~same).sum()


def test_models_travel_coded():
    """What a codec loses is small beside what clients learn."""
    o = two_groups()
    plain, coded = (PFedGraph(eta=0.3, **how) for how in ({}, {"up": "qsgd:8", "down": "qsgd:8"}))
    found = []
    for method in (plain, coded):
        fed = InProcess(o)
        (state,) = method.run(fed, [20])
        found.append(method.models(fed, state))
    assert np.abs(found[0] - found[1]).max() < 0.1 * np.abs(found[0]).max()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAMP(eta=0.1, lam=-1.0), names("lam number 0")),
        (lambda: PFedGraph(eta=0.1, alpha=0.0), names("alpha number above 0")),
        (lambda: FedFomo(eta=0.1, up="qsgd:6"), "FedFomo sends several models .*leave up and down out"),
        (lambda: APPLE(eta=0.1, down="qsgd:6"), "APPLE sends all models .*leave up and down out"),
        (lambda: FedSoft(eta=0.1, k=2, lam=0.1, up="qsgd:6"), "FedSoft's clients send one model for every centre"),
        (
            lambda: run(FedSoft(eta=0.1, k=2, lam=0.1), objective("quadratic")),
            "losses of single rows, which Quadratic",
        ),
    ],
)
def test_what_cannot_be_is_named(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()


def test_one_row_is_kept_back_of_two_and_never_all():
    o = Softmax.of(np.ones((6, 1)), np.zeros(6), [0, 1, 3], [1, 3, 6], 2)
    back, rest = halves(o, [5, 6, 7], 0, 0.2)
    assert back.sizes().tolist() == [0.0, 1.0, 1.0] and rest.sizes().tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "method",
    [FedAMP(eta=0.1, lam=0.1), FedAMP(eta=0.1, lam=0.1, attention="cosine"), PFedGraph(eta=0.1)],
    ids=["distance", "cosine", "graph"],
)
def test_models_are_compared_by_what_trains(method):
    """Statistics of BatchNorm that travel are far larger than weights, and say what inputs are, not who is alike."""
    W, still = np.random.default_rng(0).normal(size=(4, 6)), np.arange(6) >= 4
    state = {"w": W[:, ~still], "counts": np.arange(1.0, 5.0), "begun": np.zeros(4)}
    wide = state | {"w": W * np.where(still, 100.0, 1.0), "begun": np.zeros(6), "statistics": still}
    known = np.arange(4)
    np.testing.assert_allclose(method.weigh(wide, known), method.weigh(state, known), rtol=1e-12)
    assert not np.allclose(
        method.weigh({k: v for k, v in wide.items() if k != "statistics"}, known), method.weigh(state, known)
    )
