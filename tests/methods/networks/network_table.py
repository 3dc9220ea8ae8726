"""Clients in hidden groups, a graph on them, and the objective of paper 003 (1)-(2) written out in NumPy and CVXPY."""

import numpy as np

from coterie.methods.networks.objective import Prior
from coterie.objectives.glm import GLM
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout


def table(n=12, rows=15, d=3, family="binomial", seed=0, groups=3, spread=0.1):
    """A GLM of n clients with unequal numbers of rows, and their true coefficients."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(groups, d))[np.arange(n) % groups] + spread * rng.normal(size=(n, d))
    counts = rows + rng.integers(0, rows, n)
    stops = np.cumsum(counts)
    X = rng.normal(size=(stops[-1], d))
    X[:, 0] = 1.0
    eta = np.sum(X * np.repeat(theta, counts, axis=0), axis=1)
    y = {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "binomial": lambda: (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(np.minimum(eta, 3.0))).astype(float),
    }[family]()
    weights = rng.uniform(0.5, 1.5, len(y))
    return GLM(X, y, 0.1 * rng.normal(size=len(y)), weights, stops - counts, stops, family), theta


def near(theta, k=3, seed=1):
    """A weighted graph of clients with similar coefficients."""
    noise = 0.3 * np.random.default_rng(seed).normal(size=theta.shape)
    return Network.nearest(theta + noise, k, weighted=True)


def loss(family, eta, y, xp=np):
    if family == "gaussian":
        return 0.5 * (y - eta) ** 2
    return np.logaddexp(0.0, eta) - y * eta if family == "binomial" else np.exp(eta) - y * eta


def objective(glm: GLM, network: Network, lam, p, theta, Z, prior: Prior | None = None):
    """F, row by row and edge by edge."""
    total = 0.0
    for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
        eta = glm.offset[a:b] + glm.X[a:b] @ theta[i]
        total += np.sum(glm.weights[a:b] * loss(glm.family.name, eta, glm.y[a:b]))
        if prior is not None:
            total += 0.5 * prior.z[i] * np.sum(Z[i] ** 2)
    penalty = sum(w * np.linalg.norm(Z[i] - Z[j], p) for (i, j), w in zip(network.edges, network.weight, strict=True))
    return total / glm.weights.sum() + lam * penalty


def by_cvxpy(glm: GLM, network: Network, lam, p, layout: Layout):
    """The smallest value of F, and x and Z there."""
    import cvxpy as cp

    x, Z = cp.Variable(max(layout.d1, 1)), cp.Variable((len(glm), max(layout.d2, 1)))
    M, N = np.zeros((layout.d, max(layout.d1, 1))), np.zeros((layout.d, max(layout.d2, 1)))
    M[:, : layout.d1], N[:, : layout.d2] = layout.M.toarray(), layout.N.toarray()
    total = 0
    for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
        eta = glm.offset[a:b] + (glm.X[a:b] @ M) @ x + (glm.X[a:b] @ N) @ Z[i]
        y, w = glm.y[a:b], glm.weights[a:b]
        if glm.family.name == "gaussian":
            total += 0.5 * cp.sum(cp.multiply(w, cp.square(y - eta)))
        else:
            curve = cp.logistic(eta) if glm.family.name == "binomial" else cp.exp(eta)
            total += cp.sum(cp.multiply(w, curve)) - (w * y) @ eta
    i, j = network.edges.T
    tied = lam * network.weight @ cp.norm(Z[i] - Z[j], "inf" if p == np.inf else p, axis=1)
    problem = cp.Problem(cp.Minimize(total / glm.weights.sum() + tied))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return problem.value, x.value[: layout.d1], Z.value[:, : layout.d2]
