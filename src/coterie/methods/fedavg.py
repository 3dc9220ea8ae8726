"""McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data, Algorithm 1.

FedAvg: clients train the shared model on their own rows, and the server averages what comes out, weighted by rows. Each
may go on from there alone in the end (FedAvg + fine-tuning), which makes a personal model of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import LocalTraining, Passes, State, client_models
from coterie.numerics.arrays import Floats
from coterie.options import Option


@work
def update(site: Site, w: Floats, transport: ModelTransport, eta: float, E: int, B: int, t: int) -> Reply:
    """ClientUpdate(k, w): E epochs of steps from w."""
    steps = client.epoch_steps(site, E, B)
    theta = client.train(site, client.received(site, w, transport), eta, steps, t * steps, B)
    return client.make_reply(site, theta, transport)


@work
def finetune(site: Site, w: Floats, transport: ModelTransport, eta: float, steps: int, B: int) -> Reply:
    """The personal model: some steps from w that nobody averages; w itself where they diverge."""
    start = client.received(site, w, transport)
    theta = client.train(site, start, eta, steps, 0, B, "finetune rows")
    return {"theta": np.where(client.finite(theta)[:, None], theta, start)}


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalTraining):
    """Algorithm 1 with the paper's symbols: ``w_{t+1} = sum_k n_k w_{t+1}^k / m_t`` over the clients that answered.

    Clients count by the weight of their rows.
    """

    joins: ClassVar[str] = "steps"
    E: Passes = 1
    finetune: Annotated[int, Option("Steps of every client's own at the end.", low=0)] = 0
    update: ClassVar[Any] = staticmethod(update)
    told: ClassVar[tuple[str, ...]] = ("E", "B")

    @np.errstate(over="ignore", invalid="ignore")
    def models(self, fed: Federation, state: State) -> Any:
        """Every client's model (m, d) after fine-tuning."""
        if not self.finetune:
            return super().models(fed, state)
        over: State = {"eta": self.rate(state["t"]), "steps": self.finetune, "B": self.B}
        return client_models(fed, state, finetune, w=state["w"], transport=self.transport, **over)
