"""What may be asked of a similarity network, its penalty (paper 003, IV-A), and a run on it (IV-C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final, Literal

import numpy as np

from coterie.codecs import DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER, by_name, codec_option
from coterie.codecs.compression import FEEDBACKS, ORDERS
from coterie.errors import CoterieError
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.networks.similarity import Similarity
from coterie.options import Checked, Option, check, declared, need_names, of

HELD_OUT: Final = "held-out"
MOST = 10**9  # steps and rows at most


def norm(p: Any) -> float:
    """A norm of differences: 1, 2 or infinity."""
    if isinstance(p, (bool, np.bool_)) or p not in (1, 2, np.inf, "inf"):
        raise ValueError("no norm")
    return float(p)


Norm = Annotated[
    Any, Option("Norm of differences: by 2 clients merge whole, by 1 each coefficient.", what="1, 2 or inf", read=norm)
]


@dataclass(frozen=True)
class Asked(Checked):
    """The network and its penalty."""

    similarity: Similarity = field(default_factory=Similarity)
    edges: Annotated[Any, Option("The user's own ties, a ``Network``.")] = None
    lam: Annotated[
        float | Literal["held-out"],
        Option(
            "Strength of the ties, 0 to inf, in standard units, or chosen by held-out rows.", low=0.0, infinite=True
        ),
    ] = HELD_OUT
    p: Norm = 2
    solver: Annotated[
        Literal["newton", "admm"],
        Option("Proximal Newton, by gradients and Hessians in few exchanges, or consensus ADMM, by d numbers in many."),
    ] = "newton"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """From a user's mapping, whose other names are those of ``Similarity``; a CoterieError where it cannot be."""
        alike = {f.name for f in fields(Similarity)}
        own = list(declared(cls))
        need_names(_NETWORK, given, (*own, *alike))
        learned = {name: value for name, value in given.items() if name in alike}
        if learned.get("covariates") is not None:
            learned.setdefault("space", "covariates")
        if learned and given.get("edges") is not None:
            raise CoterieError(f"The network has edges of its own: leave {', '.join(learned)} out, or edges.")
        asked = of(cls, {name: value for name, value in given.items() if name in own}, _NETWORK)
        return replace(asked, similarity=of(Similarity, learned, _NETWORK))


_NETWORK = "A similarity network"
USUAL = 500  # steps of a run
MODELS = "float16"  # codec of models, where updates travel in one


@dataclass(frozen=True)
class Run:
    """A run; where nothing of it is asked for, the objective is minimised exactly.

    A decreasing schedule is taken where gradients are of some rows, or of some clients, only; ``codecs.DEFAULT`` is the
    codec that needs the fewest bytes.
    """

    steps: Annotated[
        int | None,
        Option("500 at most where anything else is asked for, until 0.01% of the decrease is left.", low=1, high=MOST),
    ] = None
    eta: Annotated[
        float | Literal["auto"], Option("Step size, relative to what curvature allows; auto takes 1.", above=0.0)
    ] = "auto"
    schedule: Annotated[Literal["auto", "constant", "decreasing"], Option("Of the step size.")] = "auto"
    batch: Annotated[int, Option("Rows of a gradient, drawn with replacement; 0 takes all.", low=0, high=MOST)] = 0
    phases: Annotated[
        tuple[int, int] | None,
        Option("IV-C: so many steps on x, then so many on Z; by default both at once.", low=1, high=MOST),
    ] = None
    codec: Annotated[str | None, codec_option("Of updates: see ``coterie.codecs.by_name``; or auto.")] = "none"
    bytes_per_update: Annotated[
        int | None, Option("The paper's codec, with as much compression as this needs.", low=1, high=MOST)
    ] = None
    feedback: Annotated[
        str, Option("What happens to what a codec loses; auto: ef if it is biased.", choices=("auto", *FEEDBACKS))
    ] = "auto"
    order: Annotated[
        str, Option("In which coordinates travel; auto: magnitude if codecs go by runs.", choices=("auto", *ORDERS))
    ] = "auto"
    down: Annotated[str | None, codec_option("Of models; float16 where updates travel in one, else none.")] = None
    participation: Annotated[float, Option("How often a client takes part.", above=0.0, high=1.0)] = 1.0
    seed: Annotated[int, Option("Of rows, codecs and who takes part.", low=0, high=MOST)] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Run:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        return of(cls, given, "A run on a similarity network")

    def __post_init__(self) -> None:
        check(self)
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
    def transport(self) -> GradientExchange:
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
        return GradientExchange(up, down, feedback, order, batch=int(self.batch), **taking)

    def step(self, t: int) -> float:
        """The step at t, relative to the first: constant, or ``1 / (1 + 10 t / T)``."""
        sampled = self.batch > 0 or self.participation < 1.0
        decreasing = self.schedule == "decreasing" or (self.schedule == "auto" and sampled)
        return 1.0 / (1.0 + 10.0 * t / self.taken) if decreasing else 1.0
