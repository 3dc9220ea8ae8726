"""Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), Federated optimization in heterogeneous networks, Algorithm 2.

FedProx: FedAvg whose clients nearly minimise ``h_k(v; w) = F_k(v) + mu |v - w|^2 / 2``, which keeps them near w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from coterie.federation import Site, work
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import Smoothness
from coterie.numerics.arrays import Floats
from coterie.options import Option


@work
def update(site: Site, w: Floats, transport: ModelTransport, eta: float, E: int, B: int, t: int, mu: float) -> Reply:
    """Line 4, ``w_k^{t+1} = argmin h_k(w; w^t)`` nearly: E epochs of steps from w."""
    steps, start = client.epoch_steps(site, E, B), client.received(site, w, transport)
    theta = client.train(site, start, eta, steps, t * steps, B, anchor=start, pull=mu)
    return client.make_reply(site, theta, transport)


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
    update = staticmethod(update)
    told = (*FedAvg.told, "mu")

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Some passes, without which no step is taken away from w, and this is FedAvg."""
        return {"E": 5} | super().suited(losses, how)
