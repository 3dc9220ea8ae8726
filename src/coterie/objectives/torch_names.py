"""Names of torch's optimisers, schedulers and number types, whose classes ``objectives/deep/`` takes."""

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
    "OneCycleLR",
    "SequentialLR",
    "ChainedScheduler",
]
"""Classes of ``torch.optim.lr_scheduler`` that go by the number of the round alone."""
COMBINED = ("SequentialLR", "ChainedScheduler")
"""Those of several schedulers, one after another or at once."""
HALF = "For half precision take bfloat16: in float16 small gradients are 0, unless losses are scaled."
"""What is said of number types that cannot be."""
