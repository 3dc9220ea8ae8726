"""The search for the variances of a tree: (restricted) maximum likelihood, Laplace's for GLMs.

BFGS on standard deviations, whose signs do not matter, so that a variance of
zero is an ordinary point; every quantity comes from sums (``marginal_likelihood``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag

from coterie.federation import Federation
from coterie.methods import marginal_likelihood
from coterie.methods.penalised_tree import Solution, solve
from coterie.methods.search_state import State as State
from coterie.methods.setup import Setup
from coterie.numerics import quasi_newton
from coterie.numerics.kernels import Floats, full
from coterie.relations.covariance import Structure, information


@dataclass(frozen=True)
class Variances:
    """Learn the variances of a tree.

    Parameters
    ----------
    setup : Setup
    structures : tuple of Structure
        Of the clients, then of each level; an empty basis keeps a level at its parent.
    own : bool, default False
        Each finest cluster has its own client variances (the paper's sigma_j^2).
    reml : bool, default True
        Restricted likelihood (Gaussian only).
    tolerance : float, default 1e-7
        Stop when the predicted decrease of the deviance is below it, or below the rounding of its sums.
    scoring : int, default 3
        So many first steps are Fisher scoring; then BFGS.
    """

    setup: Setup
    structures: tuple[Structure, ...]
    own: bool = False
    reml: bool = True
    tolerance: float = 1e-7
    scoring: int = 3

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
        if self.setup.family == "gaussian":
            return marginal_likelihood.gaussian(fed, self.setup, L, self.reml)
        return marginal_likelihood.laplace(fed, self.setup, L, w, u)

    def slopes(self, fed: Federation, x: Floats, s: Solution, sigma2: float) -> tuple[Floats, Floats, Floats]:
        """Gradient of the deviance (a,), inverse of its expected Hessian, and that with zero variances held at zero."""
        profiled = self.setup.family == "gaussian"
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
        if profiled:
            return np.concatenate(gradient), quasi_newton.inverse(H), quasi_newton.inverse(held)
        fisher, held = (block_diag(quasi_newton.inverse(F), 0.5 * s.inverse) for F in (H, held))
        return np.concatenate([*gradient, by_root]), fisher, held

    def init(self, fed: Federation, sd: float = 0.5) -> State:
        """Start from equal standard deviations and, for GLMs, the w of the joint mode."""
        x = np.concatenate([np.tile(s.start(sd), g) for s, g in zip(self.structures, self.groups, strict=True)])
        u = self.setup.tree.still(len(self.setup.z))
        if self.setup.family != "gaussian":
            joint = solve(fed, self.setup, self.factors(x)[0])
            x, u = np.concatenate([x, joint.positions.at[-1][0]]), joint.positions.u
        return self.start(fed, x, u)

    def start(self, fed: Federation, x: Floats, u: list[Floats]) -> State:
        """The state of a search that begins at x, Newton's method at the clusters' deviations u."""
        deviance, s, sigma2 = self.evaluate(fed, x, u)
        gradient, fisher, held = self.slopes(fed, x, s, sigma2)
        return State(x, deviance, gradient, fisher, held, s.positions.u)

    def step(self, fed: Federation, state: State) -> State:
        """One quasi-Newton step with backtracking: the unit of resume."""
        d = -state.H @ state.gradient
        slope = float(state.gradient @ d)
        noise = 1e-13 * abs(state.deviance)
        if -slope <= max(self.tolerance, noise):  # believed only if the expected Hessian says so too
            state = replace(state, H=state.held)
            d = -state.H @ state.gradient
            slope = float(state.gradient @ d)
        if -slope <= max(self.tolerance, noise):
            return replace(state, status="converged")
        t = 1.0
        while True:
            x = self.move(state, t * d)
            deviance, s, sigma2 = self.evaluate(fed, x, state.u)
            excess = deviance - state.deviance - t * slope
            if excess <= (1e-4 - 1.0) * t * slope + noise:
                break
            if t < 1e-6:
                return replace(state, status="stopped")
            t *= min(0.5, max(0.1, -0.5 * t * slope / excess)) if np.isfinite(excess) else 0.1
        gradient, H, held = self.slopes(fed, x, s, sigma2)
        if state.iteration >= self.scoring:
            H = quasi_newton.update(state.H, x - state.x, gradient - state.gradient)
        return State(x, deviance, gradient, H, held, s.positions.u, state.iteration + 1)

    def move(self, state: State, d: Floats) -> Floats:
        """A step of the first iterations is taken in variances, where the deviance is closest to a quadratic."""
        x = state.x + d
        if state.iteration < self.scoring:
            a = sum(g * len(s) for g, s in zip(self.groups, self.structures, strict=True))
            sd = state.x[:a]
            ratio = np.divide(d[:a], sd, out=np.zeros(a), where=sd != 0.0)
            x[:a] = np.where(sd != 0.0, sd * np.sqrt(np.clip(1.0 + 2.0 * ratio, 0.04, 25.0)), x[:a])
        return x

    def run(self, fed: Federation, state: State | None = None) -> Iterator[State]:
        """States from the start, or from a saved one, until the status is no longer "running"."""
        state = state or self.init(fed)
        yield state
        while state.status == "running":
            state = self.step(fed, state)
            yield state
