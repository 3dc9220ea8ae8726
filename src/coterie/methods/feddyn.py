"""Acar, Zhao, Matas, Mattina, Whatmough, Saligrama (2021), Federated learning based on dynamic regularization, Alg. 1.

FedDyn: clients nearly minimise ``L_k(theta) - <g_k, theta> + alpha |theta - w|^2 / 2``. Each g_k goes on by ``-alpha
(theta_k - w)`` to the gradient of L_k where that is least, so that what all clients agree on is stationary for their
sum. (PFLlib has the norm where the square of it should be, and counts clients alike.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.federation import Federation, Site, Sums, work
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training.client_work import LocalRound, Reply, finite, weight
from coterie.methods.local_training.rounds import State, but_statistics
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


@work
def count(site: Site) -> Reply:
    """What clients count; all together are the paper's m."""
    return {"N": weight(site)}


@work
def update(site: Site, alpha: float, **sent: Any) -> Reply:
    """Theta_k by E epochs of steps from w, and the new g_k, which stays."""
    here = LocalRound(site, **sent)
    x, shared = here.start, ~here.own
    g = site.state.get("g", np.zeros((len(site), int(shared.sum())), dtype=x.dtype))
    shift = np.zeros(x.shape, dtype=x.dtype)
    shift[:, shared] = -g
    theta = here.train(anchor=x, pull=alpha, shift=shift)
    new = (g - alpha * (theta - x)[:, shared]).astype(x.dtype)
    return here.reply(theta, finite(theta), kept={"g": (new, g)})


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """Algorithm 1; clients count by the weight of their rows n_k, where the paper counts them alike.

    The server's ``h`` is then ``sum_k n_k g_k / sum_k n_k`` over all clients: its change needs the mean of theta_k
    alone, so that a round sends what FedAvg's does. A client that is left out after a divergence keeps its part in h,
    as if its gradient stayed what it was.

    Notes
    -----
    With local steps that reach the least it ends at the optimum of all clients' losses, however long they are.
    """

    alpha: Annotated[float, Option("Pull to w; steps are stable for ``eta (L + alpha) < 2``.", above=0.0)]
    bends = "alpha"
    longer = ("E", 5)  # which come near the least
    without = ("FedDyn needs exact changes, whose sum is h", "up down")
    update = staticmethod(update)

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round; ``h`` (d1,) is zero, N the weight of all clients."""
        state, sums = super().init(fed, w), fed.total(count)
        return state | {"h": np.zeros_like(state["w"]), "N": float(sums["N"]) if sums else 0.0}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """A round of FedAvg; h goes along its change, by the share of clients that took part, and corrects the mean."""
        w, h, N = state["w"], state["h"], state["N"]
        sums, new = super().round(fed, state, to)
        share = float(np.sum(sums["w"])) / N if sums and N > 0.0 else 0.0
        h = (h - self.alpha * share * (new["w"] - w)).astype(w.dtype)
        moved = but_statistics(state, new["w"] - h / self.alpha, new["w"]).astype(w.dtype)
        return sums, {"w": moved if share else w, "h": h}
