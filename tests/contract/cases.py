"""The registry of the contract suite: a new method adds one row to ``CASES`` and every law is tried on it.

The methods here are small ones, written against the contract alone; each uses one more of its parts.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engines import InProcess, Loopback
from coterie.federation import PerCluster, PerRow, Ragged, work
from coterie.objectives.quadratic import Quadratic

State = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What a federation is made of."""

    objective: Any
    clusters: np.ndarray
    weights: np.ndarray
    ids: np.ndarray

    def permuted(self, order: np.ndarray) -> Problem:
        """The same clients in another order (which must keep clusters together)."""
        return Problem(self.objective.take(order), self.clusters[order], self.weights[order], self.ids[order])


def quadratic(m: int = 23, d: int = 3, k: int = 5, seed: int = 0) -> Problem:
    """Well-conditioned quadratics in k clusters of unequal size."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    clusters = np.sort(np.concatenate([np.arange(min(k, m)), rng.integers(0, min(k, m), m - min(k, m))]))
    ids = rng.integers(0, 2**64, m, dtype=np.uint64)
    objective = Quadratic(root @ root.transpose(0, 2, 1) / d + np.eye(d), rng.normal(size=(m, d)))
    return Problem(objective, clusters, rng.uniform(0.5, 2.0, m), ids)


@dataclass(frozen=True)
class Case:
    """One row of the registry.

    Attributes
    ----------
    name : str
    run : callable
        ``run(fed) -> dict of arrays``: the whole method.
    stream : callable, optional
        ``stream(fed, state=None)``: a generator of states, each with all that is needed to go on from it.
    finish : callable
        ``finish(fed, state) -> dict of arrays``: results from a state of the stream.
    problem : callable
        Makes the problem, the same at every call. It is also called with ``m=1``.
    per_client : tuple of str
        Results whose leading axis is clients.
    optimum : callable, optional
        ``optimum(problem) -> dict``: what ``run`` must reach within 1e-6.
    tolerance : float
        Relative, for other partitions into sites (1e-12 in float64, 1e-6 in float32).
    random : bool
        Whether another seed gives another result.
    """

    name: str
    run: Callable[[Any], Mapping[str, Any]]
    stream: Callable[..., Iterator[State]] | None = None
    finish: Callable[[Any, State], Mapping[str, Any]] = lambda fed, state: state
    problem: Callable[..., Problem] = quadratic
    per_client: tuple[str, ...] = ()
    optimum: Callable[[Problem], Mapping[str, Any]] | None = None
    tolerance: float = 1e-12
    random: bool = False


def make_federation(engine: str, problem: Problem, partition: Any = 1, seed: int = 7, **options: Any) -> Any:
    """A federation by engine name; ``partition`` (a number, or clients of each site) is for engines with sites.

    Engines: "inprocess"; "blocks" (in process, 3 clients at a time in 2 threads); "loopback".
    Further options are the engine's own: ``faults``, ``retries``, ``folder``, ``tap``...
    """
    data = (problem.objective, problem.clusters, problem.weights, problem.ids)
    if engine == "inprocess":
        return InProcess(*data, seed=seed, **options)
    if engine == "blocks":
        return InProcess(*data, seed=seed, **{"block": 3, "threads": 2} | options)
    return Loopback(*data, seed=seed, sites=partition, **options)


def last(states: Iterator[State]) -> State:
    """The last state of a stream."""
    return collections.deque(states, maxlen=1)[0]


def streamed(name: str, stream: Callable[..., Iterator[State]], **fields: Any) -> Case:
    """A row for a method that is a generator of states."""
    finish = fields.get("finish", Case.finish)

    def run(fed: Any) -> Mapping[str, Any]:
        return finish(fed, last(stream(fed)))

    return Case(name, run, stream, **fields)


def dim(fed: Any) -> int:
    """Number of parameters, known only to the sites."""
    found = fed.ask(shape, to=[0])
    return int(found["d"][0]) if found else 3


@work
def shape(site):
    return {"d": np.full(len(site), site.objective.dim)}


# -- pooled gradient descent: means are ratios of two sums


@work
def weighted_gradient(site, x):
    site.count(gradients=len(site))
    return {"g": site.weights[:, None] * site.objective.gradient(x), "w": site.weights}


def pooled(fed, state=None, steps=80):
    state = state or {"t": 0, "x": np.zeros(dim(fed))}
    while state["t"] < steps:
        sums = fed.total(weighted_gradient, x=state["x"])
        x = state["x"] - 0.3 * sums["g"] / sums["w"] if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


def pooled_optimum(problem):
    w, q = problem.weights, problem.objective
    return {"x": np.linalg.solve(np.einsum("m,mij->ij", w, q.A), w @ q.b)}


# -- personal models in state, tied to a shared one


@work
def personal_step(site, x, eta, gamma):
    u = site.state.get("u", np.zeros((len(site), len(x))))
    site.state["u"] = u - eta * (site.objective.gradient(u) + gamma * (u - x))
    site.state["steps"] = site.state.get("steps", np.zeros(len(site), np.int64)) + 1
    site.count(gradients=len(site))
    return {"u": site.state["u"], "moved": np.linalg.norm(site.state["u"] - u, axis=1)}


@work
def personal(site, d):
    return {"u": site.state.get("u", np.zeros((len(site), d)))}


def tied(fed, state=None, steps=6):
    state = state or {"t": 0, "x": np.zeros(dim(fed)), "moved": 0.0}
    while state["t"] < steps:
        sums = fed.total(personal_step, x=state["x"], eta=0.2, gamma=0.5)
        x, moved = (sums["u"] / sums.count, sums["moved"] / sums.count) if sums else (state["x"], 0.0)
        state = {"t": state["t"] + 1, "x": x, "moved": moved}
        yield state


def with_personal(fed, state):
    return {**state, **fed.ask(personal, d=len(state["x"]))}


# -- every client is the main one once: all averages in one exchange, with repeated clients


@work
def collaborator_gradient(site, x, w):
    return {"g": w[:, None] * site.objective.gradient(x)}


def main_clients(fed, state=None, steps=4):
    n = len(fed.clients)
    state = state or {"t": 0, "X": np.zeros((n, dim(fed)))}
    i, k = np.divmod(np.arange(n * n), n)
    w = np.where(i == k, 0.5, 0.5 / max(n - 1, 1))
    while state["t"] < steps:
        sums = fed.total(collaborator_gradient, to=k, by=i, groups=n, x=PerRow(state["X"][i]), w=PerRow(w))
        state = {"t": state["t"] + 1, "X": state["X"] - 0.2 * sums["g"] if sums else state["X"]}
        yield state


# -- clusters with schedules of their own


@work
def cluster_steps(site, W, steps):
    x = W[site.clusters]
    for t in range(steps.max()):
        x = x - (0.2 * (t < steps[site.clusters]))[:, None] * site.objective.gradient(x)
    return {"x": site.weights[:, None] * x, "w": site.weights}


def clusterwise(fed, state=None, rounds=4):
    k = fed.clients.k
    state = state or {"t": 0, "W": np.zeros((k, dim(fed)))}
    while state["t"] < rounds:
        steps = 1 + (np.arange(k) + state["t"]) % 3
        sums = fed.total(cluster_steps, by="cluster", W=PerCluster(state["W"]), steps=PerCluster(steps))
        W = state["W"].copy()
        if sums:
            here = sums.count > 0
            W[here] = sums["x"][here] / sums["w"][here, None]
        state = {"t": state["t"] + 1, "W": W}
        yield state


# -- heads with shapes of their own: the engine calls the work once for each cluster


@work
def head_gradient(site, x, head):
    width = head.shape[1]
    z = site.objective.gradient(x)[:, :1] - head[site.clusters]
    return {"shared": site.objective.gradient(x) + width, "head": -z, "n": np.ones(len(site))}


def heads(fed, state=None, steps=4):
    k = fed.clients.k
    state = state or {"t": 0, "x": np.zeros(dim(fed)), **{f"head{j}": np.zeros(1 + j % 3) for j in range(k)}}
    while state["t"] < steps:
        parts = [state[f"head{j}"] for j in range(k)]
        sums = fed.total(head_gradient, by="cluster", x=state["x"], head=PerCluster(parts))
        x = state["x"]
        for j in np.flatnonzero(sums.count):
            parts[j] = parts[j] - 0.1 * sums["head"][j] / sums["n"][j]
            x = x - 0.01 * sums["shared"][j] / sums["n"][j]
        state = {"t": state["t"] + 1, "x": x, **{f"head{j}": p for j, p in enumerate(parts)}}
        yield state


# -- bytes of different lengths in both directions, and error feedback as ordinary state


@work
def packed_gradient(site, x, hint):
    """Coordinates above a threshold of the client, in float64 bytes; what is left out is kept for the next time."""
    e = site.state.get("e", np.zeros((len(site), len(x))))
    g = site.objective.gradient(x) + e
    send = np.abs(g) >= 0.5 * np.abs(g).max(axis=1, keepdims=True)
    site.state["e"] = np.where(send, 0.0, g)
    heard = np.array([hint[r].sum() for r in range(len(site))], dtype=np.int64)
    rows = [g[r][send[r]].tobytes() for r in range(len(site))]
    return {"mask": send, "payload": Ragged.of(rows), "heard": heard}


def packed(fed, state=None, steps=5):
    n = len(fed.clients)
    state = state or {"t": 0, "x": np.zeros(dim(fed)), "heard": np.zeros(n, np.int64)}
    while state["t"] < steps:
        hints = Ragged.of([bytes([1, 2, 3][: (c + state["t"]) % 4]) for c in fed.clients.clusters])
        replies = fed.ask(packed_gradient, x=state["x"], hint=PerRow(hints))
        x, heard = state["x"], state["heard"].copy()
        if replies:
            g = np.zeros(replies["mask"].shape)
            g[replies["mask"]] = np.frombuffer(replies["payload"].values.tobytes(), np.float64)
            x = x - 0.2 * g.mean(axis=0)
            heard[replies.rows] += replies["heard"]
        state = {"t": state["t"] + 1, "x": x, "heard": heard}
        yield state


# -- random minibatches, coins and shuffles, keyed by client and by the method's own step


@work
def random_gradient(site, x, step):
    keep = site.uniform(len(x), step, "coordinates") < 0.5
    noise = np.stack([site.generator(i, step, "noise").normal(size=len(x)) for i in range(len(site))])
    return {"g": keep * (site.objective.gradient(x) + 0.1 * noise)}


def stochastic(fed, state=None, steps=5):
    state = state or {"t": 0, "x": np.zeros(dim(fed))}
    while state["t"] < steps:
        sums = fed.total(random_gradient, x=state["x"], step=state["t"])
        x = state["x"] - 0.2 * sums["g"] / sums.count if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


# -- single precision, in nested messages


@work
def narrow_gradient(site, model):
    g = site.objective.gradient(model["layers"][0]) * model["scale"]
    return {"g": g.astype(np.float32)}


def narrow(fed, state=None, steps=5):
    state = state or {"t": 0, "x": np.zeros(dim(fed), np.float32)}
    while state["t"] < steps:
        sums = fed.total(narrow_gradient, model={"layers": [state["x"]], "scale": 0.5, "name": "x"})
        x = state["x"] - np.float32(0.2) * sums["g"] / np.float32(sums.count) if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


CASES = [
    streamed("pooled", pooled, optimum=pooled_optimum),
    streamed("tied", tied, finish=with_personal, per_client=("u",)),
    streamed("main-clients", main_clients, per_client=("X",)),
    streamed("clusterwise", clusterwise),
    streamed("heads", heads),
    streamed("packed", packed, per_client=("heard",)),
    streamed("stochastic", stochastic, random=True),
    streamed("narrow", narrow, tolerance=1e-6),
]
