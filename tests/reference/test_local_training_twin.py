"""FedAvg, Ditto, pFedMe and IFCA against loops over rounds, clients, steps and rows, on three kinds of objectives."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.ifca import IFCA
from coterie.methods.pfedme import PFedMe
from coterie.numerics import keyed_random
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.reference import local_training_loop as loop

COUNTS = np.array([1, 4, 7, 2, 5, 3])
M, SEED, ROUNDS = 6, 5, 4
IDS = np.arange(M, dtype=np.uint64) * np.uint64(11) + np.uint64(3)
WEIGHTS = np.array([1.0, 0.5, 2.0, 1.0, 1.5, 1.0])


def objective(kind):
    rng = np.random.default_rng(0)
    if kind == "quadratic":
        root = rng.normal(size=(M, 2, 2))
        return Quadratic(root @ root.transpose(0, 2, 1) + np.eye(2), rng.normal(size=(M, 2)))
    stops = np.cumsum(COUNTS)
    n, starts = stops[-1], stops - COUNTS
    X, w = rng.normal(size=(n, 2)), rng.uniform(0.5, 2.0, n)
    if kind == "softmax":
        return Softmax.of(X, rng.integers(0, 3, n), starts, stops, 3, w, 0.1)
    return GLM(X, rng.integers(0, 2, n).astype(float), np.zeros(n), w, starts, stops, "binomial")


class Client:
    """One client's mean loss in plain NumPy."""

    def __init__(self, o, k, B=0, stream="rows"):
        self.o, self.k, self.B, self.stream = o, k, B, stream

    @property
    def rows(self):
        return range(self.o.starts[self.k], self.o.stops[self.k])

    @property
    def weight(self):
        return 1.0 if isinstance(self.o, Quadratic) else sum(self.o.weights[r] for r in self.rows)

    def row(self, r, theta):
        """Loss and gradient of a row, with its weight."""
        o, x = self.o, self.o.X[r]
        if isinstance(o, GLM):
            p = 1 / (1 + np.exp(-(x @ theta)))
            y = o.y[r]
            return -o.weights[r] * (y * np.log(p) + (1 - y) * np.log(1 - p)), o.weights[r] * (p - y) * x
        e = np.exp(x @ theta.reshape(-1, o.classes))
        p, hot = e / e.sum(), np.eye(o.classes)[int(o.y[r])]
        g = np.outer(x, p - hot).ravel() + o.ridge * theta
        return o.weights[r] * (o.ridge * theta @ theta / 2 - np.log(p @ hot)), o.weights[r] * g

    def loss(self, theta):
        if isinstance(self.o, Quadratic):
            return theta @ self.o.A[self.k] @ theta / 2 - self.o.b[self.k] @ theta
        return sum(self.row(r, theta)[0] for r in self.rows) / self.weight

    def gradient(self, theta, step):
        if isinstance(self.o, Quadratic):
            return self.o.A[self.k] @ theta - self.o.b[self.k]
        if not self.B:
            return sum(self.row(r, theta)[1] for r in self.rows) / self.weight
        n = len(self.rows)
        u = keyed_random.uniform(SEED, self.stream, IDS[self.k : self.k + 1], step, self.B)[0]
        return sum(self.row(self.rows[int(v * n)], theta)[1] for v in u) * n / self.B / self.weight


def chosen(C, seed):
    """Who takes part: the share with the smallest numbers."""
    m = max(round(C * M), 1)
    return [
        np.sort(np.argsort(keyed_random.uniform(seed, "participation", IDS, t, 1)[:, 0])[:m]) for t in range(ROUNDS)
    ]


def run(method, o, w=None):
    fed = InProcess(o, weights=WEIGHTS, ids=IDS, seed=SEED)
    (state,) = method.run(fed, [ROUNDS], method.init(fed, w))
    assert state["status"] == "running" and state["t"] == ROUNDS
    return state, method.models(fed, state)


def epochs(o, E, B):
    return [E * (-(-int(n) // B) if B and not isinstance(o, Quadratic) else 1) for n in COUNTS]


def clients(o, B, stream="rows"):
    return [Client(o, k, B, stream) for k in range(M)]


def gradients(o, B, stream="rows"):
    return [c.gradient for c in clients(o, B, stream)]


def by_rows(o):
    return [c.weight * w for c, w in zip(clients(o, 0), WEIGHTS, strict=True)]


KINDS = [("quadratic", 0, 1.0), ("quadratic", 0, 0.5), ("glm", 0, 0.5), ("glm", 2, 1.0)]
KINDS += [("softmax", 0, 1.0), ("softmax", 2, 0.5)]
every = pytest.mark.parametrize(("kind", "B", "C"), KINDS)
close = {"rtol": 1e-10, "atol": 1e-12}


@every
def test_fedavg(kind, B, C):
    o = objective(kind)
    w0 = np.random.default_rng(1).normal(size=o.dim)
    state, models = run(FedAvg(eta=0.1, B=B, C=C, E=2, finetune=3, seed=9), o, w0)
    w, _ = loop.fedavg(gradients(o, B), by_rows(o), w0, 0.1, epochs(o, 2, B), chosen(C, 9))
    np.testing.assert_allclose(state["w"], w, **close)
    tuned = [loop.descend(g, w, 0.1, 3, 0) for g in gradients(o, B, "finetune rows")]
    np.testing.assert_allclose(models, tuned, **close)


@every
@pytest.mark.parametrize("own", [{"s": 3}, {"passes": 2}], ids=str)
def test_ditto(kind, B, C, own):
    o = objective(kind)
    state, models = run(Ditto(eta=0.1, B=B, C=C, E=1, lam=0.8, **own), o)
    w, v = loop.ditto(
        gradients(o, B),
        gradients(o, B, "own rows"),
        by_rows(o),
        np.zeros(o.dim),
        0.1,
        epochs(o, 1, B),
        chosen(C, 0),
        0.8,
        epochs(o, 2, B) if "passes" in own else 3,
    )
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, v, **close)


@every
def test_pfedme(kind, B, C):
    o = objective(kind)
    state, models = run(PFedMe(eta=0.05, B=B, C=C, lam=3.0, alpha=0.1, K=4, R=3, beta=1.2), o)
    w, theta = loop.pfedme(gradients(o, B), WEIGHTS, np.zeros(o.dim), 0.05, chosen(C, 0), 3.0, 0.1, 4, 3, 1.2)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, theta, **close)


@every
def test_ifca(kind, B, C):
    o = objective(kind)
    method = IFCA(eta=0.1, B=B, C=C, k=3, tau=2, seed=2)
    first = (1.0 if kind == "quadratic" else 0.3) * np.random.default_rng(3).normal(size=(3, o.dim))
    losses = [c.loss for c in clients(o, B)]
    state, models = run(method, o, first)
    w, best, group = loop.ifca(gradients(o, B), losses, by_rows(o), first, 0.1, 2, chosen(C, 2))
    assert len(set(group)) > 1
    np.testing.assert_array_equal(state["group"], group)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, best, **close)


@every
@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme", "ifca"])
def test_parts_that_stay_with_clients(name, kind, B, C):
    """The second of every three parameters, from a first value that is not zero."""
    o = objective(kind)
    mine = np.arange(o.dim) % 3 == 1
    names = tuple(map(str, np.flatnonzero(mine)))
    first = np.random.default_rng(6).normal(size=o.dim)
    own, common = loop.Own(~mine, first), {"eta": 0.1, "B": B, "C": C, "personal": names}
    grads, rows, taking = gradients(o, B), by_rows(o), chosen(C, 0)
    if name == "fedavg":
        state, models = run(FedAvg(E=2, **common), o, first)
        w, theta = loop.fedavg(grads, rows, first, 0.1, epochs(o, 2, B), taking, own)
    elif name == "ditto":
        state, models = run(Ditto(lam=0.8, s=3, **common), o, first)
        steps, tuned = epochs(o, 1, B), gradients(o, B, "own rows")
        w, theta = loop.ditto(grads, tuned, rows, first, 0.1, steps, taking, 0.8, 3, own)
    elif name == "pfedme":
        state, models = run(PFedMe(lam=3.0, alpha=0.1, K=4, R=3, **common), o, first)
        w, theta = loop.pfedme(grads, WEIGHTS, first, 0.1, taking, 3.0, 0.1, 4, 3, 1.0, own)
    else:
        first = np.stack([first, first + 0.7, first - 0.7])
        state, models = run(IFCA(k=3, tau=2, **common), o, first)
        losses = [c.loss for c in clients(o, B)]
        w, theta, group = loop.ifca(grads, losses, rows, first, 0.1, 2, taking, own)
        np.testing.assert_array_equal(state["group"], group)
    np.testing.assert_allclose(state["w"], w[..., ~mine], **close)
    np.testing.assert_allclose(models, theta, **close)
