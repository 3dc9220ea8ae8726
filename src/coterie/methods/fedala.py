"""Zhang, Hua, Wang, Song, Xue, Ma, Guan (2023), FedALA: adaptive local aggregation for personalized FL, Algorithm 1.

Before it trains, a client takes as much of every number of the shared model as its rows ask for: ``theta_i + (w -
theta_i) * W_i`` with weights W_i in [0, 1], which go along their own gradient; of lower layers it takes all.
(PFLlib evaluates the model before training; here a client's model is the trained one.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, epoch_steps, finite, personal, train
from coterie.methods.local_training.rounds import LocalTraining, Passes, patterns
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.parameters import parameter_mask, statistics_mask
from coterie.options import Option


def aggregate(site: Site, w: Floats, own: Floats, part: Floats, eta: float, steps: Ints, B: int, t: int) -> Floats:
    """Lines 5 to 11: the model (m, d) that clients begin at, after so many steps (m,) of their weights."""
    cut = part > 0.0
    gap = (w - own) * part
    W = np.array(site.state.get("W", np.ones((len(site), int(cut.sum())), dtype=w.dtype)))
    theta = np.array(w)
    for s in range(int(steps.max(initial=0)) + 1):
        theta[:, cut] = own[:, cut] + W * gap[:, cut]
        if len(on := np.flatnonzero(steps > s)):
            at = theta[on]
            here, how = site.take(on), {"on": part, "plain": True}
            g = at - train(here, at, 1.0, 1, t * steps[on] + s, B, "aggregation rows", **how)
            W[on] = np.clip(W[on] - eta * (g * gap[on])[:, cut], 0.0, 1.0)
    site.state["W"] = W
    return theta


@work
def update(site: Site, layers: list[str], eta_w: float, share: float, warmup: int, **sent: Any) -> Reply:
    """A client's part of a round; where it meets w for the first time, it begins there."""
    here = LocalRound(site, **sent)
    x, stay = here.start, here.own | statistics_mask(site.objective)
    part = (parameter_mask(site.objective, layers) & ~stay).astype(x.dtype)
    own, met = site.state.get("theta", x), site.state.get("met", np.zeros(len(site), dtype=np.int64))
    passes = np.choose(np.minimum(met, 2), (0, warmup, 1))
    learn = np.ceil(share * passes * epoch_steps(site, 1, here.B)).astype(np.int64)
    start = aggregate(site, x, own, part, eta_w, learn, here.B, here.t)
    theta, site.state["met"] = here.train(start), met + 1
    return here.reply(theta, finite(theta, start), kept={"theta": (theta, own)})


@dataclass(frozen=True, kw_only=True)
class FedALA(LocalTraining):
    """Algorithm 1; clients count by the weight of their rows.

    Weights are learned on rows that are drawn, where the paper cuts a share of them out once a round. When a client
    meets the shared model for the second time, it makes ``warmup`` passes, where the paper waits until the losses of
    its batches rest. A client keeps its model and its weights.
    """

    joins: ClassVar[str] = "rounds"
    layers: Annotated[tuple[str, ...], patterns("The higher layers, which have weights; w replaces the others.")] = (
        "*",
    )
    eta_w: Annotated[float, Option("Step size of the weights (the paper's eta).", above=0.0)] = 1.0
    share: Annotated[float, Option("Share of the rows that weights are learned from.", above=0.0, high=1.0)] = 0.8
    warmup: Annotated[int, Option("Passes that they make the first time; later it is one.", low=1)] = 10
    E: Passes = 1
    model = staticmethod(personal)  # theta_i; w for those that never took part
    update = staticmethod(update)
