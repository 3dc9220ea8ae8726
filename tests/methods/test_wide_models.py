"""FedEM and kNN-Per against nets in torch, row by row as the papers have them; their answers; what they refuse."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedem import FedEM
from coterie.methods.knn_per import KNNPer
from coterie.methods.local_training.new_client import join
from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Draws, Walk
from coterie.objectives.holdout import halves
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.messages import names
from tests.methods.test_features import (
    COUNTS,
    IDS,
    SEED,
    STARTS,
    STOPS,
    H,
    K,
    M,
    P,
    W,
    X,
    Y,
    drawn,
    features,
    part,
    run,
)

close = {"rtol": 1e-10, "atol": 1e-12}
TARGETS = {"cross_entropy": Y, "mse": X[:, :2] ** 2, "bce": (Y == 1)[:, None].astype(float)}
WIDE = {"cross_entropy": K, "mse": 2, "bce": 1}


def made(wide):
    return nn.Sequential(nn.Linear(P, H), nn.Tanh(), nn.Linear(H, wide)).double()


def clients(loss, **how):
    return Deep.of(
        partial(made, WIDE[loss]), X, TARGETS[loss], STARTS, STOPS, dtype="float64", weights=W, loss=loss, **how
    )


def net(row, x, wide):
    """Outputs of a net whose numbers are a flat row."""
    parts = row.split([H * P, H, wide * H, wide])
    z = torch.tanh(parts[0].view(H, P) @ torch.as_tensor(x) + parts[1])
    return parts[2].view(wide, H) @ z + parts[3]


def row_loss(loss, outputs, r):
    y = torch.as_tensor(TARGETS[loss][r])
    if loss == "mse":
        return ((outputs - y) ** 2).mean()
    if loss == "bce":
        return functional.binary_cross_entropy_with_logits(outputs, y)
    return functional.cross_entropy(outputs, y)


def own(k):
    return range(STARTS[k], STOPS[k])


def e_step(loss, w, pi, k, scale):
    q = {}
    for r in own(k):
        each = np.array([float(row_loss(loss, net(c, X[r], WIDE[loss]), r)) for c in w])
        q[r] = pi * np.exp(-each / scale) / np.sum(pi * np.exp(-each / scale))
    return q, sum(W[r] * q[r] for r in own(k)) / sum(W[r] for r in own(k))


def fedem(loss, w, chosen, tau, B, eta, ridge, scale):
    pi = [np.full(len(w), 1.0 / len(w))] * M
    for t, S in enumerate(chosen):
        news, sizes = [], []
        for k in S:
            q, pi[k] = e_step(loss, w, pi[k], k, scale)
            own_ones = []
            for j, c in enumerate(w):
                theta = c.clone().requires_grad_(True)
                for s in range(tau):
                    rows, share = drawn(k, t * tau + s, B)
                    f = sum(
                        c * q[r][j] * (row_loss(loss, net(theta, X[r], WIDE[loss]), r) + ridge * theta @ theta / 2)
                        for r, c in zip(rows, share, strict=True)
                    )
                    theta = (theta - eta * torch.autograd.grad(f, theta)[0]).detach().requires_grad_(True)
                own_ones.append(theta.detach())
            news.append(own_ones)
            sizes.append(W[STARTS[k] : STOPS[k]].sum())
        w = [sum(n * one[j] for n, one in zip(sizes, news, strict=True)) / sum(sizes) for j in range(len(w))]
    return w, np.array(pi)


def mean_of(loss, outputs):
    if loss == "mse":
        return outputs
    return torch.softmax(outputs, 0) if loss == "cross_entropy" else torch.sigmoid(outputs)


def loss_at(loss, mean, r):
    """Of a mean outcome."""
    y = TARGETS[loss][r]
    if loss == "mse":
        return np.mean((mean - y) ** 2)
    return (
        -np.log(max(mean[y], 1e-300)) if loss == "cross_entropy" else -np.log(mean if y == 1.0 else 1.0 - mean).item()
    )


def check_answers(loss, read, models, want):
    """What is said of every row: its mean outcome, its loss, and the share that is right."""
    np.testing.assert_allclose(read.means(models), want, **close)
    each = [loss_at(loss, want[r], r) for r in range(len(X))]
    np.testing.assert_allclose(read.row_losses(models), each, **close)
    np.testing.assert_allclose(read.value(models), [sum(W[r] * each[r] for r in own(k)) for k in range(M)], **close)
    if loss != "mse":
        hit = (want.argmax(1) == Y) if loss == "cross_entropy" else ((want > 0.5) == TARGETS[loss])[:, 0]
        right = [np.average(hit[STARTS[k] : STOPS[k]], weights=W[STARTS[k] : STOPS[k]]) for k in range(M)]
        np.testing.assert_allclose(read.accuracy(models), right, **close)


@pytest.mark.parametrize(
    ("loss", "how", "B", "C"),
    [
        ("cross_entropy", {}, 2, 0.6),
        ("cross_entropy", {"batched": False, "ridge": 0.2}, 0, 1.0),
        ("mse", {"ridge": 0.2}, 2, 1.0),
        ("bce", {}, 0, 0.6),
    ],
    ids=str,
)
def test_fedem_is_that_of_the_paper(loss, how, B, C):
    noise = 0.3 if loss == "mse" else None
    o, method = clients(loss, **how), FedEM(eta=0.4, k=2, tau=3, B=B, C=C, noise=noise)
    first = method.init(InProcess(o, ids=IDS, seed=SEED))["w"]
    state, models = run(method, o)
    scale = 0.6 if loss == "mse" else 1.0
    w, pi = fedem(loss, list(torch.as_tensor(first)), part(C), 3, B, 0.4, how.get("ridge", 0.0), scale)
    np.testing.assert_allclose(state["w"], np.stack(w), **close)
    np.testing.assert_allclose(models, np.c_[np.tile(np.concatenate(w), (M, 1)), pi], **close)
    assert np.ptp(pi[:, 0]) > 0.01
    owner = np.repeat(np.arange(M), COUNTS)
    each = [[mean_of(loss, net(c, x, WIDE[loss])).numpy() for c in w] for x in X]
    want = np.einsum("nk,nkq->nq", pi[owner], np.array(each))
    check_answers(loss, method.reads(o, models.shape[1]), models, want)


def test_a_client_that_comes_later_to_fedem_learns_its_shares_alone():
    o, method = clients("cross_entropy"), FedEM(eta=0.4, k=2)
    w = method.init(InProcess(o))["w"]
    models, pi = join(InProcess(o.take(np.array([1]))), method, w, 4), np.full(2, 0.5)
    for _ in range(4):
        _, pi = e_step("cross_entropy", list(torch.as_tensor(w)), pi, 1, 1.0)
    np.testing.assert_allclose(models, [np.concatenate([w.ravel(), pi])], **close)


def test_fedem_of_one_component_is_fedavg():
    fed, start = InProcess(clients("cross_entropy")), clients("cross_entropy").start(0)
    one, same = FedEM(eta=0.4, k=1, tau=1), FedAvg(eta=0.4)
    (state,), (plain,) = one.run(fed, [3], one.init(fed, start[None])), same.run(fed, [3], same.init(fed, start))
    np.testing.assert_allclose(state["w"][0], plain["w"], **close)


def test_fedem_of_softmax_answers_by_both():
    o = Softmax.of(X, Y, STARTS, STOPS, K, W)
    method, fed = FedEM(eta=0.4, k=2, tau=2), InProcess(o)
    (state,) = method.run(fed, [3])
    models = method.models(fed, state)
    e = np.exp(np.einsum("np,kpc->nkc", X, state["w"].reshape(2, P, K)))
    want = np.einsum("nk,nkc->nc", models[:, -2:][np.repeat(np.arange(M), COUNTS)], e / e.sum(2, keepdims=True))
    check_answers("cross_entropy", method.reads(o, models.shape[1]), models, want)


def remembered(loss, w, k, rows, x, near, scale):
    """``sum_i a_i y_i`` over the nearest of some rows of a client."""
    away = [(float((features(w, r) - features_of(w, x)).norm()), r) for r in rows]
    first = sorted(away)[:near]
    a = np.array([np.exp(-d / scale) for d, _ in first])
    y = [np.eye(K)[Y[r]] if loss == "cross_entropy" else TARGETS[loss][r] for _, r in first]
    return a @ np.array(y) / a.sum()


def features_of(w, x):
    return torch.tanh(w[: H * P].view(H, P) @ torch.as_tensor(x) + w[H * P : H * P + H])


@pytest.mark.parametrize(
    ("loss", "how", "held", "near"),
    [
        ("cross_entropy", {}, 0.0, 4),
        ("cross_entropy", {"batched": False}, 0.4, 3),
        ("mse", {}, 0.4, 50),
        ("bce", {}, 0.0, 1),
    ],
    ids=str,
)
def test_knn_per_is_that_of_the_paper(loss, how, held, near):
    o = clients(loss, **how)
    method = KNNPer(eta=0.4, B=2, C=0.6, head=("2*",), k=near, scale=0.5, lam=0.3, held=held)
    state, models = run(method, o)
    back, rest = halves(o, IDS, SEED, held) if held else (None, o)
    np.testing.assert_allclose(state["w"], run(FedAvg(eta=0.4, B=2, C=0.6), rest)[0]["w"], **close)
    w, want, lams = torch.as_tensor(state["w"]), [], []
    others = np.random.default_rng(5).normal(size=X.shape)  # rows of nobody's memory
    for k in range(M):
        kept = [r for r in own(k) if rest.weights[r] > 0.0]

        def both(x, k=k, kept=kept):
            return remembered(loss, w, k, kept, x, near, 0.5), mean_of(loss, net(w, x, WIDE[loss])).numpy()

        lam = 0.3
        if held:
            tried = [a / 10 for a in range(11)]
            losses = [
                sum(back.weights[r] * loss_at(loss, a * both(X[r])[0] + (1 - a) * both(X[r])[1], r) for r in own(k))
                for a in tried
            ]
            lam = tried[int(np.argmin(losses))]
        lams.append(lam)
        want += [lam * both(others[r])[0] + (1 - lam) * both(others[r])[1] for r in own(k)]
    np.testing.assert_allclose(models[:, o.dim], lams, **close)
    assert not held or len(set(lams)) > 1
    test = Deep.of(
        partial(made, WIDE[loss]), others, TARGETS[loss], STARTS, STOPS, dtype="float64", weights=W, loss=loss
    )
    check_answers(loss, method.reads(test, models.shape[1]), models, np.array(want))


def test_a_client_without_memory_asks_its_net():
    o = clients("cross_entropy")
    method = KNNPer(eta=0.4, head=("2*",))
    _, models = run(method, o)
    models[0, o.dim + 1] = 0.0
    found, plain = method.reads(o, models.shape[1]).outputs(models), o.outputs(models[:, : o.dim])
    np.testing.assert_allclose(
        found[: COUNTS[0]], functional.log_softmax(torch.as_tensor(plain), 1)[: COUNTS[0]], **close
    )
    assert (
        np.abs(found[COUNTS[0] :] - functional.log_softmax(torch.as_tensor(plain), 1).numpy()[COUNTS[0] :]).max() > 0.01
    )


OWN_LOSS = partial(
    Deep.of, partial(made, K), X, Y, STARTS, STOPS, loss=partial(functional.cross_entropy, reduction="none")
)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedEM(eta=0.1, k=2, up="qsgd:6"), "FedEM's clients send all .*leave up, down and personal out"),
        (lambda: KNNPer(eta=0.1, held=1.0), names("held number below 1")),
        (
            lambda: list(
                FedEM(eta=0.1, k=2).run(InProcess(Quadratic(np.tile(np.eye(3), (2, 1, 1)), np.ones((2, 3)))), [1])
            ),
            "FedEM asks for losses of single rows, which Quadratic has not",
        ),
        (lambda: run(FedEM(eta=0.1, k=2), OWN_LOSS()), "FedEM mixes .*take the loss cross_entropy, bce or mse"),
        (lambda: run(KNNPer(eta=0.1, head=("2*",)), OWN_LOSS()), "kNN-Per mixes .*take the loss"),
        (lambda: run(KNNPer(eta=0.1), clients("mse")), "'head\\*' matches no parameter"),
    ],
    ids=["codec", "held", "no rows", "own loss", "own loss remembered", "no head"],
)
def test_what_cannot_be_is_named(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()


@pytest.mark.parametrize("B", [0, 3])
def test_statistics_rest_where_no_row_weighs(B):
    """Those of a component that no row comes of, and of a client whose rows weigh 0, moved to those of rows of 0."""

    def normed():
        return nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), nn.Tanh(), nn.Linear(H, K)).double()

    weights = np.where(np.arange(len(W)) < STOPS[0], 0.0, W)
    how = {"dtype": "float64", "loss": "cross_entropy", "buffers": "averaged"}
    o = Deep.of(normed, X, 0 * Y, STARTS, STOPS, weights=weights, **how)
    start = np.tile(o.start(0), (M, 1))
    moved = o.walk(start, Walk(np.full(M, 0.1), np.full(M, 2), Draws(IDS, np.zeros(M, dtype=np.int64), B)))
    np.testing.assert_array_equal(moved[0], start[0])
    assert (np.abs(moved - start).max(axis=1)[1:] > 1e-3).all()

    first = np.tile(o.start(0), (2, 1))
    for values, bias in zip(first, np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3000.0]]), strict=True):
        module = o.module(values)
        nn.init.zeros_(module[3].weight)
        module[3].bias.data = torch.as_tensor(bias)
        values[:] = o.flat(module)
    method, fed = FedEM(eta=0.1, k=2, tau=2, B=B), InProcess(o, ids=IDS, seed=SEED)
    (state,) = method.run(fed, [1], method.init(fed, first))
    np.testing.assert_allclose(state["w"][1], first[1], rtol=1e-14)
    assert np.abs(state["w"][0] - first[0]).max() > 1e-3
