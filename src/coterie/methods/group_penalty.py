"""Notes on shared and group-specific layers (paper 000), 1st and 3rd condition: pull within groups, push between them.

Every client has its own z_i beside the shared x_s. With weights n_i, sums N_g and N, and means c_g of groups, F is

    sum_i n_i (f_i(x_s, z_i) + lam/2 |z_i - c_g(i)|^2) + mu/2 sum_{g < h} N_g N_h / N max(0, margin - |c_g - c_h|)^2.

lam = 0 is personal layers without groups (FedPer), a large lam one z for each group (group SGD). The push ends where
groups are ``margin`` apart, so F is bounded below wherever the losses are. Without a margin the push is
``-mu/2 sum_{g < h} N_g N_h / N |c_g - c_h|^2 = -mu/2 sum_g N_g |c_g - c|^2``. Groups that go apart by s_g about a mean
that stays win ``mu/2 sum_g N_g |s_g|^2``; losses of ``bend/2 |z|^2`` less a constant at least, whatever x_s is,
grow by ``bend/2`` times the same sum, less lower powers. So F is bounded below if ``mu < bend``; for log losses with a
ridge of ``bend``, which grow no faster, it is not if mu is larger. That losses are strongly convex in z is not enough:
with ``|z - a_g x_s|^2 / 2`` groups go apart along x_s at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, Sums, work
from coterie.methods.groups.group_models import group_of_clients
from coterie.methods.local_training.client_work import LocalRound, Reply, finite
from coterie.methods.local_training.new_client import group_means
from coterie.methods.local_training.rounds import LocalTraining, State, average
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


@work
def update(site: Site, centre: Floats, push: Floats, lam: float, tau: int, **sent: Any) -> Reply:
    """tau steps on f_i + lam/2 |z - c_g|^2 + <push, z>; what is shared is pulled to where it began, as in FedProx."""
    here = LocalRound(site, **sent)
    start, own = here.start, here.own
    anchor, shift = np.array(start), np.zeros(start.shape, dtype=start.dtype)
    anchor[:, own], shift[:, own] = centre, push
    theta = here.train(steps=tau, anchor=anchor, pull=lam, shift=shift)
    reply = here.reply(theta)
    return reply | {"z": reply["w"][:, None] * np.where(finite(theta)[:, None], theta[:, own], 0.0)}


def pushes(centre: Floats, share: Floats, mu: float, margin: float) -> Floats:
    """The push's gradient in z_i (k, d2) for clients of every group, divided by n_i, from shares N_g / N (k,)."""
    gap = centre[:, None] - centre[None]
    far = np.linalg.norm(gap, axis=2)
    if np.isinf(margin):
        strength = np.ones(far.shape)
    else:  # groups that are one know no direction to part in: they are left to their losses
        strength = np.where(far > 0.0, np.maximum(margin - far, 0.0) / np.where(far > 0.0, far, 1.0), 0.0)
    return np.asarray(-mu * np.einsum("gh,h,ghj->gj", strength, share, gap))


@dataclass(frozen=True, kw_only=True)
class GroupPenalty(LocalTraining):
    """Local steps on F: with ``tau = 1`` gradient descent; longer rounds go by the groups' means as they began.

    ``personal`` names z, which never leaves its client: groups' sums do. ``group`` (m,) is the group of every client
    from 0, by default its cluster. With ``bend`` every client's mean loss is ``bend/2 |z|^2`` less a constant at
    least: F is known to have a minimum where mu is below; ``notes`` says where it is not.
    """

    lam: Annotated[float, Option("Pull to the mean of the group; stable for ``eta (L + lam) < 2``.", low=0.0)]
    group: Any = None
    mu: Annotated[float, Option("Push between means of groups.", low=0.0)] = 0.0
    margin: Annotated[
        float, Option("Distance at which the push ends.", above=0.0, infinite=True, beside=("mu", ()))
    ] = np.inf
    bend: Annotated[
        float,
        Option("Without a margin: the ridge on z that bounds clients' losses from below.", low=0.0, beside=("mu", ())),
    ] = 0.0
    tau: Annotated[int, Option("Local steps in a round.", low=1)] = 1
    bends = "lam"
    joins = "pulled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.personal:
            raise CoterieError("Clients need parameters of their own: name them in personal, ('*',) for all.")

    @property
    def notes(self) -> list[str]:
        """Where F may have no minimum."""
        if not (self.mu > 0.0 and np.isinf(self.margin) and self.mu >= self.bend):
            return []
        return [
            f"A push mu of {self.mu:g} without a margin drives groups apart for ever, unless losses bend by more (as a "
            f"ridge does: bend, here {self.bend:g}): give a margin, or take what a few rounds make."
        ]

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round: all clients have the same z."""
        state, k = super().init(fed, w), int(group_of_clients(fed, self.group).max(initial=0)) + 1
        z = state["whole"][~state["shared"]]
        return state | {"centre": np.tile(z, (k, 1)), "share": np.full(k, 1.0 / k)}

    def anchors(self, theta: Floats, weight: Floats, group: Ints, own: Any) -> tuple[Floats, Floats]:
        """What a later client of each group is pulled to (k, d), from all models (m, d), and how strongly (k,).

        The push is linear in z, so that with the pull it is one to ``c_g - push / lam``; without a pull it is left out.
        """
        anchor, share = group_means(theta, weight, group), np.bincount(group, weight) / weight.sum()
        if self.lam:
            anchor[:, own] -= pushes(anchor[:, own], share, self.mu, self.margin) / self.lam
        return anchor, np.full(len(anchor), self.lam)

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Clients step; x_s is averaged over all, z within groups."""
        w, centre, group = state["w"], state["centre"], group_of_clients(fed, self.group)[to]
        push = pushes(centre, state["share"], self.mu, self.margin).astype(centre.dtype)
        addressed: State = {"centre": PerRow(centre[group]), "push": PerRow(push[group]), "by": group}
        sums = self.exchange(fed, update, to, state, groups=len(centre), **addressed)
        if not sums:
            return sums, {}
        n = np.where(sums["w"] > 0.0, sums["w"], 1.0)[:, None]
        answered = sums["w"] > 0.0
        new = {"centre": np.where(answered[:, None], sums["z"] / n, centre).astype(centre.dtype)}
        share = np.where(answered, sums["w"], state["share"] * sums["w"].sum())
        total: Any = {"x": sums["x"].sum(axis=0), "w": sums["w"].sum()}
        return sums, new | {"w": average(total, w), "share": share / max(share.sum(), 1e-300)}
