"""Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), Federated optimization in heterogeneous networks, Algorithm 2.

FedProx: FedAvg whose clients nearly minimise ``h_k(v; w) = F_k(v) + mu |v - w|^2 / 2``, which keeps them near w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from coterie.federation import Site, work
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training.client_work import LocalRound, Reply
from coterie.options import Option


@work
def update(site: Site, mu: float, **sent: Any) -> Reply:
    """Line 4, ``w_k^{t+1} = argmin h_k(w; w^t)`` nearly: E epochs of steps from w."""
    here = LocalRound(site, **sent)
    return here.reply(here.train(anchor=here.start, pull=mu))


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Algorithm 2 with the paper's symbols.

    Clients are drawn evenly and count by the weight of their rows, as in ``FedAvg``; the paper draws them by their
    rows and counts them alike, which is the same in expectation.

    Notes
    -----
    Many epochs E make every client minimise h_k exactly; then w ends at the minimum of the sum of the Moreau envelopes
    of F_k, not of the sum of F_k: a proximal term holds the drift back and does not take it away (``SCAFFOLD`` does).
    """

    mu: Annotated[float, Option("0 is FedAvg; steps are stable for ``eta (L + mu) < 2``.", low=0.0)]
    bends = "mu"
    longer = ("E", 5)  # without which no step is taken away from w, and this is FedAvg
    update = staticmethod(update)
