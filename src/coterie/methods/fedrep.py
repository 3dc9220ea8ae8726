"""Collins, Hassani, Mokhtari, Shakkottai (2021), Exploiting shared representations, Algorithm 1: FedRep.

Clients share a representation phi, the body, and have a head h_i each. In a round a client first fits its head to the
body that it was sent, then takes steps of the body with that head; the server averages the bodies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from coterie.federation import Site, work
from coterie.methods.fedper import FedPer
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.numerics.arrays import Floats
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(site: Site, w: Floats, transport: ModelTransport, eta: float, H: int, E: int, B: int, t: int) -> Reply:
    """Lines 5 to 11: steps of h_i with phi fixed, then steps of phi with h_i fixed."""
    head, statistics = client.personal_mask(site, transport), parameter_mask(site.objective)
    theta = client.received(site, w, transport)
    for passes, moves, stream in ((H, head, "head rows"), (E, ~head | statistics, "rows")):
        steps = client.epoch_steps(site, passes, B)
        theta = client.train(site, theta, eta, steps, t * steps, B, stream, on=1.0 * moves)
    return client.make_reply(site, theta, transport)


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Algorithm 1; ``personal`` is the head. Clients count by the weight of their rows (there all have as many)."""

    H: Annotated[int, Option("Passes that the head makes first in a round (tau_h); the body's are E.", low=1)] = 1
    update = staticmethod(update)
    told = ("H", *FedPer.told)
