"""Section 6.1: data of the hierarchical linear model with unit variances, and every estimator compared on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coterie.engines.local_engines import InProcess
from coterie.families import GAUSSIAN
from coterie.methods import given_strengths, hierarchical, local, pooled
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats, Ints, full
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree
from papers.simulate import tree

CLUSTERS, CLIENTS, COLUMNS = 20, 20, 20
"""Clusters, clients in each of them, and d."""

GRID = np.linspace(0.01, 2.0, 20)
FOLDS = 5


@dataclass(frozen=True)
class Simulation:
    """Data of one run.

    Attributes
    ----------
    objective : GLM
    clusters : (m,) int64
    truth : (m, d) float64
        The clients' parameters.
    """

    objective: GLM
    clusters: Ints
    truth: Floats

    def setting(self, flat: bool = False) -> tuple[InProcess, GroupedProblem]:
        """A federation in this process, and what is fitted: all columns personal, no intercept."""
        up = ClusterTree() if flat else ClusterTree((np.zeros(int(self.clusters[-1]) + 1, dtype=np.int64),))
        columns = np.arange(self.truth.shape[1])
        fed = InProcess(self.objective, None if flat else self.clusters)
        return fed, GroupedProblem(up, GAUSSIAN, columns, None)

    def distances(self, theta: Floats) -> Floats:
        """``|theta_i - theta*_i|`` (m,), not squared."""
        return np.asarray(np.linalg.norm(theta - self.truth, axis=1))


def simulate(seed: int, rows: int) -> Simulation:
    """Draw section 6.1's data; a seed has the same parameters, and the same first rows, for any number of rows.

    Parameters
    ----------
    seed : int
    rows : int
        m of every client.
    """
    clients = CLUSTERS * CLIENTS
    sd = [0.0] + [1.0] * COLUMNS  # no intercept
    table, truth = tree(
        clients, CLUSTERS, rows, COLUMNS, sd_client=sd, sd_cluster=[sd], root=[0.0] * (COLUMNS + 1), seed=seed
    )
    X = np.ascontiguousarray(table[[f"x{j + 1}" for j in range(COLUMNS)]].to_numpy())
    ends = np.arange(clients + 1, dtype=np.int64) * rows
    y, n = table["y"].to_numpy(dtype=np.float64), clients * rows
    objective = GLM(X, y, np.zeros(n), np.ones(n), ends[:-1], ends[1:])
    return Simulation(objective, np.arange(clients) // CLIENTS, truth["clients"][:, 1:])


def lt(data: Simulation) -> Floats:
    """Every client alone: least squares of minimum norm."""
    return local.fit(*data.setting()).client


def sm(data: Simulation) -> Floats:
    """One model for all."""
    return pooled.fit(*data.setting()).client


def sc(data: Simulation) -> Floats:
    """Clients tied to one centre, with the strength that cross-validation chooses."""
    lam = float(GRID[np.argmin(cross_validate(data))])
    return given_strengths.given(*data.setting(flat=True), lam).client


def ours(data: Simulation) -> Floats:
    """The minimiser of (2.3) at Theorem 5.1's strengths ``gamma_i = lambda_j = 1``."""
    return given_strengths.given(*data.setting(), 1.0, 1.0).client


def learned(data: Simulation) -> Floats:
    """The same with variances learned by restricted likelihood, one for clients and one for clusters."""
    return hierarchical.fit(*data.setting(), covariance="isotropic").client


Estimator = Callable[[Simulation], Floats]

ESTIMATORS: dict[str, tuple[str, Estimator]] = {
    "lt": ("every client alone", lt),
    "sm": ("one model", sm),
    "sc": ("one centre", sc),
    "our": ("ours, exact", ours),
    "learned": ("ours, variances learned", learned),
}


def cross_validate(data: Simulation) -> Floats:
    """Held-out squared error of the single-cluster estimator over rows, for every strength of the grid, (20,).

    A client's rows are dealt to five folds in turn, each client beginning with another fold: so the folds are the same
    size for any number of rows, and a client whose only row is held out is predicted by the centre. Everything comes
    from the folds' sums X'X, X'y and y'y.
    """
    o = data.objective
    client = np.repeat(np.arange(len(o)), o.counts)
    fold = (np.arange(len(o.y)) - o.starts[client] + client) % FOLDS
    unit = np.ones(o.p)
    sums = [replace(o, weights=(fold == f).astype(np.float64)).gram(unit) for f in range(FOLDS)]
    A, b = np.stack([full(s[0]) for s in sums]), np.stack([s[1] for s in sums])
    loss = np.full(len(GRID), sum(float(s[2].sum()) for s in sums))
    for f in range(FOLDS):
        values, vectors = np.linalg.eigh(A.sum(axis=0) - A[f])
        values, turned = np.maximum(values, 0.0), np.einsum("mij,mi->mj", vectors, b.sum(axis=0) - b[f])
        for g, lam in enumerate(GRID):
            theta = single_cluster(values, vectors, turned, float(lam))
            loss[g] += float(np.einsum("mi,mij,mj->", theta, A[f], theta, optimize=True) - 2.0 * np.sum(b[f] * theta))
    return loss


def single_cluster(values: Floats, vectors: Floats, turned: Floats, lam: float) -> Floats:
    """The paper's closed form of the single-cluster estimator (m, d).

    Parameters
    ----------
    values : (m, d), vectors : (m, d, d)
        Eigenvalues and eigenvectors of every X'X.
    turned : (m, d)
        X'y in the eigenvectors' directions.
    lam : float
    """
    m, d = values.shape
    shrink = 1.0 / (values + lam)
    inverse = (vectors * shrink[:, None, :]).transpose(1, 0, 2).reshape(d, -1)
    mean = inverse @ vectors.transpose(1, 0, 2).reshape(d, -1).T / m
    own = np.einsum("mij,mj->mi", vectors, shrink * turned)
    centre = np.linalg.solve(np.eye(d) - lam * mean, own.mean(axis=0))
    return np.asarray(own + lam * np.einsum("mij,mj->mi", vectors, shrink * (centre @ vectors)))
