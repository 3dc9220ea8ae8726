"""The deviance of a tree as a function of its standard deviations, with its gradient and expected curvature.

What is searched over is x: the entries of the factors L of the clients and of each level (relative to sigma for a
Gaussian outcome), then w where it is not profiled out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from coterie.federation import Federation
from coterie.methods.tree import marginal_likelihood
from coterie.methods.tree.penalised_tree import Solution
from coterie.methods.tree.setup import Setup
from coterie.numerics import quasi_newton
from coterie.numerics.kernels import Floats, full
from coterie.relations.covariance import Structure, information


@dataclass(frozen=True)
class Deviance:
    """-2 log-likelihood of a tree, restricted or not, Laplace's for GLMs.

    Parameters
    ----------
    setup : Setup
    structures : tuple of Structure
        Of the clients, then of each level; an empty basis keeps a level at its parent.
    own : bool, default False
        Each finest cluster has its own client variances (the paper's sigma_j^2).
    reml : bool, default True
        Restricted likelihood (Gaussian only).
    """

    setup: Setup
    structures: tuple[Structure, ...]
    own: bool = False
    reml: bool = True

    @property
    def groups(self) -> list[int]:
        """How many factors each level has."""
        return [self.setup.tree.sizes[0] if self.own else 1] + [1] * len(self.setup.tree.parents)

    def factors(self, x: Floats) -> tuple[list[Floats], Floats]:
        """L of the clients and of each level (groups, q, q), and what is left of x: w, or nothing."""
        L, at = [], 0
        for structure, groups in zip(self.structures, self.groups, strict=True):
            stop = at + groups * len(structure)
            L.append(structure.factor(x[at:stop].reshape(groups, -1)))
            at = stop
        return L, x[at:]

    def evaluate(self, fed: Federation, x: Floats, u: list[Floats]) -> tuple[float, Solution, float]:
        """Deviance at x, the solved tree, and sigma^2."""
        L, w = self.factors(x)
        if self.setup.family.is_quadratic:
            return marginal_likelihood.gaussian(fed, self.setup, L, self.reml)
        return marginal_likelihood.laplace(fed, self.setup, L, w, u)

    def slopes(self, fed: Federation, x: Floats, s: Solution, sigma2: float) -> tuple[Floats, Floats, Floats]:
        """Gradient of the deviance (a,), inverse of its expected Hessian, and that with zero variances held at zero."""
        profiled = self.setup.family.is_quadratic
        L, _ = self.factors(x)
        C = s.inverse if profiled and self.reml else 0.0 * s.inverse
        scores, by_root = marginal_likelihood.slopes(fed, self.setup, L, s, sigma2, C)
        gradient, curvatures = [], []
        holds: list[Floats] = []
        for structure, Ll, parts in zip(self.structures, L, scores, strict=True):
            e, o, square, n = (part.sum(0)[None] for part in parts) if len(Ll) == 1 else parts
            gradient.append(structure.gradient(Ll, full(e - o)).ravel())
            holds.extend(structure.hold(full(e - o)))
            curvatures.append((structure.directions(Ll), full(e), full(square), n))
        H = information(curvatures, self.setup.dof(self.reml) if profiled else None)
        held, at = H.copy(), 0
        for block in holds:
            held[at : at + len(block), at : at + len(block)] += block
            at += len(block)
        expected = (
            H if np.diagonal(H).max(initial=0.0) > 0.0 else held
        )  # hardly more rows than coefficients: no curvature
        fisher, held = quasi_newton.inverse(np.stack([expected, held]))
        if profiled:
            return np.concatenate(gradient), fisher, held
        fisher, held = (block_diag(F, 0.5 * s.inverse) for F in (fisher, held))
        return np.concatenate([*gradient, by_root]), fisher, held
