"""FedROD against two heads in torch, as the paper has them; the shares of classes; and what it cannot train."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedrod import FedROD
from coterie.objectives.deep import Deep
from coterie.objectives.quadratic import Quadratic

P, H, K, COUNTS = 3, 4, 3, np.array([5, 8, 3])


def rows():
    """The second client has no row of class 2."""
    rng, stops = np.random.default_rng(0), np.cumsum(COUNTS)
    y = rng.integers(0, K, stops[-1])
    y[5:13] %= 2
    return rng.normal(size=(stops[-1], P)), y, stops - COUNTS, stops


def net(head=None):
    return nn.Sequential(
        OrderedDict([("body", nn.Linear(P, H)), ("act", nn.Tanh()), ("head", head or nn.Linear(H, K))])
    ).double()


def two_heads(X, y, starts, stops, first, eta, passes, rounds, ridge=0.0, clip=np.inf, momentum=0.0):
    """Word by word: a generic head on balanced softmax, a personal one on features and scores that are detached."""
    shared, own = first, {}
    for _ in range(rounds):
        news = []
        for i, (a, b) in enumerate(zip(starts, stops, strict=True)):
            model = net()
            nn.utils.vector_to_parameters(shared.clone(), model.parameters())
            personal = nn.Linear(H, K).double()
            if i not in own:
                own[i] = torch.zeros(K * H + K, dtype=torch.float64)
            nn.utils.vector_to_parameters(own[i].clone(), personal.parameters())
            x, labels = torch.as_tensor(X[a:b]), torch.as_tensor(y[a:b])
            counts = torch.bincount(labels, minlength=K).double()
            layers = [*model.parameters(), *personal.parameters()]
            speed = [torch.zeros_like(layer) for layer in layers]
            for _ in range(passes):
                features = model.act(model.body(x))
                scores = model.head(features)
                generic = functional.cross_entropy(scores + counts.log(), labels)
                both = functional.cross_entropy(scores.detach() + personal(features.detach()), labels)
                steps = torch.autograd.grad(generic, list(model.parameters()))
                turns = torch.autograd.grad(both, list(personal.parameters()))
                for grads in (steps, turns):  # each head's step has a bound of its own
                    size = float(torch.cat([g.flatten() for g in grads]).norm())
                    for g in grads:
                        g *= min(clip / size, 1.0)
                with torch.no_grad():
                    for layer, v, g in zip(layers, speed, [*steps, *turns], strict=True):
                        v.mul_(momentum).add_(g + ridge * layer)
                        layer -= eta * v
            own[i] = nn.utils.parameters_to_vector(personal.parameters()).detach()
            news.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        shared = sum(float(n) * w for n, w in zip(stops - starts, news, strict=True)) / float(stops[-1])
    models = [torch.cat([shared[: P * H + H], shared[P * H + H :] + own[i]]).numpy() for i in range(len(starts))]
    return shared.numpy(), np.array(models)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("how", [{}, {"clip": 0.2}, {"ridge": 0.1}, {"momentum": 0.5}])
def test_two_heads_are_those_of_the_paper(how, batched):
    """Weight decay is of each head by itself: of the sum with the logarithms of shares it was 25 off."""
    X, y, starts, stops = rows()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = net()
    o = Deep.of(model, X, y, starts, stops, dtype="float64", batched=batched, **how)
    method, fed = FedROD(eta=0.3, E=4), InProcess(o)
    start = o.flat(model)
    (state,) = method.run(fed, [5], method.init(fed, start))
    w, models = two_heads(X, y, starts, stops, torch.as_tensor(start), 0.3, 4, 5, **how)
    np.testing.assert_allclose(state["w"], w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(method.models(fed, state), models, rtol=1e-10, atol=1e-12)
    assert np.abs(models[0] - models[1]).max() > 0.01


@pytest.mark.parametrize(
    ("objective", "how"),
    [
        (Quadratic(np.tile(np.eye(3), (2, 1, 1)), np.ones((2, 3))), {"head": ("1", "2"), "bias": ("1", "2")}),
        (Deep.of(net(nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, K))), *rows(), dtype="float64"), {}),
    ],
    ids=["no classes", "a head of two layers"],
)
def test_what_has_no_linear_head_of_classes_is_refused(objective, how):
    fed = InProcess(objective)
    with pytest.raises(CoterieError, match="FedROD needs a net for classes"):
        list(FedROD(eta=0.1, **how).run(fed, [1]))


def test_statistics_dropout_and_frozen_layers_beside_two_heads_are_those_of_one_net():
    """A round leaves the statistics that the step of a net without an own head leaves: rows passed once."""
    X, y, starts, stops = rows()
    body = nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), nn.Dropout(0.5), nn.Linear(H, H))
    body[0].weight.requires_grad_(False)
    model = nn.Sequential(OrderedDict([("body", body), ("act", nn.Tanh()), ("head", nn.Linear(H, K))])).double()
    o = Deep.of(model, X, y, starts, stops, dtype="float64")
    statistics = np.repeat(["running" in name for name in o.names], list(o.names.values()))
    found = []
    for method in (FedROD(eta=0.3, B=4), FedAvg(eta=0.3, E=1, B=4)):
        fed = InProcess(o)
        (state,) = method.run(fed, [1], method.init(fed, o.flat(model)))
        found.append(method.models(fed, state))
        assert np.isfinite(found[-1]).all() and (found[-1] != o.flat(model)).any(axis=1).all()
    last = [one[:, statistics] for one in found]  # of what a weight that rests gives; its bias has no gradient
    np.testing.assert_allclose(last[0], last[1], rtol=1e-12)
    assert np.abs(last[0] - o.flat(model)[statistics]).max() > 0.01
