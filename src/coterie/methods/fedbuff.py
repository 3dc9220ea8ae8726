"""Nguyen et al. (2022), Federated learning with buffered asynchronous aggregation, Algorithm 1.

FedBuff: a share C of the clients trains at any time, each from the model as it was when the client began,
and another one begins as soon as one ends. The server waits for K changes, not for the slowest client, and takes a step
along their mean, in which a change counts less by how many steps old its first model is.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Federation, PerRow, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, Reply
from coterie.methods.local_training.rounds import LocalTraining, Passes, State, available
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.options import Option


@work
def update(site: Site, w: Floats, stale: Floats, **sent: Any) -> Reply:
    """FedBuff-client: the change that E epochs make of the model w (m, d1) at which each began; n is what it counts."""
    here = LocalRound(site, w=w, **sent)
    reply = here.reply(here.train())
    change = reply.pop("x") - reply["w"].astype(w.dtype)[:, None] * w
    return reply | {"change": stale.astype(w.dtype)[:, None] * change}  # private sums take x for a model


@dataclass(frozen=True, kw_only=True)
class FedBuff(LocalTraining):
    """Algorithm 1: ``w <- w + eta_g sum_i s(tau_i) n_i Delta_i / sum_i n_i``, ``s(tau) = (1 + tau)^(-1/2)``.

    Clients count by the weight of their rows; the paper counts them alike. How long one trains is drawn by keys from
    ``|N(0, 1)|``, the paper's fit of a real system (section 5), and counts as hours where clients come and go: one that
    is not there when it would send is forgotten. A step of the server is a round.
    """

    K: Annotated[int, Option("Changes that the server waits for.", low=1)] = 10
    eta_g: Annotated[float, Option("Server's step size.", above=0.0)] = 1.0
    E: Passes = 1
    joins: ClassVar[str] = "steps"
    drawn: ClassVar[bool] = True  # who ends when, so that a run never rests
    update: ClassVar[Any] = staticmethod(update)

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first step: nobody trains, at hour 0.

        Of those ``who`` train, ``due`` is when they end and ``version`` the step before which they began, at one of the
        models ``past``, a row for each of the versions in rising order.
        """
        state, none = super().init(fed, w), np.empty(0, dtype=np.int64)
        past = np.empty((0, len(state["w"])), dtype=state["w"].dtype)
        return state | {"who": none, "version": none, "due": np.empty(0), "past": past, "hour": 0.0}

    def chosen(self, fed: Federation, state: State, free: Ints) -> Ints:
        """All who can be asked in this hour."""
        return free[available(fed.clients.ids[free], int(state["hour"]), self.online, self.stay, self.seed)]

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Clients end and begin until K have sent their changes; the server takes a step (lines 4 to 14)."""
        t, w = state["t"], state["w"]
        there = np.zeros(len(fed.clients), dtype=bool)
        there[to] = True
        who, begun, new = self.next_changes(fed, state, there)
        kept = np.unique(state["version"])
        versions, past = np.append(kept[kept < t], t), np.concatenate([state["past"][kept < t], w[None]])
        at = np.searchsorted(versions, begun)
        eta = np.array([self.rate(int(v)) for v in versions])[at]
        how: State = {"eta": PerRow(eta), "t": PerRow(begun), "stale": PerRow((1.0 + t - begun) ** -0.5)}
        sums = self.exchange(fed, update, who, state, w=PerRow(past[at]), **how)
        if len(who) and not sums:
            return sums, {}  # nobody was heard, and all are asked again
        new["past"] = past[np.searchsorted(versions, np.unique(new["version"]))]
        if not sums or not sums["w"] > 0.0:
            return sums, new
        return sums, new | {"w": (w + self.eta_g * sums["change"] / sums["w"]).astype(w.dtype)}

    def next_changes(self, fed: Federation, state: State, there: Bools) -> tuple[Ints, Ints, State]:
        """Who ends next, K of those who are ``there`` (m,), with the versions they began at; and who trains then."""
        t, now, ids = state["t"], state["hour"], fed.clients.ids
        places = max(int(self.C * len(there) + 0.5), 1)
        K, empty = min(self.K, places), places - len(state["who"])
        idle = np.flatnonzero(there)
        idle = idle[~np.isin(idle, state["who"])]
        order = np.argsort(keyed_random.uniform(self.seed, "participation", ids[idle], t, 1)[:, 0], kind="stable")
        fresh = idle[order[: empty + K + int((~there[state["who"]]).sum())]]
        takes = np.abs(keyed_random.normal(keyed_random.starts(self.seed, "duration", ids[fresh]), t, 1)[:, 0])
        training: list[tuple[float, int, int]] = list(
            zip(state["due"].tolist(), state["version"].tolist(), state["who"].tolist(), strict=True)
        )
        begins = iter(zip(takes.tolist(), fresh.tolist(), strict=True))
        training += [(now + took, t, i) for _, (took, i) in zip(range(empty), begins, strict=False)]
        heapify(training)
        ended: list[tuple[int, int]] = []
        while training and len(ended) < K:
            now, version, i = heappop(training)
            ended += [(i, version)] if there[i] else []
            for took, fresh_one in islice(begins, 1):
                heappush(training, (now + took, t, fresh_one))
        if not training:
            now = np.floor(now) + 1.0  # nobody is there: another hour comes
        training.sort()
        new: State = {"due": np.array([run[0] for run in training]), "hour": float(now)}
        new |= {name: np.array([run[k] for run in training], np.int64) for k, name in ((1, "version"), (2, "who"))}
        sent = np.array(sorted(ended), dtype=np.int64).reshape(-1, 2)
        return sent[:, 0], sent[:, 1], new
