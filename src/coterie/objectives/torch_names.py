"""What is said of torch without it: how local steps go, and names of optimisers, schedulers and number types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from coterie.options import Checked, Option

Optimizer = Literal["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"]
"""Classes of ``torch.optim`` that treat every number of a model by itself."""
Schedule = Literal[
    "ConstantLR",
    "LinearLR",
    "PolynomialLR",
    "ExponentialLR",
    "StepLR",
    "MultiStepLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "OneCycleLR",
    "SequentialLR",
    "ChainedScheduler",
]
"""Classes of ``torch.optim.lr_scheduler`` that go by the number of the round alone."""
COMBINED = ("SequentialLR", "ChainedScheduler")
"""Those of several schedulers, one after another or at once."""
HALF = "For half precision take bfloat16: in float16 small gradients are 0, unless losses are scaled."
"""What is said of number types that cannot be."""


@dataclass(frozen=True, kw_only=True)
class StepOptions(Checked):
    """How clients take steps, beside their size."""

    clip: Annotated[
        float | None, Option("Largest norm of a step's gradient; longer ones are shortened.", above=0.0)
    ] = None
    momentum: Annotated[float, Option("Heavy ball, from rest in every run of local steps.", low=0.0, below=1.0)] = 0.0
    ridge: Annotated[float, Option("Weight decay: ``ridge |theta|^2 / 2`` beside every row's loss.", low=0.0)] = 0.0
    optimizer: Annotated[Optimizer, Option("Class of torch.optim, anew in every run of local steps.")] = "SGD"
    optimizer_args: Annotated[dict[str, Any], Option("Its arguments beside the step size eta, as in torch.")] = field(
        default_factory=dict
    )
    batches: Annotated[
        Literal["drawn", "shuffled"], Option("Of B rows: drawn with replacement, or the next ones of a shuffled epoch.")
    ] = "drawn"
    at_once: Annotated[
        int,
        Option("Most rows that the net sees at a time; the gradient of a step is the sum over parts; 0: all.", low=0),
    ] = 0
