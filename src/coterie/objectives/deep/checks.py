"""Whether a model, its loss and its rows fit together, tried on one row before anything is trained."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.objectives.deep.architecture import SEEDED, Architecture, Loss
from coterie.objectives.deep.rows import Rows, Tensors
from coterie.objectives.deep.together import Together

MISFITS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


def tried(of: Architecture, rows: Rows) -> None:
    """Raise a CoterieError that says what does not fit."""
    if not len(rows):
        return
    x, y = rows.gather(np.zeros(1, dtype=np.int64))
    try:
        with torch.no_grad(), of.autocast():
            outputs = of.module().eval()(x)
    except MISFITS as problem:
        shape, more = tuple(getattr(x, "shape", ())[1:]), ""
        if not x.is_floating_point():
            more = " Whole numbers are handed on as they are: give images and other measurements as float32."
        raise CoterieError(
            f"The model cannot take rows of shape {shape} ({x.dtype}): {_short(problem)}.{more}"
        ) from problem
    of.random = of.random or draws(of, x)
    if isinstance(rows, Tensors) and not rows.known:
        return
    if of.labels and isinstance(rows, Tensors):
        _known(outputs, rows.y)
    outputs = outputs.to(of.dtype).requires_grad_()
    try:
        losses = of.loss(outputs, y)
    except MISFITS as problem:
        raise CoterieError(
            f"The loss cannot compare outputs of shape {tuple(outputs.shape[1:])} with targets of shape "
            f"{tuple(y.shape[1:])}: {_short(problem)}."
        ) from problem
    if tuple(losses.shape) != (1,):
        raise CoterieError('The loss must give one number for each row, not their mean: use reduction="none".')
    if not getattr(losses, "requires_grad", False):
        raise CoterieError("The loss has no gradient: compute it from the outputs with torch alone, without detach.")
    if of.score is not None:
        _scored(of.score, outputs.detach(), y)


def draws(of: Architecture, x: Any) -> bool:
    """Whether the model takes random numbers while it trains, in layers or in functions such as ``F.dropout``."""
    with SEEDED, torch.random.fork_rng(devices=[]), torch.no_grad(), of.autocast():
        module, before = of.module().train(), torch.random.get_rng_state()
        with suppress(*MISFITS):  # BatchNorm has nothing to say of one row
            module(x)
        return not torch.equal(before, torch.random.get_rng_state())


def batches(together: Together, rows: Rows) -> bool:
    """Whether several clients' models can be one batch: not where what a model does depends on its numbers."""
    if not len(rows):
        return True
    of = together.of
    try:
        x, y = rows.gather(np.zeros((1, 1), dtype=np.int64))
        together.gradient(of.tensor(of.start(0))[None], (x, y, torch.ones(1, 1, dtype=of.dtype, device=of.device)))
    except MISFITS:
        return False
    return True


def _scored(score: Loss, outputs: Tensor, y: Tensor) -> None:
    try:
        found = score(outputs, y)
    except MISFITS as problem:
        raise CoterieError(
            f"The score cannot compare outputs of shape {tuple(outputs.shape[1:])} with targets of shape "
            f"{tuple(y.shape[1:])}: {_short(problem)}."
        ) from problem
    if not isinstance(found, Tensor) or tuple(found.shape) != (1,):
        raise CoterieError("The score must give a tensor with one number for each row, not their mean.")


def _known(outputs: Tensor, y: Tensor) -> None:
    K = int(outputs.shape[1]) if outputs.ndim > 1 else 0
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise CoterieError("Classes must be whole numbers: code them as 0, 1, ... alike at all clients first.")
    if K == 0 or int(y.min()) < 0 or int(y.max()) >= K:
        raise CoterieError(
            f"The model has {K} classes and targets go from {int(y.min())} to {int(y.max())}: code classes as "
            f"0, ..., {max(K - 1, 0)} alike at all clients, or give the model more outputs."
        )


def _short(problem: Exception) -> Any:
    """The first line of what torch says."""
    return (str(problem).splitlines() or [type(problem).__name__])[0].rstrip(".")
