"""How uncertain the variances of a fitted tree are, and what follows for every node: see ``variance_posterior``.

Each variance is moved to two more points, the others at their estimates. The restricted deviance there says how likely
they are; the tree, solved anew, where every node then is and how surely. Clients keep at home what they would be, and
add up what follows. For GLMs w moves too, by a Newton step of Laplace's deviance, and is integrated out.
An axis is one variance of one level or, where covariances are learned too, one along a principal axis of D, or the
correlation of two of these: as in a Wishart distribution they are about independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, require_all_replies, work
from coterie.methods.tree.client_work import Reply, unfold
from coterie.methods.tree.covariance_structure import Structure
from coterie.methods.tree.in_step import in_step, part, release, site_of
from coterie.methods.tree.marginal_likelihood import Deviance, Scores, gaussian, independent, laplace, slopes
from coterie.methods.tree.penalised_tree import Setup, Solution, per_cluster, solve
from coterie.methods.tree.sweep_up_and_down import Positions, place, sweep_down
from coterie.methods.tree.variance_posterior import (
    Uncertainty,
    axis_weights,
    correlation_weights,
    directions,
    size_metric,
    widened,
    with_added,
)
from coterie.numerics.arrays import Bools, Floats, Ints, full

SHARE = 0.01  # of v, at least, is taken to be sampling variance
STEP = 1.5  # standard deviations of log v between an axis's points
NOTHING = 1e-9  # of v, below which a variance is zero but for rounding
LARGEST = 0.8  # the largest correlation of a point


@dataclass(frozen=True)
class Axis:
    """A variance d of one level, at the estimate, of each of the level's g factors; or a correlation, 0 there."""

    level: int
    rows: Bools  # (q,) the directions that it is of
    d: Floats  # (g,)
    s2: Floats  # (g,) the sampling variance of what d is seen by; of a correlation
    nu: Floats  # (g,) about how many members tell d
    pair: tuple[int, int] | None = None  # the directions of the correlation

    @property
    def points(self) -> Floats:
        """Three values of ``v = d + s2``, (g, 3): the estimate's, one below and one above, or two above.

        Of a correlation: 0, one below and one above.
        """
        if self.pair is not None:
            h = np.minimum(STEP * np.sqrt(self.s2), LARGEST)
            return np.stack([0.0 * h, -h, h], axis=1)
        v, h = self.d + self.s2, STEP * np.sqrt(2.0 / np.maximum(self.nu, 2.0))
        low = np.where(v * np.exp(-h) > self.s2, v * np.exp(-h), self.s2)
        low = np.where(v > self.s2 * np.exp(0.5 * h), low, v * np.exp(2.0 * h))
        return np.stack([v, low, v * np.exp(h)], axis=1)

    def nearer(self) -> Axis:
        """The same with nearer points, where the deviance rises far more than members let expect."""
        closer = np.where(self.d > 0.0, 1.0, 0.1) if self.pair is None else 0.1
        return replace(self, s2=self.s2 * closer, nu=np.where(self.d > 0.0, 8.0, 1.0) * self.nu)

    def moved(self, structure: Structure, L: Floats, k: int) -> Floats:
        """The level's factors at one of the points."""
        at = self.points[:, k]
        if self.pair is not None:
            return structure.turned(L, self.pair, float(at[0]))
        d = np.maximum(at - self.s2, 0.0)
        some = self.d > 0.0
        return structure.stretched(
            L, self.rows, np.where(some, d / np.where(some, self.d, 1.0), 0.0), np.where(some, 0.0, d)
        )

    def weights(self, rise: Floats) -> Floats:
        """What the points count, (g, 8), by the rise of the deviance (2,) to them; else by the members alone."""
        points = self.points
        if self.pair is not None:
            h = float(points[0, 2])
            curvature = float(rise.sum()) / (2.0 * h**2)
            curvature = max(curvature - 4.0, 0.25 * curvature)  # as a Wishart matrix's inverse, whose tails are heavier
            variance = 1.0 / curvature if curvature > 1.0 else float(self.s2[0])
            return correlation_weights(h, min(variance, LARGEST**2))[None]
        found = []
        for nu, s2, v in zip(self.nu, self.s2, points, strict=True):
            S = nu * v[0]
            if len(points) == 1:
                M = np.stack([np.log(v[1:] / v[0]), 1.0 / v[1:] - 1.0 / v[0]], axis=1)
                a, b = np.linalg.solve(M, rise)
                if max(0.5, min(nu / 2.0, 2.0), nu / 5.0) <= a <= 4.0 * nu + 10.0 and b > 0.0:  # up to 2 has no mean
                    nu, S = a, b
            found.append(axis_weights(max(float(nu), 1.0), float(S), float(s2), v))
        return np.stack(found)


def axes(
    z: Ints,
    structures: tuple[Structure, ...],
    L: list[Floats],
    arrived: Sequence[Floats],
    scores: Scores,
    chosen: bool,
) -> Iterator[Axis]:
    """The variances that are learned, level by level, with what sums over members tell of how surely.

    Of structures that rows have ``chosen``, those that are taken to be equal may differ all the same.

    ``arrived`` are the quadratics that members sent to their parents, summed: the inverse of D and of the sampling
    covariance together, which scores have less what goes into the parents' own estimates. Squares are in their frame.
    """
    for level, (structure, Ll, (e, _, square, _)) in enumerate(zip(structures, L, scores, strict=True)):
        if not len(structure):
            continue
        whole = len(Ll) == 1
        E, squares, sent = (full(x.sum(axis=0)[None] if whole else x) for x in (e, square, arrived[level]))
        E, sent = map(structure.quadratic, (E, sent[:, z[:, None], z]))
        one, two = np.einsum("gii->gi", E), np.sqrt(np.einsum("gii->gi", squares))
        members = np.divide(one, two, out=np.ones_like(one), where=two > 0.0)
        V = sent / (members[:, :, None] * members[:, None, :])
        directions, variances = structure.axes(Ll)
        seen, told = (np.einsum("gji,gjk,gki->gi", directions, A, directions) for A in (V, E))
        known: dict[int, Axis] = {}
        for rows in structure.sets(apart=chosen):
            if (seen[:, rows] > 0.0).all():
                # those that are seen best tell most of a variance that several have
                v = seen[:, rows].sum(axis=1) / np.square(seen[:, rows]).sum(axis=1)
                d = np.minimum(variances[:, rows].mean(axis=1), (1.0 - SHARE) * v)
                d, nu = np.where(d > NOTHING * v, d, 0.0), told[:, rows].sum(axis=1) * v
                axis = Axis(level, rows, d, v - d, np.maximum(nu, 1.0))
                known |= {int(np.flatnonzero(rows)[0]): axis} if (d > 0.0).all() and rows.sum() == 1 else {}
                yield axis
        for i, j in combinations(known, 2) if whole and structure.name == "full" else ():
            a, b = known[i], known[j]
            sure = (a.d / (a.d + a.s2)) * (b.d / (b.d + b.s2)) * np.sqrt(a.nu * b.nu)
            yield Axis(level, a.rows | b.rows, a.d, 1.0 / sure, a.nu, (i, j))


POINTS = "12"  # of an axis, in names
TRIES, FAR = 8, 12.0  # of points at which the deviance rises by no more
MOST_COLUMNS, DIFFERENCE = 12, 0.003  # of w whose curvature is measured, and by a step of so many standard deviations


@dataclass(frozen=True)
class Point:
    """The tree solved at some variances: what is taken from it, in the units in which it is solved."""

    deviance: float  # restricted
    L: list[Floats]
    s: Solution
    sigma2: float
    placed: Positions

    def level(self, k: int) -> tuple[Floats, Floats]:
        """Values and covariances of a level's clusters; the root is the last."""
        return self.placed.at[k], self.placed.cov[k] * self.sigma2


@dataclass(frozen=True)
class Explored:
    """What is not known of variances, in the units in which a tree is solved; what clients add is kept by them."""

    C: Floats  # (p, p) the root's covariance at the estimates, as `collect` takes it
    root: Floats  # (n, p, p) as in `Uncertainty`
    levels: list[Floats]  # (n, q, q)
    more: list[Floats]  # (g, q, q)
    added: list[Floats]  # (k_l, P) what it adds to the covariances of each level's clusters, and last of the root
    nodes: list[Floats]  # (k_l,) relative variances of the clusters' covariances
    metric: Floats  # (P,) of sizes of packed covariances
    dof: float  # of the residual variance

    @property
    def factor(self) -> float:
        """The mean of the residual variance over its estimate."""
        return self.dof / (self.dof - 2.0) if np.isfinite(self.dof) else 1.0

    def in_units(self, setup: Setup, D: list[Floats], root: Floats, client: Floats) -> Uncertainty:
        """The same in the units of the table, of D (g, p, p) and the root's covariance there."""
        units, z = np.outer(setup.unit, setup.unit) * self.factor, setup.z
        residual = 2.0 / (self.dof - 4.0)

        def whole(G: Floats) -> Floats:
            out = np.zeros((len(G), setup.p, setup.p))
            out[:, z[:, None], z] = G
            return out * units

        more = tuple(whole(m) + (self.factor - 1.0) * Dl for m, Dl in zip(self.more, D, strict=True))
        means = [(Dl + m).mean(axis=0)[None] * residual**0.5 for Dl, m in zip(D, more, strict=True)]
        return Uncertainty(
            root=np.concatenate([self.root * units, root[None] * residual**0.5]),
            levels=tuple(np.concatenate([whole(G), m]) for G, m in zip(self.levels, means, strict=True)),
            more=more,
            nodes=tuple(n + residual for n in self.nodes),
            client=client + residual,
            residual=residual,
        )


@work
def add_axes(site: Site, z: Ints, metric: Floats, axes: str, joint: bool, **points: Any) -> Reply:
    """Every client keeps what uncertain variances add to its covariance, and how far that is known.

    ``points`` has where the tree is at the estimate, "here", and at two points of each axis, whose calculations clients
    have the state of; and the axes' weights.
    """
    here = _solved(site_of(site, "here") if joint else site, z, **part(points, "here"))
    added, doubt = np.zeros_like(here[1]), np.zeros(len(site))
    for name in axes.split():
        one, two = (_solved(site_of(site, name + k), z, **part(points, name + k)) for k in POINTS)
        weights = points[f"{name}:weights"]
        own = weights if len(weights) == 1 else weights[site.clusters]
        more, square = widened(here, one, two, own, metric)
        added, doubt = added + more, doubt + square
    site.state["added"], site.state["doubt"] = added, doubt
    release(site)
    return {}


def _solved(site: Site, z: Ints, L: Floats, w: Floats, C: Floats, sigma2: float) -> tuple[Floats, Floats]:
    """Clients' parameters and covariances."""
    theta, S = unfold(site, L, z, w, C)
    return theta, S * sigma2


def explore(fed: Federation, search: Deviance, L: list[Floats], s: Solution, sigma2: float, chosen: bool) -> Explored:
    """What is not known of variances L and sigma2, at which ``s`` is solved; rows may have ``chosen`` the structure."""
    setup = search.setup
    turn = _turn(fed, search, L, s)
    frames = [each.frame for each in search.structures if each.frame is not None]
    scores, _ = slopes(fed, setup, L, s, sigma2, s.inverse, *frames[:1])
    joint = not setup.family.is_quadratic and _many_rows(fed, search)
    here = _point(setup, L, s, turn)
    if joint:  # points are at joint modes, and compared with the joint mode here
        here = in_step(fed, {"here": partial(_joint, search=search, L=L, here=here, turn=turn)})["here"]
    metric = size_metric(setup.standard)
    added = [np.zeros_like(c) for c in here.placed.cov]
    doubt = [np.zeros(len(c)) for c in added]
    D = [np.einsum("gij,gkj->gik", Ll, Ll) * sigma2 for Ll in L]
    more, G = [np.zeros_like(Dl) for Dl in D], [list[Floats]() for _ in [*D, 0]]
    told: dict[str, Any] = _sent("here", here)
    tried = dict(enumerate(axes(setup.z, search.structures, L, s.swept.A, scores, chosen)))
    found = _points(fed, search, here, {f"axis{k}-": axis for k, axis in tried.items()}, turn)
    rises = {name: np.array([one.deviance, two.deviance]) - here.deviance for name, (_, one, two) in found.items()}
    weighed = {name: (axis.weights(rises[name]), one, two) for name, (axis, one, two) in found.items()}
    if setup.family.unsure > 0.0:
        weighed["dispersion-"] = _dispersed(fed, search, here, turn)
    for name, (weights, one, two) in weighed.items():
        told |= _sent(name + POINTS[0], one) | _sent(name + POINTS[1], two) | {f"{name}:weights": per_cluster(weights)}
        mean = weights.mean(axis=0, keepdims=True)
        for k in range(len(added)):
            each = weights if k == 0 and len(weights) == len(added[0]) else mean
            extra, square = widened(here.level(k), one.level(k), two.level(k), each, metric)
            added[k], doubt[k] = added[k] + extra, doubt[k] + square
        root = [full(at.level(-1)[1][0]) for at in (here, one, two)]
        G[-1].append(directions(root[1] - root[0], root[2] - root[0], mean[0]))
        for k, Dk in enumerate(D):
            D1, D2 = (np.einsum("gij,gkj->gik", at.L[k], at.L[k]) * at.sigma2 - Dk for at in (one, two))
            each = weights if len(weights) == len(Dk) else mean
            more[k] += each[:, 0, None, None] * D1 + each[:, 1, None, None] * D2
            G[k].append(directions(D1.mean(axis=0), D2.mean(axis=0), mean[0]))
    require_all_replies(fed.total(add_axes, z=setup.z, joint=joint, metric=metric, axes=" ".join(weighed), **told))
    q, p = len(setup.z), setup.p
    stacked = [np.concatenate([np.zeros((0, k, k)), *g]) for g, k in zip(G, [q] * len(D) + [p], strict=True)]
    sizes = [with_added(here.level(k)[1], extra) @ metric for k, extra in enumerate(added)]
    relative = [x / np.where(size > 0.0, size, 1.0) ** 2 for x, size in zip(doubt, sizes, strict=True)]
    dof = max(setup.dof(True), 5.0) if setup.family.has_dispersion else np.inf
    C = turn @ s.inverse @ turn.T
    return Explored(C, stacked[-1], stacked[:-1], more, added, relative[:-1], metric, dof)


def _points(
    fed: Federation, search: Deviance, here: Point, tried: dict[str, Axis], turn: Floats
) -> dict[str, tuple[Axis, Point, Point]]:
    """Axes that have points at which the deviance does not rise beyond all bounds, and the tree there, by name."""
    found: dict[str, tuple[Axis, Point, Point]] = {}
    for more in reversed(range(TRIES)):
        asked = {
            name + k: partial(_at, search=search, here=here, axis=axis, k=int(k), turn=turn)
            for name, axis in tried.items()
            for k in POINTS
        }
        at = in_step(fed, asked)
        again = {}
        for name, axis in tried.items():
            one, two = (at[name + k] for k in POINTS)
            rise = np.array([one.deviance, two.deviance]) - here.deviance
            if rise.min() > FAR and more:
                again[name] = axis.nearer()
            elif np.isfinite(rise).all() and rise.min() <= FAR:
                found[name] = axis, one, two
        tried = again
        if not tried:
            break
    return {name: found[name] for name in sorted(found, key=lambda name: int(name[4:-1]))}


def _dispersed(fed: Federation, search: Deviance, here: Point, turn: Floats) -> tuple[Floats, Point, Point]:
    """Weights of the dispersion, whose logarithm is about normal; the tree one standard deviation below and above."""
    from coterie.methods.tree.dispersion import InFamily  # which searches by what is here

    family = search.setup.family

    def at(fed: Federation, sign: float) -> Point:
        known = family.at(float(family.kind[1] * np.exp(sign * family.unsure)))
        other = replace(search, setup=replace(search.setup, family=known))
        return _with(InFamily(fed, known), other, here.L, here, turn)

    one, two = in_step(fed, {f"dispersion-{k}": partial(at, sign=2.0 * int(k) - 3.0) for k in POINTS}).values()
    return correlation_weights(family.unsure, family.unsure**2)[None], one, two


def _at(fed: Federation, search: Deviance, here: Point, axis: Axis, k: int, turn: Floats) -> Point:
    """The tree at another point of an axis."""
    L = list(here.L)
    L[axis.level] = axis.moved(search.structures[axis.level], L[axis.level], k)
    return _with(fed, search, L, here, turn)


def _with(fed: Federation, search: Deviance, L: list[Floats], here: Point, turn: Floats) -> Point:
    """The tree at variances L, from where it is at others."""
    setup = search.setup
    if setup.family.is_quadratic:
        return _point(setup, L, gaussian(fed, setup, L, True)[1], turn)
    if _many_rows(fed, search):
        return _joint(fed, search, L, here, turn)
    w, u = here.s.positions.at[-1][0], here.s.positions.u
    before, s, _ = laplace(fed, setup, L, w, u)
    if np.isfinite(before):
        _, slope = slopes(fed, setup, L, s, 1.0, 0.0 * s.inverse)
        after, s, _ = laplace(fed, setup, L, w - 0.5 * turn @ s.inverse @ turn.T @ slope, s.positions.u)
        if not after <= before:  # far from a quadratic: w stays
            s = laplace(fed, setup, L, w, u)[1]
    return _point(setup, L, s, turn)


def _joint(fed: Federation, search: Deviance, L: list[Floats], here: Point, turn: Floats) -> Point:
    """The tree at variances L and the joint mode of w and all deviations."""
    setup, w, u = search.setup, here.s.positions.at[-1][0], here.s.positions.u
    return _point(setup, L, solve(fed, setup, L, start=place(setup.tree, w, L[1:], setup.z, u)), turn)


def _point(setup: Setup, L: list[Floats], s: Solution, turn: Floats) -> Point:
    """A solved tree with the root's uncertainty, w integrated out."""
    w, A = s.positions.at[-1][0], full(s.swept.A[-1][0])
    kept = independent(A)
    misfit, sigma2 = s.value, 1.0
    if setup.family.is_quadratic:
        dof, value = setup.dof(True), setup.residual(s.value)
        misfit, sigma2 = dof * np.log(value), value / dof
    deviance = misfit + s.logdet + float(np.linalg.slogdet(A[np.ix_(kept, kept)])[1])
    placed = sweep_down(setup.tree, s.swept, L[1:], setup.z, w, turn @ s.inverse @ turn.T)
    return Point(deviance, L, s, sigma2, placed)


def _many_rows(fed: Federation, search: Deviance) -> bool:
    """Whether the finest that stray have many rows."""
    return search.setup.many_rows(len(fed.clients) if len(search.structures[0]) else search.setup.tree.sizes[0])


def _turn(fed: Federation, search: Deviance, L: list[Floats], s: Solution) -> Floats:
    """Takes the inverse curvature of w and all deviations to the covariance of w in Laplace's likelihood, (p, p).

    That is by differences of its exact gradient, in standard units. For a Gaussian outcome they are one.
    """
    setup = search.setup
    if setup.family.is_quadratic or setup.p > MOST_COLUMNS or _many_rows(fed, search):
        return np.eye(setup.p)
    values, vectors = np.linalg.eigh(setup.standard @ s.inverse @ setup.standard.T)
    if not values[0] > 1e-14 * values[-1]:  # rows say nothing of some columns
        return np.eye(setup.p)
    root = np.linalg.solve(setup.standard, (vectors * np.sqrt(values)) @ vectors.T)
    w, u, none = s.positions.at[-1][0], s.positions.u, 0.0 * s.inverse
    base = slopes(fed, setup, L, s, 1.0, none)[1]

    def moved(fed: Federation, j: int) -> Floats:
        _, there, _ = laplace(fed, setup, L, w + DIFFERENCE * root[:, j], u)
        return slopes(fed, setup, L, there, 1.0, none)[1]

    there = in_step(fed, {f"column{j}": partial(moved, j=j) for j in range(setup.p)})  # in standard deviations
    H = np.stack([root.T @ (each - base) / (2.0 * DIFFERENCE) for each in there.values()])
    values, vectors = np.linalg.eigh(0.5 * (H + H.T))
    values = np.clip(np.where(np.isfinite(values), values, 1.0), 0.25, 4.0)
    return np.asarray(root @ (vectors / np.sqrt(values)) @ vectors.T @ np.linalg.inv(root))


def _sent(name: str, at: Point) -> dict[str, Any]:
    """Where the tree is at a point, in a message."""
    sent = {"L": per_cluster(at.L[0]), "sigma2": at.sigma2}
    sent |= {"w": PerCluster(at.placed.at[0]), "C": PerCluster(at.placed.cov[0])}
    return {f"{name}:{key}": value for key, value in sent.items()}
