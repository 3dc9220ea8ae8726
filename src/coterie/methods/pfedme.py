"""T Dinh, Tran, Nguyen (2020), Personalized federated learning with Moreau envelopes, Algorithm 1: pFedMe.

The shared model w minimises the mean of the envelopes ``F_i(w) = min_theta f_i(theta) + lambda |theta - w|^2 / 2``; the
theta that attains it is a client's own model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from coterie.federation import Federation, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, Reply, personal, train
from coterie.methods.local_training.rounds import LocalTraining, Smoothness, State
from coterie.numerics.arrays import Ints
from coterie.options import Option


@work
def update(site: Site, lam: float, alpha: float, K: int, R: int, **sent: Any) -> Reply:
    """Lines 4 to 9: R times, theta_i nearly minimises (7) on one batch, and w_i goes along the envelope's gradient."""
    here = LocalRound(site, **sent)
    local = theta = here.start
    for r in range(R):
        theta = train(site, theta, alpha, K, here.t * R + r, here.B, anchor=local, pull=lam, fresh=False)
        local = local - here.eta * lam * (local - theta)
    return here.reply(local, counts=site.weights, kept={"theta": (theta, site.state.get("theta", here.start))})


@dataclass(frozen=True, kw_only=True)
class PFedMe(LocalTraining):
    """Algorithm 1 with the paper's symbols; clients count alike, whatever their rows (or by ``Site.weights``).

    ``eta`` is the step size of w_i; ``eta lambda`` should be below 2, and with 1 w_i becomes theta_i.
    """

    joins: ClassVar[str] = "rounds"
    lam: Annotated[float, Option("lambda: a small one makes theta_i local, a large one w.", above=0.0)]
    alpha: Annotated[float, Option("Step size for theta_i; stable for ``alpha (L + lambda) < 2``.", above=0.0)]
    K: Annotated[int, Option("Steps that make theta_i, all on one batch.", low=1)] = 5
    R: Annotated[int, Option("How often theta_i is made in a round.", low=1)] = 1
    beta: Annotated[float, Option("``w <- (1 - beta) w + beta mean_i w_i`` at the server.", above=0.0)] = 1.0
    model = staticmethod(personal)  # theta_i; w for those that never took part
    update = staticmethod(update)

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """The step that makes w_i theta_i, and stable ones for theta_i."""
        return {"eta": 1.0 / how["lam"], "alpha": 1.0 / (losses.L + how["lam"])}

    @property
    def notes(self) -> list[str]:
        """Where w_i overshoots for ever."""
        if callable(self.eta) or self.eta * self.lam < 2.0:
            return []
        return [
            f"eta lam = {self.eta * self.lam:g} is not below 2: a step of w_i goes beyond theta_i by more every time."
        ]

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 2 to 12; clients that are not asked would change nothing, and rest."""
        sums, new = super().round(fed, state, to)
        return sums, {"w": (1.0 - self.beta) * state["w"] + self.beta * new["w"]}
