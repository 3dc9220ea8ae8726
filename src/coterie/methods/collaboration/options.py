"""What may be asked of the methods of a main client and its collaborators; theory chooses what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from coterie.errors import CoterieError, plural
from coterie.options import Option, check, of

if TYPE_CHECKING:
    from coterie.methods.collaboration.metric_and_similarity import Metric

MOST = 10**9  # steps, rows and seeds at most
HELD_OUT: Final = "held-out"
USUAL = 200  # steps of a run
CORRECTED = ("keep", "beta", "first")  # options of bias correction alone


def _optimisers() -> list[str]:
    from coterie.methods.collaboration.optimisers import OPTIMISERS

    return list(OPTIMISERS)


def _rules() -> list[str]:
    from coterie.methods.aggregation.rules import AGGREGATORS

    return list(AGGREGATORS)


def weights(tau: Any) -> Any:
    """Weights as a user gives them."""
    if tau is None or (isinstance(tau, str) and tau not in ("auto", "equal")):
        raise ValueError("no weights")
    return tau


@dataclass(frozen=True)
class Options:
    """Options of weighted averaging and bias correction.

    Left out with all that says how steps are made (eta, batch, local, optimiser, participation, rule), ``steps`` solves
    weighted averaging exactly, where its steps would lead; bias correction, and runs, take 200. eta goes by the metric
    in which the mean curvature of all rows is one. The prior is so many rows of it, beside those that a main client
    listens to: auto takes none for a Gaussian outcome, and for classes and counts one at most, so that separated
    outcomes stay finite. Weights are chosen under auto in any case.
    """

    main: Annotated[
        Any, Option("The main clients, one label or several; others keep the pooled model. Default: all.")
    ] = None
    collaborators: Annotated[
        int,
        Option(
            "Collaborators of a main client at most, where tau is chosen.",
            low=1,
            high=MOST,
            remedy="Without collaborators a client works alone: use the method 'local'.",
        ),
    ] = 10
    tau: Annotated[
        Any,
        Option(
            "Weights: by theory, the same for all, {main: {collaborator: weight}}, or (n, n) in the order of labels.",
            what="auto, equal, a mapping or a matrix",
            read=weights,
        ),
    ] = "auto"
    normalise: Annotated[bool, Option("Whether given weights are divided by their sum.")] = False
    alpha: Annotated[
        float | Literal["auto", "held-out"],
        Option(
            "Weight of the collaborators: by theory for each, by held-out rows for all, or given.", low=0.0, high=1.0
        ),
    ] = "auto"
    keep: Annotated[float | Literal["held-out"], Option("Share of the bias that is kept.", low=0.0, high=1.0)] = 0.0
    beta: Annotated[float | Literal["auto"], Option("Weight of the newest bias; auto: Theorem 5.2.", above=0)] = "auto"
    first: Annotated[int | Literal["zero", "sample"], Option("c_0: of how many samples.", low=1, high=10**5)] = "sample"
    eta: Annotated[float | Literal["auto"], Option("Step size.", above=0.0)] = "auto"
    steps: Annotated[int | None, Option("Of a run; left out: none, or 200.", low=1, high=MOST)] = None
    batch: Annotated[int, Option("Rows of a gradient, drawn with replacement; 0 takes all.", low=0, high=MOST)] = 0
    local: Annotated[int, Option("Local steps between two exchanges.", low=1, high=MOST)] = 1
    optimiser: Annotated[str, Option("What makes a step of a gradient.", choices=_optimisers)] = "sgd"
    participation: Annotated[float, Option("How often a collaborator takes part.", above=0.0, high=1.0)] = 1.0
    rule: Annotated[str, Option("How collaborators' gradients are weighed and put together.", choices=_rules)] = "mean"
    within: Annotated[Literal["all", "cluster"], Option("Where collaborators are looked for.")] = "all"
    prior: Annotated[
        float | Literal["auto", "none"], Option("Rows that pull main clients to the pooled model.", low=0.0)
    ] = "auto"
    seed: Annotated[int, Option("Of rows and of who takes part.", low=0, high=MOST)] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any], corrected: bool = True) -> Options:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        if not corrected and (wrong := [name for name in CORRECTED if name in given]):
            raise CoterieError(f"{wrong[0]} is an option of bias-correction, which weighted averaging has not.")
        asked = of(cls, given, "Collaboration", hidden=() if corrected else CORRECTED)
        named = not isinstance(asked.tau, str)
        if "collaborators" in given and (named or asked.tau == "equal"):
            raise CoterieError("collaborators says how many are chosen, and tau names them: leave one of the two out.")
        if named and asked.within == "cluster":
            raise CoterieError("within says where collaborators are looked for, and tau names them: leave one out.")
        if corrected and asked.rule == "adaptive":
            raise CoterieError(
                "Bias correction averages past biases, which weights that change would make wrong: take rule 'trust', "
                "or the method 'weighted-averaging'."
            )
        return asked

    def __post_init__(self) -> None:
        check(self)
        if self.normalise and isinstance(self.tau, str):
            raise CoterieError("normalise is for weights that are given: give tau as well, or leave normalise out.")
        if self.n_steps * self.local > MOST:
            raise CoterieError(f"That is {plural(self.n_steps * self.local, 'step')}: take fewer.")

    def with_prior(self, metric: Metric) -> Metric:
        """The metric with the prior that is asked for."""
        if self.prior == "auto":
            return metric
        return replace(metric, prior=0.0 if self.prior == "none" else float(self.prior))

    @property
    def n_steps(self) -> int:
        """Steps of a run."""
        return USUAL if self.steps is None else self.steps

    @property
    def solved_directly(self) -> bool:
        """Whether nothing is asked for that only a run of steps has."""
        run = ("steps", "eta", "batch", "local", "optimiser", "participation", "rule", "first", "beta")
        return all(getattr(self, f.name) == f.default for f in fields(self) if f.name in run)
