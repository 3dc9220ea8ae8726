"""Names of torch's rules that steps may go by; where they are used, ``deep/optimizers.py`` takes torch's classes."""

from typing import Literal

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
]
"""Classes of ``torch.optim.lr_scheduler`` that go by the number of the round alone."""
