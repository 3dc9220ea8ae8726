"""Rows of the registry for methods in which clients train at home: FedAvg, Ditto, pFedMe, IFCA."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.ifca import IFCA
from coterie.methods.pfedme import PFedMe
from coterie.objectives.softmax import Softmax
from tests.contract.cases import Case, Problem, State, grouped, quadratic, streamed
from tests.methods.layered import layered


def classes(m: int = 23, k: int = 5, K: int = 3, seed: int = 0) -> Problem:
    """Rows with three classes, whose meaning differs between two kinds of clients."""
    plain = grouped(m, k, seed=seed)
    rng, glm = np.random.default_rng(seed), plain.objective
    owner = np.repeat(np.arange(m), glm.counts)
    y = (glm.X @ rng.normal(size=(2, K)) + 0.5 * rng.normal(size=(len(glm.X), K))).argmax(axis=1)
    objective = Softmax.of(glm.X, (y + owner % 2) % K, glm.starts, glm.stops, K, ridge=0.01)
    return Problem(objective, plain.clusters, plain.weights, plain.ids)


def training(method: Any, fed: Any, state: State | None = None, rounds: int = 5) -> Iterator[State]:
    """Five rounds, each a state."""
    yield from method.run(fed, range(1, rounds + 1), state)


def baseline(name: str, method: Any, problem: Any, **fields: Any) -> Case:
    """A row for one method; results are the shared models and every client's own."""

    def finish(fed: Any, state: State) -> dict[str, Any]:
        found = {"w": state["w"], "theta": method.models(fed, state), "t": state["t"]}
        return found | ({"group": state["group"]} if "group" in state else {})

    fields = {"per_client": ("theta", "group") if isinstance(method, IFCA) else ("theta",)} | fields
    return streamed(name, partial(training, method), finish=finish, problem=problem, **fields)


def optimum(problem: Problem) -> dict[str, Any]:
    """Of ``sum_k weight_k F_k``, where one step a round goes."""
    q, w = problem.objective, problem.weights
    return {"w": np.linalg.solve(np.einsum("m,mij->ij", w, q.A), w @ q.b)}


def envelopes(problem: Problem, lam: float = 2.0) -> dict[str, Any]:
    """Of the weighted mean of Moreau envelopes, and the points that attain them."""
    q, w, one = problem.objective, problem.weights, np.eye(problem.objective.dim)
    H = np.linalg.inv(q.A + lam * one)  # theta(w) = H (b + lam w), and the gradient is lam (w - theta(w))
    at = np.linalg.solve(np.einsum("m,mij->ij", w, one - lam * H), np.einsum("m,mij,mj->i", w, H, q.b))
    return {"w": at, "theta": np.einsum("mij,mj->mi", H, q.b + lam * at)}


def personal(problem: Problem, lam: float = 0.7) -> dict[str, Any]:
    """Ditto's: the shared optimum, and ``argmin F_k(v) + lam |v - w|^2 / 2``."""
    q, w = problem.objective, optimum(problem)["w"]
    H = np.linalg.inv(q.A + lam * np.eye(q.dim))
    return {"w": w, "theta": np.einsum("mij,mj->mi", H, q.b + lam * w)}


def layers(m: int = 23, k: int = 5, seed: int = 0) -> Problem:
    """Layers with names and first values, in single precision."""
    plain = quadratic(m, k=k, seed=seed)
    return Problem(layered(m, seed), plain.clusters, plain.weights, plain.ids)


HEAD: dict[str, Any] = {"personal": ("head",)}
SINGLE = 1e-5
CODED: dict[str, Any] = {"up": "topk:0.4", "down": "qsgd:6"}

BASELINES = [
    baseline("fedavg", FedAvg(eta=0.2), quadratic, to_optimum=40, optimum=optimum),
    baseline("fedavg-rows", FedAvg(eta=0.1, B=2, C=0.5, E=2, finetune=5), classes, random=True),
    baseline("ditto", Ditto(eta=0.2, lam=0.7, s=2), quadratic, to_optimum=40, optimum=personal),
    baseline("ditto-rows", Ditto(eta=0.1, lam=0.7, B=2, s=3, C=0.5), grouped, random=True),
    baseline("pfedme", PFedMe(eta=0.5, lam=2.0, alpha=0.15, K=30), quadratic, to_optimum=40, optimum=envelopes),
    baseline("pfedme-rows", PFedMe(eta=0.1, lam=2.0, alpha=0.1, B=2, R=3, C=0.5, beta=1.5), classes, random=True),
    baseline("ifca", IFCA(eta=0.2, k=2, tau=3), classes),
    baseline("ifca-rows", IFCA(eta=0.1, k=3, tau=3, B=2, C=0.5), grouped, random=True),
    baseline("fedavg-head", FedAvg(eta=0.1, C=0.5, E=2, finetune=2, **HEAD), layers, tolerance=SINGLE),
    baseline("fedavg-coded", FedAvg(eta=0.1, B=2, C=0.5, up="tv:4", down="tv:4"), classes, random=True),
    baseline("fedavg-head-coded", FedAvg(eta=0.1, E=2, up="qsgd:6", **HEAD), layers, tolerance=SINGLE, random=True),
    baseline("ditto-head-coded", Ditto(eta=0.1, lam=0.7, s=2, **HEAD, **CODED), layers, tolerance=SINGLE),
    baseline("pfedme-head", PFedMe(eta=0.3, lam=2.0, alpha=0.1, **HEAD), layers, tolerance=SINGLE),
    baseline("pfedme-coded", PFedMe(eta=0.1, lam=2.0, alpha=0.1, B=2, R=3, C=0.5, **CODED), classes, random=True),
    baseline("ifca-head-coded", IFCA(eta=0.1, k=2, tau=2, C=0.5, **HEAD, **CODED), layers, tolerance=SINGLE),
]
