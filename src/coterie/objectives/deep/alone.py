"""Large models, one client after another: clients share out the cores, and every thread has a module of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.numerics.kernels import Ints
from coterie.numerics.keyed import GOLDEN
from coterie.objectives.deep.architecture import MOVING, SEEDED, Architecture, tensors
from coterie.objectives.deep.stepper import Going, Stepper
from coterie.objectives.deep.together import Batch


class Failed(Exception):
    """Work of a client raised what it was not to raise, which is the cause."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client


class Bench:
    """A module that takes clients' models in turn; kernels of images' convolutions have their channels last."""

    def __init__(self, of: Architecture) -> None:
        self.of, self.module = of, of.module()
        if of.images:  # a quarter less time
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        named = tensors(self.module)
        self.layers = [named[place.name] for place in of.parameters]
        self.fixed = [named[place.name] for place in of.buffers]
        self.trained = [layer for layer in self.layers if layer.requires_grad]
        self.variances = [b for p, b in zip(of.buffers, self.fixed, strict=True) if p.name.endswith("running_var")]

    @torch.no_grad()
    def load(self, theta: Tensor) -> None:
        """Take a model (d,). Variances that a codec made negative on their way are 0."""
        views = self.of.views(theta)
        for place, layer in zip(self.of.places, (*self.layers, *self.fixed), strict=True):
            layer.copy_(views[place.name])
        for variance in self.variances:
            variance.clamp_(min=0.0)

    @torch.no_grad()
    def unload(self, theta: Tensor) -> None:
        """Write the model to a row (d,)."""
        views = self.of.views(theta)
        for place, layer in zip(self.of.places, (*self.layers, *self.fixed), strict=True):
            views[place.name].copy_(layer)

    def training(self, rows: int) -> None:
        """Go into training mode; less than two rows have no variance, so that statistics rest there."""
        if not self.module.training or self.of.moving:
            self.module.train()
        for layer in self.module.modules() if rows < 2 and self.of.moving else ():
            if isinstance(layer, MOVING):
                layer.eval()

    def forward(self, x: Any) -> Tensor:
        """What the module makes of inputs."""
        with self.of.autocast():
            outputs: Tensor = self.module(x)
        return outputs.to(self.of.dtype) if self.of.half else outputs

    def gradient(self, batch: tuple[Any, Tensor, Tensor], ridge: float) -> list[Tensor]:
        """The gradients (1, ...) of the layers for the loss of some rows; zero for frozen ones."""
        x, y, scale = batch
        if not len(y):  # whose model rests, and its statistics too
            return [torch.zeros_like(layer)[None] for layer in self.layers]
        self.training(len(y))
        loss = (self.of.loss(self.forward(x), y) * scale).sum()
        grads = list(torch.autograd.grad(loss, self.trained, materialize_grads=True))
        if ridge:
            decay = ridge * float(scale.sum())
            grads = [g + decay * layer.data for g, layer in zip(grads, self.trained, strict=True)]
        if len(self.trained) < len(self.layers):
            found = iter(grads)
            grads = [next(found) if layer.requires_grad else torch.zeros_like(layer) for layer in self.layers]
        return [g[None] for g in grads]


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
        """The layers (1, ...) of a row (d,), where there is any."""
        if numbers is None:
            return None
        views = self.of.views(self.of.tensor(numbers)[None])
        return [views[place.name] for place in self.of.parameters]

    def each(self, work: Ints, run: Callable[[int], None]) -> None:
        """Call ``run(i)`` for every client, in one-thread tasks side by side where there are enough of them.

        Those with the most ``work`` (m,) go first, so that none is left alone at the end. What a call raises comes as
        :class:`Failed`, which says whose it was.
        """

        def named(i: int) -> None:
            try:
                run(i)
            except CoterieError:
                raise
            except Exception as problem:
                raise Failed(i) from problem

        cores, m = torch.get_num_threads(), len(work)
        if m < cores or cores == 1 or self.of.random or self.of.device.type != "cpu":
            for i in range(m):
                named(i)
        else:
            list(_pool(cores).map(named, np.argsort(-work, kind="stable").tolist()))

    def gradient(self, theta: Tensor, keys: Any, first: Ints, batch: Batch) -> Tensor:
        """Gradients (m, d) of the mean losses over the rows of step ``first``; nothing for buffers."""
        out = torch.zeros_like(theta)

        def one(i: int) -> None:
            bench = self.bench
            bench.load(theta[i])
            with _seeded(self.of, int(keys[i]), int(first[i])):
                grads = bench.gradient(_single(batch, i, int(first[i])), self.ridge)
            views = self.of.views(out[i])
            for place, g in zip(self.of.parameters, grads, strict=True):
                views[place.name].copy_(g[0])

        self.each(np.ones(len(theta), dtype=np.int64), one)
        return out

    def walk(
        self, theta: Tensor, going: Going, keys: Any, first: Ints, batch: Batch, clip: float | None, momentum: float
    ) -> None:
        """Move theta (m, d), in place, where local steps lead."""

        def one(i: int) -> None:
            bench, at = self.bench, int(first[i])
            bench.load(theta[i])
            to, shift = (None if a is None else self._layers(a[i]) for a in (going.anchor, going.shift))
            on, layers = self._layers(going.on), [layer.data[None] for layer in bench.layers]
            eta = self.of.tensor(going.eta[i : i + 1])
            stepper = Stepper(layers, eta, going.pull, to if going.pull else None, shift, on, clip, momentum)
            for s in range(int(going.steps[i])):
                now = at + (s if going.fresh else 0)
                with _seeded(self.of, int(keys[i]), now):
                    grads = bench.gradient(_single(batch, i, now), self.ridge)
                stepper.step(grads)
            if going.on is None:
                bench.unload(theta[i])
            else:  # statistics of layers that rest do, too
                before = theta[i].clone()
                bench.unload(theta[i])
                p, move = self.of.p, self.of.tensor(going.on)
                theta[i, p:] = torch.where(move[p:] > 0, theta[i, p:], before[p:])

        self.each(going.steps, one)

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
    with SEEDED, torch.random.fork_rng(devices=[of.device] if of.device.type == "cuda" else []):
        torch.manual_seed((key + step * int(GOLDEN)) % 2**63)
        yield


@lru_cache(maxsize=2)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "coterie-torch", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):  # a child has the pool and none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
