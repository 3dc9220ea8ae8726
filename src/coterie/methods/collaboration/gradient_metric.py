"""The units that gradients are compared in: the table's own, or those in which the mean curvature of all rows is one.

With ``theta = at + R u`` a gradient in u is ``R' g``. Steps, distances and noise mean the same in every direction then,
and do not change when a column is rescaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import NotIdentified
from coterie.federation import Federation, require_all_replies
from coterie.methods import pooled
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.tree.penalised_tree import describe, standard_units
from coterie.numerics.arrays import Floats, over


@dataclass(frozen=True)
class Metric:
    """An affine change of parameters."""

    at: Floats  # (d,) where u is zero
    R: Floats
    # Rows of mean curvature that pull a main client's model to u = 0, beside its own rows and its collaborators'
    prior: float = 0.0

    @classmethod
    def plain(cls, d: int) -> Metric:
        """Parameters as they are."""
        return cls(np.zeros(d), np.eye(d))

    @classmethod
    def whitened(cls, everyone: Estimates, weight: float) -> Metric:
        """Around the pooled model of rows of so much weight, whose mean curvature becomes the identity."""
        covariance = everyone.root_cov / everyone.sigma2 * weight
        np.fill_diagonal(covariance, np.where(np.diag(covariance) > 0.0, np.diag(covariance), 1.0))  # of a zero column
        try:
            return cls(everyone.root, np.asarray(np.linalg.cholesky(covariance), dtype=np.float64))
        except np.linalg.LinAlgError as e:
            raise NotIdentified("The rows of all clients do not tell some columns apart: leave one out.") from e

    @property
    def preconditioner(self) -> Floats:
        """``R R'``: takes gradients in theta to steps in theta."""
        return self.R @ self.R.T

    def theta(self, u: Floats) -> Floats:
        """Parameters (M, d) as the clients hold them."""
        return self.at + u @ self.R.T

    def u(self, theta: Floats) -> Floats:
        """The inverse of ``theta``."""
        return np.asarray(np.linalg.solve(self.R, (theta - self.at).T).T)

    def cotangent(self, g: Floats) -> Floats:
        """The inverse of ``gradient``, (M, d)."""
        return np.asarray(np.linalg.solve(self.R.T, g.T).T)

    def gradient(self, g: Floats) -> Floats:
        """Gradients (..., d) in u from those in theta."""
        return g @ self.R


@dataclass(frozen=True)
class Translation(Metric):
    """Parameters as they are, relative to ``at``, in its precision, without a matrix: for models of many numbers."""

    @classmethod
    def of(cls, at: Floats) -> Translation:
        """Around a model (d,)."""
        return cls(at, np.empty((0, 0)))

    @property
    def preconditioner(self) -> Floats:
        """Nothing, which stands for the identity."""
        return self.R

    def theta(self, u: Floats) -> Floats:
        """Parameters (M, d) as the clients hold them."""
        return np.asarray((self.at + u).astype(self.at.dtype, copy=False))

    def u(self, theta: Floats) -> Floats:
        """The inverse of ``theta``."""
        return np.asarray(theta - self.at)

    def cotangent(self, g: Floats) -> Floats:
        """The same."""
        return g

    def gradient(self, g: Floats) -> Floats:
        """The same."""
        return g


def around_pooled(fed: Federation, problem: GroupedProblem) -> tuple[Estimates, Metric]:
    """The pooled model, where main clients start from and what clients never seen get; and the metric around it.

    Its prior for classes and counts, which separated outcomes would send to infinity, is worth as many rows as one of
    the family's prior standard deviation, and 1 at most. That of `local` is as weak, but around 0.
    """
    everyone = pooled.fit(fed, problem)
    s = require_all_replies(fed.total(describe))
    weight, square = float(s["w"]), s["xx"] / float(s["w"])
    metric = Metric.whitened(everyone, weight)
    if not problem.family.needs_prior:
        return everyone, metric
    mean, basis = s["x"] / weight, problem.basis
    size = np.sqrt(np.maximum(square - mean**2, 1e-12 * square))
    unit = over(1.0, np.where(size > 1e-5 * np.sqrt(square), size, np.sqrt(square)))
    if basis is None:
        standard = standard_units(mean, unit, problem.intercept)
    else:
        standard = standard_units(basis.mean, basis.unit, problem.intercept) @ basis.matrix
    loose = float(np.mean((standard @ metric.R) ** 2)) * len(unit) / problem.family.prior_sd**2
    return everyone, replace(metric, prior=min(1.0, loose))
