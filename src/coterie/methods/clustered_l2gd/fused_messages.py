"""Steps of Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022) fused into few messages between clients and cluster heads.

Coins are known ahead, so a coordinator sends a cluster as many local steps as lie before its next communication, in
one message. Clusters with schedules of their own are aligned by ordinal: exchange e of a segment between two rounds
above clusters carries every cluster's e-th communication.

A communication is a pull ``theta_i <- theta_i + gamma_i (u_j - c_j theta_i)``, sent with the next local steps. Where
the clients of a cluster have equal gamma, the head knows where their average is after it, and fuses pulls that follow
one another: they need no exchange.

What all clients share moves in rounds of the network only, by the mean of their gradients there, over the probability
of such a round: F is restricted to models whose shared parts are equal, and that mean is its gradient in these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, Work, require_all_replies, work
from coterie.methods.clustered_l2gd.client_work import Reply, address, local_steps, parts, widened
from coterie.methods.tree.client_work import reveal
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import full_gradient
from coterie.objectives.parameters import precision


@dataclass(frozen=True)
class Segment:
    """Steps up to, and with, the next round above clusters; E is the largest number of exchanges of a cluster in it."""

    first: int  # number of its first step
    # (k,) cluster rounds that follow the last exchange at once, with no local step between, where these are free
    before: Ints
    # (E, k) local steps that a cluster takes before its e-th communication; -1 where it has no such communication
    steps: Ints
    start: Ints  # (E, k) number of the first of these steps
    pulls: Ints  # (E, k) cluster rounds in that communication: more than one where rounds follow at once and are free
    rest: Ints  # (k,) local steps after the last communication
    restart: Ints  # (k,) number of the first of these
    last: int  # number of the step that ends it
    level: Ints  # (k,) of the round in that step, 0 for clusters that have none above themselves

    @property
    def ends(self) -> bool:
        """Whether a round above clusters ends it; otherwise the coins drawn so far ended here."""
        return bool(self.level.any())


def segments(above: Any, xi: Bools, first: int, free: Bools) -> Iterator[Segment]:
    """The exchanges of steps with cluster coins xi (n, k), from ``first`` on, and rounds ``above`` (n, k), by level.

    For clusters that are ``free`` (k,) a round that follows a round needs no exchange: a pull leaves their average
    where it was. The last segment ends with no round above; clusters that are not in one keep their steps for the next.
    """
    begin, kept = 0, np.zeros(xi.shape[1], dtype=np.int64)
    above = above if np.ndim(above) == 2 else np.broadcast_to(above[:, None], xi.shape)
    for end in np.flatnonzero(above.any(axis=1)):
        s = segment(first + begin, xi[begin : end + 1], free, above[end], kept)
        yield s
        begin, kept = int(end) + 1, np.where(s.level > 0, 0, s.rest)
    yield segment(first + begin, xi[begin:], free, np.zeros_like(kept), kept)


def segment(first: int, coins: Bools, free: Bools, level: Any, kept: Ints) -> Segment:
    """Fuse the steps with cluster coins (n, k) of one segment, whose last step is a round of ``level`` (k,) for some.

    ``kept`` (k,) are local steps before it that are still to be sent.
    """
    level, k = np.asarray(level, dtype=np.int64), coins.shape[1]
    if level.any():
        coins = coins & ((np.arange(len(coins)) < len(coins) - 1)[:, None] | (level == 0))
    n = len(coins) - (level > 0)
    j, t = np.nonzero(coins.T)  # by cluster, then by time
    new = np.concatenate([[True], j[1:] != j[:-1]])[: len(j)]
    since = np.where(new, -1 - kept[j], np.concatenate([[0], t[:-1]])[: len(t)])
    gap = t - since - 1
    communicates = (gap > 0) | ~free[j]
    count = np.cumsum(communicates)
    ordinal = count - 1 - np.repeat((count - communicates)[new], np.diff(np.append(np.flatnonzero(new), len(j))))
    E = int(ordinal.max(initial=-1)) + 1
    before = np.bincount(j[ordinal < 0], minlength=k)
    steps, start = np.full((E, k), -1, dtype=np.int64), np.zeros((E, k), dtype=np.int64)
    pulls = np.zeros((E, k), dtype=np.int64)
    steps[ordinal[communicates], j[communicates]] = gap[communicates]
    start[ordinal[communicates], j[communicates]] = first + since[communicates] + 1
    np.add.at(pulls, (ordinal[ordinal >= 0], j[ordinal >= 0]), 1)
    latest = -1 - kept
    latest[j] = t  # the last assignment stays
    last = first + len(coins) - bool(level.any())
    return Segment(first, before, steps, start, pulls, n - latest - 1, first + latest + 1, last, level)


@work
def client_update(
    site: Site, c: Floats, u: Floats, batch: int, shared: Any = None, ask: bool = False, **more: Any
) -> Reply:
    """Algorithm 1: the pull that was decided last, then local steps; what averages are made from.

    ``steps`` (k,), from the number ``first`` on, are ``step`` long. ``shared`` (d2,) is what all clients share; with
    ``ask`` its gradient, over all rows, is replied, too. The rest names the :func:`parts` of models.
    """
    step, steps, first = (more.pop(name) for name in ("step", "steps", "first"))
    j, gamma, (on, one) = site.clusters, site.state["gamma"], parts(site, **more)
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges is told by its averages
        keep = (1.0 - gamma * c[j])[:, None]
        theta = (keep if on is None else np.where(on, keep, 1.0)) * site.state["theta"]
        theta = theta + gamma[:, None] * widened(u, on)[j]
    if one is not None:
        theta[:, one] = shared
    theta = local_steps(site, theta, step[j], steps[j], first[j], batch, one)
    site.state["theta"] = theta
    site.count(int(steps[j].sum()))
    with np.errstate(over="ignore", invalid="ignore"):
        s, exact = gamma[:, None] * (theta if on is None else theta[:, on]), precision(site.objective)
        reply = {"s": s.astype(exact, copy=False), "g": gamma}
        if ask:
            site.count(len(site))
            reply |= {"f": full_gradient(site.objective, theta)[:, one].astype(exact), "n": np.ones(len(site))}
        return reply


class ClusterHeads:
    """Algorithm 1: averages of clusters, and the pulls that their clients have yet to make, c (k,) and u (k, d).

    ``mean`` (k, d) is the average of each cluster after its pending pull; for clusters of unequal gamma, before it.
    ``weight`` (k,) is the sum of gamma over the clients that answered last, ``shared`` (d2,) is what all clients share.
    """

    def __init__(self, fed: Federation, method: Any, state: dict[str, Any]) -> None:
        self.fed, self.method, self.levels, self.shared = fed, method, method.levels, state["shared"]
        mean, weight, ties = state["mean"], state["weight"], method.ties
        self.gamma = ties.strongest
        self.equal, self.tied = ties.equal, ties.Gamma > 0.0
        self.mean, self.weight, self.told = np.array(mean), np.array(weight), np.ones(len(mean), dtype=bool)
        self.c, self.u = np.zeros(len(mean)), np.zeros(mean.shape)

    def iterate(self, first: int, eta: float, above: Ints, xi: Bools) -> int:
        """Lines 2 to 19 from ``first`` on, by rounds ``above`` clusters and coins xi; the last step that is finite."""
        local = eta / self.levels.local
        own = eta * self.levels.weight(0, np.zeros(len(local), dtype=np.int64))
        for s in segments(above, xi, first, self.equal):
            self.pull_to_average(s.before, own)
            for steps, start, pulls in zip(s.steps, s.start, s.pulls, strict=True):
                self.exchange(steps >= 0, np.maximum(steps, 0), start, local)
                self.pull_to_average(pulls, own)
            communicates = (s.rest > 0) | (self.unknown() if s.ends else self.pending())
            communicates &= (s.level > 0) | (not s.ends)
            moves = len(self.shared) > 0 and s.ends and bool((s.level == len(self.levels.coins) - 1).all())
            if communicates.any() or moves:
                self.exchange(communicates | moves, s.rest, s.restart, local, eta if moves else 0.0)
            if s.ends:
                level, network = np.where(s.level > 0, s.level, -1), self.method.network
                c, u = self.levels.pull(level, self.mean, self.weight, network)
                self.pull(eta * c, eta * u)
            if not (np.isfinite(self.mean).all() and np.isfinite(self.shared).all()):
                return s.last
        return first + len(xi)

    def exchange(self, mask: Bools, steps: Ints, first: Ints, size: Floats, eta: float = 0.0) -> None:
        """Clusters ``mask`` make their pending pull and local steps; sums of gamma theta and of gamma come back.

        With an eta, what is shared makes a step of a round of the network.
        """
        sent = {"c": self.c, "u": self.u, "step": size, "steps": steps, "first": first}
        message: Any = {name: PerCluster(value) for name, value in sent.items()}
        message |= self.method.parts | ({"shared": self.shared, "ask": eta > 0.0} if len(self.shared) else {})
        to = address(self.fed, mask, self.method.free)
        sums = self.fed.total(client_update, to=to, by="cluster", batch=self.method.batch, **message)
        self.c[mask], self.u[mask], self.told[mask] = 0.0, 0.0, True
        if not sums:
            return
        if eta > 0.0:
            gradient = sums["f"].sum(axis=0) / sums["n"].sum()
            self.shared = self.shared - eta / self.levels.probability[-1, 0] * gradient
            self.told[:] = False
        answered = mask & (sums["g"] > 0.0)
        self.weight[mask] = sums["g"][mask]
        self.mean[answered] = sums["s"][answered] / sums["g"][answered, None]

    def ask_again(self, tied: Floats) -> None:
        """Ask for averages, and what is shared, where clients made steps without the heads."""
        if len(self.shared):
            self.shared = require_all_replies(self.fed.ask(reveal, to=[0]))["theta"][0, tied == 0.0]
        none = np.zeros(len(self.c), dtype=np.int64)
        self.exchange(np.ones(len(none), dtype=bool), none, none, self.c)

    def pull(self, c: Floats, u: Floats) -> None:
        """All clusters will pull by c (k,) and u (k, d), those aside in which nobody answered."""
        c, u = np.where(self.weight > 0.0, c, 0.0), np.where(self.weight[:, None] > 0.0, u, 0.0)
        s = self.gamma * c
        self.c += c - s * self.c
        self.u += u - s[:, None] * self.u
        self.mean += np.where(self.equal, self.gamma, 0.0)[:, None] * (u - c[:, None] * self.mean)

    def pull_to_average(self, times: Ints, c: Floats) -> None:
        """Clusters will pull towards their own average, ``times`` (k,) in a row."""
        for again in range(int(times.max(initial=0))):
            now = np.where(times > again, c, 0.0)
            self.pull(now, now[:, None] * self.mean)

    def pending(self) -> Bools:
        """Clusters (k,) that have a pull to make, or do not know what is shared."""
        return np.asarray((self.c != 0.0) | self.u.any(axis=1) | ~self.told)

    def unknown(self) -> Bools:
        """Clusters (k,) whose average is not known: they have a pull to make, and clients of unequal gamma."""
        return np.asarray(~self.equal & ((self.c != 0.0) | self.u.any(axis=1)))


class AnchorHeads:
    """Algorithm 2: averages of the anchor x, and the communications that clients have yet to make their step from.

    ``means`` has the averages of x of every level over each cluster, each (k, d), ``fresh`` (k,) are clusters that have
    not been told of them, and ``number`` counts anchors. ``shared`` (2, d2) is F's gradient in what all clients share,
    at x, and x there; y and z move at every step, at all clients alike, and ``copies`` (k, 2, d2) are as far as each
    cluster is told, so that clients that were away go on with the others'. ``change`` is what was asked of them last.
    """

    def __init__(self, fed: Federation, method: Any, client_update: Work, state: dict[str, Any]) -> None:
        self.fed, self.method, self.client_update, self.levels = fed, method, client_update, method.levels
        self.shared, self.copies, self.momentum = state["shared"], np.array(state["copies"]), method.momentum
        self.change, self.jump = np.zeros(self.copies.shape[2]), np.zeros_like(self.copies[:, 0])
        self.means, self.fresh, self.number = list(state["means"]), np.array(state["fresh"]), state["refreshes"]
        self.c, self.u = np.full(len(self.fresh), -1.0), np.zeros(self.average.shape)

    @property
    def average(self) -> Floats:
        """Averages of x over clusters."""
        return np.asarray(self.means[0])

    def communicated(self, level: Ints, theta: Floats, weight: Floats) -> None:
        """Clusters will step from a round of ``level`` (k,), -1 for none, by averages ``theta`` over ``weight``."""
        c, u = self.levels.pull(level, theta, weight, self.method.network)
        for a, mean in enumerate(self.means):
            u -= np.where(level >= a, self.levels.weight(a, np.maximum(level, a)), 0.0)[:, None] * mean
        in_network = level == len(self.means) - 1
        self.jump[level >= 0] = 0.0
        if in_network.any() and self.jump.size:
            self.jump[in_network] = self.change / self.levels.probability[-1, 0]
        self.pull(level >= 0, c, u)

    def pull(self, mask: Bools, c: Floats, u: Floats) -> None:
        """Clusters ``mask`` will step from a communication: by c (k,) and u (k, d)."""
        self.c, self.u = np.where(mask, c, self.c), np.where(mask[:, None], u, self.u)

    def moved(self, average: Floats, weight: Floats) -> None:
        """The anchor has moved to where its averages over clusters are these."""
        self.means, self.fresh = self.levels.ties.level_means(average, weight), np.ones(len(weight), dtype=bool)
        self.means[-1] = self.method.network(self.levels.ties.passed[-1] * weight, average)
        self.number += 1

    def step_copies(self, mask: Bools, g: Floats) -> None:
        """What is shared makes a step at clusters ``mask``, along g (k, d2)."""
        y, z = self.copies[mask, 0], self.copies[mask, 1]
        y, z = self.momentum.step(self.momentum.mix(self.shared[1], y, z), z, g[mask])
        self.copies[mask, 0], self.copies[mask, 1] = y, z

    def pending(self) -> Bools:
        """Clusters (k,) that have a communication to step from, or have not been told of the anchor's averages."""
        return np.asarray((self.c >= 0.0) | self.fresh)

    def exchange(
        self, mask: Bools, count: Ints, first: Ints, refresh: bool = False, ask: bool = False
    ) -> tuple[Floats, Floats]:
        """One exchange: averages of theta, or of x where it moves to y, and sums of gamma of those who answered.

        A cluster in which nobody answered, or nobody is tied, has the anchor's averages: it steps by its own loss. With
        ``ask``, or where x moves, the mean gradient in what is shared is replied, too.
        """
        m, scale = self.momentum, 1.0 / self.levels.local
        sent = {"c": self.c, "u": self.u, "scale": scale, "count": count, "first": first}
        sent["v"] = sum(share[:, None] * mean for share, mean in zip(self.levels.ties.share, self.means, strict=True))
        message: Any = {name: PerCluster(value) for name, value in sent.items()}
        message |= {"momentum": np.array([m.a1, m.a2, m.b1, m.pace, m.eta]), "batch": self.method.batch}
        message["anchor"], to = self.number, address(self.fed, mask, self.method.free)
        if ask := self.jump.size > 0 and (ask or refresh):
            self.change = np.zeros_like(self.change)
        if self.jump.size:
            h = np.broadcast_to(self.shared[0], self.jump.shape)
            self.step_copies(mask & (self.c >= 0.0), h + self.jump)
            message |= {"shared": self.shared, "copies": PerCluster(self.copies.copy()), "ask": ask}
            for s in range(int(count[mask].max(initial=0))):
                self.step_copies(mask & (count > s), h)
        sums = self.fed.total(self.client_update, to=to, by="cluster", refresh=refresh, **self.method.parts, **message)
        self.c, self.fresh = np.where(mask, -1.0, self.c), self.fresh & ~mask
        if not sums:
            return self.average, np.zeros(len(self.fresh))
        if ask:
            self.change = sums["f"].sum(axis=0) / sums["n"].sum()
            self.shared = np.stack([self.change, self.copies[0, 0]]) if refresh else self.shared
        weight = np.where(mask, sums["g"], 0.0)
        tied = weight[:, None] > 0.0
        return np.where(tied, sums["s"] / np.where(tied, weight[:, None], 1.0), self.average), weight
