"""Losses and scores of each row, of classes, numbers and masks: functions ``(outputs, targets) -> (rows,)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses (rows,) of class scores (rows, K), or (rows, K, ...) with their mean over what is left."""
    each = functional.cross_entropy(outputs, targets.long(), reduction="none")
    return each.flatten(1).mean(1) if each.ndim > 1 else each


def _as_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs in the shape of the targets: axes of one are of no account, all others must be alike."""
    if outputs.squeeze().shape != targets.squeeze().shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} are not of the targets' {tuple(targets.shape)}")
    return outputs.reshape(targets.shape)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared errors (rows,)."""
    return (_as_targets(outputs, targets) - targets).square().reshape(len(targets), -1).mean(1)


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean losses (rows,) of the log odds of two classes."""
    targets = targets.to(outputs.dtype)
    each = functional.binary_cross_entropy_with_logits(_as_targets(outputs, targets), targets, reduction="none")
    return each.reshape(len(targets), -1).mean(1)


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    hit = outputs.argmax(1) == targets
    return hit.double().reshape(len(targets), -1).mean(1)


def _side(outputs: Tensor, targets: Tensor) -> Tensor:
    hit = (_as_targets(outputs, targets) > 0.0) == (targets > 0.5)
    return hit.double().reshape(len(targets), -1).mean(1)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}
SCORES: dict[str, Loss] = {"cross_entropy": _right, "bce": _side}


def dice_and_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of the pixels plus one minus the soft Dice coefficient, of each image (rows,).

    Outputs are logits of masks, targets masks of 0 and 1.

    References
    ----------
    Milletari, Navab, Ahmadi (2016), V-Net, 3DV; Isensee et al. (2021), nnU-Net, Nature Methods, add cross-entropy.
    """
    targets = targets.to(outputs.dtype)
    inside = torch.sigmoid(outputs).flatten(1)
    truth = targets.flatten(1)
    soft = (2.0 * (inside * truth).sum(1) + 1.0) / (inside.sum(1) + truth.sum(1) + 1.0)
    entropy = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return entropy.flatten(1).mean(1) + 1.0 - soft


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice coefficient (rows,) of predicted and true masks; 1 where both are empty."""
    found, truth = (outputs > 0).flatten(1), (targets > 0.5).flatten(1)
    both, sizes = (found & truth).sum(1), found.sum(1) + truth.sum(1)
    return torch.where(sizes > 0, 2.0 * both / sizes.clamp(min=1), torch.ones_like(both, dtype=outputs.dtype))
