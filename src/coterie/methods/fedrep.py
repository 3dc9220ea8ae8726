"""Collins, Hassani, Mokhtari, Shakkottai (2021), Exploiting shared representations, Algorithm 1: FedRep.

Clients share a representation phi, the body, and have a head h_i each. In a round a client first fits its head to the
body that it was sent, then takes steps of the body with that head; the server averages the bodies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from coterie.federation import Site, work
from coterie.methods.fedper import FedPer
from coterie.methods.local_training.client_work import LocalRound, Reply, epoch_steps
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(site: Site, H: int, **sent: Any) -> Reply:
    """Lines 5 to 11: steps of h_i with phi fixed, then steps of phi with h_i fixed."""
    here = LocalRound(site, **sent)
    head, statistics = here.own, parameter_mask(site.objective)
    theta = here.train(steps=epoch_steps(site, H, here.B), stream="head rows", on=1.0 * head)
    return here.reply(here.train(theta, on=1.0 * (~head | statistics)))


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Algorithm 1; ``personal`` is the head. Clients count by the weight of their rows (there all have as many)."""

    H: Annotated[int, Option("Passes that the head makes first in a round (tau_h); the body's are E.", low=1)] = 1
    update = staticmethod(update)
