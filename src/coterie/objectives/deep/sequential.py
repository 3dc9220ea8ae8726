"""Large models, one client after another: clients share out the cores, and every thread has a module of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import RAISED, CoterieError
from coterie.numerics.arrays import Ints
from coterie.objectives.deep.architecture import MOVING, Architecture, named, put
from coterie.objectives.deep.batched import Batch, What
from coterie.objectives.deep.features import features_of, losses, watched
from coterie.objectives.deep.input_tensors import called, doubled
from coterie.objectives.deep.keyed_draws import drawing
from coterie.objectives.deep.local_steps import Stepper, Training, gradients, moving
from coterie.objectives.deep.module_snapshot import Snapshot
from coterie.objectives.deep.random_generators import Generators, Seed
from coterie.objectives.deep.rows import Rows
from coterie.objectives.gradient_steps import Ahead, FeatureTerm, Second, Walk

LOOK = 2048  # most rows of one forward pass where no gradient is needed
NUMBERS = 1 << 22  # most numbers that one layer of it gives
AHEAD = 1024  # rows that are looked up at once, of several steps


class Failed(Exception):
    """Work of a client raised what it was not to raise, which is the cause."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client


@contextmanager
def explained(rows: Rows, doing: str, starts: Ints) -> Iterator[None]:
    """Turn what torch or a caller's code raises in the middle of a run into a sentence that names the client.

    ``starts`` has the first row of each client that is at work.
    """
    try:
        yield
    except CoterieError:
        raise
    except RAISED as problem:
        failed = isinstance(problem, Failed)
        cause = problem.__cause__ if isinstance(problem, Failed) and problem.__cause__ else problem
        at = problem.client if isinstance(problem, Failed) else 0
        who = f" {rows.client(int(starts[at]))}" if failed or len(starts) == 1 else " several clients at once"
        full = isinstance(cause, torch.OutOfMemoryError | MemoryError)
        more = " The memory is full: take fewer rows a step (B), or a smaller model." if full else ""
        raise CoterieError(f"{doing}{who} fails: the model or its loss raises {named(cause)}.{more}") from cause


class ModuleWorkspace:
    """A module that takes clients' models in turn; kernels of images' convolutions have their channels last."""

    def __init__(self, of: Architecture, *drawing: Any) -> None:
        self.of, self.module = of, of.module()
        if of.images:  # a quarter less time
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        named = dict(self.module.named_parameters())
        self.layers = [named[place.name] for place in of.parameters]
        self.snapshot = Snapshot(self.module, of.base.tensors.values())
        self.fixed = {place.name: self.module.get_buffer(place.name) for place in of.buffers}
        self.generators = Generators(of.device, self.module, of.loss, of.score, *drawing)

    @contextmanager
    def moving(self, theta: Tensor) -> Iterator[list[Tensor]]:
        """Take a model (d,), whose layers (1, ...) move in the row itself, or come back to it in the end.

        Copied are those alone that lie otherwise in the module: kernels of images, and buffers.
        """
        views, here = self.of.views(theta), self.of.device.type == "cpu"
        homes = [(layer, layer.data) for layer in self.layers if here and not (self.of.images and layer.ndim == 4)]
        at = {id(layer): views[place.name] for place, layer in zip(self.of.parameters, self.layers, strict=True)}
        try:
            for layer, _ in homes:
                layer.data = at[id(layer)]
            self.load(theta)
            yield [layer.data[None] for layer in self.layers]
            self.unload(theta)
        finally:
            for layer, home in homes:
                layer.data = home

    @torch.no_grad()
    def load(self, theta: Tensor, anew: bool = True) -> None:
        """Take a model (d,), and nothing of the one before unless not ``anew``.

        Variances that a codec made negative are 0.
        """
        if anew:
            self.snapshot.restore()
        views = self.of.views(theta)
        for place, tensor in zip(self.of.places, (*self.layers, *self._buffers()), strict=True):
            if views[place.name].data_ptr() != tensor.data_ptr():
                put(tensor, views[place.name])
            if place.name.endswith("running_var"):
                tensor.clamp_(min=0.0)

    def _buffers(self) -> list[Tensor]:
        """The buffers of the row, as a forward pass may have assigned them, or as they were made if it dropped them."""
        held = dict(self.module.named_buffers())
        return [b if (b := held.get(n)) is not None and b.shape == was.shape else was for n, was in self.fixed.items()]

    @torch.no_grad()
    def unload(self, theta: Tensor) -> None:
        """Write the model to a row (d,); a buffer that has another shape by now is as the model came."""
        views = self.of.views(theta)
        for place, tensor in zip(self.of.places, (*self.layers, *self._buffers()), strict=True):
            if views[place.name].data_ptr() != tensor.data_ptr():
                views[place.name].copy_(tensor)
        self.of.base.need_unchanged()

    def training(self, rows: int) -> None:
        """Go into training mode; less than two rows have no variance, so that statistics rest there."""
        if not self.module.training or self.of.moving:
            self.of.train(self.module)
        for layer in self.module.modules() if rows < 2 and self.of.moving else ():
            if isinstance(layer, MOVING):
                layer.eval()

    def call(self, x: Any) -> Any:
        """What the module makes of inputs; a row that BatchNorm is to normalise by itself stands there twice."""
        with self.of.autocast():
            if not self.of.untracked or len(x) != 1:
                return called(self.module, x)
            outputs = called(self.module, doubled(x))
            return outputs[:1] if isinstance(outputs, Tensor) and outputs.shape[:1] == (2,) else outputs

    def forward(self, x: Any) -> Tensor:
        """The same in the type of parameters."""
        outputs: Tensor = self.call(x)
        return outputs.to(self.of.dtype) if self.of.half else outputs

    def gradient(
        self,
        batch: tuple[Any, Tensor, Tensor],
        ridge: float,
        drawn: AbstractContextManager[Any],
        moves: Sequence[bool] = (),
        beside: FeatureTerm | None = None,
    ) -> list[Tensor]:
        """The gradients (1, ...) of the layers for the loss of some rows, and what is ``beside`` it.

        ``drawn`` is the context of the forward pass; ``moves`` says which layers do, by default all.
        """
        x, y, scale = batch
        if not len(y) or (self.of.moving and not scale.any()):  # whose model rests, and its statistics too
            return [torch.zeros_like(layer)[None] for layer in self.layers]
        self.training(len(y))
        with drawn, watched(self.of, self.module, beside.head if beside else ()) as taken:
            outputs = self.forward(x)
            loss = (losses(self.of, outputs, x, y, taken, beside) * scale).sum()
        grads = gradients(loss, self.layers, moves or [True] * len(self.layers), ridge * scale.sum() if ridge else None)
        return [g[None] for g in grads]


class SequentialClients:
    """Clients' own models, flat rows (m, d), on rows of their own."""

    def __init__(self, of: Architecture, training: Training, *drawing: Any) -> None:
        self.of, self.training, self.drawing = of, training, drawing
        self._local = threading.local()

    @property
    def workspace(self) -> ModuleWorkspace:
        """The one of the present thread."""
        return self._workspace("first")

    def _workspace(self, name: str) -> ModuleWorkspace:
        if not hasattr(self._local, name):
            setattr(self._local, name, ModuleWorkspace(self.of, *self.drawing))
        workspace: ModuleWorkspace = getattr(self._local, name)
        return workspace

    def forget(self) -> None:
        """Drop the workspaces of all threads, as their modules are others now."""
        self._local = threading.local()

    def each(self, work: Ints, run: Callable[[int, Seed], None], again: bool = True) -> bool:
        """Call ``run(i, seed)`` for every client; ``seed(key, step)`` is to be called before each of its steps.

        Threads share generators, so that clients side by side must not draw. Where they turn out to have, all are run
        once ``again``, one after another, with generators that are set by key; or not, and the answer is False. What a
        call raises comes as :class:`Failed`, which says whose it was.
        """

        def mine(seed: Seed, i: int) -> None:
            try:
                run(i, seed)
            except CoterieError:
                raise
            except RAISED as problem:
                raise Failed(i) from problem

        if not self.of.random and self.of.common.quiet(lambda: self._spread(work, partial(mine, _unset))):
            return True
        self.of.random = True
        if not again:
            return False
        with self.workspace.generators.kept() as seed:
            for i in range(len(work)):
                mine(seed, i)
        return True

    def _spread(self, work: Ints, run: Callable[[int], None]) -> None:
        """Call ``run(i)`` for every client, in one-thread tasks side by side where there are enough of them.

        Those with the most ``work`` (m,) go first, so that none is left alone at the end.
        """
        cores, m = torch.get_num_threads(), len(work)
        if m < cores or cores == 1 or self.of.device.type != "cpu":
            for i in range(m):
                run(i)
        else:
            list(_pool(cores).map(run, np.argsort(-work, kind="stable").tolist()))

    def _gradients(self, i: int, by: Walk, batch: Batch, seed: Seed, *spaces: ModuleWorkspace) -> Iterator[Any]:
        """Gradients of the layers of a client's models, which are loaded in ``spaces``, before each of its steps."""
        first, many, key = int(by.draws.first[i]), int(by.steps[i]), by.draws.keys[i : i + 1]
        ahead = max(AHEAD // by.draws.size, 1) if by.draws.size and self._looks_ahead else 1
        moves, size = moving(self.of, by), self.training.at_once
        ridge = self.training.ridge * by.decays
        for at in range(0, many, ahead):
            now = first + np.arange(at, min(at + ahead, many)) * int(by.fresh)
            seed(int(key[0]), int(now[0]))
            rows = batch(np.full(len(now), i), now)
            for s in range(len(now)):
                x, y, scale = (part[s] for part in rows)
                few = size or max(len(y), 1)
                parts = [(x[b : b + few], y[b : b + few], scale[b : b + few]) for b in range(0, max(len(y), 1), few)]
                found = []
                for space in spaces or (self.workspace,):
                    drawn = drawing(self.of, key, now[s : s + 1])
                    each = (space.gradient(part, ridge, drawn, moves, by.beside) for part in parts)
                    found.append(reduce(lambda one, other: [a + b for a, b in zip(one, other, strict=True)], each))
                yield found
                del found  # its memory is that of the next

    @property
    def _looks_ahead(self) -> bool:
        """Whether rows of several steps may be looked up at once: not what draws, nor where padding would count."""
        of, padded = self.of, self.training.batches == "shuffled"
        return not (of.random or self.drawing or (padded and (of.moving or of.mixes or of.mixes_in_training)))

    def gradient(self, theta: Tensor, by: Walk, batch: Batch) -> Tensor:
        """Gradients (m, d) of the mean losses over the rows of the first step; nothing for buffers."""
        out = torch.zeros_like(theta)

        def one(i: int, seed: Seed) -> None:
            self.workspace.load(theta[i])
            views = self.of.views(out[i])
            for (grads,) in self._gradients(i, by, batch, seed):
                for place, g in zip(self.of.parameters, grads, strict=True):
                    views[place.name].copy_(g[0])

        self.each(by.steps, one)
        return out

    def walk(self, theta: Tensor, by: Walk, batch: Batch) -> Tensor:
        """Where local steps lead from theta (m, d)."""
        out = torch.empty(theta.shape, dtype=theta.dtype, device=theta.device)

        def one(i: int, seed: Seed) -> None:
            with self.workspace.moving(out[i].copy_(theta[i])) as layers:
                stepper = Stepper(self.of, layers, by.of(np.array([i])), self.training)
                for (grads,) in self._gradients(i, by, batch, seed):
                    stepper.step(grads)
            if by.on is not None:  # statistics of layers that rest do, too
                p, move = self.of.p, self.of.tensor(by.on)
                out[i, p:] = torch.where(move[p:] > 0, out[i, p:], theta[i, p:])

        self.each(by.steps, one)
        return out

    @property
    def takes_two(self) -> bool:
        """Whether two models of a client may move side by side: nothing is shared that the one would change."""
        return not (self.of.random or self.of.buffers) and self.training.clip is None

    def walk_beside(self, theta: Tensor, by: Walk, batch: Batch, v: Tensor, second: Second) -> Tensor:
        """Where steps lead two models (2, m, d) of every client; none where something draws by no key, or counts."""
        out = torch.empty((2, *theta.shape), dtype=theta.dtype, device=theta.device)

        def one(i: int, seed: Seed) -> None:
            share, eta, pace = (float(numbers[i]) for numbers in (second.share, by.eta, second.pace))
            here, there, space = out[0, i].copy_(theta[i]), out[1, i].copy_(v[i]), self._workspace("second")
            own = [self.of.views(there)[place.name][None] for place in self.of.parameters]
            with self.workspace.moving(here) as layers, space.moving(torch.lerp(here, there, share)) as mixed:
                for grads, at_mixture in self._gradients(i, by, batch, seed, self.workspace, space):
                    torch._foreach_add_(own, at_mixture, alpha=-eta * pace)
                    torch._foreach_add_(layers, grads, alpha=-eta)
                    for between, w, apart in zip(mixed, layers, own, strict=True):
                        torch.lerp(w, apart, share, out=between)

        return out if self.takes_two and self.each(by.steps, one, again=False) else out[:0]

    def walk_ahead(self, theta: Tensor, by: Walk, batch: Batch, ahead: Ahead, more: Sequence[Batch]) -> Tensor:
        """The same for steps that look ahead, on the rows of ``batch`` and ``more``: models (m, d), or none."""
        out, alpha, delta = torch.empty(theta.shape, dtype=theta.dtype, device=theta.device), ahead.alpha, ahead.delta
        meta, curvature = (replace(by, draws=draws) for draws in ahead.draws)

        def one(i: int, seed: Seed) -> None:
            x, eta, space = out[i].copy_(theta[i]), float(by.eta[i]), self._workspace("second")
            there = self._gradients(i, meta, more[0], seed, space)
            sides = [(sign, self._gradients(i, curvature, more[1], seed, space)) for sign in (1.0, -1.0)]
            with self.workspace.moving(x) as layers, space.moving(x.clone()) as inner:

                def look(along: list[Tensor], far: float, then: Iterator[Any]) -> list[Tensor]:
                    for at, w, g in zip(inner, layers, along, strict=True):
                        torch.add(w, g, alpha=far, out=at)
                    (grads,) = next(then)
                    return list(grads)

                for (grads,) in self._gradients(i, by, batch, seed):
                    move = look(grads, -alpha, there)
                    if delta > 0.0:
                        change = [look(move, sign * delta, side) for sign, side in sides]
                        for sign, g in zip((-1.0, 1.0), change, strict=True):
                            torch._foreach_add_(move, g, alpha=sign * alpha / (2.0 * delta))
                    torch._foreach_add_(layers, move, alpha=-eta)

        return out if self.takes_two and self.each(by.steps, one, again=False) else out[:0]

    def outputs(self, theta: Tensor, x: Any, head: Sequence[str] = ()) -> Tensor:
        """What a model (d,) makes of inputs (b, ...), in evaluation mode; or the features that ``head`` is given."""
        workspace = self.workspace
        workspace.load(theta)
        workspace.module.eval()
        with torch.no_grad(), watched(self.of, workspace.module, head) as taken:
            outputs = workspace.forward(x)
            return features_of(self.of, taken, x, head) if head else outputs

    @property
    def look(self) -> int:
        """How many rows a forward pass has where no gradient is needed."""
        return max(min(LOOK, NUMBERS // self.of.widest), 1)

    def per_row(
        self,
        theta: Tensor,
        rows: Rows,
        index: Ints,
        edges: Ints,
        what: What,
        seed: Seed | None = None,
        head: Sequence[str] = (),
    ) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """The same as of batched clients, rows ``index[edges[i] : edges[i + 1]]`` with the model i."""
        for i in range(len(edges) - 1):
            lo, stop = int(edges[i]), int(edges[i + 1])
            size = max(stop - lo, 1) if self.of.mixes else self.training.at_once or self.look
            for part, at in enumerate(range(lo, stop, size)):
                hi = min(at + size, stop)
                if seed is not None:
                    seed(0, part)
                x, y = rows.gather(index[at:hi])
                with explained(rows, "Evaluating the model of", index[at : at + 1]):
                    said = what(self.outputs(theta[i], x, head).to(self.of.dtype), y).cpu().numpy()
                yield slice(at, hi), said


def _unset(key: int, step: int) -> None:
    """Where nothing draws, nothing is set."""


@lru_cache(maxsize=2)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "coterie-torch", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):  # a child has the pool and none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
