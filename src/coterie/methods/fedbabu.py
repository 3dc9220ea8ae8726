"""Oh, Kim, Yun (2022), FedBABU: toward enhanced representation for federated image classification, Algorithm 1.

Clients share a body and begin with one head, which nobody trains: in rounds the body alone takes steps and is averaged.
At the end each client fine-tunes its head. (PFLlib fine-tunes head and body: ``tunes="all"``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.fedper import FedPer
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import State, client_models
from coterie.numerics.arrays import Floats
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(site: Site, w: Floats, transport: ModelTransport, eta: float, E: int, B: int, t: int) -> Reply:
    """ClientBodyUpdate: E epochs of steps of the body, with the head that everybody began with."""
    body = ~client.personal_mask(site, transport) | parameter_mask(site.objective)
    steps, start = client.epoch_steps(site, E, B), client.received(site, w, transport)
    theta = client.train(site, start, eta, steps, t * steps, B, on=1.0 * body)
    return client.make_reply(site, theta, transport)


@work
def finetune(
    site: Site, w: Floats, transport: ModelTransport, eta: float, steps: int, B: int, tunes: str = "head"
) -> Reply:
    """The personal model: some steps of the head, the body or both; what was there where they diverge."""
    start, head = client.received(site, w, transport), client.personal_mask(site, transport)
    on = {"head": 1.0 * head, "body": 1.0 * ~head, "all": None}[tunes]
    theta = client.train(site, start, eta, steps, 0, B, "finetune rows", on=on)
    return {"theta": np.where(client.finite(theta)[:, None], theta, start)}


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedPer):
    """Algorithm 1; ``personal`` is the head. Clients count by the weight of their rows."""

    finetune: Annotated[int, Option("Steps of every client's own at the end.", low=0)] = 20
    tunes: Annotated[Literal["head", "body", "all"], Option("Which layers take these steps.")] = "head"
    update = staticmethod(update)

    @np.errstate(over="ignore", invalid="ignore")
    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d) after fine-tuning."""
        over: State = {"eta": self.rate(state["t"]), "steps": self.finetune, "B": self.B, "tunes": self.tunes}
        return client_models(fed, state, finetune, w=state["w"], transport=self.transport, **over)
