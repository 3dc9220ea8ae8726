"""Lyu, Hanzely, Kolar (2022) in loops: the gradient of (2.1), and the estimators (3.2) and (4.1) for given coins.

``theta`` is (m, d); ``clusters`` (m,) from 0; ``xi0`` is the global coin and ``xi`` (k,) the clusters' own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Federation:
    """Clients with rows of their own, known clusters, strengths, and how coins fall."""

    X: list[np.ndarray]
    y: list[np.ndarray]
    clusters: np.ndarray
    gamma: np.ndarray
    alpha: np.ndarray
    p0: float
    p: np.ndarray
    tau: np.ndarray
    family: str = "gaussian"

    @property
    def k(self) -> int:
        return len(self.alpha)

    def row(self, i: int, r: int, theta: np.ndarray) -> np.ndarray:
        """Gradient of row r of client i."""
        eta = self.X[i][r] @ theta
        mean = {"gaussian": lambda: eta, "binomial": lambda: 1.0 / (1.0 + np.exp(-eta)), "poisson": lambda: np.exp(eta)}
        return (mean[self.family]() - self.y[i][r]) * self.X[i][r]

    def grad_f(self, i: int, theta: np.ndarray) -> np.ndarray:
        """Gradient of f_i, a sum over rows."""
        return sum((self.row(i, r, theta) for r in range(len(self.y[i]))), np.zeros(len(theta)))

    def averages(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(2.2): the clusters' averages (k, d) and the network's (d,); 0 where nobody is tied."""
        own, network, total = np.zeros((self.k, theta.shape[1])), np.zeros(theta.shape[1]), 0.0
        for j in range(self.k):
            weight = 0.0
            for i in np.flatnonzero(self.clusters == j):
                own[j] += self.gamma[i] * theta[i]
                network += self.alpha[j] * self.gamma[i] * theta[i]
                weight += self.gamma[i]
                total += self.alpha[j] * self.gamma[i]
            own[j] /= weight if weight > 0 else 1.0
        return own, network / (total if total > 0 else 1.0)

    def pulls(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Proposition 3.1: ``(1 - alpha_j) grad psi`` and ``grad phi``, (m, d) each."""
        own, network = self.averages(theta)
        psi, phi = np.zeros_like(theta), np.zeros_like(theta)
        for i, j in enumerate(self.clusters):
            psi[i] = (1 - self.alpha[j]) * self.gamma[i] * (theta[i] - own[j])
            phi[i] = self.alpha[j] * self.gamma[i] * (theta[i] - network)
        return psi, phi

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of F (2.1)."""
        psi, phi = self.pulls(theta)
        return psi + phi + np.array([self.grad_f(i, theta[i]) for i in range(len(theta))])

    def outcomes(self) -> Iterator[tuple[float, int, tuple[int, ...]]]:
        """Every outcome of the coins: probability, xi0, xi; none that cannot happen."""
        if self.p0 > 0:
            yield self.p0, 1, (0,) * self.k
        for xi in itertools.product((0, 1), repeat=self.k):
            chance = (1 - self.p0) * np.prod([p if c else 1 - p for p, c in zip(self.p, xi, strict=True)])
            if chance > 0:
                yield float(chance), 0, xi

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Every choice of one row l of every client; all are equally likely."""
        return itertools.product(*(range(len(y)) for y in self.y))

    def oracle_32(self, theta: np.ndarray, xi0: int, xi: tuple[int, ...]) -> np.ndarray:
        """(3.2)."""
        psi, phi = self.pulls(theta)
        G = np.zeros_like(theta)
        for i, j in enumerate(self.clusters):
            if xi0:
                G[i] = phi[i] / self.p0 + self.tau[j] * psi[i] / self.p0
            elif xi[j]:
                G[i] = (1 - self.tau[j]) * psi[i] / ((1 - self.p0) * self.p[j])
            else:
                G[i] = self.grad_f(i, theta[i]) / ((1 - self.p0) * (1 - self.p[j]))
        return G

    def oracle_41(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        xi0: int,
        xi: tuple[int, ...],
        rows: tuple[int, ...] | None = None,
        printed: bool = False,
    ) -> np.ndarray:
        """(4.1) with ``n_i`` times the gradient of row l, or all rows.

        As printed it lacks the cluster's tie in global rounds, ``gamma_i tau_j (1 - alpha_j) / p_0 ((theta -
        theta_j) - (x - x_j))``, and is biased.
        """
        psi, phi = self.pulls(theta)
        psi_x, phi_x = self.pulls(x)
        g = self.gradient(x)
        for i, j in enumerate(self.clusters):
            if xi0:
                g[i] += (phi[i] - phi_x[i]) / self.p0
                if not printed:
                    g[i] += self.tau[j] * (psi[i] - psi_x[i]) / self.p0
            elif xi[j]:
                g[i] += (1 - self.tau[j]) * (psi[i] - psi_x[i]) / ((1 - self.p0) * self.p[j])
            else:
                if rows is None:
                    change = self.grad_f(i, theta[i]) - self.grad_f(i, x[i])
                else:
                    change = self.row(i, rows[i], theta[i]) - self.row(i, rows[i], x[i])
                    change = len(self.y[i]) * change
                g[i] += change / ((1 - self.p0) * (1 - self.p[j]))
        return g


def random_federation(
    seed: int,
    sizes: tuple[int, ...] = (2, 3, 1),
    d: int = 2,
    rows: tuple[int, ...] = (2, 3, 2, 2, 1, 2),
    p0: float | None = None,
    p: np.ndarray | None = None,
    family: str = "gaussian",
) -> Federation:
    """Clusters of some sizes, everything unequal; tau as in Proposition 3.3."""
    rng = np.random.default_rng(seed)
    m, k = sum(sizes), len(sizes)
    X = [rng.normal(size=(rows[i % len(rows)], d)) for i in range(m)]
    eta = [x @ rng.normal(size=d) for x in X]
    draw = {
        "gaussian": lambda e: e + rng.normal(size=len(e)),
        "binomial": lambda e: (rng.uniform(size=len(e)) < 1 / (1 + np.exp(-e))).astype(float),
        "poisson": lambda e: rng.poisson(np.exp(np.minimum(e, 2.0))).astype(float),
    }[family]
    p0 = float(rng.uniform(0.1, 0.6)) if p0 is None else p0
    p = rng.uniform(0.1, 0.8, size=k) if p is None else p
    tau = np.array([p0 / (p0 + 2 * (1 - p0) * pj) if pj > 0 else 1.0 for pj in p])
    clusters = np.repeat(np.arange(k), sizes)
    gamma, alpha = rng.uniform(0.2, 2.0, size=m), rng.uniform(0.1, 0.9, size=k)
    return Federation(X, [draw(e) for e in eta], clusters, gamma, alpha, p0, np.asarray(p, float), tau, family)
