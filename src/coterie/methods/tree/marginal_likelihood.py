"""Deviance of the tree model of paper 001 (5.1) and its exact gradient by the variances, from sums.

``theta_i = w_c(i) + L_client u``, ``w_j = w + L_cluster u``, ``u ~ N(0, I)``. One sweep up the tree gives the deviance
(-2 log-likelihood), one sweep down its gradient: a node's score for ``D = LL'`` is ``A1 - A1 C A1 - g g'/sigma^2``
(``tree_fold.scores``). Gaussian variances are relative to sigma^2, which is profiled out like w. Otherwise w is given,
and the deviance is Laplace's, ``2 F(u^) + log|H(u^)|``; its gradient follows u^ through the third derivatives. Where
clients have one deviation each and there is nothing above them but w, it may be quadrature's (``Setup.points``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, Sums, require_all_replies, work
from coterie.methods.tree.client_work import Reply, client_factors, single_direction
from coterie.methods.tree.covariance_structure import Structure, guarded_inverse, information
from coterie.methods.tree.penalised_tree import Setup, Solution, per_cluster, solve
from coterie.methods.tree.sweep_up_and_down import SMALL, Positions, node_factors, place, sweep_down, sweep_up
from coterie.numerics import tree_fold
from coterie.numerics.arrays import Bools, Floats, Ints, full, pack


@dataclass(frozen=True)
class Deviance:
    """-2 log-likelihood of a tree, restricted or not, Laplace's for GLMs, as a function of standard deviations.

    It is one of x: the entries of the factors L of the clients and of each level (relative to sigma for a Gaussian
    outcome), then w where it is not profiled out.
    """

    setup: Setup
    structures: tuple[Structure, ...]  # of the clients, then of each level; an empty basis keeps one at its parent
    own: bool = False  # each finest cluster has its own client variances (the paper's sigma_j^2)
    reml: bool = True  # restricted likelihood (Gaussian only)

    @property
    def groups(self) -> list[int]:
        """How many factors each level has."""
        return [self.setup.tree.sizes[0] if self.own else 1] + [1] * len(self.setup.tree.parents)

    @property
    def parameters(self) -> int:
        """How many standard deviations there are."""
        return sum(g * len(structure) for g, structure in zip(self.groups, self.structures, strict=True))

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
            return gaussian(fed, self.setup, L, self.reml)
        return laplace(fed, self.setup, L, w, u)

    def slopes(self, fed: Federation, x: Floats, s: Solution, sigma2: float) -> tuple[Floats, Curvature]:
        """Gradient of the deviance (a,), and what it is expected to curve by."""
        profiled = self.setup.family.has_dispersion
        L, _ = self.factors(x)
        C = s.inverse if profiled and self.reml else 0.0 * s.inverse
        scores, by_root = slopes(fed, self.setup, L, s, sigma2, C)
        sums = [
            tuple(part.sum(0)[None] for part in parts) if len(Ll) == 1 else parts
            for Ll, parts in zip(L, scores, strict=True)
        ]
        by = [full(e - o) for e, o, *_ in sums]
        gradient = [each.gradient(*at).ravel() for each, *at in zip(self.structures, L, by, strict=True)]
        if not profiled:
            gradient.append(by_root)
        dof = self.setup.dof(self.reml) if profiled else None
        root = np.empty((0, 0)) if profiled else 0.5 * s.inverse
        return np.concatenate(gradient), Curvature(self.structures, L, sums, by, dof, root)


@dataclass(frozen=True)
class Curvature:
    """Inverses (a, a) of the deviance's expected Hessian, which are seldom wanted, and made then."""

    structures: tuple[Structure, ...]
    L: list[Floats]
    sums: list[tuple[Floats, ...]]  # of scores, as `slopes` has them
    by: list[Floats]  # (groups, q, q) the gradient by every level's D
    dof: float | None
    root: Floats  # the part of w, where it is not profiled out

    @cached_property
    def _hessian(self) -> Floats:
        levels = [
            (each.directions(Ll), full(e), full(square), n)
            for each, Ll, (e, _, square, n) in zip(self.structures, self.L, self.sums, strict=True)
        ]
        return information(levels, self.dof)

    def inverse(self, held: bool = False) -> Floats:
        """The inverse; with zero variances ``held`` at zero, or where there is no curvature but theirs."""
        H = self._hessian
        # With hardly more rows than coefficients there is no curvature.
        if held or not np.diagonal(H).max(initial=0.0) > 0.0:
            H, at = H.copy(), 0
            for block in (block for each, G in zip(self.structures, self.by, strict=True) for block in each.hold(G)):
                H[at : at + len(block), at : at + len(block)] += block
                at += len(block)
        inverse = guarded_inverse(H)
        if not self.root.size:
            return inverse
        from scipy.linalg import block_diag

        return np.asarray(block_diag(inverse, self.root))


@work
def leverage(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats, C: Floats) -> Reply:
    """The gradient of log|H| by each client's parameters, its own deviation integrated out."""
    L, which = client_factors(site, L)
    A, b = site.state["A"], site.state["b"]
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, site.clusters)
    site.state["a"] = site.objective.third(unit, theta, S)
    return {"a": tree_fold.fold(A, site.state["a"], L, which, z)[1]}


@work
def score(
    site: Site, z: Ints, L: Floats, w: Floats, C: Floats, delta: Floats, sigma2: float, turn: Floats | None = None
) -> Reply:
    """Each client's score for the covariance of its deviation, expected and observed part."""
    L, which = client_factors(site, L)
    A, b = site.state["A"], site.state["b"]
    a = b[:0] if site.objective.family.is_quadratic else site.state["a"]
    expected, observed = tree_fold.scores(A, b, a, L, which, z, w, C, delta, site.clusters, sigma2)
    return {"expected": expected, "observed": observed, "square": _squares(expected, turn)}


@work
def integral_score(site: Site, z: Ints, L: Floats, w: Floats, C: Floats, turn: Floats | None = None) -> Reply:
    """The same as far as the quadratics at the modes go, and the integrals' slopes (see ``fold_messages``)."""
    L, which = client_factors(site, L)
    A, b = site.state["A"], site.state["b"]
    expected, observed = tree_fold.scores(A, b, b[:0], L, which, z, w, C, 0.0 * w, site.clusters, 1.0)
    square = _squares(expected, turn)
    return {"expected": expected, "observed": observed, "square": square, "slopes": site.state["slopes"]}


def _squares(expected: Floats, turn: Floats | None) -> Floats:
    return np.square(expected if turn is None else expected @ turn)


def gaussian(fed: Federation, setup: Setup, L: list[Floats], reml: bool) -> tuple[float, Solution, float]:
    """Profiled deviance at L (one exchange), the solved tree, and sigma^2."""
    s = solve(fed, setup, L)
    logdet, lost = s.logdet, 0
    if reml:
        _, size, pivots = s.swept.scaled
        lost = setup.p
        if pivots is None:
            A = full(s.swept.A[-1][0])
            kept = independent(A)
            lost = int(np.count_nonzero(kept))
            logdet += float(np.linalg.slogdet(A[np.ix_(kept, kept)])[1])
        else:
            logdet += 2.0 * float(np.log(pivots * size).sum())
    dof, value = max(setup.rows - lost, 1.0), setup.residual(s.value)
    return float(dof * (1.0 + np.log(2.0 * np.pi * value / dof)) + logdet), s, value / dof


def independent(A: Floats) -> Bools:
    """Columns (p,) that those before them do not give, by their curvature A (p, p).

    Training rows may lack a level of a category. A coefficient that they tell nothing of is no loss to the degrees of
    freedom, and changes the determinant by a constant factor, 0, whatever the variances.
    """
    size = np.sqrt(np.where(np.diag(A) > 0.0, np.diag(A), 1.0))
    left = A / np.outer(size, size)
    with suppress(np.linalg.LinAlgError):
        if len(A) == 0 or np.diag(np.linalg.cholesky(left)).min() >= SMALL:
            return np.ones(len(A), dtype=bool)
    kept = np.zeros(len(A), dtype=bool)
    for j in range(len(A)):
        if left[j, j] > SMALL**2:
            kept[j] = True
            left -= np.outer(left[:, j], left[j] / left[j, j])
    return kept


def laplace(
    fed: Federation, setup: Setup, L: list[Floats], w: Floats, u: list[Floats]
) -> tuple[float, Solution, float]:
    """Laplace's deviance at (L, w), the solved tree, and 1; u are the clusters' first deviations."""
    s = solve(fed, setup, L, root=w, start=place(setup.tree, w, L[1:], setup.z, u))
    return s.value + s.logdet, s, 1.0


Scores = list[tuple[Floats, Floats, Floats, Floats]]


def slopes(
    fed: Federation,
    setup: Setup,
    L: list[Floats],
    s: Solution,
    sigma2: float,
    C: Floats,
    frame: Floats | None = None,
) -> tuple[Scores, Floats]:
    """Scores by every level's D, and the gradient (p,) by the root (one exchange; two for GLMs).

    A score is packed sums (groups, Q), expected, observed and square of expected, and the number of members: of all
    clients (of each finest cluster's where L is), then of each level's nodes. ``C`` (p, p) is the covariance of w: the
    inverse curvature for REML, zeros where w is a parameter. Squares are of what is expected in a ``frame`` (q, q).
    """
    turn = None if frame is None else pack(frame.T @ full(np.eye(len(setup.z) * (len(setup.z) + 1) // 2)) @ frame)
    at = sweep_down(setup.tree, s.swept, L[1:], setup.z, s.positions.at[-1][0], C)
    sent: dict[str, Any] = {"z": setup.z, "L": per_cluster(L[0]), "w": PerCluster(at.at[0]), "C": PerCluster(at.cov[0])}
    seen: dict[str, Any] = {} if turn is None else {"turn": turn}
    if setup.points > 1:
        return _integral_slopes(setup, L[0], at, require_all_replies(fed.total(integral_score, **sent, **seen)))
    swept, moved = s.swept, Positions([np.zeros_like(a) for a in at.at], at.cov, [])
    if not setup.family.is_quadratic:
        a = require_all_replies(fed.total(leverage, by="cluster", unit=setup.unit, **sent))["a"]
        swept = sweep_up(setup.tree, s.swept.A[0], a, L[1:], setup.z)
        moved = sweep_down(setup.tree, swept, L[1:], setup.z, np.zeros(setup.p), C)
    by = "cluster" if len(L[0]) > 1 else None  # clusters with variances of their own need sums of their own
    delta = PerCluster(moved.at[0])
    sums = require_all_replies(fed.total(score, by=by, sigma2=sigma2, delta=delta, **sent, **seen))
    count = np.atleast_1d(np.asarray(sums.count, dtype=np.float64))
    expected, observed, square = (np.atleast_2d(sums[name]) for name in ("expected", "observed", "square"))
    scores: Scores = [(expected, observed, square, count)]
    for level in range(len(setup.tree.parents)):
        e, o = _node_scores(setup, level, L[level + 1], s, swept.b[level], at, moved, sigma2)
        scores.append((e, o, _squares(e, turn), np.ones(len(e))))
    root = full(s.swept.A[-1][0]) @ at.at[-1][0]
    return scores, swept.b[-1][0] - 2.0 * (s.swept.b[-1][0] - root)


def _integral_slopes(setup: Setup, L: Floats, at: Positions, sums: Sums) -> tuple[Scores, Floats]:
    """Those of quadrature: the observed part is what gives its slope along the one direction of L.

    Where L is next to zero, clients' losses are quadratics as far as it reaches, and the part stays as it is.
    """
    expected, observed, square = (sums[name][None] for name in ("expected", "observed", "square"))
    ell = single_direction(L)[0]
    if ell @ full(expected[0]) @ ell > 1e-8 * sums.count:
        more = ell @ full(expected[0] - observed[0]) @ ell - 0.5 * float(sums["slopes"][0])
        observed = observed + more * pack(np.outer(ell, ell)) / (ell @ ell) ** 2
    scores = [(expected, observed, square, np.array([float(sums.count)]))]
    w = at.at[-1][0]
    scores += [(np.zeros_like(expected),) * 3 + (np.ones(1),) for _ in setup.tree.parents]
    return scores, sums["slopes"][1:] + 2.0 * setup.root_prior @ w


def _node_scores(
    setup: Setup, level: int, L: Floats, s: Solution, a: Floats, at: Positions, moved: Positions, sigma2: float
) -> tuple[Floats, Floats]:
    """The same scores for the nodes above the clients, which the coordinator holds."""
    A, b = s.swept.A[level], s.swept.b[level]
    L, _, which = node_factors(L, len(A))
    a = b[:0] if setup.family.is_quadratic else a
    w, C, delta = at.at[level + 1], at.cov[level + 1], moved.at[level + 1]
    return tree_fold.scores(A, b, a, L, which, setup.z, w, C, delta, setup.tree.parents[level], sigma2)
