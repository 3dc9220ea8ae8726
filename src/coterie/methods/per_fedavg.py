"""Fallah, Mokhtari, Ozdaglar (2020), Personalized federated learning: a meta-learning approach, Algorithm 1.

Per-FedAvg: from the shared model w a gradient step suits each client. It minimises the mean of ``F_i(w) = f_i(w - alpha
grad f_i(w))``, whose gradient is ``(I - alpha grad^2 f_i(w)) grad f_i(w - alpha grad f_i(w))``. (PFLlib has the
first-order form, and clients that train twice in a round.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.fedavg import tuned
from coterie.methods.local_training.client_work import LocalRound, Reply, train, train_ahead
from coterie.methods.local_training.rounds import LocalTraining, Passes, Smoothness, State, client_models
from coterie.numerics.arrays import Floats
from coterie.objectives.parameters import parameter_mask, statistics_mask
from coterie.options import Option


@work
def update(site: Site, alpha: float, delta: float, **sent: Any) -> Reply:
    """Lines 5 to 9: every step looks at rows D, D' and D'', the last for the Hessian."""
    here = LocalRound(site, **sent)
    steps, eta, B = here.steps, here.eta, here.B
    if len(end := train_ahead(site, here.start, alpha, delta, eta, steps, here.t * steps, B)):
        return here.reply(end)
    x = np.array(here.start)
    moves = ~(parameter_mask(site.objective) | statistics_mask(site.objective))
    for s in range(int(steps.max(initial=0))):
        on = slice(None) if s < steps.min() else np.flatnonzero(steps > s)  # of all, nothing is copied
        some, done = site.take(on), here.t * steps[on] + s
        inner = train(some, x[on], alpha, 1, done, B, plain=True)
        move = train(some, inner, eta, 1, done, B, "meta rows", plain=True) - inner  # -eta times the gradient
        if delta > 0.0 and eta > 0.0:
            ends = [x[on] + sign * (delta / eta) * move * moves for sign in (1.0, -1.0)]
            behind, ahead = (y - train(some, y, 1.0, 1, done, B, "curvature rows", plain=True) for y in ends)
            move += eta * alpha * (ahead - behind) / (2.0 * delta) * moves
        x[on] += move
    return here.reply(x)


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(LocalTraining):
    """Algorithm 1; ``eta`` is the paper's beta, and clients count by the weight of their rows.

    Notes
    -----
    The first-order form goes along ``grad f_i(w - alpha grad f_i(w))``, which is the gradient of F_i where the Hessian
    is left out: it ends elsewhere, by an amount of the order of ``alpha L``. In single precision delta should not be
    far below 1e-3, as gradients there have about seven digits.
    """

    joins: ClassVar[str] = "rounds"
    alpha: Annotated[float, Option("Step of each client's own, at the end and inside F_i; at most 1 / L.", above=0.0)]
    delta: Annotated[
        float, Option("Difference that stands for the Hessian (Per-FedAvg HF); 0 leaves it out (FO).", low=0.0)
    ] = 0.0
    E: Passes = 1
    finetune: Annotated[int, Option("Steps of alpha that every client takes at the end.", low=0)] = 1
    update = staticmethod(update)

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """A stable step, and half of one for each client's own."""
        return super().suited(losses, how) | {"alpha": 0.5 / losses.L}

    @np.errstate(over="ignore", invalid="ignore")
    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d) after its own steps."""
        return client_models(fed, state, tuned, **self.told(tuned, state) | {"eta": self.alpha})
