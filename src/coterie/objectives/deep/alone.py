"""Large models, one client after another: layers are views of one flat row, and clients share out the cores.

Every thread has a module of its own, whose parameters and gradients lie in two flat tensors, so that a step is one
call whatever the number of layers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.numerics.kernels import Ints
from coterie.numerics.keyed import GOLDEN
from coterie.objectives.deep.architecture import MOVING, Architecture, Place
from coterie.objectives.deep.stepper import Going, Stepper
from coterie.objectives.deep.together import Batch


class Bench:
    """A module whose parameters lie in ``flat`` (d,) and whose gradients lie in ``grads`` (p,).

    Both are in the order of ``Architecture.channels_last``; :meth:`load` and :meth:`unload` go between that and theta.
    """

    def __init__(self, of: Architecture) -> None:
        self.of, self.module, self.order = of, of.module(), of.channels_last
        self.flat = torch.zeros(of.d, dtype=of.dtype, device=of.device)
        self.grads = torch.zeros(of.p, dtype=of.dtype, device=of.device)
        self.moves = None if of.moves is None else self.laid(of.tensor(of.moves)[: of.p])
        parameters = dict(self.module.named_parameters())
        for place in of.parameters:
            parameter = parameters[place.name]
            parameter.data, parameter.grad = self._layer(self.flat, place), self._layer(self.grads, place)
        for place in of.buffers:
            owner, _, name = place.name.rpartition(".")
            self.module.get_submodule(owner)._buffers[name] = self._layer(self.flat, place)
        self.variances = [self._layer(self.flat, p) for p in of.buffers if p.name.split(".")[-1] == "running_var"]

    def _layer(self, flat: Tensor, place: Place) -> Tensor:
        layer, shape = flat[place.start : place.stop], place.shape
        if self.order is None or len(shape) != 4:
            return layer.view(shape)
        return layer.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)

    def laid(self, row: Tensor) -> Tensor:
        """A row (d,) or (p,) of theta's order in that of ``flat``."""
        return row if self.order is None else row[self.order[: len(row)]]

    def load(self, theta: Tensor) -> None:
        """Take a model (d,). Variances that a codec made negative on their way are 0."""
        self.flat.copy_(self.laid(theta))
        for variance in self.variances:
            variance.clamp_(min=0.0)

    def unload(self, row: Tensor, flat: Tensor) -> None:
        """Write ``flat``, (d,) or (p,), to a row of theta's order."""
        if self.order is None:
            row.copy_(flat)
        else:
            row[self.order[: len(row)]] = flat

    def training(self, rows: int) -> None:
        """Go into training mode; less than two rows have no variance, so that statistics rest there."""
        self.module.train()
        for layer in self.module.modules() if rows < 2 and self.of.moving else ():
            if isinstance(layer, MOVING):
                layer.eval()

    def forward(self, x: Any) -> Tensor:
        """What the module makes of inputs."""
        with self.of.autocast():
            outputs: Tensor = self.module(x)
        return outputs.to(self.of.dtype) if self.of.half else outputs

    def gradient(self, batch: tuple[Any, Tensor, Tensor], ridge: float) -> Tensor:
        """The gradient (p,) of the loss of some rows at ``flat``."""
        x, y, scale = batch
        self.training(len(y))
        self.grads.zero_()
        loss = (self.of.loss(self.forward(x), y) * scale).sum()
        torch.autograd.backward(loss)
        if ridge:
            self.grads.add_(self.flat[: self.of.p], alpha=ridge * float(scale.sum()))
        return self.grads if self.moves is None else self.grads.mul_(self.moves)


class Alone:
    """Clients' own models, flat rows (m, d), on rows of their own."""

    def __init__(self, of: Architecture, ridge: float) -> None:
        self.of, self.ridge = of, ridge
        self._local = threading.local()

    @property
    def bench(self) -> Bench:
        """The one of the present thread."""
        if not hasattr(self._local, "bench"):
            self._local.bench = Bench(self.of)
        bench: Bench = self._local.bench
        return bench

    def _layers(self, numbers: Any) -> list[Tensor] | None:
        """The parameters of a row (d,), where there is any, as :class:`Bench` has them."""
        return None if numbers is None else [self.bench.laid(self.of.tensor(numbers)[: self.of.p])[None]]

    def each(self, m: int, run: Callable[[int], None]) -> None:
        """Call ``run(i)`` for every client, in one-thread tasks side by side where there are enough of them."""
        cores = torch.get_num_threads()
        if m < cores or cores == 1 or self.of.random or self.of.device.type != "cpu":
            for i in range(m):
                run(i)
        else:
            list(_pool(cores).map(run, range(m)))

    def gradient(self, theta: Tensor, keys: Any, first: Ints, batch: Batch) -> Tensor:
        """Gradients (m, d) of the mean losses over the rows of step ``first``; nothing for buffers."""
        out = torch.zeros_like(theta)

        def one(i: int) -> None:
            bench = self.bench
            bench.load(theta[i])
            with _seeded(self.of, int(keys[i]), int(first[i])):
                bench.unload(out[i, : self.of.p], bench.gradient(_single(batch, i, int(first[i])), self.ridge))

        self.each(len(theta), one)
        return out

    def walk(
        self, theta: Tensor, going: Going, keys: Any, first: Ints, batch: Batch, clip: float | None, momentum: float
    ) -> None:
        """Move theta (m, d), in place, where local steps lead."""
        p = self.of.p

        def one(i: int) -> None:
            bench, at = self.bench, int(first[i])
            bench.load(theta[i])
            to, shift = (None if a is None else self._layers(a[i]) for a in (going.anchor, going.shift))
            on = self._layers(going.on)
            layers, eta = [bench.flat[None, :p]], self.of.tensor(going.eta[i : i + 1])
            stepper = Stepper(layers, eta, going.pull, to if going.pull else None, shift, on, clip, momentum)
            for s in range(int(going.steps[i])):
                now = at + (s if going.fresh else 0)
                with _seeded(self.of, int(keys[i]), now):
                    g = bench.gradient(_single(batch, i, now), self.ridge)
                stepper.step([g[None]])
            if going.on is not None:  # statistics of layers that rest do, too
                bench.flat[p:] = torch.where(self.of.tensor(going.on)[p:] > 0, bench.flat[p:], theta[i, p:])
            bench.unload(theta[i], bench.flat)

        self.each(len(theta), one)

    def outputs(self, theta: Tensor, i: int, x: Any) -> Tensor:
        """What client i's model makes of inputs (b, ...), in evaluation mode."""
        bench = self.bench
        bench.module.eval()
        bench.load(theta[i])
        with torch.no_grad():
            return bench.forward(x)


def _single(batch: Batch, i: int, step: int) -> tuple[Any, Tensor, Tensor]:
    """Rows of one client's step."""
    x, y, scale = batch(np.array([i]), np.array([step]))
    return x[0], y[0], scale[0]


@contextmanager
def _seeded(of: Architecture, key: int, step: int) -> Iterator[None]:
    """Layers that draw (dropout) do so by client and step."""
    if not of.random:
        yield
        return
    with torch.random.fork_rng(devices=[of.device] if of.device.type == "cuda" else []):
        torch.manual_seed((key + step * int(GOLDEN)) % 2**63)
        yield


@lru_cache(maxsize=2)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "coterie-torch", initializer=torch.set_num_threads, initargs=(1,))
