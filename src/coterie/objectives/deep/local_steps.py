"""Local steps: which rows each one looks at and what they count, and a step of several clients at once on layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints
from coterie.numerics.keyed_random import U64, at_step, shuffles, uniforms
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.optimizers import StackedOptimizer, need_optimizer
from coterie.objectives.gradient_steps import Walk
from coterie.objectives.row_kernels import owned_rows
from coterie.objectives.torch_names import StepOptions


class Training(StepOptions):
    """How clients take steps, beside their size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and not self.plain:
            raise CoterieError("momentum is that of plain steps: say it in optimizer_args instead, or leave it out.")
        if not self.plain:
            need_optimizer(self.optimizer, self.optimizer_args)

    @property
    def plain(self) -> bool:
        """Whether steps go along gradients, with or without momentum."""
        return self.optimizer == "SGD" and not self.optimizer_args

    def idle(self, walked: Mapping[str, int]) -> tuple[str, ...]:
        """What of it changed nothing in walks of at most so many "steps", each of at most so many "rows"."""
        once = "in every round, and no client took two steps in one"
        said = ["batches changes nothing: every step takes all rows."]
        said *= self.batches != "drawn" and walked.get("rows") == 0
        if walked.get("steps") == 1:
            said += [f"momentum changes nothing: it begins at rest {once}."] * (self.momentum > 0.0)
            said += [f"{self.optimizer} begins anew {once}: none remembers another."] * (not self.plain)
        return tuple(said)


def moving(of: Architecture, by: Walk) -> list[bool]:
    """Which layers move: of others, no gradient is needed."""
    if by.on is None:
        return [True] * len(of.parameters)
    return [bool(by.on[place.start : place.stop].any()) for place in of.parameters]


def gradients(loss: Tensor, layers: Sequence[Tensor], moves: Sequence[bool], decay: Tensor | None) -> list[Tensor]:
    """Gradients of layers (k, ...), with ``decay`` (k,) times the layers; 0, which takes no memory, of what rests."""
    wanted = [layer for layer, on in zip(layers, moves, strict=True) if on]
    found = list(torch.autograd.grad(loss, wanted, materialize_grads=True)) if wanted else []
    if decay is not None:
        found = [g + decay.view(-1, *(1,) * (g.ndim - 1)) * v.data for g, v in zip(found, wanted, strict=True)]
    each = iter(found)
    return [next(each) if on else v.new_zeros(()).expand(v.shape) for v, on in zip(layers, moves, strict=True)]


class Stepper:
    """Local steps on layers (m, ...), which move in place, with gradients clipped over what moves of a client.

    They are ``theta -= eta * on * (clipped g + shift + pull (theta - anchor))``; with momentum they go along
    ``v <- momentum v + g``, from v = 0. An optimiser takes what stands in brackets as its gradient.
    """

    def __init__(self, of: Architecture, layers: Sequence[Tensor], by: Walk, training: Training) -> None:
        self.layers, self.eta, self.pull = layers, of.tensor(by.eta), float(by.pull)
        self.anchor = of.layers(by.anchor if by.pull else None)
        self.shift, self.moving = of.layers(by.shift), moving(of, by)
        self.clip, self.momentum = training.clip, training.momentum
        alone = [by.apart is not None and bool(by.apart[place.start]) for place in of.parameters]
        self.alone = torch.tensor(alone, device=of.device)
        self._velocity: dict[int, Tensor] = {}
        self._first = float(by.eta[0]) if len(by.eta) else 0.0
        self.optimizer = None
        if len(by.eta) and not (by.plain or training.plain):
            if (by.eta != self._first).any():  # one after another they may
                raise ValueError("An optimiser takes steps of one size.")
            self.optimizer = StackedOptimizer(training.optimizer, training.optimizer_args, layers, self._first)
        whole = (
            by.on is None or (by.on[p.start : p.stop] == 1).all()
            for p, m in zip(of.parameters, self.moving, strict=True)
            if m
        )
        self.on = None if self.optimizer is None and all(whole) else of.layers(by.on)  # of whole layers, moving says it

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """One step of the first k clients, from their gradients (k, ...)."""
        k = len(grads[0])
        plain = self.clip is None and self.on is None and self.optimizer is None and not self.momentum
        if k == 1 and plain:
            self._alone(grads)
            return
        scale = [None] * len(grads) if self.clip is None else self._within(grads, self.clip)
        along = [self._local(j, g, scale[j]) for j, g in enumerate(grads)]
        if self.optimizer is not None:
            self._optimized(self.optimizer, along)
            return
        for j, (layer, g) in enumerate(zip(self.layers, along, strict=True)):
            if not self.moving[j]:
                continue
            if self.momentum and j not in self._velocity:
                self._velocity[j] = torch.zeros_like(layer)
            if self.momentum:
                g = self._velocity[j][:k].mul_(self.momentum).add_(g)
            if self.on is not None:
                g = g * self.on[j]
            layer[:k].addcmul_(g, self.eta[:k].view((k,) + (1,) * (g.ndim - 1)), value=-1.0)

    def _alone(self, grads: Sequence[Tensor]) -> None:
        """A plain step of the first client, with one call for all layers and nothing copied."""
        here, step = [j for j, moves in enumerate(self.moving) if moves], self._first
        if not here:
            return
        layers = [self.layers[j][:1] for j in here]
        if self.anchor is not None:
            torch._foreach_lerp_(layers, [self.anchor[j][:1] for j in here], step * self.pull)
        if self.shift is not None:
            torch._foreach_add_(layers, [self.shift[j][:1] for j in here], alpha=-step)
        torch._foreach_add_(layers, [grads[j] for j in here], alpha=-step)

    def _local(self, j: int, g: Tensor, scale: Tensor | None) -> Tensor:
        """The gradient (k, ...) of the local objective in layer j: clipped, with what pulls and shifts."""
        k = len(g)
        if not self.moving[j]:
            return g
        if scale is not None:
            g = g * scale.view((k,) + (1,) * (g.ndim - 1))
        if self.anchor is not None:
            g = g + self.pull * (self.layers[j][:k] - self.anchor[j][:k])
        return g if self.shift is None else g + self.shift[j][:k]

    def _optimized(self, optimizer: StackedOptimizer, along: list[Tensor]) -> None:
        """A step of the optimiser, in which what rests does, whatever decay there is."""
        if self.on is None:
            optimizer.step(along)
            return
        moves = [on > 0 for on in self.on]
        before = [layer[: len(g)].clone() for layer, g in zip(self.layers, along, strict=True)]
        optimizer.step([g * m for g, m in zip(along, moves, strict=True)])
        for layer, was, m in zip(self.layers, before, moves, strict=True):
            torch.where(m, layer[: len(was)], was, out=layer[: len(was)])

    def _within(self, grads: Sequence[Tensor], clip: float) -> Sequence[Tensor]:
        """What brings the gradients of each layer within the clip (k,), those alone by themselves."""
        moved = grads if self.on is None else [g * (on > 0) for g, on in zip(grads, self.on, strict=True)]
        square = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in moved])
        norms = [square[which].sum(0).sqrt() for which in (~self.alone, self.alone)]
        return [torch.clamp(clip / (norms[alone] + 1e-30), max=1.0) for alone in self.alone.tolist()]


def drawn(keys: U64, step: Ints, size: int, starts: Ints, stops: Ints) -> Ints:
    """Rows (m, size) that every client's step number ``step`` (m,) looks at: of its own ones, with replacement."""
    n = (stops - starts)[:, None]
    own = np.minimum((uniforms(keys, step, size) * n).astype(np.int64), n - 1)
    return np.where(n > 0, starts[:, None] + own, 0)


class Shuffles:
    """The order of every client's rows in the epoch that its steps are in."""

    def __init__(self, counts: Ints) -> None:
        self.at, self.order = np.cumsum(counts) - counts, np.empty(int(counts.sum()), dtype=np.int64)
        self.epoch = np.full(len(counts), -1, dtype=np.int64)

    def rows(self, some: Ints, keys: U64, step: Ints, size: int, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """Rows of steps of some clients (k, b), without replacement, of which the first of each count (k,).

        An epoch is ``ceil(n / size)`` steps of the n rows of a client, of which the last has fewer. The clients are
        distinct, or one with several steps.
        """
        n = stops - starts
        steps = np.maximum(-(-n // size), 1)
        epoch, first = step // steps, step % steps * size
        many = np.minimum(size, n - first)
        if len(some) > 1 and some[0] == some[1]:
            epochs, which = np.unique(epoch, return_inverse=True)
            order, at = shuffles(at_step(keys[: len(epochs)], epochs), n[: len(epochs)]), which * n
        else:
            self._go_on(some, keys, epoch, n)
            order, at = self.order, self.at[some]
        place = (at + first)[:, None] + np.minimum(np.arange(max(many.max(initial=0), 0)), many[:, None] - 1)
        there = n[:, None] > 0
        return np.where(there, starts[:, None] + order[np.where(there, place, 0)], 0), many

    def _go_on(self, some: Ints, keys: U64, epoch: Ints, n: Ints) -> None:
        """Shuffle the rows (n,) of clients that are not yet in an epoch."""
        fresh = np.flatnonzero((self.epoch[some] != epoch) & (n > 0))
        if len(fresh):
            at = self.at[some[fresh]]
            self.order[owned_rows(at, at + n[fresh])[1]] = shuffles(at_step(keys[fresh], epoch[fresh]), n[fresh])
            self.epoch[some[fresh]] = epoch[fresh]


def padded(starts: Ints, stops: Ints) -> Ints:
    """All rows of clients (m, most): shorter ones repeat their last row, and row 0 stands where there is none."""
    n = (stops - starts)[:, None]
    return np.where(n > 0, starts[:, None] + np.minimum(np.arange(n.max(initial=0)), n - 1), 0)


def batch(
    keys: U64,
    step: Ints,
    size: int,
    starts: Ints,
    stops: Ints,
    weights: Floats,
    total: Floats,
    epochs: tuple[Shuffles, Ints] | None = None,
) -> tuple[Ints, Floats]:
    """Rows (m, b) of a step, and what each counts in the mean loss; size 0 takes all, and padding counts nothing.

    b is 0 where no client has a row. ``epochs`` are shuffled ones, and where the m clients stand in them.
    """
    n = (stops - starts)[:, None]
    if not n.any():
        return np.zeros((len(n), 0), dtype=np.int64), np.zeros((len(n), 0))
    share = np.where(total > 0.0, 1.0 / np.where(total > 0.0, total, 1.0), 0.0)[:, None]
    if size and epochs is not None:
        index, many = epochs[0].rows(epochs[1], keys, step, size, starts, stops)
        there = np.arange(index.shape[1]) < many[:, None]
        return index, np.where(there, weights[index] * (share * n / np.maximum(many, 1)[:, None]), 0.0)
    if size:
        index = drawn(keys, step, size, starts, stops)
        return index, weights[index] * (share * n / size)
    index = padded(starts, stops)
    return index, np.where(np.arange(index.shape[1]) < n, weights[index] * share, 0.0)
