"""Known groups on torch models: two architectures that share a body."""

from collections import OrderedDict
from functools import partial

import numpy as np
import torch
from torch import nn

from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.objectives.deep import Deep
from coterie.objectives.mixed import Mixed
from coterie.relations.parameter_layout import GroupLayout

GROUP, ROWS = np.repeat([0, 1], [3, 5]), 12


def net(deep):
    head = [("hidden", nn.Linear(3, 4)), ("relu", nn.ReLU()), ("out", nn.Linear(4, 2))] if deep else []
    top = head or [("head", nn.Linear(3, 3))]
    return nn.Sequential(OrderedDict([("body", nn.Linear(2, 3)), ("tanh", nn.Tanh()), *top]))


def data(seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(8 * ROWS, 2)), rng.integers(0, 6, 8 * ROWS)
    return X, np.where(np.repeat(GROUP, ROWS), y % 2, y % 3)


def federation(dtype="float64", seed=5):
    X, y = data()
    parts = []
    for g, deep in enumerate((False, True)):
        lo = ROWS * np.flatnonzero(g == GROUP)
        parts.append(Deep.of(partial(net, deep), X, y % (2 if deep else 3), lo, lo + ROWS, dtype=dtype))
    return InProcess(Mixed.of(parts), GROUP, seed=seed, threads=1)


def test_a_round_is_a_step_of_torch_on_the_augmented_objective():
    fed, method = federation(), GroupSGD(eta=0.3, shared=("body*",))
    state = method.init(fed)
    layout = GroupLayout(**state["layout"])
    assert layout.shared == 9 and layout.dim == 9 + 12 + 26
    body, *heads = net(False).double(), net(False).double().head, nn.Sequential(*list(net(True).double())[2:])
    places = [*body.body.parameters(), *heads[0].parameters(), *heads[1].parameters()]

    with torch.no_grad():
        for place, numbers in zip(
            places, np.split(state["w"], np.cumsum([p.numel() for p in places])[:-1]), strict=True
        ):
            place.copy_(torch.tensor(numbers).view(place.shape))
    X, y = (torch.tensor(a) for a in data())
    optimiser = torch.optim.SGD(places, lr=0.3)
    for _ in range(4):
        state = method.step(fed, state)
        loss = 0.0
        for i, g in enumerate(GROUP):
            rows = slice(ROWS * i, ROWS * (i + 1))
            outputs = heads[g](torch.tanh(body.body(X[rows])))
            loss = loss + nn.functional.cross_entropy(outputs, y[rows]) / len(GROUP)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ours = np.concatenate([p.detach().numpy().ravel() for p in places])
    np.testing.assert_allclose(state["w"], ours, rtol=1e-10)
    assert [len(one) for one in method.models(fed, state)] == [21] * 3 + [35] * 5
