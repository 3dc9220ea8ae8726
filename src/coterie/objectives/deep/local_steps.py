"""Local steps: which rows each one looks at and what they count, and a step of several clients at once on layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.gradient_steps import Walk
from coterie.options import Checked, Option


@dataclass(frozen=True)
class Training(Checked):
    """How clients take steps, beside their size."""

    clip: Annotated[float | None, Option("Longest gradient of a step; longer ones are shortened.", above=0.0)] = None
    ridge: Annotated[float, Option("Weight decay: ``ridge |theta|^2 / 2`` beside every row's loss.", low=0.0)] = 0.0
    momentum: Annotated[float, Option("Heavy ball, from rest in every run of local steps.", low=0.0, below=1.0)] = 0.0


class Stepper:
    """Local steps on layers (m, ...), which move in place, with gradients clipped over all layers of a client.

    They are ``theta -= eta * on * (clipped g + shift + pull (theta - anchor))``; with momentum they go along
    ``v <- momentum v + g``, from v = 0.
    """

    def __init__(self, of: Architecture, layers: Sequence[Tensor], by: Walk, training: Training) -> None:
        self.layers, self.eta, self.pull = layers, of.tensor(by.eta), float(by.pull)
        self.anchor = of.layers(by.anchor if by.pull else None)
        self.shift, self.on = of.layers(by.shift), of.layers(by.on)
        self.clip, self.momentum = training.clip, training.momentum
        self._velocity: list[Tensor] = []
        self._first = float(by.eta[0]) if len(by.eta) else 0.0

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """One step of the first k clients, from their gradients (k, ...)."""
        k = len(grads[0])
        plain = self.anchor is None and self.shift is None and self.on is None and not self.momentum
        if k == 1 and plain and self.clip is None:  # one call for all layers
            torch._foreach_add_([layer[:1] for layer in self.layers], list(grads), alpha=-self._first)
            return
        scale = None if self.clip is None else self._within(grads, self.clip)
        for j, (layer, g) in enumerate(zip(self.layers, grads, strict=True)):
            wide = (k,) + (1,) * (g.ndim - 1)
            if scale is not None:
                g = g * scale.view(wide)
            if self.anchor is not None:
                g = g + self.pull * (layer[:k] - self.anchor[j][:k])
            if self.shift is not None:
                g = g + self.shift[j][:k]
            if self.momentum:
                g = self._heavy(j, g)
            if self.on is not None:
                g = g * self.on[j]
            layer[:k].addcmul_(g, self.eta[:k].view(wide), value=-1.0)

    def _within(self, grads: Sequence[Tensor], clip: float) -> Tensor:
        """What brings the gradients within the clip (k,)."""
        square = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in grads]).sum(0)
        return torch.clamp(clip / (square.sqrt() + 1e-30), max=1.0)

    def _heavy(self, j: int, g: Tensor) -> Tensor:
        if len(self._velocity) == j:
            self._velocity.append(torch.zeros_like(self.layers[j]))
        v = self._velocity[j][: len(g)]
        return v.mul_(self.momentum).add_(g)


@kernel
def drawn(keys: npt.NDArray[np.uint64], step: Ints, size: int, starts: Ints, stops: Ints) -> Ints:
    """Rows (m, size) that every client's step number ``step`` (m,) looks at: of its own ones, with replacement."""
    out = np.zeros((keys.shape[0], size), dtype=np.int64)
    for i in range(keys.shape[0]):
        n = stops[i] - starts[i]
        if n > 0:
            at = key(keys[i], step[i])
            for b in range(size):
                out[i, b] = starts[i] + whole(at, b, n)
    return out


@kernel
def padded(starts: Ints, stops: Ints) -> Ints:
    """All rows of clients (m, most): shorter ones repeat their last row, and row 0 stands where there is none."""
    most = 0
    for i in range(starts.shape[0]):
        most = max(most, stops[i] - starts[i])
    out = np.zeros((starts.shape[0], most), dtype=np.int64)
    for i in range(starts.shape[0]):
        for b in range(most if stops[i] > starts[i] else 0):
            out[i, b] = min(starts[i] + b, stops[i] - 1)
    return out


def batch(
    keys: npt.NDArray[np.uint64], step: Ints, size: int, starts: Ints, stops: Ints, weights: Floats, total: Floats
) -> tuple[Ints, Floats]:
    """Rows (m, b) of a step, and what each counts in the mean loss; size 0 takes all, and padding counts nothing.

    b is 0 where no client has a row.
    """
    n = (stops - starts)[:, None]
    if not n.any():
        return np.zeros((len(n), 0), dtype=np.int64), np.zeros((len(n), 0))
    share = np.where(total > 0.0, 1.0 / np.where(total > 0.0, total, 1.0), 0.0)[:, None]
    if size:
        index = drawn(keys, step, size, starts, stops)
        return index, weights[index] * (share * n / size)
    index = padded(starts, stops)
    return index, np.where(np.arange(index.shape[1]) < n, weights[index] * share, 0.0)
