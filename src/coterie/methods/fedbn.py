"""Li, Jiang, Zhang, Kamp, Dou (2021), FedBN: federated learning on non-IID features, Algorithm 1.

FedAvg of all layers but those that normalise. Their scales, shifts and statistics follow a client's own inputs
(another scanner, another light) and never leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.methods.fedper import FedPer
from coterie.objectives.parameters import NORMALISATION


@dataclass(frozen=True, kw_only=True)
class FedBN(FedPer):
    """FedPer whose personal layers are those that normalise; clients count by the weight of their rows.

    They are known by their types (batch, instance, group, layer and RMS normalisation, and classes whose names end so),
    with their statistics. Names or patterns in ``personal`` say otherwise.
    """

    personal: tuple[str, ...] = (NORMALISATION,)
