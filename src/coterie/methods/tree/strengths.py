"""Strengths gamma and lambda of Lyu, Hanzely, Kolar (2022), (2.3): learned, or every point of section 6.2's grid.

Learned ones maximise the marginal likelihood. Theorem 5.1's strengths are inverse variances, ``gamma = sigma^2 /
sigma_j^2``, ``lambda = sigma^2 / sigma-bar^2``, one for all columns in the table's own units, as the paper ties them.

A client's loss to second order, (A, b), does not depend on the strengths: with it the whole tree is solved anew by one
sum up and one step down. So neighbours on the grid share it, and rows are read again only where the clients have moved
far from where it was taken: a Newton step of all clients and clusters at once. For squares it is exact everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, require_all_replies
from coterie.methods.given_strengths import Strength, alone, factors
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.client_work import expand_loss, fold_expansion, held_out_loss, reveal, solve_expansion
from coterie.methods.tree.covariance_structure import Structure
from coterie.methods.tree.penalised_tree import Setup, prepare, solve
from coterie.methods.tree.sweep_up_and_down import Positions, sweep_down, sweep_up
from coterie.methods.tree.variances import Variances
from coterie.numerics.arrays import Floats, pack
from coterie.objectives.mean_loss import decode_loss

STRONGEST = 1e4
"""Largest strength: where no variance is found, clients (or clusters) are as good as one, and rounds stay possible."""
TOLERANCE = 1e-10
"""What a step may gain for each row if it is to be the last. The next would gain its square, about, and the held-out
loss changes by less than 1e-6 for each row."""
TRUST = 1e-2  # what a step may gain for each row at most: where it gains more, the point is solved from the beginning


def learn(fed: Federation, problem: GroupedProblem) -> tuple[float, Any]:
    """Gamma, and lambda where there are clusters: a list where there are several levels of them."""
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept, problem.basis)
    size = np.exp(np.mean(np.log(setup.unit[setup.z])))  # so that the search starts near 1
    basis = size * setup.deviation[None]
    levels = [Structure("isotropic", basis)]
    levels += [Structure("isotropic", basis[: int(nodes > 1)]) for nodes in problem.tree.sizes[:-1]]
    *_, state = Variances(setup, tuple(levels), reml=problem.family.has_dispersion).run(fed)
    with np.errstate(divide="ignore"):
        found = np.minimum((state.x[: sum(map(len, levels))] * size) ** -2.0, STRONGEST).tolist()
    if len(levels) <= 2:
        return found[0], found[1] if len(found) > 1 else None
    found = iter(found)
    gamma, *lam = (next(found) if len(level) else np.inf for level in levels)
    return gamma, lam


@dataclass(frozen=True)
class Point:
    """One point of the grid, ``at`` (gamma, the other), of the federation's columns; clients keep it until the next."""

    at: tuple[int, int]
    root: Floats
    nodes: tuple[Floats, ...]
    _fed: Federation
    _setup: Setup

    def clients(self) -> Floats:
        """The clients' parameters (m, p), in the units of the table."""
        return self._setup.raw(require_all_replies(self._fed.ask(reveal))["theta"])

    def held_out(self) -> float:
        """The sum of the held-out rows' losses, in a federation whose objective is ``HeldOut``."""
        origin = self._setup.raw(np.zeros(self._setup.p))
        sums = require_all_replies(self._fed.total(held_out_loss, unit=self._setup.unit, origin=origin))
        return float(decode_loss(sums["loss"]))


def path(
    fed: Federation,
    problem: GroupedProblem,
    gammas: Sequence[Strength],
    lams: Sequence[Strength] | None = None,
    alphas: Sequence[Strength] | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Point]:
    """Solve (2.3), or (2.1) where alphas are given, at every point of a grid, each near the one before it.

    Points come from the largest gamma to the smallest, along the other axis, if any, and back; strengths are those of
    ``given_strengths.given``. The last step of a point of a GLM may gain ``tolerance`` for each row; 0 solves every
    point from the beginning.
    """
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept, problem.basis)
    name, other = ("lam", lams) if lams is not None else ("alpha", alphas)
    line = list(enumerate([None] if other is None else other))
    points = _Path(fed, setup, tolerance * setup.rows)
    for i in sorted(range(len(gammas)), key=lambda i: -float(np.mean(gammas[i]))):
        moved = True
        for j, strength in line:
            here = points.solve(*factors(fed, setup, gammas[i], **{name: strength}), moved)
            root, *nodes = (setup.raw(a) for a in reversed(here.at))
            yield Point((i, j), root[0], tuple(reversed(nodes)), fed, setup)
            moved = False
        line.reverse()


@dataclass
class _Path:
    fed: Federation
    setup: Setup
    enough: float
    warm: bool = False

    def solve(self, L: list[Floats], client_scale: PerRow, moved: bool) -> Positions:
        """All at the minimum for these strengths; ``moved``: gamma is another one, so that rows are read."""
        if self.setup.family.is_quadratic:
            return self.solve_expansions(L, client_scale)[0]
        most, reads = TRUST * self.setup.rows, 0
        while self.warm:
            at, gain = self.solve_expansions(L, client_scale)
            if gain <= self.enough and (reads or not moved):
                return at
            if not gain < most:
                break
            require_all_replies(self.fed.total(expand_loss, unit=self.setup.unit))
            most, reads = 0.5 * gain, reads + 1
        solve(self.fed, self.setup, L, client_scale=client_scale, **alone(self.setup))
        self.solve_expansions(L, client_scale)
        require_all_replies(self.fed.total(expand_loss, unit=self.setup.unit))
        self.warm = True
        return self.solve_expansions(L, client_scale)[0]

    def solve_expansions(self, L: list[Floats], client_scale: PerRow) -> tuple[Positions, float]:
        """Solve the tree over the clients' quadratics; where its nodes are, and what the clients gain by it."""
        setup, prior = self.setup, self.setup.prior(client=False)
        sent: dict[str, Any] = {"z": setup.z, "L": L[0], "client_scale": client_scale, **alone(setup)}
        sums = require_all_replies(self.fed.total(fold_expansion, by="cluster", **sent))
        swept = sweep_up(setup.tree, sums["A"], sums["b"], L[1:], setup.z, prior)
        swept.A[-1][0] += pack(setup.root_prior)
        w, inverse = swept.root()
        at = sweep_down(setup.tree, swept, L[1:], setup.z, w, 0.0 * inverse, prior)
        return at, float(require_all_replies(self.fed.total(solve_expansion, w=PerCluster(at.at[0]), **sent))["gain"])
