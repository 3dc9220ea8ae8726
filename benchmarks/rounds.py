"""Async-L2GD at section 6.1's setting against a vectorised NumPy loop of the pseudo-code, for the same coins.

The loop is ``tests/reference/l2gd_loop.py``, with the fastest of four NumPy forms of the gradient (matmul with X'X made
once). Both run T = 50,000 iterations on 400 clients, m = 10 rows, d = 20, with p_0 = p_j = .05.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import Row, median_seconds
from coterie.engines import InProcess
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import cluster_rounds
from coterie.methods.clustered_l2gd.cluster_rounds import Coordinated
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.methods.tree.client_work import reveal
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTies

LOOP = Path(__file__).parents[1] / "tests" / "reference" / "l2gd_loop.py"
T, SEED, GOAL = 50_000, 3, 8.0


def table(m: int = 10, k: int = 20, each: int = 20, d: int = 20) -> tuple[GLM, np.ndarray]:
    """Section 6.1's simulation."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(k), each)
    theta = rng.normal(size=(k, d))[clusters] + rng.normal(size=(k * each, d))
    X = rng.normal(size=(k * each * m, d))
    y = np.sum(X * np.repeat(theta, m, axis=0), axis=1) + rng.normal(size=len(X))
    starts = np.arange(k * each) * m
    return GLM(X, y, np.zeros(len(y)), np.ones(len(y)), starts, starts + m), clusters


def run() -> list[Row]:
    glm, clusters = table()
    p = np.full(20, 0.05)
    ties, tau = ClusterTies.of(clusters, 20, 1.0, 1.0, None), fractions(0.05, p)
    X, y = glm.X.reshape(400, 10, 20), glm.y.reshape(400, 10)
    H, b = X.transpose(0, 2, 1) @ X, np.einsum("mni,mn->mi", X, y)
    drawn = Coordinated(0.05).draw(SEED, np.arange(T)), cluster_rounds.cluster_coins(SEED, np.arange(T), p)
    found: dict[str, Any] = {}

    def ours(compiled: bool) -> None:
        fed = InProcess(glm, clusters)
        *_, state = AsyncL2GD(ties, 0.05, p, tau, 1e-4, seed=SEED, compiled=compiled).run(fed, [T])
        found["ours"], found["state"] = fed.ask(reveal)["theta"], state

    start = perf_counter()
    args = (20, clusters, ties.gamma, ties.alpha, 1e-4, 0.05, p, tau, *drawn)
    loop = run_path(str(LOOP))["async_l2gd"](lambda theta, t: (H @ theta[:, :, None])[:, :, 0] - b, *args)
    numpy = perf_counter() - start
    rows = []
    for compiled, what in ((False, "over exchanges, as between sites"), (True, "compiled, all clients in one process")):
        seconds = median_seconds(lambda t=compiled: ours(t), 3)
        apart = float(np.max(np.abs(found["ours"] - loop)) / np.max(np.abs(loop)))
        met = numpy / seconds >= GOAL and apart <= 1e-9
        rows.append(
            Row(
                f"Async-L2GD, 400 clients, d = 20, 50,000 iterations: {what}",
                f"{seconds:.2f} s",
                f"NumPy loop {numpy:.2f} s",
                f"{numpy / seconds:.1f} times, largest difference {apart:.0e}",
                "8 times, 1e-9" if compiled else "-",
                met if compiled else None,
            )
        )
    return rows
