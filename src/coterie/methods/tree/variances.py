"""The search for the variances of a tree: (restricted) maximum likelihood, Laplace's for GLMs.

BFGS on standard deviations, whose signs do not matter, so that a variance of zero is an ordinary point; every quantity
comes from sums (``marginal_likelihood``).

A residual variance for every client (the paper's sigma_i^2) is learned beside them by EM. It is a weight on the
client's rows, ``1 / v_i``, so the sweeps stay as they are. Given the tree, EM sets ``v_i`` to the expected mean square
of the client's residuals, at home; the tree's variances are then searched again. A client with few rows could fit
itself perfectly, so every client counts ``PRIOR_ROWS`` rows more, of the common variance: what is minimised is the
deviance plus ``PRIOR_ROWS sum_i (log(v_i / v) + v / v_i)``, over v too: their harmonic mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerCluster, Site, require_all_replies, work
from coterie.methods.tree.client_work import Reply, unfold
from coterie.methods.tree.covariance_structure import bfgs_update
from coterie.methods.tree.marginal_likelihood import Curvature, Deviance
from coterie.methods.tree.penalised_tree import Setup, Solution, per_cluster, solve
from coterie.methods.tree.sweep_up_and_down import sweep_down, zero_deviations
from coterie.numerics.arrays import Floats, Ints, full

log = logging.getLogger(__name__)
APART = 1e-3  # between deviances of two optima
LONG = 10.0  # seconds after which a search says where it is
STARTS, FAR_START = ((0.5, 1.0), (0.1, 1.0), (0.5, 0.0)), (2.0, 1.0)
"""Deviations from which searches begin, and whether they are as they move a row's predictor, or as they are."""
FEW_MEMBERS, FEW_ROWS = 1000, 3.0  # with less rows for each coefficient, several optima were seen
FARTHEST = 5.0  # standard deviation of a predictor, beyond which classes and counts of a client are all but certain
ROUNDS = 200  # of EM for residual variances, at most
EXACT = 1e-9  # of the squares: what is left of rows that lie on their models is no more, and is rounding
EXACTLY = (
    "The rows of a client lie exactly on its model, so that it has no residual variance of its own: take "
    "residual='common' (--residual common)."
)
PRIOR_ROWS = 1.0  # rows of the common variance that are added to each client's


@dataclass(frozen=True)
class State:
    """A point of the search: all that a resumed run needs."""

    # (a,) standard deviations (relative to sigma for a Gaussian outcome), then w where it is not profiled out
    x: Floats
    deviance: float
    gradient: Floats  # (a,)
    H: Floats  # (a, a) inverse of the approximate Hessian that BFGS keeps
    expected: Curvature  # at x
    u: list[Floats]  # the clusters' deviations: where Newton's method starts
    rounding: float  # of the deviance, by that of the squares that residuals are left of
    iteration: int = 0
    # "running", "converged", or "stopped" where no step along the gradient decreases the deviance
    status: str = "running"
    solved: tuple[float, Solution, float] | None = None  # what `evaluate` found at x, of a Gaussian outcome


@dataclass(frozen=True)
class Variances(Deviance):
    """Learn the variances of a tree."""

    tolerance: float = 1e-7  # stop when the predicted decrease of the deviance is below it, or below rounding
    scoring: int = 3  # so many first steps are Fisher scoring; then BFGS
    most: int = 300  # steps: separated outcomes would have the search follow variances to infinity

    def init(self, fed: Federation, sd: float = 0.5, scaled: float = 1.0) -> State:
        """Start from deviations that move a row's predictor alike and, for GLMs, the w of the joint mode."""
        starts = [s.start(sd) / self.setup.moved(s.basis) ** scaled for s in self.structures]
        x = np.concatenate([np.tile(start, g) for start, g in zip(starts, self.groups, strict=True)])
        u = zero_deviations(self.setup.tree, len(self.setup.z))
        if not self.setup.family.is_quadratic:
            joint = solve(fed, self.setup, self.factors(x)[0])
            x, u = np.concatenate([x, joint.positions.at[-1][0]]), joint.positions.u
        return self.start(fed, x, u)

    def follow(self, fed: Federation, other: Deviance, x: Floats, u: list[Floats]) -> State:
        """Start where the search under another structure ended."""
        L, w = other.factors(x)
        phi = [structure.nearest(Ll).ravel() for structure, Ll in zip(self.structures, L, strict=True)]
        return self.start(fed, np.concatenate([*phi, w]), u)

    def start(self, fed: Federation, x: Floats, u: list[Floats]) -> State:
        """The state of a search that begins at x, Newton's method at the clusters' deviations u."""
        deviance, s, sigma2 = self.evaluate(fed, x, u)
        gradient, expected = self.slopes(fed, x, s, sigma2)
        more = self.known(deviance, s, sigma2)
        return State(x, deviance, gradient, expected.inverse(), expected, s.positions.u, **more)

    def step(self, fed: Federation, state: State) -> State:
        """One quasi-Newton step with backtracking: the unit of resume."""
        d = -state.H @ state.gradient
        slope = float(state.gradient @ d)
        noise = 1e-13 * abs(state.deviance) + state.rounding
        if -slope <= max(self.tolerance, noise):  # believed only if the expected Hessian says so too
            state = replace(state, H=state.expected.inverse(held=True))
            d = -state.H @ state.gradient
            slope = float(state.gradient @ d)
        if -slope <= max(self.tolerance, noise):
            return replace(state, status="converged")
        if state.iteration >= self.most:
            return replace(state, status="stopped")
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
        # Far out, where outcomes are separated, all is flat, and slopes are of rounding.
        flat = t < 0.1 and state.deviance - deviance <= max(self.tolerance, noise)
        if flat and np.array_equal(state.H, state.expected.inverse(held=True)):
            return replace(state, status="stopped")
        gradient, expected = self.slopes(fed, x, s, sigma2)
        if flat or state.iteration < self.scoring:
            H = expected.inverse(held=flat)
        else:
            H = bfgs_update(state.H, x - state.x, gradient - state.gradient)
        more = {"iteration": state.iteration + 1, **self.known(deviance, s, sigma2)}
        return State(x, deviance, gradient, H, expected, s.positions.u, **more)

    def known(self, deviance: float, s: Solution, sigma2: float) -> dict[str, Any]:
        """What is known of a Gaussian tree at a state: its solution, which clients keep nothing of, and its rounding.

        The deviance is unsure of its sums of squares, where next to nothing is left of them.
        """
        if not self.setup.family.is_quadratic:
            return {"rounding": 0.0}
        return {"rounding": 1e-16 * self.setup.square / sigma2, "solved": (deviance, s, sigma2)}

    def move(self, state: State, d: Floats) -> Floats:
        """A step of the first iterations is taken in variances, where the deviance is closest to a quadratic."""
        x = state.x + d
        if state.iteration < self.scoring:
            a = self.parameters
            sd = state.x[:a]
            ratio = np.divide(d[:a], sd, out=np.zeros(a), where=sd != 0.0)
            x[:a] = np.where(sd != 0.0, sd * np.sqrt(np.clip(1.0 + 2.0 * ratio, 0.04, 25.0)), x[:a])
        return x

    def reach(self, x: Floats) -> float:
        """The largest standard deviation by which members' predictors differ."""
        sizes = [np.tile(self.setup.moved(s.basis), g) for g, s in zip(self.groups, self.structures, strict=True)]
        return float(np.max(np.abs(x[: self.parameters]) * np.concatenate(sizes), initial=0.0))

    def run(self, fed: Federation, state: State | None = None) -> Iterator[State]:
        """States from the start, or from a saved one, until the status is no longer "running"."""
        state = state or self.init(fed)
        yield state
        while state.status == "running":
            state = self.step(fed, state)
            yield state


def search_starts(
    covariance: str, setup: Setup, intercept: int | None, members: int
) -> tuple[tuple[float, float], ...]:
    """Where searches begin: at several points where a named structure is one of columns far from zero, as they are.

    What clients differ at the means is then told by intercepts, by slopes, or by slopes beside which all else is free:
    each is an optimum of its own. The last needs deviations that move predictors out of all bounds where columns lie
    very far from zero. In simulations six of 180 Gaussian fits had several optima, from 3 standard deviations on; 288
    fits of classes and counts, up to 9, had one each: there the last start is enough, and the quickest. With few rows
    of each of the ``members`` Laplace's deviance may have an optimum far from zero beside one near it.
    """
    glm = not setup.family.is_quadratic
    few = members <= FEW_MEMBERS and setup.rows < FEW_ROWS * members * len(setup.z)
    more = (FAR_START,) if glm and setup.points == 1 and few else ()
    if covariance in ("auto", "full") or intercept not in setup.z:
        return STARTS[:1] + more
    far = float(np.abs(setup.mean[setup.z[setup.z != intercept]]).max(initial=0.0))
    if glm and far < 10.0:
        return STARTS[-1:] + more
    return (STARTS if 1.0 < far < 1e4 else STARTS[: 1 + (far > 1.0)]) + more


def expected_seconds(parameters: int, setup: Setup, clients: int) -> float:
    """About how long a search takes: up to a hundred steps of what is cubic in parameters and columns."""
    steps = min(10 + 2 * parameters, 100)
    return 1e-9 * steps * (3.0 * (parameters * len(setup.z)) ** 2 + 10.0 * parameters**3 + 6.0 * clients * setup.p**3)


def run_to_end(states: Iterable[State], name: str, expected: float) -> State:
    """The last of the states of a search; one that takes long is announced, and says now and then where it is."""
    start = reported = monotonic()
    if expected > LONG:
        remedy = "" if name in ("isotropic", "two") else ", or ask for covariance 'two' or 'auto'"
        log.warning("Learning the covariance '%s' may take minutes: share categories of many levels%s.", name, remedy)
    for state in states:
        if monotonic() - reported > LONG:
            reported = monotonic()
            log.warning(
                "  '%s': step %d, deviance %.6g, %.0f s", name, state.iteration, state.deviance, reported - start
            )
    return state


def lowest_end(
    fed: Federation, search: Variances, starts: Sequence[Callable[[], State]], name: str, members: int
) -> tuple[State, bool]:
    """Where the deviance is lowest, of where searches end, and whether they end at several optima.

    Laplace's deviance of few rows may fall without end where clients differ beyond all measure: such an end is taken
    only where there is no other.
    """
    expected = len(starts) * expected_seconds(search.parameters, search.setup, members)
    ends = [run_to_end(search.run(fed, start()), name, expected * (k == 0)) for k, start in enumerate(starts)]
    lowest = min(ends, key=lambda end: end.deviance)
    if search.setup.family.is_quadratic or len(ends) == 1:
        return lowest, False
    near = [end for end in ends if search.reach(end.x) < FARTHEST] or ends
    lowest = min(near, key=lambda end: end.deviance)
    several = max(end.deviance for end in ends) - min(end.deviance for end in ends) > APART
    return near[0] if near[0].deviance - lowest.deviance <= APART else lowest, several


@work
def reweigh_rows(site: Site, z: Ints, L: Floats, w: Floats, C: Floats, sigma2: float, mean: float) -> Reply:
    """One EM step of every client's residual variance, relative to the common one, and its sums weighed anew."""
    A, b, c = site.state["A"], site.state["b"], site.state["c"]
    n = site.objective.counts.astype(np.float64)
    old = site.state.get("v", np.ones(len(site)))
    theta, S = unfold(site, L, z, w, C)
    misfit = c - 2.0 * np.einsum("mi,mi->m", b, theta) + np.einsum("mi,mij,mj->m", theta, full(A), theta)
    misfit += sigma2 * np.einsum("mij,mij->m", full(A), full(S))
    new = (old * np.maximum(misfit, 0.0) / sigma2 + PRIOR_ROWS * mean) / (n + PRIOR_ROWS)
    weigh = old / new
    site.state["A"], site.state["b"], site.state["c"] = A * weigh[:, None], b * weigh[:, None], c * weigh
    site.state["v"] = new
    return {"log": n * np.log(new), "logs": np.log(new), "inverse": 1.0 / new}


@work
def residual_variance(site: Site) -> Reply:
    """Every client's residual variance, relative to the common one."""
    return {"v": site.state["v"]}


def learn_residual_variances(fed: Federation, search: Variances, state: State) -> tuple[State, float]:
    """Learn both kinds of variances from a converged search with equal residuals, until the deviance moves by 1e-4.

    The state has the deviance of the tree for rows as they are weighed; the sum of ``n_i log v_i`` completes it.
    """
    best, mean, setup = np.inf, 1.0, search.setup
    for _ in range(ROUNDS):
        _, s, sigma2 = state.solved or search.evaluate(fed, state.x, state.u)
        if not s.value > EXACT * setup.square:
            raise CoterieError(EXACTLY)
        L, _ = search.factors(state.x)
        C = s.inverse if search.reml else 0.0 * s.inverse
        at = sweep_down(setup.tree, s.swept, L[1:], setup.z, s.positions.at[-1][0], C)
        message: dict[str, Any] = {"z": setup.z, "L": per_cluster(L[0]), "sigma2": sigma2, "mean": mean}
        message |= {"w": PerCluster(at.at[0]), "C": PerCluster(at.cov[0])}
        sums = require_all_replies(fed.total(reweigh_rows, **message))
        mean = len(fed.clients) / float(sums["inverse"])
        if not mean > 1e-9 * np.exp(float(sums["logs"]) / len(fed.clients)):  # one is going to zero, and draws it along
            raise CoterieError(EXACTLY)
        *_, state = islice(search.run(fed, search.start(fed, state.x, state.u)), 3)
        penalised = state.deviance + float(sums["log"] + PRIOR_ROWS * (sums["logs"] - len(fed.clients) * np.log(mean)))
        if abs(best - penalised) < 1e-4:
            return replace(state, status="converged"), float(sums["log"])
        best = penalised
    return replace(state, status="stopped"), float(sums["log"])
