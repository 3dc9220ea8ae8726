"""Small models of many clients, batched: one call works on all of them (``torch.func.vmap``)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call, vmap

from coterie.errors import RAISED
from coterie.numerics.arrays import Ints
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.features import features_of, losses, watched
from coterie.objectives.deep.input_tensors import called
from coterie.objectives.deep.keyed_draws import drawing
from coterie.objectives.deep.local_steps import Stepper, Training, gradients, moving, padded
from coterie.objectives.deep.module_snapshot import Snapshot
from coterie.objectives.deep.rows import Rows
from coterie.objectives.gradient_steps import FeatureTerm, Walk

NUMBERS = 1 << 24  # about how many numbers of models and of rows are worked on at a time
FEW = 5  # clients at least that train batched: fewer are as fast one after another, measured for an MLP and a CNN

Batch = Callable[[Ints, Ints], tuple[Any, Tensor, Tensor]]
"""``batch(clients, step) -> inputs (k, b, ...), targets (k, b, ...), scale (k, b)``."""

What = Callable[[Tensor, Tensor], Tensor]  # ``what(outputs, targets) -> (rows, ...)``: what is said of rows


def blocks(size: Ints, d: int) -> Iterator[Ints]:
    """Clients in order of falling ``size`` (m,), so many at a time that their models and rows fit into NUMBERS."""
    order, at = np.argsort(-size, kind="stable"), 0
    while at < len(order):
        many = max(NUMBERS // (d + 64 * int(size[order[at]]) + 1), 1)
        yield order[at : at + many]
        at += many


SLOW = "There is a performance drop"  # how torch begins to warn of an operation that it does not batch


class Moved(RuntimeError):
    """A forward pass assigned a buffer or wrote to it."""


def _seen(buffers: dict[str, Tensor | None]) -> list[tuple[str, int, int]]:
    """Which tensors buffers are, and how often they were written to."""
    return [(name, id(b), -1 if b is None else b._version) for name, b in buffers.items()]


class Watched(nn.Module):
    """A module whose buffers must stay: ``functional_call`` would drop what a forward pass assigns to them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        """What the module makes of inputs."""
        held = [layer._buffers for layer in self.inner.modules()]
        before = [_seen(part) for part in held]
        outputs = called(self.inner, x)
        if [_seen(part) for part in held] != before:
            raise Moved
        return outputs


class BatchedClients:
    """Clients' own models, flat rows (k, d), on rows of their own (k, b)."""

    def __init__(self, of: Architecture, training: Training) -> None:
        self.of, self.training = of, training
        # whether nothing was met so far that needs clients one after another: random numbers that are not keyed (vmap
        # refuses torch's, and others' generators are looked at), buffers that move, steps that depend on numbers
        self.works = True
        # whether torch has no batching rule for some operation, and loops over clients: it would warn of it each time
        self.slow = False
        self._local = threading.local()
        self.layers = [place.name for place in of.parameters]
        self.fixed = [place.name for place in of.buffers]

    def done(self, run: Callable[[BatchedClients], None]) -> bool:
        """Call ``run(self)``; whether its results hold."""
        if not self.works:
            return False
        try:
            with self._unwarned():
                self.works = self.of.common.quiet(lambda: run(self))
        except RAISED:  # torch.func has no rule for it; where it is the model's fault, the other way says so
            self.works = False
        return self.works

    @contextmanager
    def _unwarned(self) -> Iterator[None]:
        if not self.slow:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", SLOW)
            yield

    def _forward(self, layers: dict[str, Tensor], fixed: dict[str, Tensor], x: Any) -> Tensor:
        named = {f"inner.{name}": values for part in (layers, fixed) for name, values in part.items()}
        with self.of.autocast():
            outputs: Tensor = functional_call(self._local.module, named, (x,))
        return outputs.to(self.of.dtype) if self.of.half else outputs

    def _loss(
        self,
        layers: dict[str, Tensor],
        fixed: dict[str, Tensor],
        x: Any,
        y: Any,
        scale: Tensor,
        beside: FeatureTerm | None,
    ) -> Tensor:
        with watched(self.of, self._local.module.inner, beside.head if beside else ()) as taken:
            outputs = self._forward(layers, fixed, x)
        return (losses(self.of, outputs, x, y, taken, beside) * scale).sum()

    def _gradients(
        self, layers: dict[str, Tensor], fixed: dict[str, Tensor], by: Walk, now: Ints, batch: Batch
    ) -> list[Tensor]:
        """Gradients (k, ...) of layers, for the rows of the clients' steps ``now`` (k,); 0 of those that rest.

        A client's loss depends on its own model alone, so that the gradient of their sum has everyone's.
        """
        k, drawn = len(now), drawing(self.of, by.draws.keys[: len(now)], now, True)
        x, y, scale = batch(np.arange(k), now)
        moves = dict(zip(layers, moving(self.of, by), strict=True))
        here = {name: v[:k].detach().requires_grad_(moves[name]) for name, v in layers.items()}
        each = vmap(partial(self._loss, beside=by.beside), randomness="different" if self.of.keyed else "error")
        with drawn, disable_saved_tensors_hooks("A batch has none."):
            loss = each(here, {name: v[:k] for name, v in fixed.items()}, x, y, scale).sum()
        decay = self.training.ridge * scale.sum(1)
        return gradients(
            loss, list(here.values()), list(moves.values()), decay if self.training.ridge and by.decays else None
        )

    def _seen(self, layers: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, head: Sequence[str] = ()) -> Tensor:
        with watched(self.of, self._local.module.inner, head) as taken:
            outputs = self._forward(layers, fixed, x)
        return features_of(self.of, taken, x, head) if head else outputs

    def _cut(self, theta: Tensor, training: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Layers that have gradients, and buffers, as views of flat rows; what comes before any call of a model."""
        if not hasattr(self._local, "module"):  # a call puts its layers into the module: threads must not share one
            module = self.of.module()
            self._local.module, self._local.snapshot = Watched(module), Snapshot(module, self.of.base.tensors.values())
            self._local.types = {n: b.dtype for n, b in module.named_buffers() if not b.is_floating_point()}
        self._local.snapshot.restore()
        inner = self._local.module.inner
        if training:
            self.of.train(inner)
        else:
            inner.eval()
        views, types = self.of.views(theta), self._local.types
        fixed = {n: views[n].round().to(types[n]) if n in types else views[n] for n in self.fixed}
        return {n: views[n] for n in self.layers}, fixed

    def gradient(self, theta: Tensor, by: Walk, batch: Batch) -> Tensor:
        """Gradients (k, d) of the mean losses over the rows of the first step; nothing for buffers."""
        grads = self._gradients(*self._cut(theta), by, by.draws.first, batch)
        out = torch.zeros_like(theta)
        for place, g in zip(self.of.parameters, grads, strict=True):
            out[:, place.start : place.stop] = g.flatten(1)
        return out

    def walk(self, theta: Tensor, by: Walk, batch: Batch) -> Tensor:
        """Move theta (k, d), in place, where local steps lead; ``steps`` must not rise from client to client."""
        layers, fixed = self._cut(theta)
        stepper = Stepper(self.of, list(layers.values()), by, self.training)
        for s in range(int(by.steps.max(initial=0))):
            k = int(np.searchsorted(-by.steps, -s, side="left"))
            now = by.draws.first[:k] + (s if by.fresh else 0)
            stepper.step(self._gradients(layers, fixed, by, now, batch))
        return theta

    @torch.no_grad()
    def outputs(self, theta: Tensor, x: Any, head: Sequence[str] = ()) -> Tensor:
        """What the models make of inputs (k, b, ...), or of them the features that layers ``head`` are given."""
        return vmap(partial(self._seen, head=head))(*self._cut(theta, training=False), x)

    def per_row(
        self, theta: Tensor, rows: Rows, starts: Ints, stops: Ints, what: What, head: Sequence[str] = ()
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Where in an answer for all rows, client after client, some stand, and what is said of them."""
        counts = stops - starts
        first = np.cumsum(counts) - counts
        for some in blocks(counts, self.of.d):
            index = padded(starts[some], stops[some])
            x, y = rows.gather(index)
            outputs = self.outputs(theta[torch.from_numpy(some)], x, head)
            there = np.arange(index.shape[1]) < counts[some][:, None]
            at = first[some][:, None] + np.arange(index.shape[1])
            mask = torch.from_numpy(there).to(outputs.device)
            yield at[there], what(outputs[mask], y[mask]).cpu().numpy()
