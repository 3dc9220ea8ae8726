"""What a model does beside its formula, tried on some rows of one client before anything is trained.

Whether it draws random numbers, moves buffers, or lets rows of a batch depend on each other decides how clients are
run. A trial cannot see all, so what it has missed is noticed later, too (``Generators.quiet``, ``Watched``); it saves
doing a round twice, and finds what no run can repeat.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.errors import RAISED, CoterieError, listed
from coterie.numerics.arrays import Ints
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.batched import SLOW, BatchedClients
from coterie.objectives.deep.keyed_draws import KeyedDraws
from coterie.objectives.deep.random_generators import Seed
from coterie.objectives.deep.rows import Rows
from coterie.objectives.deep.sequential import ModuleWorkspace, SequentialClients
from coterie.objectives.gradient_steps import Draws, Walk

ROWS = 8  # rows of a trial at most
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""How far rounding takes an output where a batch has other rows, relative to the largest."""


@dataclass(frozen=True)
class Trial:
    """A model, and the rows ``index`` (b,) of the client that has most."""

    sequential: SequentialClients
    rows: Rows
    index: Ints

    def notes(self) -> Iterator[str]:
        """Set what the architecture knows of itself, and say what will not be repeated, or kept, in sentences."""
        of, workspace = self.sequential.of, self.sequential.workspace
        other = ModuleWorkspace(of, *self.sequential.drawing)  # what its making drew of no seed shows in the numbers
        start = of.tensor(of.flat(other.module))
        made = _equal(start, of.tensor(of.start(0)))
        with workspace.generators.kept() as seed:
            first, drew = self._step(workspace, start, seed)
            of.random = of.random or drew
            evaluated = self._left(workspace, other, first[len(first) - of.d :], seed)
            moved = workspace.snapshot.changed()
            of.moving = of.moving or not _equal(first[len(first) - (of.d - of.p) :], start[of.p :])
            _refuse_unheld(of, dict(workspace.module.named_buffers()), moved)
            stale, _ = self._step(workspace, start, seed, anew=False)
            of.random = of.random or not _equal(first, self._step(workspace, start, seed, key=2)[0], of)
            of.random_in_evaluation = self._evaluates(start, seed)
            of.mixes = of.mixes or (not of.random_in_evaluation and self._mixes(start, seed))
            if of.keyed and not (of.random or of.moving):  # by where in a batch a row stands, too
                of.mixes_in_training = self._trains_mixed(start)
        of.random = of.random or bool(workspace.generators.held)
        of.random_in_evaluation = of.random_in_evaluation or bool(workspace.generators.held)
        with other.generators.kept() as seed:
            again, _ = self._step(other, start, seed)
        if not made or not _equal(first, again, of):
            yield (
                "Two runs will not be alike: the model, its loss or its Dataset draws numbers that no seed reaches, as "
                "of the operating system or of a generator that is made without a seed. Draw from torch's, NumPy's or "
                "Python's common generators."
            )
        elif not _equal(first, stale, of) or not evaluated:
            kept = {"num_batches_tracked", *(place.name.split(".")[-1] for place in of.buffers)}
            which = f" ({listed(names)})" if (names := [n for n in moved if n not in kept]) else ""
            yield (
                f"The model keeps numbers{which} that are in none of its parameters and buffers of real or small whole "
                "numbers: they begin anew whenever a client trains or is evaluated. Register them in __init__ as "
                "buffers of such numbers, with a first value, and they stay."
            )

    def _drawing(self) -> KeyedDraws:
        return KeyedDraws(np.ones(1, dtype=np.uint64), np.zeros(1, dtype=np.int64), self.sequential.of.device)

    def _step(
        self, workspace: ModuleWorkspace, start: Tensor, seed: Seed, anew: bool = True, key: int = 1
    ) -> tuple[Tensor, bool]:
        """A step's gradients and the model after it in one row, and whether anything common was drawn from.

        What puts generators back after it drew, as ``torch.random.fork_rng`` does, shows in the numbers of another key.
        """
        of, found = self.sequential.of, []

        def run() -> None:
            x, y = self.rows.gather(self.index)
            scale = torch.full((len(y),), 1.0 / len(y), dtype=of.dtype, device=of.device)
            drawing = self._drawing()
            with self._drawing() as backward:  # what is computed anew there, as by checkpoints, would get other numbers
                grads = workspace.gradient((x, y, scale), 0.0, drawing)
            of.keyed = (of.keyed or drawing.calls > 0) and not backward.calls
            of.random = of.random or backward.calls > 0
            after = start.clone()
            workspace.unload(after)
            found.append(torch.cat([*(g.flatten() for g in grads), after]))

        workspace.load(start, anew)
        seed(key, 0)
        quiet = of.common.quiet(run)
        return found[0], not quiet

    def _left(self, workspace: ModuleWorkspace, other: ModuleWorkspace, after: Tensor, seed: Seed) -> bool:
        """Whether the module that took a step gives, evaluated, what its numbers (d,) alone give in another."""
        found = []
        with other.generators.kept() as anew:
            other.load(after)
            for one, key in ((workspace, seed), (other, anew)):
                key(1, 0)
                one.module.eval()
                with torch.no_grad():
                    found.append(one.forward(self.rows.gather(self.index)[0]))
        return _near(found[0], found[1], self.sequential.of)

    def _evaluates(self, start: Tensor, seed: Seed) -> bool:
        """Whether the model draws where it is evaluated, or the Dataset does."""
        of, found = self.sequential.of, []

        def run() -> None:
            x, y = self.rows.gather(self.index)
            outputs = self.sequential.outputs(start, x).to(of.dtype)
            found.append(torch.cat([outputs.flatten(), of.loss(outputs, y)]))

        for key in (1, 2):
            seed(key, 0)
            if not of.common.quiet(run):
                return True
        return not _equal(found[0], found[1], of)

    def _mixes(self, start: Tensor, seed: Seed) -> bool:
        """Whether the outputs or the losses of some rows are others where more rows are beside them."""
        of, some = self.sequential.of, (len(self.index) + 1) // 2
        if some == len(self.index):
            return False
        seed(1, 0)
        x, y = self.rows.gather(self.index)
        whole, part = (self.sequential.outputs(start, v).to(of.dtype) for v in (x, x[:some]))
        trains = not (of.random or of.keyed or of.moving)
        if not _near(whole[:some], part, of) or (trains and self._trains_mixed(start)):
            return True
        other = whole + torch.sin(torch.arange(whole.numel(), dtype=of.dtype, device=of.device)).view(whole.shape)
        return not _near(of.loss(other, y)[:some], of.loss(other[:some], y[:some]), of)

    @torch.no_grad()
    def _trains_mixed(self, start: Tensor) -> bool:
        """Whether outputs of some rows in training mode are others where more rows are beside them."""
        of, workspace, found = self.sequential.of, self.sequential.workspace, []
        x, some = self.rows.gather(self.index)[0], (len(self.index) + 1) // 2
        for rows in (x, x[:some]):
            workspace.load(start)
            workspace.training(len(rows))
            with self._drawing():
                found.append(workspace.forward(rows)[:some])
        return not _near(found[0], found[1], of)


def find_side_effects(sequential: SequentialClients, rows: Rows, starts: Ints, stops: Ints) -> tuple[str, ...]:
    """Try a model on rows of the client that has most; notes on what will not be repeated, or kept."""
    counts = stops - starts
    if not counts.size or not counts.max():
        return ()
    at = int(counts.argmax())
    index = starts[at] + np.arange(min(int(counts[at]), ROWS))
    try:
        return tuple(Trial(sequential, rows, index).notes())
    except CoterieError:
        raise
    except RAISED:  # a model that fails on so many rows says so in a run, with the client
        return ()


def batches(batched: BatchedClients, rows: Rows, index: Ints) -> bool:
    """Whether several clients' models can be one batch: not where what a model does depends on its numbers."""
    of = batched.of

    def run(_: BatchedClients) -> None:
        x, y = rows.gather(index[None])
        scale = torch.ones(x.shape[:2], dtype=of.dtype, device=of.device)
        theta = of.tensor(of.start(0))[None]
        batched.gradient(theta, Walk(np.ones(1), np.ones(1, dtype=np.int64), Draws.of_all(1)), lambda *_: (x, y, scale))
        if not of.random_in_evaluation:
            batched.outputs(theta, x)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = batched.done(run)
    batched.slow = any(str(w.message).startswith(SLOW) for w in said)
    return done


def _refuse_unheld(of: Architecture, buffers: dict[str, Tensor], moved: list[str]) -> None:
    """A CoterieError for a buffer that moves and that a row of numbers cannot hold."""
    in_row = {place.name: place.shape for place in of.buffers}
    for name, buffer in buffers.items():
        if name in in_row:
            if tuple(buffer.shape) != in_row[name]:
                raise CoterieError(
                    f"The buffer {name} takes another shape while the model trains, {tuple(buffer.shape)} after "
                    f"{in_row[name]}: give it a first value of the shape that it keeps, as torch.zeros has."
                )
        elif name.split(".")[-1] in moved and buffer.is_floating_point():
            raise CoterieError(
                f"The buffer {name} moves while the model trains, and begins empty or with numbers that are not "
                f"finite: give it a finite first value of its shape, such as torch.zeros({tuple(buffer.shape)})."
            )


def _equal(a: Tensor, b: Tensor, of: Architecture | None = None) -> bool:
    if of is not None and of.device.type != "cpu":  # kernels there add up in any order
        return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _near(a: Tensor, b: Tensor, of: Architecture) -> bool:
    near = NEAR[torch.bfloat16 if of.half else of.dtype]
    size = float(torch.nan_to_num(a.detach().abs()).max()) if a.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=near, atol=near * size, equal_nan=True)
