"""Li, Jiang, Zhang, Kamp, Dou (2021), FedBN: federated learning on non-IID features, Algorithm 1.

FedAvg of all layers but those that normalise. Their scales, shifts and statistics follow a client's own inputs
(another scanner, another light) and never leave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from coterie.federation import Federation, Site, Sums, work
from coterie.methods.fedper import FedPer
from coterie.methods.local_training.at_home import Reply
from coterie.methods.local_training.rounds import State
from coterie.numerics.kernels import Floats, Ints
from coterie.objectives.parts import names


@work
def match(site: Site, patterns: list[str]) -> Reply:
    """Which patterns (k,) name layers of a client's model."""
    known = list(names(site.objective))
    found = [any(fnmatchcase(name, pattern) for name in known) for pattern in patterns]
    return {"found": np.tile(np.array(found, dtype=np.int64), (len(site), 1))}


@dataclass(frozen=True, kw_only=True)
class FedBN(FedPer):
    """FedPer whose personal layers are those that normalise; clients count by the weight of their rows.

    Attributes
    ----------
    personal : tuple of str, default ("*bn*", "*norm*")
        Patterns of names of these layers, parameters and statistics. Some may match nothing, not all: a model whose
        layers have other names ("layers.1.weight") needs patterns of its own.
    """

    personal: tuple[str, ...] = ("*bn*", "*norm*")

    def within(self, layers: list[str]) -> FedPer:
        """The method for a model that has these ``layers``."""
        return FedPer(**vars(self) | {"personal": tuple(layers)})

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round; a CoterieError that lists the layers where no pattern matches any."""
        sums = fed.total(match, patterns=list(self.personal))
        layers = [p for p, n in zip(self.personal, sums["found"], strict=True) if n > 0] if sums else []
        layers = layers or list(self.personal)
        return self.within(layers).init(fed, w) | {"layers": layers}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """One round of FedAvg of all other layers."""
        return self.within(state["layers"]).round(fed, state, to)

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d), after fine-tuning where it is asked for."""
        return self.within(state["layers"]).models(fed, state)
