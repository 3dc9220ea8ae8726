"""Names of torch's rules and number types; where they are used, ``objectives/deep/`` takes torch's classes."""

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
HALF = "For half precision take bfloat16: in float16 small gradients are 0, unless losses are scaled."
"""What is said of number types that cannot be."""
