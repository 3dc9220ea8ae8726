"""Deng, Kamani, Mahdavi (2020), Adaptive personalized federated learning, Algorithm 1: APFL.

Beside its copy w_i of the shared model, every client has a model v_i; it uses the mixture ``alpha_i v_i + (1 - alpha_i)
w_i``. Every local step moves w_i along its own gradient and v_i along the mixture's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import LocalTraining, Passes, State, client_models
from coterie.numerics.arrays import Floats
from coterie.objectives.gradient_steps import Second
from coterie.objectives.mean_loss import mix
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(
    site: Site, w: Floats, transport: ModelTransport, eta: float, E: int, B: int, t: int, alpha: float, adaptive: bool
) -> Reply:
    """Local steps of w_i and v_i on the same rows; alpha_i goes along its own gradient, once a round.

    A client's first v_i is the first w that it is sent.
    """
    steps, x = client.epoch_steps(site, E, B), client.received(site, w, transport)
    v = before = site.state.get("v", x)
    a, done = site.state.get("alpha", np.full(len(site), alpha)), t * steps
    if adaptive:  # by the gradient of the first step, which v goes along by the alpha before
        y, whole = client.train_beside(site, x, Second(v, a, np.ones(len(a))), eta, 1, done, B)
        along, moves = v - whole, ~parameter_mask(site.objective)  # eta times the mixture's gradient
        turn = np.sum((v - x) * along * moves, axis=1)
        x, v, steps, done = y, v - a.astype(v.dtype)[:, None] * along, steps - 1, done + 1
        a = np.clip(a - turn, 0.0, 1.0)
    x, v = client.train_beside(site, x, Second(v, a, a), eta, steps, done, B)
    good = client.finite(x, v)
    site.state["v"] = np.where(good[:, None], v, before)
    site.state["alpha"] = np.where(good, a, site.state.get("alpha", np.full(len(site), alpha)))
    return client.make_reply(site, x, transport, good)


@work
def mixed(site: Site, w: Floats, transport: ModelTransport, alpha: float) -> Reply:
    """A client's mixture (m, d) with the shared model as it is now; that alone where it never took part."""
    x = client.received(site, w, transport)
    a = site.state.get("alpha", np.full(len(site), alpha))
    return {"theta": mix(a, site.state.get("v", x), x)}


@dataclass(frozen=True, kw_only=True)
class APFL(LocalTraining):
    """Algorithm 1 with the paper's symbols; clients count by the weight of their rows (there all count alike).

    Notes
    -----
    Steps are stable for ``eta L < 2``. For any alpha above 0 a mixture that is trained until nothing changes is the
    client's local optimum: alpha says how fast it goes there (``eta alpha^2`` a step), not where.
    """

    joins: ClassVar[str] = "rounds"
    alpha: Annotated[float, Option("First alpha_i, from 0 (FedAvg) to 1 (local).", low=0.0, high=1.0)] = 0.5
    adaptive: Annotated[bool, Option("Whether clients learn their own alpha_i, by a gradient step a round.")] = False
    E: Passes = 1  # the paper's tau
    update = staticmethod(update)
    told = ("E", "B", "alpha", "adaptive")

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's mixture (m, d); w for those that never took part."""
        return client_models(fed, state, mixed, w=state["w"], transport=self.transport, alpha=self.alpha)
