"""McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data, Algorithm 1.

FedAvg: clients train the shared model on their own rows, and the server averages what comes out, weighted by rows. Each
may go on from there alone in the end (FedAvg + fine-tuning), which makes a personal model of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, current_model, finite
from coterie.methods.local_training.rounds import LocalTraining, Passes
from coterie.options import Option


@work
def update(site: Site, **sent: Any) -> Reply:
    """ClientUpdate(k, w): E epochs of steps from w."""
    here = LocalRound(site, **sent)
    return here.reply(here.train())


@work
def tuned(site: Site, finetune: int, tunes: str = "all", **sent: Any) -> Reply:
    """The personal model: steps of the head, the body or both that nobody averages; w itself where they diverge."""
    here = LocalRound(site, **sent)
    head = here.own
    on = {"head": 1.0 * head, "body": 1.0 * ~head, "all": None}[tunes]
    theta = here.train(steps=finetune, stream="finetune rows", done=0, on=on)
    return {"theta": np.where(finite(theta)[:, None], theta, here.start)}


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalTraining):
    """Algorithm 1 with the paper's symbols: ``w_{t+1} = sum_k n_k w_{t+1}^k / m_t`` over the clients that answered.

    Clients count by the weight of their rows.
    """

    joins: ClassVar[str] = "steps"
    E: Passes = 1
    finetune: Annotated[int, Option("Steps of every client's own at the end.", low=0)] = 0
    update: ClassVar[Any] = staticmethod(update)

    @property
    def model(self) -> Any:
        """Every client's model is the shared one, or that after fine-tuning."""
        return tuned if self.finetune else current_model
