"""MOON and FedProto against nets in torch, row by row as the papers have them; and what has no features."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector as flat
from torch.nn.utils import vector_to_parameters as fill

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedproto import FedProto
from coterie.methods.local_training.new_client import join
from coterie.methods.moon import MOON
from coterie.numerics import keyed_random
from coterie.objectives.deep import Deep
from coterie.objectives.quadratic import Quadratic
from tests.messages import names

P, H, K, SEED, ROUNDS = 3, 4, 3, 7, 3
COUNTS = np.array([5, 8, 3, 6, 4])
M, STOPS = len(COUNTS), np.cumsum(COUNTS)
STARTS = STOPS - COUNTS
IDS = np.arange(M, dtype=np.uint64) + np.uint64(3)
rng = np.random.default_rng(0)
X, Y, W = rng.normal(size=(STOPS[-1], P)), rng.integers(0, K, STOPS[-1]), rng.uniform(0.5, 2.0, STOPS[-1])
Y[5:13] %= 2  # the second client has no row of class 2
KINDS = [({}, 0, 1.0), ({}, 2, 0.6), ({"batched": False, "ridge": 0.1}, 2, 0.6), ({"ridge": 0.1, "at_once": 2}, 0, 0.6)]
KINDS += [({"ridge": 0.1}, 0, 1.0)]
every = pytest.mark.parametrize(("how", "B", "C"), KINDS, ids=str)


def net(head=None):
    parts = [("body", nn.Linear(P, H)), ("act", nn.Tanh()), ("head", head or nn.Linear(H, K))]
    return nn.Sequential(OrderedDict(parts)).double()


def clients(how, labels=Y, head=None, loss="cross_entropy"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = net(head)
    return Deep.of(model, X, labels, STARTS, STOPS, dtype="float64", weights=W, loss=loss, **how)


def part(C):
    m = max(round(C * M), 1)
    u = [keyed_random.uniform(0, "participation", IDS, t, 1)[:, 0] for t in range(ROUNDS)]
    return [np.sort(np.argsort(one)[:m]) for one in u]


def drawn(k, step, B):
    """Rows of a step, and what each counts in the mean loss."""
    rows = np.arange(STARTS[k], STOPS[k])
    total = W[rows].sum()
    if not B:
        return rows, torch.as_tensor(W[rows] / total)
    u = keyed_random.uniform(SEED, "rows", IDS[k : k + 1], step, B)[0]
    rows = rows[(u * len(rows)).astype(int)]
    return rows, torch.as_tensor(W[rows] * COUNTS[k] / B / total)


def local(model, k, t, E, B, eta, ridge, beside):
    """A client's steps on its loss and ``beside(features, row)`` of every row."""
    n = E * (-(-int(COUNTS[k]) // B) if B else 1)
    for s in range(n):
        rows, share = drawn(k, t * n + s, B)
        loss = 0.0
        for r, c in zip(rows, share, strict=True):
            z = model.act(model.body(torch.as_tensor(X[r])))
            loss = loss + c * (functional.cross_entropy(model.head(z), torch.as_tensor(Y[r])) + beside(z, r))
        layers = list(model.parameters())
        decay = ridge * float(share.sum())
        for layer, g in zip(layers, torch.autograd.grad(loss, layers), strict=True):
            layer.data -= eta * (g + decay * layer.data)


def filled(row):
    model = net()
    fill(row.clone(), model.parameters())
    return model


def features(row, r):
    a, b = row[: H * P].view(H, P), row[H * P : H * P + H]
    return torch.tanh(a @ torch.as_tensor(X[r]) + b)


def moon(first, chosen, E, B, eta, mu, tau, ridge):
    w, previous = first, {}
    for t, S in enumerate(chosen):
        news, sizes = [], []
        for k in S:
            last = previous.get(k, w)

            def contrast(z, r, sent=w, last=last):
                a, b = (
                    torch.exp(functional.cosine_similarity(z, features(row, r), dim=0) / tau) for row in (sent, last)
                )
                return -mu * torch.log(a / (a + b))

            model = filled(w)
            local(model, k, t, E, B, eta, ridge, contrast)
            previous[k] = flat(model.parameters()).detach()
            news.append(previous[k])
            sizes.append(W[STARTS[k] : STOPS[k]].sum())
        w = sum(n * new for n, new in zip(sizes, news, strict=True)) / sum(sizes)
    return w.numpy()


def fedproto(first, chosen, E, B, eta, lam, ridge):
    own, C = [first] * M, {}
    for t, S in enumerate(chosen):
        sums, rows = {}, {}
        for k in S:
            model = filled(own[k])

            def distance(z, r, known=C):
                return lam * ((z - known[Y[r]]) ** 2).mean() if Y[r] in known else 0.0

            local(model, k, t, E, B, eta, ridge, distance)
            own[k] = flat(model.parameters()).detach()
            for r in range(STARTS[k], STOPS[k]):
                sums[Y[r]] = sums.get(Y[r], 0.0) + W[r] * features(own[k], r)
                rows[Y[r]] = rows.get(Y[r], 0.0) + W[r]
        C = C | {j: sums[j] / rows[j] for j in sums}
    return own, C


def run(method, o):
    fed = InProcess(o, ids=IDS, seed=SEED)
    (state,) = method.run(fed, [ROUNDS], method.init(fed))
    assert o.batched is None or o.batched.works
    return state, method.models(fed, state)


@every
def test_moon_is_that_of_the_paper(how, B, C):
    o, take = clients(how), {"eta": 0.3, "E": 2, "B": B, "C": C}
    state, _ = run(MOON(mu=2.0, tau=0.4, **take), o)
    w = moon(torch.as_tensor(o.start(0)), part(C), 2, B, 0.3, 2.0, 0.4, how.get("ridge", 0.0))
    np.testing.assert_allclose(state["w"], w, rtol=1e-10, atol=1e-12)
    assert np.abs(run(FedAvg(**take), o)[0]["w"] - w).max() > 1e-3


@every
def test_fedproto_is_that_of_the_paper(how, B, C):
    o = clients(how)
    state, models = run(FedProto(eta=0.3, E=2, B=B, C=C, lam=3.0), o)
    own, found = fedproto(torch.as_tensor(o.start(0)), part(C), 2, B, 0.3, 3.0, how.get("ridge", 0.0))
    np.testing.assert_allclose(state["P"], [found[j].numpy() for j in range(K)], rtol=1e-10, atol=1e-12)
    for k in range(M):
        np.testing.assert_allclose(models[k, : P * H + H], own[k][: P * H + H], rtol=1e-10, atol=1e-12)
    z = [features(own[k], r) for k in range(M) for r in range(STARTS[k], STOPS[k])]
    best = [min(found, key=lambda j, one=one: float(((one - found[j]) ** 2).sum())) for one in z]
    np.testing.assert_array_equal(o.predict(models), best)


def test_a_client_that_comes_later_to_fedproto_is_held_near_the_last_prototypes():
    """Two rounds from the first net, near prototypes that stay; it answers by them, as the others do."""
    o, method = clients({}), FedProto(eta=0.3, lam=3.0)
    state, models = run(method, o)
    new, known = join(InProcess(o), method, o.start(0), 2, models.mean(axis=0)), torch.as_tensor(state["P"])
    for k in range(M):
        model = filled(torch.as_tensor(o.start(0)))
        for t in range(2):
            local(model, k, t, 1, 0, 0.3, 0.0, lambda z, r: 3.0 * ((z - known[Y[r]]) ** 2).mean())
        own = flat(model.parameters()).detach()[: P * H + H]
        np.testing.assert_allclose(new[k, : P * H + H], own, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new[:, P * H + H :], models[:, P * H + H :], rtol=1e-12)


def test_a_class_that_nobody_has_is_predicted_for_no_row():
    o = clients({}, np.where(Y == 2, 0, Y))
    state, models = run(FedProto(eta=0.3, lam=1.0), o)
    assert state["n"][2] == 0.0 and not state["P"][2].any() and (o.predict(models) < 2).all()


def test_features_are_those_of_every_clients_own_model():
    o = clients({})
    theta = o.start(0) + 0.1 * np.arange(M)[:, None]
    want = [features(torch.as_tensor(theta[k]), r).numpy() for k in range(M) for r in range(STARTS[k], STOPS[k])]
    np.testing.assert_allclose(o.features(theta, ["head*"]), want, rtol=1e-12)
    np.testing.assert_allclose(clients({"batched": False}).features(theta, ["head*"]), want, rtol=1e-12)
    np.testing.assert_array_equal(o.targets(), Y)


class Inline(nn.Module):
    """A head that is no module of one input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(H, K))

    def forward(self, z):
        return z @ self.weight


def two():
    return nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, K))


SQUARES = partial(clients, {}, X[:, :K], loss="mse")
NO_NET = Quadratic(np.tile(np.eye(3), (2, 1, 1)), np.ones((2, 3)))


@pytest.mark.parametrize(
    ("method", "objective", "sentence"),
    [
        (MOON(eta=0.1), lambda: NO_NET, "'head\\*' matches no parameter"),
        (MOON(eta=0.1, head=("1",)), lambda: NO_NET, names("Features one net Quadratic")),
        (FedProto(eta=0.1, lam=1.0), SQUARES, "FedProto needs a net for classes"),
        (FedProto(eta=0.1, lam=1.0), lambda: clients({}, head=two()), "FedProto needs .*one linear layer with a bias"),
        (FedProto(eta=0.1, lam=1.0, bias=("head*",)), lambda: clients({}, head=Inline()), "FedProto needs a net"),
    ],
    ids=["names", "no net", "numbers", "two layers", "no bias"],
)
def test_what_has_no_features_is_refused(method, objective, sentence):
    with pytest.raises(CoterieError, match=sentence):
        list(method.run(InProcess(objective()), [1]))


def test_fedproto_shares_no_layer():
    with pytest.raises(CoterieError, match="FedProto's clients keep all layers"):
        FedProto(eta=0.1, lam=1.0, personal=("head*",))
