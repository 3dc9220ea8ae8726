"""Deng, Kamani, Mahdavi (2020), Adaptive personalized federated learning, Algorithm 1: APFL.

Beside its copy w_i of the shared model, every client has a model v_i; it uses the mixture ``alpha_i v_i + (1 - alpha_i)
w_i``. Every local step moves w_i along its own gradient and v_i along the mixture's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, finite, train_beside
from coterie.methods.local_training.rounds import LocalTraining, Passes
from coterie.objectives.gradient_steps import Second
from coterie.objectives.mean_loss import mix
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def update(site: Site, alpha: float, adaptive: bool, **sent: Any) -> Reply:
    """Local steps of w_i and v_i on the same rows; alpha_i goes along its own gradient, once a round.

    A client's first v_i is the first w that it is sent.
    """
    here = LocalRound(site, **sent)
    steps, done, x = here.steps, here.t * here.steps, here.start
    v = before = site.state.get("v", x)
    a = first = site.state.get("alpha", np.full(len(site), alpha))
    if adaptive:  # by the gradient of the first step, which v goes along by the alpha before
        y, u = train_beside(site, x, Second(v, a, np.ones(len(a))), here.eta, 1, done, here.B)
        np.subtract(v, u, out=u)  # eta times the mixture's gradient
        turn = np.sum((v - x) * u * ~parameter_mask(site.objective), axis=1)
        u *= a.astype(v.dtype)[:, None]
        x, v, steps, done = y, np.subtract(v, u, out=u), steps - 1, done + 1
        del y, u  # each as large as all models, which x and v are until the next step
        a = np.clip(a - turn, 0.0, 1.0)
    x, v = train_beside(site, x, Second(v, a, a), here.eta, steps, done, here.B)
    site.state["alpha"] = np.where(finite(x, v), a, first)
    return here.reply(x, kept={"v": (v, before)})


@work
def mixed(site: Site, alpha: float, **sent: Any) -> Reply:
    """A client's mixture (m, d) with the shared model as it is now; that alone where it never took part."""
    x = LocalRound(site, **sent).start
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
    update, model = staticmethod(update), staticmethod(mixed)
