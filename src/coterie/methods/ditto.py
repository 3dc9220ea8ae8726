"""Li, Hu, Beirami, Smith (2021), Ditto: fair and robust federated learning through personalization, Algorithm 1.

Beside the shared model w of FedAvg, every client has its own v_k, which minimises ``F_k(v) + lambda |v - w|^2 / 2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import LocalTraining, Passes
from coterie.numerics.arrays import Floats
from coterie.options import Option


@work
def update(
    site: Site,
    w: Floats,
    transport: ModelTransport,
    eta: float,
    E: int,
    B: int,
    t: int,
    lam: float,
    s: int,
    passes: int,
) -> Reply:
    """Lines 5 and 6: the shared model is trained as in FedAvg, then v_k takes s steps towards its own rows and w^t.

    A client's first v_k is the first w that it is sent.
    """
    steps, start = client.epoch_steps(site, E, B), client.received(site, w, transport)
    theta = client.train(site, start, eta, steps, t * steps, B)
    v = site.state.get("theta", start)
    own = client.epoch_steps(site, passes, B) if passes else s
    new = client.train(site, v, eta, own, t * own, B, "own rows", anchor=start, pull=lam)
    good = client.finite(theta, new)
    site.state["theta"] = np.where(good[:, None], new, v)
    return client.make_reply(site, theta, transport, good)


@dataclass(frozen=True, kw_only=True)
class Ditto(LocalTraining):
    """Algorithm 1 with the paper's symbols, over FedAvg; steps are stable for ``eta (L + lambda) < 2``."""

    joins: ClassVar[str] = "rounds"
    lam: Annotated[float, Option("lambda: 0 makes v_k local, a large one makes it w.", low=0.0)]
    s: Annotated[int, Option("Steps of v_k in a round.", low=1, beside=("passes", (0,)))] = 1
    passes: Annotated[int, Option("Instead of s: passes of v_k over its rows in a round; 0 for none.", low=0)] = 0
    E: Passes = 1
    bends = "lam"
    model = staticmethod(client.personal)  # v_k; w for those that never took part
    update = staticmethod(update)
    told = ("E", "B", "lam", "s", "passes")
