"""Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency (2020), Think locally, act globally, Algorithm 1.

LG-FedAvg: every client has a representation of its own, the first layers, below layers that all share and average.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.methods.fedper import FedPer


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(FedPer):
    """FedPer whose ``personal`` layers are the first: what is sent is the head above them.

    Representation and head take their steps together. The paper begins at a model that FedAvg trained, which is to be
    given to ``init``, and averages the outputs of all clients' models for a client never seen; PFLlib does neither.
    """
