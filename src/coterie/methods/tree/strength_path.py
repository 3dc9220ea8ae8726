"""Lyu, Hanzely, Kolar (2022), section 6.2: objective (2.3) (or (2.1)) at every point of a grid of strengths.

A client's loss to second order, (A, b), does not depend on the strengths: with it the whole tree is solved anew by one
sum up and one step down. So neighbours on the grid share it, and rows are read again only where the clients have moved
far from where it was taken: a Newton step of all clients and clusters at once. For squares it is exact everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow
from coterie.methods.estimates import GroupedProblem
from coterie.methods.given_strengths import Strength, factors
from coterie.methods.replies import require_all_replies
from coterie.methods.tree import path_at_home
from coterie.methods.tree.at_home import reveal, ridge
from coterie.methods.tree.penalised_tree import solve
from coterie.methods.tree.setup import Setup, prepare
from coterie.numerics.kernels import Floats, pack
from coterie.numerics.overflow import decode_loss
from coterie.relations.clusters import Positions

TOLERANCE = 1e-10
"""What a step may gain for each row if it is to be the last. The next would gain its square, about, and the held-out
loss changes by less than 1e-6 for each row."""
TRUST = 1e-2
"""What a step may gain for each row at most: where it gains more, the point is solved from the beginning."""


@dataclass(frozen=True)
class Point:
    """One point of the grid, solved. The clients' parameters stay theirs, until the next point is asked for.

    Attributes
    ----------
    at : (int, int)
        Index into gammas, and into lams or alphas.
    root : (p,)
    nodes : tuple of (k_l, p)
        The clusters, fine to coarse; all in the units of the table.
    """

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
        sums = require_all_replies(self._fed.total(path_at_home.held_out, unit=self._setup.unit, origin=origin))
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

    Parameters
    ----------
    gammas : sequence of (float or (m,))
    lams, alphas : sequence of (float or (k,)), optional
        The other axis, if any, with the values that ``given_strengths.given`` takes.
    tolerance : float, default 1e-10
        What the last step of a point may gain for each row of a GLM; 0 solves every point from the beginning.

    Yields
    ------
    Point
        From the largest gamma to the smallest, along the other axis and back.
    """
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    name, other = ("lam", lams) if lams is not None else ("alpha", alphas)
    line = list(enumerate([None] if other is None else other))
    walk = _Walk(fed, setup, tolerance * setup.rows)
    for i in sorted(range(len(gammas)), key=lambda i: -float(np.mean(gammas[i]))):
        moved = True
        for j, strength in line:
            here = walk.settle(*factors(fed, setup, gammas[i], **{name: strength}), moved)
            root, *nodes = (setup.raw(a) for a in reversed(here.at))
            yield Point((i, j), root[0], tuple(reversed(nodes)), fed, setup)
            moved = False
        line.reverse()


@dataclass
class _Walk:
    fed: Federation
    setup: Setup
    enough: float
    warm: bool = False

    def settle(self, L: list[Floats], stray: PerRow, moved: bool) -> Positions:
        """All at the minimum for these strengths; ``moved``: gamma is another one, so that rows are read."""
        if self.setup.family.is_quadratic:
            return self.land(L, stray)[0]
        most, reads = TRUST * self.setup.rows, 0
        while self.warm:
            at, gain = self.land(L, stray)
            if gain <= self.enough and (reads or not moved):
                return at
            if not gain < most:
                break
            require_all_replies(self.fed.total(path_at_home.read, unit=self.setup.unit))
            most, reads = 0.5 * gain, reads + 1
        solve(self.fed, self.setup, L, stray=stray)
        self.land(L, stray)
        require_all_replies(self.fed.total(path_at_home.read, unit=self.setup.unit))
        self.warm = True
        return self.land(L, stray)[0]

    def land(self, L: list[Floats], stray: PerRow) -> tuple[Positions, float]:
        """Solve the tree over the clients' quadratics; where its nodes are, and what the clients gain by it."""
        setup, held = self.setup, ridge(self.setup.family, client=False)
        sent: dict[str, Any] = {"z": setup.z, "L": L[0], "stray": stray}
        sums = require_all_replies(self.fed.total(path_at_home.send, by="cluster", **sent))
        swept = setup.tree.climb(sums["A"], sums["b"], L[1:], setup.z, held)
        swept.A[-1][0] += held * pack(np.eye(setup.p))
        w, inverse = swept.root()
        at = setup.tree.descend(swept, L[1:], setup.z, w, 0.0 * inverse, held)
        return at, float(require_all_replies(self.fed.total(path_at_home.land, w=PerCluster(at.at[0]), **sent))["gain"])
