"""Rows of the registry for models with shared and group-specific layers, of one architecture and of several."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from coterie.methods.group_sgd import GroupSGD
from coterie.objectives.deep import Deep
from coterie.objectives.mixed import Mixed
from coterie.objectives.softmax import Softmax
from tests.contract.baseline_cases import classes
from tests.contract.cases import Case, Problem, State, grouped, quadratic, streamed


def parity(fed: Any) -> np.ndarray:
    """Groups that go with clients' labels, not with their place or cluster."""
    return np.unique(fed.clients.ids % np.uint64(2), return_inverse=True)[1]


def architectures(m: int = 23, k: int = 5, seed: int = 0) -> Problem:
    """Softmax with 2, 3 or 4 classes, by cluster."""
    plain = grouped(m, k, seed=seed)
    rng, glm = np.random.default_rng(seed), plain.objective
    y, parts, kind = rng.integers(0, 12, len(glm.X)), [], plain.clusters % 3
    for j in np.unique(kind):
        own = kind == j
        parts.append(Softmax.of(glm.X, y % (2 + j), glm.starts[own], glm.stops[own], 2 + int(j), ridge=0.05))
    if len(parts) == 1:
        return Problem(parts[0], plain.clusters, plain.weights, plain.ids)
    place = np.array([np.sum(kind[:i] == kind[i]) for i in range(m)])
    return Problem(Mixed(parts, kind, place), plain.clusters, plain.weights, plain.ids)


def net(deep: bool) -> nn.Module:
    """The same body under two heads: a layer to 3 classes, or a hidden layer and 2 classes."""
    head = [("hidden", nn.Linear(3, 4)), ("relu", nn.ReLU()), ("out", nn.Linear(4, 2))] if deep else []
    top = head or [("head", nn.Linear(3, 3))]
    return nn.Sequential(OrderedDict([("body", nn.Linear(2, 3)), ("tanh", nn.Tanh()), *top]))


def nets(m: int = 9, k: int = 3, dtype: str = "float64") -> Problem:
    """Clients of odd clusters have the deeper net."""
    plain = grouped(m, k)
    glm, odd, y = plain.objective, plain.clusters % 2 == 1, np.random.default_rng(0).integers(0, 6, 99)
    parts = []
    for deep, here in ((False, ~odd), (True, odd)):
        labels = y[: len(glm.X)] % (2 if deep else 3)
        parts.append(Deep.of(partial(net, deep), glm.X, labels, glm.starts[here], glm.stops[here], dtype=dtype))
    place = np.where(odd, np.cumsum(odd), np.cumsum(~odd)) - 1
    objective = Mixed(parts, odd, place) if odd.any() else parts[0]
    return Problem(objective, plain.clusters, plain.weights, plain.ids)


def padded(rows: Any) -> np.ndarray:
    """Models of unequal size as one array."""
    out = np.zeros((len(rows), max(len(row) for row in rows)), dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def optimum(problem: Problem) -> dict[str, Any]:
    """Of f over [x_s, x_1, ..., x_k] with the second coordinate shared, from one dense system."""
    q, w, k = problem.objective, problem.weights, int(problem.clusters.max()) + 1
    H, h = np.zeros((1 + 2 * k,) * 2), np.zeros(1 + 2 * k)
    for i, g in enumerate(problem.clusters):
        at = np.array([1 + 2 * g, 0, 2 + 2 * g])
        H[np.ix_(at, at)] += w[i] * q.A[i]
        h[at] += w[i] * q.b[i]
    x = np.linalg.solve(H, h)
    theta = np.array([[x[1 + 2 * g], x[0], x[2 + 2 * g]] for g in problem.clusters])
    return {"w": x, "theta": theta}


def grouping(name: str, problem: Any, given: bool = False, **fields: Any) -> Case:
    """A row; results are the augmented model and every client's."""
    more = {key: fields.pop(key) for key in ("optimum", "to_optimum", "random", "tolerance") if key in fields}

    def method(fed: Any) -> GroupSGD:
        return GroupSGD(**fields, group=parity(fed) if given else None)

    def stream(fed: Any, state: State | None = None, rounds: int = 5) -> Iterator[State]:
        yield from method(fed).run(fed, range(1, rounds + 1), state)

    def finish(fed: Any, state: State) -> dict[str, Any]:
        theta = padded(method(fed).models(fed, state))
        return {"w": state["w"], "theta": theta, "share": state["share"], "t": state["t"]}

    return streamed(name, stream, finish=finish, problem=problem, per_client=("theta",), **more)


GROUPS = [
    grouping("group-sgd", quadratic, to_optimum=60, eta=0.25, shared=("1",), own="averaged", optimum=optimum),
    grouping("group-sgd-rows", classes, eta=0.1, shared=("0", "1"), B=2, C=0.5, tau=3, random=True),
    grouping("group-sgd-own", classes, eta=0.1, shared=("0",), personal=("5",), B=2, E=1, weigh="rows", random=True),
    grouping("group-sgd-given", partial(classes, k=3), given=True, eta=0.1, shared=("0", "1"), tau=2),
    grouping("group-sgd-coded", classes, eta=0.1, shared=("0", "1"), B=2, up="qsgd:4", down="float16", random=True),
    grouping("group-sgd-heads", architectures, eta=0.1, shared=("0", "1"), B=2, tau=2, C=0.7, random=True),
    grouping("deep-group-sgd", nets, eta=0.1, shared=("body*",), B=2, tau=2, random=True, tolerance=1e-10),
    grouping(
        "deep-group-sgd-float32",
        partial(nets, dtype="float32"),
        eta=0.1,
        shared=("body*",),
        own="averaged",
        E=1,
        B=2,
        C=0.7,
        random=True,
        tolerance=1e-4,
    ),
]
