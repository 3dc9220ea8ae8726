"""Li, Hu, Beirami, Smith (2021), Ditto: fair and robust federated learning through personalization, Algorithm 1.

Beside the shared model w of FedAvg, every client has its own v_k, which minimises ``F_k(v) + lambda |v - w|^2 / 2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, epoch_steps, personal
from coterie.methods.local_training.rounds import LocalTraining, Passes
from coterie.options import Option


@work
def update(site: Site, lam: float, s: int, passes: int, **sent: Any) -> Reply:
    """Lines 5 and 6: the shared model is trained as in FedAvg, then v_k takes s steps towards its own rows and w^t.

    A client's first v_k is the first w that it is sent.
    """
    here = LocalRound(site, **sent)
    theta, v = here.train(), site.state.get("theta", here.start)
    own = epoch_steps(site, passes, here.B) if passes else s
    new = here.train(v, own, "own rows", anchor=here.start, pull=lam)
    return here.reply(theta, kept={"theta": (new, v)})


@dataclass(frozen=True, kw_only=True)
class Ditto(LocalTraining):
    """Algorithm 1 with the paper's symbols, over FedAvg; steps are stable for ``eta (L + lambda) < 2``."""

    joins: ClassVar[str] = "rounds"
    lam: Annotated[float, Option("lambda: 0 makes v_k local, a large one makes it w.", low=0.0)]
    s: Annotated[int, Option("Steps of v_k in a round.", low=1, beside=("passes", (0,)))] = 1
    passes: Annotated[int, Option("Instead of s: passes of v_k over its rows in a round; 0 for none.", low=0)] = 0
    E: Passes = 1
    bends = "lam"
    model = staticmethod(personal)  # v_k; w for those that never took part
    update = staticmethod(update)
