"""How alike clients are, and how noisy: what every client says of its rows, and what is made of it together.

In a metric in which all rows together have the identity for a Hessian, a client whose gradient at u is g, and whose
mean curvature is h, has its optimum near ``u - g / h``. What it says of it, ``p_k = g / h - u``, varies with the rows
it happened to get. Across clients it varies more, because their true optima differ: ``p_k = t_k + noise_k`` with
``t_k ~ (m, S)`` and ``noise_k ~ (0, v_k C / h^2)``. S is what scatter is left after noise; where it is 0, clients are
copies of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration.choice.shrinkage import between, posterior, rows_variance
from coterie.methods.collaboration.metric import Metric
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full
from coterie.objectives.constants import hessians
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import sizes
from coterie.objectives.row_noise import deviations
from coterie.objectives.steps import full_gradient

PASSES = 12
"""How often clients are asked at most, each time nearer to their optima; three or four times are the rule."""
SETTLED = 0.01
"""Squared way between two passes, relative to the noise of gradients, at which there is no other pass."""
FAR = 3.0
"""Length of a step of Newton's at most, in every coordinate: where outcomes are separated, curvature soon vanishes."""
NOBODY = 1e6
"""Variance, in rows' variances, of the gradient of a client without rows."""


@work
def scatter(site: Site, theta: Floats, R: Floats) -> dict[str, Any]:
    """In the metric: gradient; variance of a row's gradient and its degrees of freedom; rows (effective); curvature.

    ``bend`` is the mean eigenvalue h of a client's Hessian, ``other`` the mean square of ``eigenvalue / h - 1``.
    """
    if not isinstance(site.objective, GLM):
        raise CoterieError("Collaborators are chosen by the gradients of rows: name them where a loss has none.")
    g, A, rows, w, w2 = deviations(site.objective, theta)
    site.count(len(site))
    spare, nothing = np.maximum(rows - 1, 0), np.zeros(len(site))
    per = np.divide(rows, spare * w2, out=nothing.copy(), where=(spare > 0) & (w2 > 0.0))
    H = R.T @ full(hessians(site.objective, theta) / np.where(w > 0.0, w, 1.0)[:, None]) @ R
    bend, square = np.einsum("mii->m", H) / len(R), np.einsum("mij,mij->m", H, H) / len(R)
    return {
        "g": g @ R,
        "s": np.einsum("mij,ij->m", full(A), R @ R.T) * per,
        "dof": spare,
        "rows": np.divide(w * w, w2, out=nothing, where=w2 > 0.0),
        "bend": np.where(bend > 0.0, bend, 1.0),
        "other": np.divide(square, bend**2, out=np.ones(len(site)), where=bend > 0.0) - 1.0,
    }


@work
def together(site: Site, theta: Floats) -> dict[str, Any]:
    """Covariances of rows' gradients, to be added up over clients."""
    _, A, rows, _, w2 = deviations(site.objective, theta)
    return {"A": A * np.divide(rows, w2, out=np.zeros(len(site)), where=w2 > 0.0)[:, None]}


@work
def gradient(site: Site, theta: Floats, R: Floats) -> dict[str, Any]:
    """A client's gradient in the metric."""
    site.count(len(site))
    weight = sizes(site.objective)
    return {"g": full_gradient(site.objective, theta) @ R / np.where(weight > 0.0, weight, 1.0)[:, None]}


@dataclass(frozen=True)
class Likeness:
    """What all clients say, in the metric.

    Attributes
    ----------
    p : (n, d)
        What every client says of its optimum by itself: minus where it is.
    posterior : (n, d)
        What is expected of it, given what all say.
    unsure : (n,)
        Variance of the true one around that, all coordinates together.
    noise : (n,)
        Variance ``s_k / n_k`` of a client's gradient at its optimum.
    bend, other : (n,)
        Mean eigenvalue h of its Hessian there, and the mean square of ``eigenvalue / h - 1``.
    between : (d, d)
        S.
    """

    p: Floats
    posterior: Floats
    unsure: Floats
    noise: Floats
    bend: Floats
    other: Floats
    between: Floats

    @property
    def loose(self) -> Floats:
        """Variance (n,) of p around the true one."""
        return self.noise / self.bend**2


def likeness(fed: Federation, metric: Metric, groups: Ints | None = None) -> Likeness:
    """Ask every client at the pooled model, and then at what is expected of its optimum.

    There noise counts (A5), and little is left of what its own curvature does on the long way. d + 5 numbers leave a
    client in each pass, and sums; there are ``PASSES`` at most. The metric's prior holds clients as it does main ones.

    Parameters
    ----------
    groups : (n,) int64, optional
        Clients that vary around a mean of their own, such as clusters; by default all do around one.
    """
    n, d = len(fed.clients), len(metric.at)
    groups = np.zeros(n, dtype=np.int64) if groups is None else groups
    b = np.zeros((n, d))
    for _ in range(PASSES):
        last, theta = b, metric.theta(-b)
        told = require_all_replies(fed.ask(scatter, theta=PerRow(theta), R=metric.R))
        C = metric.R.T @ full(require_all_replies(fed.total(together, theta=PerRow(theta)))["A"]) @ metric.R
        s, dof, rows = (told[name] for name in ("s", "dof", "rows"))
        held = metric.prior / np.maximum(rows, 1.0)
        bend = told["bend"] + held
        C = C / np.trace(C) if np.trace(C) > 0.0 else np.eye(d) / d
        C = (C + 1e-3 * np.eye(d) / d) / 1.001
        row = bend * rows_variance(s / bend, dof) if dof.any() else np.full(n, np.mean(told["g"] ** 2) * d)
        noise = np.where(rows > 0.0, row / np.where(rows > 0.0, rows, 1.0), NOBODY * (row.max() or 1.0))
        step = (told["g"] - held[:, None] * b) / bend[:, None]
        if metric.prior > 0.0:
            step *= np.minimum(1.0, FAR * d**0.5 / np.maximum(np.linalg.norm(step, axis=1), 1e-300))[:, None]
        p = b + step
        mean, S = between(p, noise / bend**2, C, groups)
        b, unsure = posterior(p, noise / bend**2, C, mean[groups], S)
        if np.sum((b - last) ** 2) <= SETTLED * float(np.sum(noise[rows > 0.0])):
            break
    return Likeness(p, b, unsure, noise, bend, np.asarray(told["other"]), S)
