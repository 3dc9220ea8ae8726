"""Sattler, Müller, Samek (2020), Clustered federated learning, Algorithms 1, 2 and 4: CFL.

All clients begin in one group, which trains by FedAvg. Where the mean update of a group has become small while some
client's own is not, the group's model is stationary without suiting everybody: it is split in two, so that the largest
cosine between updates of clients on different sides is as small as can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, Reply, current_model, finite, weight
from coterie.methods.local_training.rounds import LocalTraining, Passes, Smoothness, State, average, client_models
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


@work
def update(site: Site, **sent: Any) -> Reply:
    """``Delta theta_i = SGD(theta, D_i) - theta`` from the group's model; the change of what is shared is kept."""
    here = LocalRound(site, **sent)
    theta = here.train()
    change, shared = np.where(finite(theta)[:, None], theta - here.start, 0.0), ~here.own
    site.state["change"] = change[:, shared].astype(np.float64)
    return here.reply(theta)


@work
def norms(site: Site) -> Reply:
    """How long each client's last update is."""
    return {"norm": np.linalg.norm(site.state["change"], axis=1)}


@work
def changes(site: Site) -> Reply:
    """Each client's last update (m, d1), and how much it counts."""
    return {"change": site.state["change"], "w": weight(site)}


@dataclass(frozen=True, kw_only=True)
class CFL(LocalTraining):
    """Clustered federated learning with weight updates; every client takes part in every round.

    The authors take about a tenth of the longest first update for eps1, and several times eps1 for eps2. ``gamma`` is
    gamma_max: only where ``sqrt((1 - largest cosine across) / 2)`` is larger is the split sure to be right, and made.
    With 0 all are.
    """

    joins: ClassVar[str] = "groups"
    without: ClassVar[tuple[str, str]] = ("CFL compares the updates of all clients of a group", "C")
    eps1: Annotated[float, Option("Length of its mean update below which a group may be split.", low=0.0)]
    eps2: Annotated[float, Option("Length that a client's update must exceed for a split.", low=0.0)]
    E: Passes = 1
    gamma: Annotated[float, Option("How far a client's gradient may be from its group's, relative to it.", low=0)] = 0.0

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """A stable step; a tenth of the longest first update, as the authors take for eps1, and four times that."""
        eta = super().suited(losses, how)["eta"]
        eta = eta if callable(how.get("eta", eta)) else how.get("eta", eta)
        longest = eta * losses.steps(how) * losses.gradient
        return {"eta": eta, "eps1": 0.1 * longest, "eps2": 0.4 * longest}

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round: one group, with the model w (d,)."""
        state = super().init(fed, w)
        if state["w"].ndim != 1:
            raise CoterieError("All clients begin in one group: give one first model.")
        return state | {"w": state["w"][None], "group": np.zeros(len(fed.clients), dtype=np.int64)}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """One round of FedAvg within every group, or the split of one, whose parts go on from its model."""
        w, group = state["w"], state["group"]
        sums = self.exchange(fed, update, to, state, by=group[to], groups=len(w), w=PerRow(w[group[to]]))
        new: State = {"w": average(sums, w), "group": group}
        if sums and not (len(sums.missing) or np.any(sums["diverged"]) or np.any(sums["broken"])):
            stationary = np.linalg.norm(new["w"] - w, axis=1) < self.eps1
            for members, change, n in self.split_candidates(fed, to[stationary[group[to]]], group):
                new = self.split(new, w, members, change, n)
        return sums, new

    def split_candidates(self, fed: Federation, to: Ints, group: Ints) -> list[tuple[Ints, Floats, Floats]]:
        """Of the groups of ``to``, those with a client whose update is long: clients, updates, and what each counts."""
        size = fed.ask(norms, to=to) if len(to) else None
        if not size or len(size.missing):
            return []
        to = to[np.isin(group[to], group[to][size["norm"] > self.eps2])]
        replies = fed.ask(changes, to=to) if len(to) else None
        if not replies or len(replies.missing):
            return []
        parts = [group[to] == c for c in np.unique(group[to])]
        return [(to[at], replies["change"][at], replies["w"][at][:, None]) for at in parts if at.sum() > 1]

    def split(self, state: State, before: Floats, members: Ints, change: Floats, n: Floats) -> State:
        """A group, whose model was in ``before``, in two; the second part becomes the last group."""
        u = change / np.maximum(np.linalg.norm(change, axis=1, keepdims=True), 1e-300)
        side, cross = bipartition(np.clip(u @ u.T, -1.0, 1.0))
        if np.sqrt((1.0 - cross) / 2.0) <= self.gamma:
            return state
        group, c = state["group"].copy(), state["group"][members[0]]
        parts = [before[c] + (n * change)[side == s].sum(0) / max(n[side == s].sum(), 1e-300) for s in (0, 1)]
        models = np.concatenate([state["w"], parts[1][None]]).astype(before.dtype)
        models[c] = parts[0]
        group[members[side == 1]] = len(models) - 1
        return state | {"w": models, "group": group}

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's group's model (m, d)."""
        own = PerRow(state["w"][state["group"]])
        return client_models(fed, state, current_model, w=own, transport=self.transport)


def bipartition(alpha: Floats) -> tuple[Ints, float]:
    """Algorithm 1: the split of clients that makes the largest similarity across it smallest, and that similarity.

    Clients are joined in falling order of their similarities alpha (n, n) until two groups are left, which is single
    linkage. Sides are 0 or 1; the first client's is 0.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(alpha)
    distance = 1.0 - (alpha + alpha.T) / 2.0
    np.fill_diagonal(distance, 0.0)
    label = fcluster(linkage(squareform(np.maximum(distance, 0.0), checks=False), "single"), 2, "maxclust")
    side = (label != label[0]).astype(np.int64)
    if not side.any():  # all equally far apart
        side[n - 1] = 1
    return side, float(alpha[np.ix_(side == 0, side == 1)].max())
