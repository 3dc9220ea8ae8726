"""Quadratics of any kind for the theory of collaboration: Hessians that do not commute, and their constants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from papers.paper_004 import exact
from papers.paper_004.noisy_quadratic import Curve

T = np.concatenate([[0], np.unique(np.geomspace(1, 100_000, 40).round().astype(np.int64))])


@dataclass(frozen=True)
class Quadratic:
    """``f_0`` with minimiser 0, and the collaborators' mean; L, mu, delta as in the paper."""

    curve: Curve

    @property
    def eigenvalues(self) -> np.ndarray:
        return np.linalg.eigvalsh(self.curve.A0)

    @property
    def smooth(self) -> float:
        return self.eigenvalues[-1]

    @property
    def mu(self) -> float:
        return self.eigenvalues[0]

    @property
    def delta(self) -> float:
        return self.curve.delta

    @property
    def noise(self) -> tuple[float, float]:
        """sigma_0^2 and sigma_a^2, of all coordinates."""
        own = self.curve.sigma**2 * len(self.curve.x0)
        return own, own / self.curve.N

    @property
    def gap(self) -> float:
        """``|grad f_1(x_0) - grad f_0(x_0)|^2``."""
        c = self.curve
        return float(np.sum((c.A1 @ (c.start - c.x1) - c.A0 @ (c.start - c.x0)) ** 2))

    def similarity(self, share: float) -> tuple[float, float]:
        """m and zeta^2 of A4: ``|D e + z|^2 <= (1 + share) |D e|^2 + (1 + 1 / share) |z|^2``."""
        c = self.curve
        stretch = np.linalg.norm((c.A1 - c.A0) @ np.linalg.inv(c.A0), 2) ** 2
        return (1.0 + share) * stretch, (1.0 + 1.0 / share) * float(np.sum((c.A1 @ (c.x1 - c.x0)) ** 2))

    def losses(self, times=T, **changed) -> np.ndarray:
        """The exact expected losses, with some of the curve's settings changed."""
        return exact.loss(replace(self.curve, **changed), times)


def random_quadratic(rng: np.random.Generator) -> Quadratic:
    """Everything random, over orders of magnitude."""
    d = int(rng.integers(1, 5))
    X, Y = rng.normal(size=(2, d, d))
    D = (Y + Y.T) * 10.0 ** rng.uniform(-3, 0.3) / np.linalg.norm(Y + Y.T, 2)
    A0 = X @ X.T / d + 0.05 * np.eye(d)
    x1, start = rng.normal(size=(2, d)) * 10.0 ** rng.uniform(-1, 1, (2, 1))
    sigma, N = 10.0 ** rng.uniform(-2, 1), int(rng.integers(1, 200))
    return Quadratic(Curve(A0, A0 + D, np.zeros(d), x1, sigma, N, 1e-3, 0.5, 0.5, start))
