"""Small tables with known clusters, and literal gradients, for the methods over rounds."""

from __future__ import annotations

import numpy as np

from coterie.methods.tree.client_work import reveal
from coterie.numerics import keyed_random
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTies

SIZES = (4, 1, 7, 3, 5)


def theta_of(fed):
    return np.array(fed.ask(reveal)["theta"])


def table(family="gaussian", seed=0, d=3, sizes=SIZES, rows=(1, 9)):
    """Clients of unequal rows in clusters of unequal size."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    counts = rng.integers(*rows, len(clusters))
    stops = np.cumsum(counts)
    X, beta = rng.normal(size=(stops[-1], d)), rng.normal(size=(len(clusters), d))
    eta = np.sum(X * np.repeat(beta, counts, axis=0), axis=1)
    y = eta + rng.normal(size=len(eta))
    if family == "binomial":
        y = (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    if family == "poisson":
        y = rng.poisson(np.exp(np.clip(eta, -3, 2))).astype(float)
    return GLM(X, y, rng.normal(size=len(y)), rng.uniform(0.5, 2, len(y)), stops - counts, stops, family), clusters


def gradient(glm, batch=0, ids=None, seed=0):
    """Gradients row by row, as the definition has them; ``batch`` rows by the keyed draws."""

    def row(i, r, theta):
        x, at = glm.X[r], glm.offset[r] + glm.X[r] @ theta
        mean = at if glm.family.is_quadratic else np.exp(at)
        mean = mean / (1 + mean) if glm.family.two_classes else mean
        return glm.weights[r] * (mean - glm.y[r]) * x

    def of(theta, t):
        out = np.zeros_like(theta)
        draws = keyed_random.uniform(seed, "rows", ids, t, batch) if batch else None
        for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
            rows = range(a, b) if not batch else a + np.floor(draws[i] * (b - a)).astype(int)
            out[i] = sum(row(i, r, theta[i]) for r in rows) * ((b - a) / batch if batch else 1)
        return out

    return of


def ties_of(kind, clusters):
    """Strengths of several shapes."""
    k, rng = clusters.max() + 1, np.random.default_rng(5)
    if kind == "equal":
        return ClusterTies.of(clusters, k, 1.0, 2.0, None)
    gamma = rng.uniform(0.2, 2.0, len(clusters))
    if kind == "some alone":
        gamma[[0, 3, 9]] = 0.0
    return ClusterTies.of(clusters, k, gamma, None, rng.uniform(0.1, 0.9, k))
