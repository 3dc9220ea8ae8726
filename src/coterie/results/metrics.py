"""Held-out losses, client by client."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from coterie.data.clients import Clients
from coterie.numerics.kernels import Floats
from coterie.objectives.glm import GLM

LOSSES = {"gaussian": "squared error", "binomial": "log loss", "poisson": "Poisson deviance"}


def objective(clients: Clients | GLM, family: str) -> GLM:
    """The clients' rows as an objective, without a copy."""
    c = clients
    return GLM(c.X, c.y, c.offset, c.weights, c.starts, c.stops, family)


def client_losses(clients: Clients | GLM, family: str, theta: Floats) -> Floats:
    """Sum of the rows' losses for every client at its parameters theta (m, p); see ``LOSSES`` for which.

    Squared error, log loss, or Poisson deviance, times the row weights.
    """
    losses = objective(clients, family).losses(np.ones(clients.X.shape[1]), np.ascontiguousarray(theta))
    if family == "gaussian":
        return 2.0 * losses
    if family == "poisson":
        saturated = clients.weights * (clients.y - xlogy(clients.y, clients.y))
        losses = 2.0 * (losses - client_sums(clients, saturated))
    return losses


def client_sums(clients: Clients | GLM, rows: Floats) -> Floats:
    """Sum a number for each sorted row (n,) within clients (m,)."""
    before = np.concatenate([[0.0], np.cumsum(rows)])
    return np.asarray(before[clients.stops] - before[clients.starts])


def bootstrap(values: Floats, rng: np.random.Generator, draws: int = 1000) -> tuple[float, float]:
    """95% interval of the mean over clients, by resampling clients.

    Above 20,000 clients the normal interval, which resampling then reproduces.
    """
    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    if n > 20_000:
        half = 1.96 * values.std(ddof=1) / np.sqrt(n)
        return float(values.mean() - half), float(values.mean() + half)
    means = np.array([values[rng.integers(0, n, n)].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
