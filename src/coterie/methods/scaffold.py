"""Karimireddy, Kale, Mohri, Reddi, Stich, Suresh (2020), SCAFFOLD: stochastic controlled averaging, Algorithm 1.

FedAvg's clients drift to their own optima. Here each remembers its own gradient c_i, the server their mean c, and every
local step goes along ``g_i(y) - c_i + c``, so that all of them head where the sum of their losses falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from coterie.federation import Federation, Site, Sums, work
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training.client_work import (
    GOOD,
    LocalRound,
    ModelTransport,
    Reply,
    columns,
    finite,
    personal_mask,
    weight,
)
from coterie.methods.local_training.rounds import Smoothness, State, average, but_statistics
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.objectives.mixed import kinds
from coterie.objectives.parameters import precision
from coterie.options import Option


@work
def begin(site: Site, transport: ModelTransport) -> Reply:
    """Line 1: every c_i is zero, as it is before it is written; all clients' weights together are the paper's N."""
    if site.state.written("c").any():  # by a run before this one
        shape = len(site), int(np.sum(~personal_mask(site, transport)))
        site.state["c"] = np.zeros(shape, dtype=precision(site.objective))
    site.state["n"] = weight(site)
    return {"N": weight(site)}


def gradients(site: Site, steps: Ints) -> Floats:
    """How many gradients a client's way sums (m,): its steps, or more with the heavy ball ``v <- b v + g``."""
    out = steps.astype(np.float64)
    for rows, part in kinds(site.objective):
        b, K = getattr(getattr(part, "training", None), "momentum", 0.0), out[rows]
        out[rows] = (K - b * (1.0 - b**K) / (1.0 - b)) / (1.0 - b)
    return out


@work
def update(site: Site, c: Floats, option: int, **sent: Any) -> Reply:
    """Lines 6 to 13. A client that cannot go on takes what it added to c back, and its weight out of N."""
    here = LocalRound(site, **sent)
    x, shared = here.start, ~here.own
    own = site.state.get("c", np.zeros((len(site), len(c)), dtype=x.dtype))
    shift = (c - own).astype(x.dtype, copy=False)
    if not shared.all():
        shift, at_shared = np.zeros(x.shape, dtype=x.dtype), shift
        shift[:, shared] = at_shared
    y = here.train(shift=shift, plain=True)
    if option == 1:
        site.count(gradients=len(site))
        plus = gradient(site.objective, x, Draws.of_all(len(site)))[:, shared]
    else:
        way = (here.eta * gradients(site, here.steps))[:, None].astype(x.dtype)
        plus = own - c + columns(x - y, shared) / way if here.eta > 0.0 else own
    reply = here.reply(y, finite(y, plus))
    del shift, y  # each of them as large as all models
    good, before = site.state["verdict"] == GOOD, site.state.get("n", np.zeros(len(site)))
    site.state["c"] = plus = np.where(good[:, None], plus, 0.0).astype(x.dtype, copy=False)
    site.state["n"] = n = np.where(good, weight(site), 0.0)
    change = n[:, None] * plus
    change -= before[:, None] * own
    return reply | {"c": change.astype(x.dtype), "N": n - before}


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Algorithm 1 with the paper's symbols; its local steps are FedAvg's, and so are E, B and ``finetune``.

    Clients count by the weight of their rows n_i, where the paper has equal ones: its ``|S|/N`` is the share of S in
    the rows of all clients, and ``c = sum_i n_i c_i / sum_i n_i``. Clients that were not there at the beginning are
    counted from when they come.

    Notes
    -----
    With all rows in every step it ends at the optimum of all clients' losses, however many local steps there are; the
    theorems need ``eta <= 1 / (81 L K eta_g)`` for K local steps, and about ``1 / (L K eta_g)`` does in practice. A
    round costs twice FedAvg's bytes, for c and the changes of c_i.
    """

    option: Annotated[Literal[2, 1], Option("c_i^+: the mean gradient on the way (II), or all rows' at x (I).")] = 2
    eta_g: Annotated[float, Option("Server's step size; above 1, eta must be smaller.", above=0.0)] = 1.0

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Some passes, without which this is FedAvg, and the step that does for them."""
        how = {"E": 5, **how}
        return {"E": how["E"], "eta": 1.0 / (losses.L * losses.steps(how) * max(how.get("eta_g", 1.0), 1.0))}

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round; ``c`` (d1,) is the server's control variate, N all clients' weight."""
        state = super().init(fed, w)
        sums = fed.total(begin, transport=self.transport)
        return state | {"c": np.zeros_like(state["w"]), "N": float(sums["N"]) if sums else 0.0}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 3 to 17."""
        x, c, N = state["w"], state["c"], state["N"]
        sums = self.exchange(fed, update, to, state)
        if not sums:
            return sums, {}
        mean, now = average(sums, x), N + float(sums["N"])
        c = (N * c + sums["c"]) / now if now > 0.0 else np.zeros_like(c)
        w = but_statistics(state, x + self.eta_g * (mean - x), mean)
        return sums, {"w": w, "c": c.astype(x.dtype, copy=False), "N": now}
