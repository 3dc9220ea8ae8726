"""The metric that gradients are compared in; how alike clients are in it, and how noisy: empirical Bayes over all.

The units are the table's own, or those in which the mean curvature of all rows is one. With ``theta = at + R u`` a
gradient in u is ``R' g``. Steps, distances and noise mean the same in every direction then, and do not change when a
column is rescaled.

In a metric in which all rows together have the identity for a Hessian, a client whose gradient at u is g, and whose
mean curvature is h, has its optimum near ``u - g / h``. What it says of it, ``p_k = g / h - u``, varies with the rows
it happened to get. Across clients it varies more, because their true optima differ: ``p_k = t_k + noise_k`` with
``t_k ~ (m, S)`` and ``noise_k ~ (0, v_k C / h^2)``. S is what scatter is left after noise; where it is 0, clients are
copies of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError, NotIdentified
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods import pooled
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.tree.penalised_tree import describe, standard_units
from coterie.numerics.arrays import Floats, Ints, full, over
from coterie.objectives.constants import gradient_scatter, hessians
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import full_gradient
from coterie.objectives.mean_loss import sizes


@dataclass(frozen=True)
class Metric:
    """An affine change of parameters."""

    at: Floats  # (d,) where u is zero
    R: Floats  # (d, d), or (0, 0) for the identity, without a matrix
    # Rows of mean curvature that pull a main client's model to u = 0, beside its own rows and its collaborators'
    prior: float = 0.0
    unit2: float = 1.0  # beside which a squared step is nothing: the residual variance where that is less than 1

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
            R = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
            return cls(everyone.root, R, unit2=min(1.0, everyone.sigma2))
        except np.linalg.LinAlgError as e:
            raise NotIdentified("The rows of all clients do not tell some columns apart: leave one out.") from e

    @classmethod
    def translation(cls, at: Floats) -> Metric:
        """Parameters as they are, relative to a model (d,) of many numbers, in its precision."""
        return cls(at, np.empty((0, 0)))

    @property
    def preconditioner(self) -> Floats:
        """``R R'``: takes gradients in theta to steps in theta."""
        return self.R @ self.R.T

    def theta(self, u: Floats) -> Floats:
        """Parameters (M, d) as the clients hold them."""
        return np.asarray((self.at + (u @ self.R.T if self.R.size else u)).astype(self.at.dtype, copy=False))

    def u(self, theta: Floats) -> Floats:
        """The inverse of ``theta``."""
        away = theta - self.at
        return np.asarray(np.linalg.solve(self.R, away.T).T if self.R.size else away)

    def cotangent(self, g: Floats) -> Floats:
        """The inverse of ``gradient``, (M, d)."""
        return np.asarray(np.linalg.solve(self.R.T, g.T).T) if self.R.size else g

    def gradient(self, g: Floats) -> Floats:
        """Gradients (..., d) in u from those in theta."""
        return g @ self.R if self.R.size else g

    def hessian(self, packed: Floats) -> Floats:
        """Hessians (M, d, d) in u from packed ones in theta: products of two, since einsum of three takes d^4."""
        return np.asarray(self.R.T @ full(packed) @ self.R)


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
    prior_sd = problem.family.prior_sd * problem.family.scale
    loose = float(np.mean((standard @ metric.R) ** 2)) * len(unit) / prior_sd**2
    return everyone, replace(metric, prior=min(1.0, loose))


PASSES = 12  # how often clients are asked at most, each time nearer to their optima; three or four times are the rule
SETTLED = 0.01  # squared way between two passes, relative to the noise of gradients, at which there is no other pass
FAR = 3.0
"""Length of a step of Newton's at most, in every coordinate: where outcomes are separated, curvature soon vanishes."""
NOBODY = 1e6  # variance, in rows' variances, of the gradient of a client without rows


@work
def gradient_moments(site: Site, theta: Floats, R: Floats) -> dict[str, Any]:
    """In the metric: gradient; variance of a row's gradient and its degrees of freedom; rows (effective); curvature.

    ``curvature`` is the mean eigenvalue h of a client's Hessian, ``curvature_spread`` the mean square of ``eigenvalue /
    h - 1``.
    """
    if not isinstance(site.objective, GLM):
        raise CoterieError("Collaborators are chosen by the gradients of rows: name them where a loss has none.")
    g, A, rows, w, w2 = gradient_scatter(site.objective, theta)
    site.count(len(site))
    spare, nothing = np.maximum(rows - 1, 0), np.zeros(len(site))
    per = np.divide(rows, spare * w2, out=nothing.copy(), where=(spare > 0) & (w2 > 0.0))
    H = R.T @ full(hessians(site.objective, theta) / np.where(w > 0.0, w, 1.0)[:, None]) @ R
    curvature, square = np.einsum("mii->m", H) / len(R), np.einsum("mij,mij->m", H, H) / len(R)
    return {
        "g": g @ R,
        "s": np.einsum("mij,ij->m", full(A), R @ R.T) * per,
        "dof": spare,
        "rows": np.divide(w * w, w2, out=nothing, where=w2 > 0.0),
        "curvature": np.where(curvature > 0.0, curvature, 1.0),
        "curvature_spread": np.divide(square, curvature**2, out=np.ones(len(site)), where=curvature > 0.0) - 1.0,
    }


@work
def summed_scatter(site: Site, theta: Floats) -> dict[str, Any]:
    """Covariances of rows' gradients, to be added up over clients."""
    _, A, rows, _, w2 = gradient_scatter(site.objective, theta)
    return {"A": A * np.divide(rows, w2, out=np.zeros(len(site)), where=w2 > 0.0)[:, None]}


@work
def client_gradient(site: Site, theta: Floats, R: Floats) -> dict[str, Any]:
    """A client's gradient in the metric."""
    site.count(len(site))
    weight = sizes(site.objective)
    return {"g": full_gradient(site.objective, theta) @ R / np.where(weight > 0.0, weight, 1.0)[:, None]}


@dataclass(frozen=True)
class ClientSimilarity:
    """What all clients say, in the metric."""

    estimate: Floats  # (n, d) what every client says of its optimum by itself: minus where it is
    posterior: Floats  # (n, d) what is expected of it, given what all say
    posterior_variance: Floats  # (n,) variance of the true one around that, all coordinates together
    noise: Floats  # (n,) variance ``s_k / n_k`` of a client's gradient at its optimum
    curvature: Floats  # (n,) mean eigenvalue h of its Hessian there
    curvature_spread: Floats  # (n,) mean square of ``eigenvalue / h - 1``
    between: Floats  # (d, d) S

    @property
    def variance(self) -> Floats:
        """Variance (n,) of the estimate around the true one."""
        return self.noise / self.curvature**2


def client_similarity(fed: Federation, metric: Metric, groups: Ints | None = None) -> ClientSimilarity:
    """Ask every client at the pooled model, and then at what is expected of its optimum.

    There noise counts (A5), and little is left of what its own curvature does on the long way. d + 5 numbers leave a
    client in each pass, and sums; there are ``PASSES`` at most. The metric's prior holds clients as it does main ones.

    ``groups`` (n,): clients that vary around a mean of their own, such as clusters; by default all do around one.
    """
    n, d = len(fed.clients), len(metric.at)
    groups = np.zeros(n, dtype=np.int64) if groups is None else groups
    b = np.zeros((n, d))
    for _ in range(PASSES):
        last, theta = b, metric.theta(-b)
        replies = require_all_replies(fed.ask(gradient_moments, theta=PerRow(theta), R=metric.R))
        C = metric.R.T @ full(require_all_replies(fed.total(summed_scatter, theta=PerRow(theta)))["A"]) @ metric.R
        s, dof, rows = (replies[name] for name in ("s", "dof", "rows"))
        prior_curvature = metric.prior / np.maximum(rows, 1.0)
        curvature = replies["curvature"] + prior_curvature
        C = C / np.trace(C) if np.trace(C) > 0.0 else np.eye(d) / d
        C = (C + 1e-3 * np.eye(d) / d) / 1.001
        row = curvature * rows_variance(s / curvature, dof) if dof.any() else np.full(n, np.mean(replies["g"] ** 2) * d)
        noise = np.where(rows > 0.0, row / np.where(rows > 0.0, rows, 1.0), NOBODY * (row.max() or 1.0))
        step = (replies["g"] - prior_curvature[:, None] * b) / curvature[:, None]
        if metric.prior > 0.0:
            step *= np.minimum(1.0, FAR * d**0.5 / np.maximum(np.linalg.norm(step, axis=1), 1e-300))[:, None]
        p = b + step
        mean, S = between(p, noise / curvature**2, C, groups)
        b, posterior_variance = posterior(p, noise / curvature**2, C, mean[groups], S)
        if np.sum((b - last) ** 2) <= SETTLED * float(np.sum(noise[rows > 0.0])):
            break
    return ClientSimilarity(p, b, posterior_variance, noise, curvature, np.asarray(replies["curvature_spread"]), S)


LIKE = 10.0  # rows of all clients that a client's own variance is averaged with: few rows tell little of it
WILD = 10.0  # how far above their median variances may be
ROUNDS = 5  # rounds in which S and the weights of points in it settle


def rows_variance(s: Floats, dof: Ints) -> Floats:
    """Variances (n,) of clients' rows from estimates s with so many degrees of freedom, averaged with ``LIKE`` of all.

    Estimates are cut off at ``WILD`` times their median: far from its optimum a client looks noisier than it is.
    """
    order = np.argsort(s)
    half = np.searchsorted(np.cumsum(dof[order]), 0.5 * dof.sum())
    s = np.minimum(s, WILD * s[order[half]])
    typical = float(s @ dof) / float(dof.sum())
    return np.asarray((dof * s + LIKE * typical) / (dof + LIKE))


def between(p: Floats, noise: Floats, C: Floats, groups: Ints) -> tuple[Floats, Floats]:
    """Means (groups, d) and covariance S (d, d) of true points, by moments, with weights ``1 / (tr S + v_k)``.

    What is left of the scatter after noise, without its negative part, averaged with d clients that vary alike in all
    directions, because few clients say nothing of most directions. S may also be too small by chance: James and Stein's
    factor ``(nu - 2) / nu``, nu the degrees of freedom, is how much less one should trust that clients are alike, and
    ``2 / (nu - 2)`` of the scatter is added for it.
    """
    n, d = p.shape
    S = np.zeros((d, d))
    for _ in range(ROUNDS):
        w = 1.0 / np.maximum(np.trace(S) + noise, np.finfo(np.float64).tiny)
        share = w / np.bincount(groups, w)[groups]
        mean: Floats = np.stack([np.bincount(groups, share * p[:, j]) for j in range(d)], axis=1).astype(np.float64)
        D, free = p - mean[groups], w * (1.0 - share)
        if not free.sum() > 0.0:
            break
        excess = (np.einsum("n,ni,nj->ij", w, D, D) - float(free @ noise) * C) / free.sum()
        values, vectors = np.linalg.eigh(excess)
        S = (vectors * np.maximum(values, 0.0)) @ vectors.T
        S = ((n - len(mean)) * S + np.trace(S) * np.eye(d)) / (n - len(mean) + d)
    nu = d * (n - len(mean))
    return mean, S + 2.0 / max(nu - 2, 1) * (S + float(w @ noise) / float(w.sum()) * C)


def posterior(p: Floats, noise: Floats, C: Floats, mean: Floats, S: Floats) -> tuple[Floats, Floats]:
    """Posterior means (n, d) of true points around ``mean`` (n, d), and traces (n,) of their covariances."""
    values, vectors = np.linalg.eigh(C)
    half = vectors * np.sqrt(values)
    white = vectors / np.sqrt(values)
    size, axes = np.linalg.eigh(white.T @ S @ white)
    size, whiten, back = np.maximum(size, 0.0), white @ axes, half @ axes
    kept = size / np.maximum(size + noise[:, None], np.finfo(np.float64).tiny)
    b = mean + (kept * ((p - mean) @ whiten)) @ back.T
    return b, (kept * noise[:, None]) @ np.sum(back**2, axis=0)
