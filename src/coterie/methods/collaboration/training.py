"""A main client and its collaborators over rounds, for any objective: nets and softmax (see the algorithms' own file).

A round is a step of Algorithm 1 in parameters as they are. Clients that are no main ones help, and get no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from coterie.errors import CoterieError, nearest
from coterie.federation import Federation, require_all_replies, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.groups.find import SKETCH, direction
from coterie.methods.local_training.first_models import ask_first_models
from coterie.methods.local_training.rounds import patterns
from coterie.methods.stepwise import AlgorithmFromState
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option, check

State = dict[str, Any]
Labels = tuple[str, ...] | None
MOST = 2**30  # numbers of all models that travel in a round, at most


@work
def listening(site: Any, personal: Sequence[str]) -> State:
    """Where collaborators have a say (m, d): 1, and 0 in personal layers."""
    return {"on": np.tile(1.0 - parameter_mask(site.objective, personal), (len(site), 1))}


@dataclass(frozen=True, kw_only=True)
class WeightedAveragingTraining(AlgorithmFromState):
    """Algorithm 2; a main client's step on layers that are not ``personal`` listens to its collaborators."""

    without_convexity: ClassVar[str] = (
        "A net has no known constants of smoothness, noise and bias: eta and alpha are as given, not those of the "
        "theorems, so that no speed-up over training alone is promised."
    )
    eta: Annotated[float, Option("Step size.", above=0.0)]
    alpha: Annotated[float, Option("Weight of the collaborators; 0 is training alone.", low=0.0, high=1.0)] = 0.5
    main: Annotated[Labels, Option("Labels of the main clients; the others help. By default all are.")] = None
    collaborators: Annotated[Labels, Option("Labels of those who help; by default all others.")] = None
    k: Annotated[int | None, Option("Of these the k whose own steps go most alike; by default all.", low=1)] = None
    alone: Annotated[int, Option("Local steps of each client by which the k are chosen.", low=1, beside=("k", ()))] = 50
    tau: Annotated[int, Option("Local steps of everybody in a round; 1 is the paper's algorithm.", low=1)] = 1
    B: Annotated[int, Option("Rows of a gradient, drawn with replacement; 0 takes all.", low=0)] = 0
    C: Annotated[float, Option("How often a collaborator takes part in a round.", above=0.0, high=1.0)] = 1.0
    personal: Annotated[tuple[str, ...], patterns("Layers in which collaborators have no say, such as head*.")] = ()
    seed: Annotated[int, Option("Of the first model and who takes part.", low=0)] = 0
    labels: Any = None

    def __post_init__(self) -> None:
        check(self)
        for name in ("main", "collaborators"):
            if getattr(self, name) == ():
                raise CoterieError(f"{name} names no client: name one at least, or leave it out.")

    @property
    def notes(self) -> list[str]:
        """What is known to leave the paper's algorithm."""
        if self.tau == 1:
            return []
        return [
            f"Everybody takes tau = {self.tau} local steps in a round, so collaborators' gradients are biased by where "
            "their own steps lead: the theorems hold for tau = 1."
        ]

    def positions(self, name: Literal["main", "collaborators"] = "main", n: int = 0) -> Ints | None:
        """Which clients are named (M,); None for all. Of n clients that nobody labelled, 1 is the first."""
        if (named := getattr(self, name)) is None:
            return None
        known = [str(label) for label in (range(1, n + 1) if self.labels is None else self.labels)]
        for label in named:
            if label not in known:
                raise CoterieError(f"{name} names client '{label}', which is not there.{nearest(label, known)}")
        return np.array([known.index(label) for label in named], dtype=np.int64)

    def init(self, fed: Federation) -> State:
        """The main clients and who helps each, and the state before the first round: all begin at the same model."""
        w = ask_first_models(fed, {"seed": self.seed}, [self.seed], None).models[0]
        on = require_all_replies(fed.ask(listening, to=[0], personal=list(self.personal)))["on"][0]
        pairs = self._pairs(fed, w)
        if len(pairs.request_client) * len(w) > MOST:
            raise CoterieError(
                f"{len(pairs.tau):,} pairs of clients would exchange models of {len(w):,} numbers each: name main "
                "clients, or give k, so many collaborators of each."
            )
        state: State = {name: getattr(pairs, name) for name in ("main", "pair_main", "pair_client", "tau")}
        state |= {"first": w, "listens": on}
        return state | self.algorithm(state).init(fed)

    def _pairs(self, fed: Federation, w: Floats) -> Collaborators:
        n = len(fed.clients)
        main, others = self.positions("main", n), self.positions("collaborators", n)
        main, others = (np.arange(n) if some is None else some for some in (main, others))
        allowed = others[None] != main[:, None]
        if not allowed.any(axis=1).all():
            raise CoterieError("There are no collaborators: name another client than the main one, or train it alone.")
        if self.k is not None:
            how: State = {"eta": self.eta, "steps": self.alone, "B": self.B, "q": SKETCH, "seed": self.seed}
            u = require_all_replies(fed.ask(direction, w=w, **how))["u"]
            alike = np.where(allowed, u[main] @ u[others].T, -np.inf)
            rank = np.argsort(np.argsort(-alike, axis=1, kind="stable"), axis=1, kind="stable")
            allowed &= rank < self.k
        at, which = np.nonzero(allowed)
        return Collaborators.equally(main, at, others[which])

    def algorithm(self, state: State) -> WeightedAveraging:
        """Algorithm 1 with what a state knows."""
        return WeightedAveraging(**self._given(state))

    def _given(self, state: State) -> State:
        pairs = Collaborators(*(state[name] for name in ("main", "pair_main", "pair_client", "tau")))
        how: State = {"alpha": self.alpha, "eta": self.eta, "batch": self.B, "local": self.tau, "seed": self.seed}
        how |= {"participation": self.C, "listens": state["listens"]}
        return how | {"pairs": pairs, "metric": Metric.translation(state["first"])}

    def models(self, fed: Federation, state: State) -> Floats:
        """Main clients' models in (n, d); those of clients that help are not numbers."""
        out = np.full((len(fed.clients), len(state["first"])), np.nan, dtype=state["first"].dtype)
        out[state["main"]] = state["first"] + state["x"]
        return out


@dataclass(frozen=True, kw_only=True)
class BiasCorrectionTraining(WeightedAveragingTraining):
    """Algorithm 3."""

    without_convexity: ClassVar[str] = (
        "A net has no known constants, and its bias moves with the model: beta, eta and alpha are as given, so that "
        "neither the speed-up of bias-correction nor an end at the main client's own optimum is promised."
    )
    beta: Annotated[float, Option("Weight of the newest observed bias.", above=0.0)] = 0.1
    first: Annotated[int | Literal["zero", "sample"], Option("c_0: of how many samples.", low=1, high=10**5)] = "sample"
    keep: Annotated[float, Option("Share of the bias that is kept; 1 is weighted averaging.", low=0.0, high=1.0)] = 0.0

    def algorithm(self, state: State) -> BiasCorrection:
        """Algorithm 1 with what a state knows."""
        more: State = {"beta": self.beta, "first": self.first, "keep": self.keep}
        return BiasCorrection(**self._given(state), **more)
