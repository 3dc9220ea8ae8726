"""Rounds of FedAvg on torch models against a plain loop over clients, and what codecs save on Fashion-MNIST."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.measure import Row, skipped
from coterie.data.images import fashion
from coterie.data.partition import PartitionedRows, dirichlet
from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.objectives.deep import Deep
from coterie.objectives.deep.nets import cnn, mlp

CLIENTS, ALPHA, BATCH, ETA = 20, 0.1, 10, 0.05
ROWS, ROUNDS = 6000, 8
CODECS = ({"up": "tv:4:relative=1", "down": "tv:4:relative=1"}, {"up": "qsgd:4", "down": "qsgd:4"})
SMALL = 1000


@dataclass(frozen=True)
class Images:
    """Fashion-MNIST as twenty clients hold it, and the images that nobody trains on."""

    partitioned: PartitionedRows
    X: np.ndarray
    y: np.ndarray

    @classmethod
    def partition_rows(cls, rows: int = ROWS, seed: int = 0) -> Images:
        """The first ``rows`` images, dealt by Dirichlet shares."""
        data = fashion()
        images, labels = scaled(data.images[:rows]), data.labels[:rows]
        partition = dirichlet(labels, CLIENTS, ALPHA, least=2, seed=seed, test_fraction=0.05)
        return cls(partition.take(images, labels), scaled(data.test_images), data.test_labels)

    def objective(self) -> Deep:
        """Of the clients."""
        part = self.partitioned.train
        return Deep.of(cnn, part.X.reshape(-1, 1, 28, 28), part.y, part.starts, part.stops)

    def accuracy(self, w: Any) -> float:
        """Of one model on the test images."""
        test = Deep.of(cnn, self.X, self.y, [0], [len(self.y)])
        return float(test.accuracy(w)[0])


def scaled(images: np.ndarray) -> np.ndarray:
    """Pixels of mean 0 and deviation 1."""
    return ((images[:, None] / 255.0 - 0.286) / 0.353).astype(np.float32)


def plain_round(module: nn.Module, data: Any, w: list[torch.Tensor], eta: float, batch: int, rng: Any) -> Any:
    """FedAvg as it is usually written: client after client, with torch's own threads and optimiser."""
    total, mean = 0, [torch.zeros_like(p) for p in w]
    for X, y in data:
        with torch.no_grad():
            for p, v in zip(module.parameters(), w, strict=True):
                p.copy_(v)
        optimiser = torch.optim.SGD(module.parameters(), lr=eta)
        order = torch.from_numpy(rng.permutation(len(y)))
        for lo in range(0, len(y), batch):
            at = order[lo : lo + batch]
            optimiser.zero_grad()
            F.cross_entropy(module(X[at]), y[at]).backward()
            optimiser.step()
        for m, p in zip(mean, module.parameters(), strict=True):
            m += len(y) * p.detach()
        total += len(y)
    return [m / total for m in mean]


def flat(w: list[torch.Tensor]) -> np.ndarray:
    """One row of the layers."""
    return torch.cat([v.flatten() for v in w]).numpy()


def clients_of(objective: Any) -> list[Any]:
    """Tensors of every client."""
    X, y = objective.rows.X, objective.rows.y
    return [(X[lo:hi], y[lo:hi]) for lo, hi in zip(objective.starts, objective.stops, strict=True)]


def alternate(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both, in turn, so that what else the machine does falls on both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, into in ((ours, seconds[0]), (theirs, seconds[1])):
            start = time.perf_counter()
            run()
            into.append(time.perf_counter() - start)
    return seconds


def paired(objective: Deep, make: Any, eta: float, rounds: int, look: Any) -> tuple[Any, Any, list[list[float]]]:
    """Seconds a round of ours and of the plain loop after a warm-up, and what ``look`` says of both models."""
    fed, method = InProcess(objective, threads=1), FedAvg(eta=eta, B=BATCH)
    state, module, rng = method.init(fed), make(), np.random.default_rng(0)
    w = [torch.tensor(state["w"][p.start : p.stop]).view(p.shape) for p in objective.architecture.parameters]
    data, curves = clients_of(objective), [[], []]

    def ours() -> None:
        nonlocal state
        state = method.step(fed, state)

    def theirs() -> None:
        nonlocal w
        w = plain_round(module, data, w, eta, BATCH, rng)

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        one, other = alternate(ours, theirs, 1)
        seconds[0].extend(one)
        seconds[1].extend(other)
        curves[0].append(look(state["w"]))
        curves[1].append(look(flat(w)))
    return np.median(seconds[0][1:]), np.median(seconds[1][1:]), curves


def small_models() -> Row:
    """1,000 clients of 100 rows, MLP 64-32-10, everyone in every round."""
    rng = np.random.default_rng(0)
    X, truth = rng.normal(size=(SMALL * 100, 64)).astype(np.float32), rng.normal(size=(64, 10))
    y, stops = (X @ truth).argmax(axis=1), 100 * np.arange(1, SMALL + 1)
    objective = Deep.of(mlp, X, y, stops - 100, stops)
    ours, theirs, losses = paired(objective, mlp, 0.1, 3, lambda w: float(objective.value(w).sum() / len(y)))
    steps = SMALL * 100 // BATCH
    return Row(
        "round of FedAvg, 1,000 clients x 100 rows, MLP 64-32-10, batch 10",
        f"{ours / steps * 1e6:.0f} us a step (loss {losses[0][-1]:.3f})",
        f"plain loop {theirs / steps * 1e6:.0f} us (loss {losses[1][-1]:.3f})",
        f"{theirs / ours:.1f} times",
        "20 times",
        bool(theirs >= 20.0 * ours),
    )


def large_models(images: Images) -> Row:
    """Twenty clients with a convolutional network."""
    objective = images.objective()
    ours, theirs, curves = paired(objective, cnn, ETA, ROUNDS, images.accuracy)
    steps = int(np.ceil(objective.counts / BATCH).sum())
    gap = np.mean(curves[0][2:]) - np.mean(curves[1][2:])
    return Row(
        f"round of FedAvg, Fashion-MNIST ({ROWS:,} images), 20 clients, Dirichlet 0.1, CNN, batch 10",
        f"{ours / steps * 1e3:.2f} ms a step (accuracy {curves[0][-1]:.3f})",
        f"plain loop {theirs / steps * 1e3:.2f} ms ({curves[1][-1]:.3f}; mean over rounds {gap:+.3f} to ours)",
        f"{theirs / ours:.2f} times",
        "1.4 times",
        bool(theirs >= 1.4 * ours),
    )


def coded(images: Images, rounds: int = 25, codecs: Any = CODECS) -> list[Row]:
    """Accuracy and bytes of runs whose models travel coded both ways."""
    objective, rows = images.objective(), []
    runs = []
    for how in ({}, *codecs):
        fed = InProcess(copy.copy(objective), threads=1)
        method = FedAvg(eta=ETA, B=BATCH, **how)
        state, curve = method.init(fed), []
        fed.ledger.bytes_up = fed.ledger.bytes_down = 0
        for t in range(rounds):
            state = method.step(fed, state)
            if t >= rounds - 5:
                curve.append(images.accuracy(state["w"]))
        runs.append((how, float(np.mean(curve)), fed.ledger.bytes_up + fed.ledger.bytes_down))
    (_, best, most), *others = runs
    for how, found, sent in others:
        rows.append(
            Row(
                f"bytes of {rounds} rounds, same clients, models both ways by {how['up']}",
                f"accuracy {found:.3f}, {sent / 1e6:.0f} MB",
                f"float32 {best:.3f}, {most / 1e6:.0f} MB",
                f"1/{most / sent:.1f}, {100 * (found - best):+.1f} points",
                "1/10, -0.5 points",
                bool(10 * sent <= most and found >= best - 0.005) if how is codecs[0] else None,
            )
        )
    return rows


def run() -> list[Row]:
    """All of the above."""
    rows = [small_models()]
    try:
        images = Images.partition_rows()
    except CoterieError as problem:
        return [*rows, skipped("Fashion-MNIST", str(problem))]
    return [*rows, large_models(images), *coded(images)]
