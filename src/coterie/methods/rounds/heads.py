"""What the heads of clusters know between exchanges of Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022).

A communication is a pull ``theta_i <- theta_i + gamma_i (u_j - c_j theta_i)``, sent with the next local steps. Where
the clients of a cluster have equal gamma, the head knows where their average is after it, and puts pulls that follow
one another together: they need no exchange.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.federation import Sums
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.relations.ties import Ties

Network = Callable[[Floats, Floats], Floats]
"""``(weights (k,), averages (k, d)) -> (k, d)``: the network's average as every cluster has it."""


def central(weights: Floats, averages: Floats) -> Floats:
    """A coordinator computes the network's average and tells every cluster; 0 where nothing has a weight."""
    total = float(weights.sum())
    mean = weights @ averages / total if total > 0.0 else np.zeros(averages.shape[1])
    return np.broadcast_to(mean, averages.shape)


class Heads:
    """Averages of clusters and the pulls that their clients have yet to make.

    Parameters
    ----------
    ties : Ties
    mean : (k, d)
        Average of each cluster after its pending pull; for clusters of unequal gamma, before it.
    weight : (k,)
        Sum of gamma over the clients that answered last.

    Attributes
    ----------
    c : (k,), u : (k, d)
        The pending pull.
    """

    def __init__(self, ties: Ties, mean: Floats, weight: Floats) -> None:
        self.gamma = ties.strongest
        self.equal, self.tied = ties.equal, ties.Gamma > 0.0
        self.mean, self.weight = np.array(mean), np.array(weight)
        self.c, self.u = np.zeros(len(mean)), np.zeros(mean.shape)

    def heard(self, mask: Bools, sums: Sums) -> None:
        """Clusters ``mask`` made their pending pull and then sent sums of gamma theta ("s") and of gamma ("g")."""
        self.c[mask], self.u[mask] = 0.0, 0.0
        if not sums:
            return
        answered = mask & (sums["g"] > 0.0)
        self.weight[mask] = sums["g"][mask]
        self.mean[answered] = sums["s"][answered] / sums["g"][answered, None]

    def pull(self, c: Floats, u: Floats) -> None:
        """All clusters will pull by c (k,) and u (k, d), those aside in which nobody answered."""
        c, u = np.where(self.weight > 0.0, c, 0.0), np.where(self.weight[:, None] > 0.0, u, 0.0)
        s = self.gamma * c
        self.c += c - s * self.c
        self.u += u - s[:, None] * self.u
        self.mean += np.where(self.equal, self.gamma, 0.0)[:, None] * (u - c[:, None] * self.mean)

    def gather(self, times: Ints, c: Floats) -> None:
        """Clusters will pull towards their own average, ``times`` (k,) in a row."""
        for again in range(int(times.max(initial=0))):
            now = np.where(times > again, c, 0.0)
            self.pull(now, now[:, None] * self.mean)

    def pending(self) -> Bools:
        """Clusters (k,) that have a pull to make."""
        return np.asarray((self.c != 0.0) | self.u.any(axis=1))

    def silent(self) -> Bools:
        """Clusters (k,) whose average is not known: they have a pull to make, and clients of unequal gamma."""
        return ~self.equal & self.pending()
