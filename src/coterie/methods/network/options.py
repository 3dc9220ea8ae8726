"""What may be asked of a similarity network, where what is left out is learned, and of a run of Algorithm 6 on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from coterie.codecs import DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER, by_name, need_codec
from coterie.codecs.feedback import FEEDBACKS, ORDERS
from coterie.errors import CoterieError
from coterie.methods.checks import (
    is_number,
    need_choices,
    need_names,
    need_norm,
    need_phases,
    need_positive,
    need_whole,
)
from coterie.methods.network.similarity import Similarity
from coterie.methods.network.transport import Transport
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


USUAL = 500
"""Steps of a run."""
MODELS = "float16"
"""Codec of models, where updates travel in one."""
SCHEDULES = ("auto", "constant", "decreasing")


@dataclass(frozen=True)
class Run:
    """A run; where nothing of it is asked for, the objective is minimised exactly.

    Attributes
    ----------
    steps : int, optional
        500 where anything else is asked for.
    eta : "auto" or number, default "auto"
        Step size of x and of each client's z, relative to what its own curvature allows; auto takes 1.
    schedule : {"auto", "constant", "decreasing"}, default "auto"
        auto decreases steps where gradients are of some rows, or of some clients, only.
    batch : int, default 0
        Rows of a gradient, drawn with replacement; 0 takes all.
    phases : two ints, optional
        IV-C: so many steps on x, then so many on Z, in turn; by default both at once.
    codec : str, default "none"
        Of updates: see ``coterie.codecs.by_name``; "auto" is the one that needs the fewest bytes, ``codecs.DEFAULT``.
    bytes_per_update : int, optional
        The paper's codec, with as much compression as this needs.
    feedback : {"auto", "none", "ef", "ef21"}, default "auto"
        What happens to what a codec loses; auto is "ef" for biased codecs.
    order : {"auto", "natural", "magnitude", "last-update"}, default "auto"
        In which coordinates travel; auto is "magnitude" for codecs that go by runs, else "natural".
    down : str, optional
        Codec of models; by default "none", or "float16" where updates travel in one.
    participation : number, default 1
        How often a client takes part.
    seed : int, default 0
        Of rows, codecs and who takes part.
    """

    steps: int | None = None
    eta: Any = "auto"
    schedule: str = "auto"
    batch: int = 0
    phases: Any = None
    codec: str = "none"
    bytes_per_update: int | None = None
    feedback: str = "auto"
    order: str = "auto"
    down: str | None = None
    participation: float = 1.0
    seed: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Run:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        need_names("A run on a similarity network", given, cls)
        return cls(**given)

    def __post_init__(self) -> None:
        need_whole(self, {"steps": 1, "batch": 0, "bytes_per_update": 1, "seed": 0}, ("steps", "bytes_per_update"))
        need_choices(self, {"schedule": SCHEDULES, "feedback": ("auto", *FEEDBACKS), "order": ("auto", *ORDERS)})
        need_positive(self, {"eta": np.inf, "participation": 1.0}, {"eta": ("auto",)})
        need_phases(self.phases)
        need_codec("codec", self.codec)
        need_codec("down", self.down)
        if self.bytes_per_update is not None and self.codec != "none":
            raise CoterieError("bytes_per_update is a budget for the paper's codec: leave codec out.")
        _ = self.transport  # whose codecs are looked up

    @property
    def exact(self) -> bool:
        """Whether nothing is asked for that only a run has."""
        return self == Run(seed=self.seed)

    @property
    def taken(self) -> int:
        """Steps of a run."""
        return USUAL if self.steps is None else int(self.steps)

    @property
    def transport(self) -> Transport:
        """How updates and models travel."""
        up = (self.codec or "none") if self.bytes_per_update is None else f"tv:bytes={self.bytes_per_update}"
        up = DEFAULT if up == "auto" else up
        order = self.order
        if order == "auto":
            order = DEFAULT_ORDER if up.startswith("tv") else "natural"
        down = self.down or ("none" if up == "none" else MODELS)
        feedback = self.feedback
        if feedback == "auto":
            feedback = "none" if up == "none" or by_name(up).unbiased else DEFAULT_FEEDBACK
        taking: dict[str, Any] = {"participation": float(self.participation), "seed": int(self.seed)}
        return Transport(int(self.batch), up, down, feedback, order, **taking)

    def step(self, t: int) -> float:
        """The step at t, relative to the first: constant, or ``1 / (1 + 10 t / T)``."""
        sampled = self.batch > 0 or self.participation < 1.0
        decreasing = self.schedule == "decreasing" or (self.schedule == "auto" and sampled)
        return 1.0 / (1.0 + 10.0 * t / self.taken) if decreasing else 1.0
