"""What may be asked of the methods of a main client and its collaborators; theory chooses what is left out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError, nearest
from coterie.methods.aggregation.robust import AGGREGATORS
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.optimisers import OPTIMISERS, require_range

LARGEST = 10**9
HELD_OUT = "held-out"
USUAL = 200
"""Steps of a run."""
SAMPLES = 100_000
"""Samples of a first bias at most."""


@dataclass(frozen=True)
class Options:
    """Options of weighted averaging and bias correction.

    Attributes
    ----------
    main : label or sequence of labels, optional
        The main clients; by default every client is one. Others keep the pooled model.
    collaborators : int, default 10
        Collaborators of a main client at most, where tau is chosen.
    tau : "auto", "equal", mapping or (n, n) array, default "auto"
        Weights: chosen by theory from estimated biases and variances; the same for all others; or given, as
        ``{main: {collaborator: weight}}`` or a matrix (dense or sparse) in the order of the clients' labels.
    normalise : bool, default False
        Whether given weights are divided by their sum.
    alpha : "auto", "held-out" or number, default "auto"
        Weight of the collaborators: by theory for each main client; one for all, chosen by held-out rows; or given.
    keep : number or "held-out", default 0
        Share of the bias that is kept (bias correction).
    beta : "auto" or number, default "auto"
        Weight of the newest bias (bias correction): Theorem 5.2's.
    first : {"zero", "sample"} or int, default "sample"
        c_0 (bias correction).
    eta : "auto" or number, default "auto"
        Step size, in the metric in which the mean curvature of all rows is one.
    steps : int, optional
        Left out with all that says how steps are made (eta, batch, local, optimiser, participation, rule), weighted
        averaging is solved exactly, where its steps would lead; bias correction, and runs, take 200.
    batch : int, default 0
        Rows of a gradient, drawn with replacement; 0 takes all.
    local : int, default 1
        Local steps between two exchanges.
    optimiser : {"sgd", "momentum", "adam"}, default "sgd"
    participation : number, default 1
        How often a collaborator takes part.
    rule : {"mean", "trimmed", "clipped", "trust", "adaptive"}, default "mean"
        How collaborators' gradients are weighed and put together.
    within : {"all", "cluster"}, default "all"
        Where collaborators are looked for.
    prior : "auto", "none" or number, default "auto"
        How many rows of mean curvature pull every main client to the pooled model, beside the rows of all that it
        listens to. auto takes none for a Gaussian outcome; for classes and counts it takes one row at most, so that
        separated outcomes stay finite. Weights are chosen under auto in any case.
    seed : int, default 0
        Of rows and of who takes part.
    """

    main: Any = None
    collaborators: int = 10
    tau: Any = "auto"
    normalise: bool = False
    alpha: Any = "auto"
    keep: Any = 0.0
    beta: Any = "auto"
    first: Any = "sample"
    eta: Any = "auto"
    steps: int | None = None
    batch: int = 0
    local: int = 1
    optimiser: str = "sgd"
    participation: float = 1.0
    rule: str = "mean"
    within: str = "all"
    prior: Any = "auto"
    seed: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any], corrected: bool = True) -> Options:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        names = [f.name for f in fields(cls) if corrected or f.name not in ("keep", "beta", "first")]
        for name in given:
            if name not in names:
                hint = nearest(name, names)
                hint = " It is one of bias-correction." if name in ("keep", "beta", "first") else hint
                raise CoterieError(f"Collaboration has no option {name!r}.{hint} There are {', '.join(names)}.")
        if "collaborators" in given and not (isinstance(given.get("tau", "auto"), str) and given.get("tau") != "equal"):
            raise CoterieError("collaborators says how many are chosen, and tau names them: leave one of the two out.")
        if given.get("within") == "cluster" and not isinstance(given.get("tau", "auto"), str):
            raise CoterieError("within says where collaborators are looked for, and tau names them: leave one out.")
        asked = cls(**given)
        if corrected and asked.rule == "adaptive":
            raise CoterieError(
                "Bias correction averages past biases, which weights that change would make wrong: take rule 'trust', "
                "or the method 'weighted-averaging'."
            )
        return asked

    def with_prior(self, metric: Metric) -> Metric:
        """The metric with the prior that is asked for."""
        if self.prior == "auto":
            return metric
        return replace(metric, prior=0.0 if self.prior == "none" else float(self.prior))

    def __post_init__(self) -> None:
        value: Any
        for name, least in (("collaborators", 1), ("steps", 1), ("batch", 0), ("local", 1), ("seed", 0)):
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not (whole and least <= value <= LARGEST) and not (name == "steps" and value is None):
                hint = " Without collaborators a client works alone: use the method 'local'." * (name[0] == "c")
                raise CoterieError(f"{name} must be a whole number from {least} to {LARGEST:,}, not {value!r}.{hint}")
        for name, values in (
            ("optimiser", tuple(OPTIMISERS)),
            ("rule", tuple(AGGREGATORS)),
            ("within", ("all", "cluster")),
        ):
            if not (isinstance(value := getattr(self, name), str) and value in values):
                raise CoterieError(f"{name} must be {' or '.join(values)}, not {value!r}.")
        self._check_weights()
        samples = isinstance(self.first, (int, np.integer)) and not isinstance(self.first, bool)
        if not (samples and 1 <= self.first <= SAMPLES) and not (
            isinstance(self.first, str) and self.first in ("zero", "sample")
        ):
            raise CoterieError(
                f"first must be zero, sample or a whole number from 1 to {SAMPLES:,}, not {self.first!r}."
            )
        words = {"alpha": ("auto", HELD_OUT), "keep": (HELD_OUT,), "beta": ("auto",), "eta": ("auto",)}
        words["prior"] = ("auto", "none")
        shares, sizes = ("alpha", "keep", "participation"), ("beta", "eta", "prior")
        for name, low, high in (*((s, 0.0, 1.0) for s in shares), *((s, 0.0, np.inf) for s in sizes)):
            value = getattr(self, name)
            if isinstance(value, str) and value in words.get(name, ()):
                continue
            if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
                choices = " or ".join((*words.get(name, ()), "a number"))
                raise CoterieError(f"{name} must be {choices}, not {value!r}.")
            if not -sys.float_info.max < value < sys.float_info.max:
                value = np.nan
            require_range(name, float(value), low, high, open_below=name in ("beta", "eta", "participation"))
        if self.n_steps * self.local > LARGEST:
            raise CoterieError(f"That is {self.n_steps * self.local:,} steps: take fewer.")

    def _check_weights(self) -> None:
        if self.tau is None or (isinstance(self.tau, str) and self.tau not in ("auto", "equal")):
            raise CoterieError(f"tau must be auto, equal, a mapping or a matrix, not {self.tau!r}.")
        if not isinstance(self.normalise, (bool, np.bool_)):
            raise CoterieError(f"normalise must be True or False, not {self.normalise!r}.")
        if self.normalise and isinstance(self.tau, str):
            raise CoterieError("normalise is for weights that are given: give tau as well, or leave normalise out.")

    @property
    def n_steps(self) -> int:
        """Steps of a run."""
        return USUAL if self.steps is None else self.steps

    @property
    def solved_directly(self) -> bool:
        """Whether nothing is asked for that only a run of steps has."""
        run = ("steps", "eta", "batch", "local", "optimiser", "participation", "rule", "first", "beta")
        return all(getattr(self, f.name) == f.default for f in fields(self) if f.name in run)
