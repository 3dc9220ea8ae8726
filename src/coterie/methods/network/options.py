"""What may be asked of a similarity network; what is left out is learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.checks import is_number, need_choices, need_names, need_norm
from coterie.methods.network.similarity import Similarity
from coterie.relations.network import Network

HELD_OUT = "held-out"
OWN = ("edges", "lam", "p", "solver")
SOLVERS = ("newton", "admm")


@dataclass(frozen=True)
class Asked:
    """The network and its penalty.

    Attributes
    ----------
    similarity : Similarity
        How a network is learned, where no edges are given.
    edges : Network, optional
        The user's own.
    lam : "held-out" or number, default "held-out"
        Strength of the ties, from 0 (clients alone) to inf (one model for each component of the network), for
        coefficients in standard units and a mean loss over all rows; or chosen by held-out rows along the path.
    p : {1, 2, inf}, default 2
        Norm of differences: with 2 clients merge as a whole, with 1 coefficient by coefficient.
    solver : {"newton", "admm"}, default "newton"
        Proximal Newton, to which clients send gradients and Hessians, in few exchanges; or consensus ADMM, to which
        they send d numbers, in many.
    """

    similarity: Similarity = field(default_factory=Similarity)
    edges: Network | None = None
    lam: Any = HELD_OUT
    p: float = 2
    solver: str = "newton"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """From a user's mapping, whose other names are those of ``Similarity``; a CoterieError where it cannot be."""
        names = [f.name for f in fields(Similarity)]
        need_names("A similarity network", given, (*OWN, *names))
        alike = {name: value for name, value in given.items() if name in names}
        own = {name: value for name, value in given.items() if name in OWN}
        if alike.get("covariates") is not None:
            alike.setdefault("space", "covariates")
        if alike and own.get("edges") is not None:
            raise CoterieError(f"The network has edges of its own: leave {', '.join(alike)} out, or edges.")
        return cls(Similarity.of(alike), **own)

    def __post_init__(self) -> None:
        lam = self.lam
        if not (isinstance(lam, str) and lam == HELD_OUT) and not (is_number(lam) and lam >= 0.0):
            raise CoterieError(f"lam of a network must be {HELD_OUT} or a number from 0 to inf, not {lam!r}.")
        p = np.inf if isinstance(self.p, str) and self.p.lower() == "inf" else self.p
        need_norm("p of a network", p)
        object.__setattr__(self, "p", float(p))
        need_choices(self, {"solver": SOLVERS})
