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
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.stepper import Going, Stepper
from coterie.objectives.deep.together import Batch


class Bench:
    """A module whose parameters lie in ``flat`` (d,) and whose gradients lie in ``grads`` (p,)."""

    def __init__(self, of: Architecture) -> None:
        self.of, self.module = of, of.module()
        self.flat = torch.zeros(of.d, dtype=of.dtype, device=of.device)
        self.grads = torch.zeros(of.p, dtype=of.dtype, device=of.device)
        parameters, views = dict(self.module.named_parameters()), of.views(self.flat)
        for place in of.parameters:
            parameter = parameters[place.name]
            parameter.data = views[place.name]
            parameter.grad = self.grads[place.start : place.stop].view(place.shape)
        for place in of.buffers:
            owner, _, name = place.name.rpartition(".")
            self.module.get_submodule(owner)._buffers[name] = views[place.name]

    def forward(self, x: Any) -> Tensor:
        """What the module makes of inputs."""
        with self.of.autocast():
            outputs: Tensor = self.module(x)
        return outputs.to(self.of.dtype) if self.of.half else outputs

    def gradient(self, batch: tuple[Any, Tensor, Tensor], ridge: float) -> Tensor:
        """The gradient (p,) of the loss of some rows at ``flat``."""
        x, y, scale = batch
        self.grads.zero_()
        loss = (self.of.loss(self.forward(x), y) * scale).sum()
        torch.autograd.backward(loss)
        if ridge:
            self.grads.add_(self.flat[: self.of.p], alpha=ridge * float(scale.sum()))
        return self.grads


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

    def _row(self, numbers: Any, i: int) -> list[Tensor] | None:
        """The parameters of client i's row, where there are any."""
        return None if numbers is None else [self.of.tensor(numbers[i])[None, : self.of.p]]

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
            bench.module.train()
            bench.flat.copy_(theta[i])
            with _seeded(self.of, int(keys[i]), int(first[i])):
                out[i, : self.of.p] = bench.gradient(_single(batch, i, int(first[i])), self.ridge)

        self.each(len(theta), one)
        return out

    def walk(
        self, theta: Tensor, going: Going, keys: Any, first: Ints, batch: Batch, clip: float | None, momentum: float
    ) -> None:
        """Move theta (m, d), in place, where local steps lead."""
        p = self.of.p
        on = None if going.on is None else self.of.tensor(going.on)

        def one(i: int) -> None:
            bench, at = self.bench, int(first[i])
            bench.module.train()
            bench.flat.copy_(theta[i])
            to, shift = (self._row(a, i) for a in (going.anchor if going.pull else None, going.shift))
            eta, move = self.of.tensor(going.eta[i : i + 1]), None if on is None else [on[:p]]
            stepper = Stepper([bench.flat[None, :p]], eta, going.pull, to, shift, move, clip, momentum)
            for s in range(int(going.steps[i])):
                now = at + (s if going.fresh else 0)
                with _seeded(self.of, int(keys[i]), now):
                    g = bench.gradient(_single(batch, i, now), self.ridge)
                stepper.step([g[None]])
            if on is not None and self.of.buffers:
                bench.flat[p:] = torch.where(on[p:] > 0, bench.flat[p:], theta[i, p:])
            theta[i] = bench.flat

        self.each(len(theta), one)

    def outputs(self, theta: Tensor, i: int, x: Any) -> Tensor:
        """What client i's model makes of inputs (b, ...), in evaluation mode."""
        bench = self.bench
        bench.module.eval()
        bench.flat.copy_(theta[i])
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
