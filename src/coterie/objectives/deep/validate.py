"""Whether a model, its loss and its rows fit together: a pass forth and back is tried before anything is trained.

Whatever goes wrong in it becomes one sentence, with shapes, torch's own first line, and the likely remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import RAISED, CoterieError
from coterie.numerics.arrays import Ints
from coterie.objectives.deep.architecture import Architecture, short
from coterie.objectives.deep.input_tensors import called, doubled
from coterie.objectives.deep.losses import Loss
from coterie.objectives.deep.rows import Rows, Sets, Tensors, kind_of
from coterie.objectives.deep.sequential import ModuleWorkspace, SequentialClients


def validate(sequential: SequentialClients, rows: Rows, counts: Ints) -> None:
    """Raise a CoterieError that says what does not fit.

    One row and two go through the model as it is evaluated, and, with gradients, as it trains: two of them, and one
    where a client has no more.
    """
    if not len(rows):
        return
    of, workspace = sequential.of, sequential.workspace
    made = {id(layer) for layer in workspace.module.parameters()}
    with workspace.generators.kept() as seed:
        seed(0, 0)
        if isinstance(rows, Sets):
            rows.probe()
        for size in (1, 2):
            x, y = rows.gather(np.array([0, len(rows) - 1][:size]))
            with sizes(workspace.module) as seen:
                outputs = _outputs(of, workspace, x, training=False)
            of.widest = max(of.widest, *seen)
            if isinstance(rows, Tensors) and not rows.known:
                continue
            _known(of, outputs, rows)
            _losses(of, outputs.detach().to(of.dtype).requires_grad_(), y)
            if of.score is not None:
                _each("score", of.score, outputs.detach(), y)
            if size == 2 or np.any(counts == 1):
                _trains(of, workspace, x, y)
    if late := [name for name, layer in workspace.module.named_parameters() if id(layer) not in made]:
        raise CoterieError(
            f"The model makes '{late[0]}' while rows pass through it, so that it would never be trained: make all "
            "layers and parameters in __init__."
        )


@contextmanager
def sizes(module: nn.Module) -> Iterator[list[int]]:
    """How many numbers each layer gives for a row, while it is called."""
    seen = [1, 1]

    def see(layer: nn.Module, given: Any, out: Any) -> None:
        seen.append(out[0].numel() if isinstance(out, Tensor) and out.ndim and len(out) else 1)

    hooks = [layer.register_forward_hook(see) for layer in module.modules()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def moving_buffers(sequential: SequentialClients, rows: Rows) -> set[str]:
    """Buffers that a forward pass of two rows writes to or assigns, as the model trains or is evaluated."""
    of, workspace = sequential.of, sequential.workspace
    if of.all_buffers <= of.statistics or not len(rows):
        return set(of.all_buffers)
    was = {name: (id(b), b._version) for name, b in workspace.module.named_buffers()}
    with workspace.generators.kept() as seed, torch.no_grad():
        for training in (True, False):
            seed(0, 0)
            x, _ = rows.gather(np.array([0, len(rows) - 1]))
            _outputs(of, workspace, x, training)
    now = {name: (id(b), b._version) for name, b in workspace.module.named_buffers()}
    return {name for name, before in was.items() if now.get(name) != before}


def _outputs(of: Architecture, workspace: ModuleWorkspace, x: Tensor, training: bool) -> Tensor:
    """What the model makes of rows, once it is sure that it is a tensor with a row for each."""
    while_ = " while it trains" if training else ""
    if training:
        workspace.training(len(x))
    else:
        workspace.module.eval()
    try:
        with torch.set_grad_enabled(training):
            outputs = workspace.call(x)
    except RAISED as problem:
        raise CoterieError(
            f"The model cannot take rows of shape {tuple(x.shape[1:])} ({x.dtype}){while_}: "
            f"{short(problem)}.{_input_remedy(of, workspace, x)}"
        ) from problem
    if not isinstance(outputs, Tensor):
        raise CoterieError(
            f"The model must give one tensor of outputs, and gives {_kind(outputs)}{while_}: return what the loss "
            "compares with the targets, and nothing beside it."
        )
    if not outputs.ndim or len(outputs) != len(x):
        rows = f"{len(x)} row{'s' * (len(x) > 1)}"
        raise CoterieError(
            f"The model gives outputs of shape {tuple(outputs.shape)} for {rows}{while_}: their first axis must be "
            "that of rows. Keep it, as in flatten(1) or squeeze(1), where squeeze() drops it for a single row."
        )
    if not outputs.is_floating_point():
        raise CoterieError(f"The model gives {outputs.dtype}{while_}: return scores in floating numbers, not classes.")
    return outputs.to(of.dtype)


def _each(what: str, of: Loss, outputs: Tensor, y: Tensor, remedy: str = "") -> Tensor:
    """What the loss or the score gives, once it is sure that there is one number for each row."""
    try:
        found = of(outputs, y)
    except RAISED as problem:
        raise CoterieError(
            f"The {what} cannot compare outputs of shape {tuple(outputs.shape[1:])} with targets of shape "
            f"{tuple(y.shape[1:])} ({y.dtype}): {short(problem)}.{remedy}"
        ) from problem
    if not isinstance(found, Tensor):
        raise CoterieError(
            f"The {what} must give a tensor with one number for each row, not {_kind(found)}: compute it from the "
            "outputs with torch alone."
        )
    if tuple(found.shape) != (len(y),):
        raise CoterieError(
            f"The {what} must give one number for each row, not their mean, and gives the shape {tuple(found.shape)} "
            f'for {len(y)} row{"s" * (len(y) > 1)}: use reduction="none", and means over all axes but the first.'
        )
    return found


def _losses(of: Architecture, outputs: Tensor, y: Tensor) -> Tensor:
    """Losses of rows, once it is sure that they have a gradient."""
    losses = _each("loss", of.loss, outputs, y, _target_remedy(of, outputs, y))
    if not losses.requires_grad:
        raise CoterieError("The loss has no gradient: compute it from the outputs with torch alone, without detach.")
    return losses


def _made_anew(losses: Tensor, workspace: ModuleWorkspace) -> tuple[int, ...] | None:
    """The shape of a parameter that losses depend on and the module does not hold; None where there is none."""
    own = {id(layer) for layer in workspace.module.parameters()}
    seen, left = set(), [losses.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, torch.nn.Parameter) and id(leaf) not in own:
                return tuple(leaf.shape)
            left += [before for before, _ in node.next_functions]
    return None


def _trains(of: Architecture, workspace: ModuleWorkspace, x: Tensor, y: Tensor) -> None:
    outputs = _outputs(of, workspace, x, training=True)
    if not outputs.requires_grad:
        raise CoterieError(
            "The model's outputs have no gradient while it trains: leave detach, no_grad and argmax out of its forward."
        )
    losses = _losses(of, outputs, y)
    try:
        grads = torch.autograd.grad(losses.sum(), workspace.layers, allow_unused=True)
    except RAISED as problem:
        more = " Let operations of the forward give new tensors (x + 1, not x.add_(1) or x += 1)."
        raise CoterieError(
            f"The loss of the model has no gradient that torch can compute: {short(problem)}."
            f"{more if 'inplace' in str(problem) else ''}"
        ) from problem
    if anew := _made_anew(losses, workspace):
        raise CoterieError(
            f"The model computes with a parameter of shape {anew} that is none of its own, so that it would never be "
            "trained: make all layers in __init__, neither in forward nor in a plain list (take nn.ModuleList)."
        )
    if all(g is None for g in grads):
        raise CoterieError("The model's outputs depend on no parameter that is trained: there is nothing to train.")


def _known(of: Architecture, outputs: Tensor, rows: Rows) -> None:
    """Look through all targets that are in memory, and leave a look at the others to when they are loaded."""
    if not isinstance(of.named, str) or of.named == "mse":
        return
    K = int(outputs.shape[1]) if outputs.ndim > 1 else 0

    def checked(y: Tensor, at: Ints) -> None:
        if of.named == "bce":
            _two(y, rows, at)
        else:
            _classes(y, K, rows, at)

    if isinstance(rows, Tensors):
        checked(rows.y, np.arange(len(rows)))
    elif isinstance(rows, Sets):
        rows.checked = checked
        rows.gather(np.zeros(1, dtype=np.int64))


def _classes(y: Tensor, K: int, rows: Rows, at: Ints) -> None:
    """Targets of cross-entropy: whole numbers from 0 to K - 1."""
    if y.is_floating_point() and bool((bad := y != y.round()).any()):
        raise CoterieError(
            f"Classes must be whole numbers, which {_first(bad, y, rows, at)} is not: code them as 0, 1, ... alike at "
            "all clients first, or take the loss mse for outcomes that are no classes."
        )
    bad = (y < 0) | (y >= K)
    if K == 0 or bool(bad.any()):
        which = f" (the first outside: {_first(bad, y, rows, at)})" if K else ""
        raise CoterieError(
            f"The model has {K} classes and targets go from {int(y.min())} to {int(y.max())}{which}: code classes as "
            f"0, ..., {max(K - 1, 0)} alike at all clients, or give the model more outputs."
        )


def _two(y: Tensor, rows: Rows, at: Ints) -> None:
    """Targets of binary cross-entropy: from 0 to 1."""
    bad = (y < 0) | (y > 1)
    if bool(bad.any()):
        raise CoterieError(
            f'The loss "bce" needs targets from 0 to 1, which {_first(bad, y, rows, at)} is not: code the two classes '
            "as 0 and 1."
        )


def _first(bad: Tensor, y: Tensor, rows: Rows, at: Ints) -> str:
    """``"7 in row 3 of client 0"``."""
    where = bad.reshape(len(y), -1).any(1).nonzero().flatten()[0]
    value = y[where][bad[where]].flatten()[0].item()
    return f"{value:g} in {rows.place(int(at[int(where)]))}"


def _kind(value: object) -> str:
    return kind_of(value).partition(":")[0]


def _input_remedy(of: Architecture, workspace: ModuleWorkspace, x: Tensor) -> str:
    if len(x) == 1:
        with suppress(*RAISED), torch.no_grad(), of.autocast():
            called(workspace.module, doubled(x))
            return " It takes two rows and not one alone, as a client may have: let no layer compute over rows."
    if not x.is_floating_point():
        return (
            " Whole numbers are handed on as they are: give images and other measurements as float32, and what an "
            "embedding looks up as int64, from 0 and below its size."
        )
    if of.convolves and x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return " Images have their channels first: give X.transpose(0, 3, 1, 2)."
    if of.convolves and x.ndim == 3:
        return " Images have a channel axis: give X[:, None]."
    if not of.convolves and x.ndim > 2:
        return " Begin the model with nn.Flatten() where it takes rows as vectors."
    return " Rows of one number have a column: give X[:, None]." if x.ndim == 1 else ""


def _target_remedy(of: Architecture, outputs: Tensor, y: Tensor) -> str:
    if of.named == "cross_entropy":
        if y.ndim == 2 and y.shape[1] == 1:
            return " Classes are one number a row: give y[:, 0]."
        if y.shape == outputs.shape:
            return ' Give y.argmax(axis=1) for one class a row, or take the loss "bce" for several.'
        if y.ndim > 1 and y.shape == outputs.shape[:-1]:
            return " Classes are the second axis of outputs: return outputs.movedim(-1, 1)."
    return ""
