"""Small reference networks: plain torch modules whose layers have names that a layout can tell apart.

Patterns such as ``personal=("head*",)`` go by these names, which ``named_parameters`` lists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.options import Option, checked

GROUP = 4  # channels of a group of GroupNorm
RARE = -3.0  # first logit of a nodule: a probability of 0.05


def _at_least(n: int) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    def read(given: tuple[int, ...]) -> tuple[int, ...]:
        if len(given) < n:
            raise ValueError
        return given

    return read


Sizes = Annotated[
    tuple[int, ...],
    Option(
        "Inputs, hidden units, outputs.",
        low=1,
        read=_at_least(2),
        what="the numbers of inputs and outputs at least, above 0",
    ),
]
Channels = Annotated[
    tuple[int, ...], Option("Of each level.", low=1, read=_at_least(1), what="one number above 0 for each level")
]
Norm = Annotated[Literal["group", "batch"] | None, Option("Layers ``...norm``; batch keeps statistics at home.")]


@checked
def mlp(sizes: Sizes = (64, 32, 10)) -> nn.Sequential:
    """A perceptron with ReLU between layers ``dense1``, ``dense2``, ..., ``head``; inputs are flattened."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
    last = len(sizes) - 1
    for k, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers["head" if k == last else f"dense{k}"] = nn.Linear(inputs, outputs)
        if k < last:
            layers[f"relu{k}"] = nn.ReLU()
    return nn.Sequential(layers)


def cnn(classes: int = 10) -> nn.Sequential:
    """McMahan et al.'s (2017, section 3) network for images (1, 28, 28): 582,026 parameters with ten classes.

    ``conv1`` (5 x 5, 32 channels) and ``conv2`` (5 x 5, 64), each with 2 x 2 max pooling, ``dense`` (512), ``head``.
    Convolutions have no padding, as is usual; with padding there were 1,663,370 parameters.
    """
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 32, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            dense=nn.Linear(1024, 512),
            relu3=nn.ReLU(),
            head=nn.Linear(512, classes),
        )
    )


def block(inputs: int, outputs: int, norm: str | None = None, stride: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution ``conv``, normalisation ``norm`` where asked for, and ReLU."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv=nn.Conv2d(inputs, outputs, 3, stride, padding=1))
    if norm == "group":
        layers["norm"] = nn.GroupNorm(max(outputs // GROUP, 1), outputs)
    if norm == "batch":
        layers["norm"] = nn.BatchNorm2d(outputs)
    layers["relu"] = nn.ReLU()
    return nn.Sequential(layers)


def pair(inputs: int, outputs: int, norm: str | None) -> nn.Sequential:
    """Two blocks at one resolution: ``first``, ``second``."""
    return nn.Sequential(OrderedDict(first=block(inputs, outputs, norm), second=block(outputs, outputs, norm)))


class UNet(nn.Module):
    """The module of :func:`unet`."""

    def __init__(self, inputs: int, outputs: int, channels: Sequence[int], norm: str | None) -> None:
        super().__init__()
        sizes = (inputs, *channels)
        self.channels = tuple(channels)
        self.encoder = nn.ModuleDict({f"level{k}": pair(a, b, norm) for k, (a, b) in enumerate(pairwise(sizes), 1)})
        self.decoder = nn.ModuleDict(
            {f"level{k}": pair(a + b, a, norm) for k, (a, b) in reversed(list(enumerate(pairwise(channels), 1)))}
        )
        self.head = nn.Conv2d(channels[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of masks."""
        factor = 2 ** (len(self.channels) - 1)
        if x.shape[-1] % factor or x.shape[-2] % factor:
            raise CoterieError(f"This U-Net needs images whose sides divide by {factor}, unlike {tuple(x.shape[-2:])}.")
        seen: list[Tensor] = []
        for level in self.encoder.values():
            x = level(nn.functional.max_pool2d(x, 2) if seen else x)
            seen.append(x)
        for level, wide in zip(self.decoder.values(), reversed(seen[:-1]), strict=True):
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = level(torch.cat([wide, x], dim=1))
        return self.head(x)  # type: ignore[no-any-return]


@checked
def unet(inputs: int = 1, outputs: int = 1, channels: Channels = (8, 16, 32), norm: Norm = "group") -> UNet:
    """A small U-Net (Ronneberger et al. 2015): parts ``encoder.level1, ...``, ``decoder.level1, ...`` and ``head``.

    It makes logits of masks (rows, outputs, h, w) of images (rows, inputs, h, w), which are halved between levels, so
    that height and width must divide by 2 that often.
    """
    return UNet(inputs, outputs, channels, norm)


@checked
def nodule_detector(inputs: int = 1, channels: Channels = (8, 16, 32), norm: Norm = "group") -> nn.Sequential:
    """One-stage detection on a grid, one box for each cell (after Redmon et al. 2016): ``body.level1, ...``, ``head``.

    It makes (rows, 5, cells, cells) of images (rows, inputs, h, w): the logit of a nodule whose centre is in the cell,
    and its box as ``examples/boxes.py`` codes it. Each level but the first halves the image, so that a cell is
    ``2 ** (len(channels) - 1)`` pixels wide.
    """
    levels: OrderedDict[str, nn.Module] = OrderedDict()
    for k, (a, b) in enumerate(pairwise((inputs, *channels)), 1):
        down = block(a, b, norm, stride=1 if k == 1 else 2)
        levels[f"level{k}"] = nn.Sequential(OrderedDict(first=down, second=block(b, b, norm)))
    return nn.Sequential(OrderedDict(body=nn.Sequential(levels), head=Rare(channels[-1], 5, 1)))


class Rare(nn.Conv2d):
    """A convolution whose first output is a logit that starts low: few cells have a nodule (Lin et al. 2017, 4.1)."""

    def reset_parameters(self) -> None:
        """First parameters."""
        super().reset_parameters()
        if self.bias is not None:
            nn.init.constant_(self.bias[:1], RARE)
