"""Ghosh, Chung, Yin, Ramchandran (2020), An efficient framework for clustered federated learning, Algorithm 1: IFCA.

Clients belong to k hidden groups with a model each. In every round a client takes the model with the least loss on its
rows, trains it, and the server averages what comes out, group by group (option II, model averaging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.codecs.compression import receive_models
from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, ModelTransport, Reply, merge, start_from
from coterie.methods.local_training.first_models import FirstModels
from coterie.methods.local_training.rounds import LocalTraining, State, average
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.mean_loss import value
from coterie.options import Option


def nearest(site: Site, w: Any, transport: ModelTransport) -> tuple[Ints, Floats]:
    """``argmin_j F_i(theta_j)`` (m,), the first of equal ones, and the shared part (m, d1) of that model."""
    models = receive_models(site, w, transport.get("down", "none"))
    losses = [value(site.objective, merge(site, models[:, j], transport)) for j in range(models.shape[1])]
    group = np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf), axis=0)
    return group, models[np.arange(len(site)), group]


@work
def choose(site: Site, w: Any, transport: ModelTransport) -> Reply:
    """Line 6; the model is kept, to be trained next."""
    group, model = nearest(site, w, transport)
    site.state["theta"] = start_from(site, model, transport)
    return {"group": group}


@work
def best_model(site: Site, w: Any, transport: ModelTransport) -> Reply:
    """The model that fits a client's rows best."""
    return {"theta": merge(site, nearest(site, w, transport)[1], transport)}


@work
def update(site: Site, transport: ModelTransport, eta: float, tau: int, B: int, t: int) -> Reply:
    """LocalUpdate: tau steps from the model that was chosen."""
    here, start = LocalRound(site, transport, eta=eta, t=t, B=B), site.state["theta"]
    theta = here.train(start, tau)
    return here.reply(theta, kept={"theta": (theta, start)})


@dataclass(frozen=True, kw_only=True)
class IFCA(LocalTraining):
    """Algorithm 1; clients count by the weight of their rows, and ``personal`` parts go with any model they take."""

    joins: ClassVar[str] = "steps"
    several: ClassVar[bool] = True  # first models
    k: Annotated[int, Option("Number of groups.", low=1)]
    tau: Annotated[int, Option("Steps of a client in a round.", low=1)] = 1
    spread: Annotated[
        float, Option("Standard deviation of the first models where the objective has none.", low=0.0)
    ] = 0.1
    model = staticmethod(best_model)  # that with the least loss; the first one for those that do not answer

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round, at models w (k, d), by default drawn; -1: a client in no group yet."""
        state = super().init(fed, w)
        if state["w"].shape[:-1] != (self.k,):
            raise CoterieError(f"There are {self.k} groups: give as many first models.")
        return state | {"group": np.full(len(fed.clients), -1, dtype=np.int64)}

    @property
    def seeds(self) -> list[int]:
        """Of the first models, one each."""
        return [int(key >> np.uint64(33)) for key in keyed_random.starts(self.seed, "first models", np.arange(self.k))]

    def first(self, start: FirstModels) -> Floats:
        """The objective's own first models (k, d1) where it has any, else small numbers."""
        keys, d = keyed_random.starts(self.seed, "first models", np.arange(self.k)), len(start.shared)
        out = start.shared_layers(start.models if start.known else self.spread * keyed_random.normal(keys, 0, d))
        if self.k > 1 and start.known and out.size and (out == out[0]).all():
            raise CoterieError(
                f"The model always begins with the same numbers, and {self.k} groups must begin apart: give the "
                f"function that makes the module instead of the module, or {self.k} first models w."
            )
        return out

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 3 to 10: groups first, then one average for each; a group that nobody chose keeps its model."""
        group = state["group"].copy()
        chosen = fed.ask(choose, to=to, **self.told(choose, state))
        answered = chosen.to[chosen.rows]
        group[answered] = chosen["group"] if chosen else -1
        sums = self.exchange(fed, update, answered, state, by=group[answered], groups=self.k)
        return sums, {"w": average(sums, state["w"]), "group": group}
