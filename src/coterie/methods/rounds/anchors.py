"""What the heads of clusters do in Algorithm 2 of Lyu, Hanzely, Kolar (2022): exchanges, averages, the anchor's too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.federation import Clusters, Federation, PerCluster, Work
from coterie.methods.rounds.coins import Segment, segment
from coterie.numerics.kernels import Bools, Floats, Ints

if TYPE_CHECKING:
    from coterie.methods.async_al2sgd import AsyncAL2SGD


class Anchors:
    """Averages of the anchor x, and the communications that clients have yet to make their step from.

    Parameters
    ----------
    method : AsyncAL2SGD
    work : callable
        What clients do in every exchange.
    p : (k,)
        Probabilities of cluster rounds, 0 where nobody is tied.
    state : dict
        ``own`` (k, d) and ``all`` (k, d): averages of x over clusters and the network; ``fresh`` (k,): clusters that
        have not been told of them; counts.
    """

    def __init__(self, method: AsyncAL2SGD, work: Work, fed: Federation, p: Floats, state: dict[str, Any]) -> None:
        self.method, self.work, self.fed, self.p = method, work, fed, p
        self.own, self.all, self.fresh = state["own"], state["all"], np.array(state["fresh"])
        self.between, self.within, self.refreshes = state["between"], np.array(state["within"]), state["refreshes"]
        self.c, self.u = np.full(len(p), -1.0), np.zeros(self.own.shape)

    def state(self) -> dict[str, Any]:
        """What goes on to the next stretch."""
        counts = {"between": self.between, "within": self.within, "refreshes": self.refreshes}
        return {"own": self.own, "all": self.all, "fresh": self.fresh, **counts}

    def iterate(self, t: int, globally: Bools, locally: Bools, moves: Bools) -> int:
        """Steps from t on; the last whose averages were finite, or the first whose were not."""
        alpha, tau, p0 = self.method.ties.alpha, self.method.tau, self.method.p0
        everyone, at = np.ones(len(alpha), dtype=bool), 0
        for now in np.flatnonzero(globally | moves):
            s = self._own_rounds(
                segment(t + at, locally[at : now + (not globally[now])], ~everyone, bool(globally[now]))
            )
            rest = s.rest
            if globally[now]:
                mean, weight = self.ask(everyone, rest, s.restart)
                far = self.method.network(alpha * weight, mean) - self.all
                u = (alpha[:, None] * far + (tau * (1.0 - alpha))[:, None] * (mean - self.own)) / p0
                self._decide(everyone, (alpha + tau * (1.0 - alpha)) / p0, u)
                self.between += 1
                rest = np.zeros_like(rest)
            if moves[now]:
                self.own, weight = self.ask(everyone, rest, s.restart, refresh=True)
                self.all, self.fresh = self.method.network(alpha * weight, self.own), everyone.copy()
                self.refreshes += 1
            at = int(now) + 1
            if not (np.isfinite(self.u).all() and np.isfinite(self.own).all()):
                return t + at - 1
        s = self._own_rounds(segment(t + at, locally[at:], ~everyone, False))
        left = (s.rest > 0) | (self.c >= 0.0) | self.fresh
        if left.any():
            self.ask(left, s.rest, s.restart)
        return t + len(globally)

    def _own_rounds(self, s: Segment) -> Segment:
        """All communications within clusters of one segment."""
        alpha, tau, p0 = self.method.ties.alpha, self.method.tau, self.method.p0
        c = np.divide((1.0 - tau) * (1.0 - alpha), (1.0 - p0) * self.p, out=np.zeros(len(tau)), where=self.p > 0.0)
        for steps, first in zip(s.steps, s.start, strict=True):
            mean, _ = self.ask(steps >= 0, np.maximum(steps, 0), first)
            self._decide(steps >= 0, c, c[:, None] * (mean - self.own))
            self.within += steps >= 0
        return s

    def _decide(self, mask: Bools, c: Floats, u: Floats) -> None:
        """Clusters ``mask`` will step from a communication."""
        self.c, self.u = np.where(mask, c, self.c), np.where(mask[:, None], u, self.u)

    def ask(self, mask: Bools, count: Ints, first: Ints, refresh: bool = False) -> tuple[Floats, Floats]:
        """One exchange: averages of theta, or of x where it moves to y, and sums of gamma of those who answered.

        A cluster in which nobody answered, or nobody is tied, has the anchor's averages: it steps by its own loss.
        """
        alpha, m = self.method.ties.alpha[:, None], self.method.momentum
        scale = 1.0 / ((1.0 - self.method.p0) * (1.0 - self.p))
        own = {"c": self.c, "u": self.u, "fresh": self.fresh, "scale": scale, "count": count, "first": first}
        own["v"] = alpha * self.all + (1.0 - alpha) * self.own
        message: Any = {name: PerCluster(value) for name, value in own.items()}
        message |= {"momentum": np.array([m.a1, m.a2, m.b1, m.pace, m.eta]), "batch": self.method.batch}
        to = None if mask.all() else Clusters(mask)
        sums = self.fed.total(self.work, to=to, by="cluster", refresh=refresh, **message)
        self.c, self.fresh = np.where(mask, -1.0, self.c), self.fresh & ~mask
        if not sums:
            return self.own, np.zeros(len(self.p))
        weight = np.where(mask, sums["g"], 0.0)
        tied = weight[:, None] > 0.0
        return np.where(tied, sums["s"] / np.where(tied, weight[:, None], 1.0), self.own), weight
