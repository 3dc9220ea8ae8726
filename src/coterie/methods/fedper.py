"""Arivazhagan, Aggarwal, Singh, Choudhary (2019), Federated learning with personalization layers, Algorithms 1 and 2.

FedPer: FedAvg of the base layers; the personalization layers, the last ones in the paper, never leave a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """FedAvg in which ``personal`` is not empty: base and personalization layers take their steps together.

    With one step of all rows a round it goes down ``sum_k n_k F_k(w_B, w_Pk)`` over the base and everyone's own layers,
    and ends where that is least; with more steps the base drifts as FedAvg's does. Stable for ``eta L < 2``.
    """

    joins: ClassVar[str] = "rounds"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.personal:
            name = type(self).__name__
            raise CoterieError(f'{name} needs the layers that are personal, such as personal=("head*",).')
