"""Oh, Kim, Yun (2022), FedBABU: toward enhanced representation for federated image classification, Algorithm 1.

Clients share a body and begin with one head, which nobody trains: in rounds the body alone takes steps and is averaged.
At the end each client fine-tunes its head. (PFLlib fine-tunes head and body: ``tunes="all"``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from coterie.federation import Site, work
from coterie.methods.fedper import FedPer
from coterie.methods.local_training.client_work import LocalRound, Reply
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(site: Site, **sent: Any) -> Reply:
    """ClientBodyUpdate: E epochs of steps of the body, with the head that everybody began with."""
    here = LocalRound(site, **sent)
    body = ~here.own | parameter_mask(site.objective)
    return here.reply(here.train(on=1.0 * body))


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedPer):
    """Algorithm 1; ``personal`` is the head. Clients count by the weight of their rows."""

    finetune: Annotated[int, Option("Steps of every client's own at the end.", low=0)] = 20
    tunes: Annotated[Literal["head", "body", "all"], Option("Which layers take these steps.")] = "head"
    update = staticmethod(update)
