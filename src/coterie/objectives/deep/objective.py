"""Any torch model and loss as the objective of many clients, over flat parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie import options
from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.client_models import is_one
from coterie.objectives.deep.architecture import Architecture, Make
from coterie.objectives.deep.batched import FEW, Batch, BatchedClients, What, blocks
from coterie.objectives.deep.features import Beside
from coterie.objectives.deep.frozen_base import Base
from coterie.objectives.deep.input_tensors import losses_of, numbers
from coterie.objectives.deep.local_steps import Shuffles, Training, batch
from coterie.objectives.deep.losses import Loss
from coterie.objectives.deep.rows import Rows, Tensors, of_clients
from coterie.objectives.deep.sequential import SequentialClients, explained
from coterie.objectives.deep.side_effects import batches, find_side_effects
from coterie.objectives.deep.two_heads import with_own_head
from coterie.objectives.deep.validate import moving_buffers, validate
from coterie.objectives.gradient_steps import Ahead, Draws, RowRanges, Second, Walk
from coterie.objectives.row_kernels import owned_rows, row_ranges, weighted_means, weighted_sums

Work = Callable[[Any, Tensor, Walk, Batch], Tensor]
SMALL = 100_000  # models of fewer numbers, frozen ones too, run batched if none convolves: larger ones are no faster so


@dataclass(frozen=True)
class Deep(RowRanges):
    """``f_i(theta) = sum_r w_r loss(model(theta, x_r), y_r)`` over client i's rows r.

    theta is a flat row of what moves: parameters that train, then buffers, which forward passes move (BatchNorm's
    statistics). The rest, ``base``, is held once. Clients run batched or in turn. ``of``, ``of_clients`` check rows.
    """

    architecture: Architecture  # the module, its loss and its number type
    rows: Rows  # inputs and targets, client after client
    weights: Floats  # (n,)
    starts: Ints
    stops: Ints  # (m,) row range of every client
    training: Training
    sequential: SequentialClients  # what works on one client after another
    batched: BatchedClients | None = None  # what works on several at once, where that is possible and faster
    notes: tuple[str, ...] = ()  # what of a run cannot be repeated or is not kept from round to round, in sentences
    walked: dict[str, int] = field(default_factory=dict)  # the most "steps", and "rows" of one, of any walk so far

    @classmethod
    def of(
        cls,
        model: nn.Module | Make,
        X: Any,
        y: Any,
        starts: npt.ArrayLike,
        stops: npt.ArrayLike,
        *,
        loss: str | Loss = "cross_entropy",
        score: Loss | None = None,
        weights: npt.ArrayLike | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        buffers: str = "personal",
        base: Mapping[str, Tensor] | None = None,
        batched: bool | None = None,
        labels: Sequence[str] | None = None,
        longest: Mapping[str, int] | None = None,
        **training: Any,
    ) -> Deep:
        """From rows that lie in memory, sorted by client.

        Parameters
        ----------
        model : torch.nn.Module, or callable
            The module, or a function without arguments that makes one; it is copied, never changed.
        X : (n, ...) array or tensor
            Inputs. Floating numbers take the model's type; whole numbers are handed on as they are. Several in a
            mapping or tuple go to a forward that takes them; rows may have several lengths.
        y : (n, ...) array or tensor
            Targets; for ``cross_entropy`` classes 0, ..., K - 1, alike at all clients. None for rows to predict.
        starts, stops : (m,) int
            Row range of every client.
        loss : {"cross_entropy", "mse", "bce"} or callable, default "cross_entropy"
            ``function(outputs, targets) -> (rows,)``: the loss of every row.
        score : callable, optional
            As ``loss``: how good outputs are, for :meth:`accuracy`; by default the share of right classes.
        weights : (n,) float, by default 1
        dtype : {"float32", "float64", "bfloat16"}, default "float32"
            With bfloat16, layers compute in it and parameters stay float32.
        device : str, default "cpu"
            Or "cuda", "cuda:1", ...
        buffers : {"personal", "averaged", "refused"}, default "personal"
            Whether BatchNorm's statistics stay at home, are averaged like parameters, or are an error.
        base : mapping from layer to Tensor, by default the module's own numbers of what does not train
        batched : bool, optional
            Whether several clients run as one batch; by default where the model is small and has no convolutions.
            Models with moving statistics, numbers that no key draws, or steps that depend on their numbers never do.
        labels : sequence of str, optional
            What clients are called where something is wrong with their rows; by default 0, 1, ...
        longest : mapping from str to int, optional
            To what rows of several lengths are padded where forward takes no mask; by default the longest of X.
        **training
            How local steps go: the options of :class:`Training`.

        Raises
        ------
        CoterieError
            For whatever does not fit, before anything is trained: a row and two pass the model, its loss and back.
        """
        loss, score = losses_of(y, loss, score)
        architecture = Architecture(model, loss, score, dtype, device, buffers, base)
        rows = Tensors(X, y, architecture.dtype, architecture.device, architecture.module, longest)
        rows.labels = labels
        return cls._made(architecture, rows, (starts, stops), weights, options.of(Training, training, "A net"), batched)

    @classmethod
    def of_clients(cls, model: nn.Module | Make, clients: Sequence[Any] | Mapping[str, Any], **more: Any) -> Deep:
        """From one Dataset, DataLoader or pair (X, y) for each client, in a list or by name; else as :meth:`of`.

        More are loss, score, dtype, device and buffers, and the options of :class:`Training`.

        Of a DataLoader its Dataset and its ``collate_fn`` are used: which rows a step sees is drawn by key, so its
        sampler and batch size are not. Items are loaded when they are needed.
        """
        training = options.declared(Training)
        of = Architecture(model, **{name: more[name] for name in more if name not in training})
        rows = of_clients(clients, of.dtype, of.device, of.module)
        batched = None if isinstance(rows, Tensors) else False
        how = options.of(Training, {name: more[name] for name in more if name in training}, "A net")
        return cls._made(of, rows, (rows.starts, rows.stops), None, how, batched)

    @classmethod
    def _made(
        cls, of: Architecture, rows: Rows, ranges: tuple[Any, Any], weights: Any, how: Training, batched: bool | None
    ) -> Deep:
        n = len(rows)
        w = np.ones(n) if weights is None else numbers(weights, np.float64)
        if w.shape != (n,) or not (np.isfinite(w).all() and (w >= 0.0).all()):
            raise CoterieError(f"weights must be {n} finite numbers from 0, one for each row.")
        rows.starts, rows.stops = lo, hi = row_ranges(ranges[0], ranges[1], n)
        sequential = SequentialClients(of, how, *rows.sets)
        validate(sequential, rows, hi - lo)
        of.settle(moving_buffers(sequential, rows))
        sequential.forget()
        if batched is None:
            batched = of.device.type != "cpu" or (of.p + of.base.size < SMALL and not of.convolves)
        known = not isinstance(rows, Tensors) or rows.known
        notes = find_side_effects(sequential, rows, lo, hi) if known else ()
        for note in notes:
            warnings.warn(note, stacklevel=3)
        some, together = lo[hi > lo][:1], BatchedClients(of, how)
        mixed = of.moving or of.mixes or of.mixes_in_training
        if how.at_once and mixed:
            raise CoterieError("A row's loss depends on the others of its step, as with BatchNorm: leave at_once out.")
        batched = batched and known and not (mixed or of.random or of.hooked or how.at_once)
        batched = batched and (not len(some) or batches(together, rows, some))
        return cls(of, rows, w, lo, hi, how, sequential, together if batched else None, notes)

    def __reduce__(self) -> Any:
        own, batched = self.rows.only(self), self.batched is not None
        return Deep._made, (self.architecture, *own, self.training, batched)

    with_own_head = with_own_head

    @property
    def dim(self) -> int:
        """Numbers of a model: parameters and buffers."""
        return self.architecture.d

    @property
    def names(self) -> dict[str, int]:
        """How many numbers each layer has, in the order of theta."""
        return self.architecture.names

    @property
    def idle(self) -> tuple[str, ...]:
        """What of ``Training`` changed nothing so far, in sentences."""
        return self.training.idle(self.walked)

    @property
    def kept(self) -> tuple[str, ...]:
        """Layers that never leave a client: buffers that move, under the policy "personal"."""
        return self.architecture.kept

    @property
    def base(self) -> Base:
        """What no client changes, and all have in common: frozen layers, and buffers that never move."""
        return self.architecture.base

    @property
    def statistics(self) -> tuple[str, ...]:
        """Buffers, which have no gradient."""
        return tuple(place.name for place in self.architecture.buffers)

    @property
    def normalising(self) -> tuple[str, ...]:
        """Layers that normalise, by their types, with their buffers."""
        return self.architecture.normalising

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of parameters."""
        return np.dtype(np.float64 if self.architecture.dtype is torch.float64 else np.float32)

    def start(self, seed: int) -> Floats:
        """First parameters (d,): see :meth:`Architecture.start`."""
        return self.architecture.start(seed)

    def flat(self, module: nn.Module) -> Floats:
        """A module's parameters as a row (d,), to start from: ``method.init(fed, objective.flat(pretrained))``."""
        return self.architecture.flat(module)

    def module(self, theta: npt.ArrayLike) -> nn.Module:
        """A torch module with the parameters of a row (d,), in evaluation mode; a CoterieError for other shapes."""
        return self.architecture.filled(np.asarray(theta))

    def has_finite_gradient(self) -> Bools:
        """Whose rows hold finite numbers only (m,)."""
        bad = np.concatenate([[0], np.cumsum(~self.rows.sound)])
        return np.asarray(bad[self.stops] == bad[self.starts])

    def _theta(self, theta: npt.ArrayLike) -> Tensor:
        models = np.asarray(theta)
        if models.dtype.kind not in "biuf" or models.shape not in ((self.dim,), (1, self.dim), (len(self), self.dim)):
            raise CoterieError(
                f"Models must be one row of {self.dim} numbers, or one for each of {len(self)} clients, not an array "
                f"of shape {models.shape} ({models.dtype})."
            )
        one = models.ndim == 1 or len(models) < len(self) or is_one(models)  # all clients' models are the same numbers
        return self.architecture.seen(np.atleast_2d(models)[:1] if one else models).expand(len(self), -1)

    def _need_targets(self) -> None:
        if isinstance(self.rows, Tensors) and not self.rows.known:
            raise CoterieError("These rows have no targets, so that nothing can be trained on them: give y.")

    def _batch(self, rows: Ints, by: Walk, total: Floats) -> Any:
        """What the steps of the clients ``rows`` look at: ``batch(k first of them, step of each)``."""
        size, keys, total = by.draws.size, by.draws.keys[rows], total[rows]
        starts, stops, beside = self.starts[rows], self.stops[rows], None
        if by.beside is not None:
            first = (np.cumsum(self.counts) - self.counts)[rows] - starts
            beside = Beside(self.architecture, by.beside)
        epochs = Shuffles(stops - starts) if size and self.training.batches == "shuffled" else None

        def drawn(some: Ints, step: Ints) -> tuple[Any, Any, Tensor]:
            ranges, within = (starts[some], stops[some]), None if epochs is None else (epochs, some)
            index, scale = batch(keys[some], step, size, *ranges, self.weights, total[some], within)
            x, y = self.rows.gather(index)
            if (empty := np.flatnonzero(total[some] <= 0.0)).size:  # another client's row stands there, and may be NaN
                for values in (x, y):
                    if values.is_floating_point() and values.shape[:1] == (len(some),):
                        values[torch.from_numpy(empty)] = 0.0
            said = y if beside is None else beside.with_targets(y, index + first[some][:, None])
            return x, said, self.architecture.tensor(scale)

        return drawn

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn; zero where no row weighs, and for buffers.

        A CoterieError for models with moving statistics, which only local steps (:meth:`walk`) can follow.
        """
        if self.architecture.moving:
            raise CoterieError(
                "This method sends gradients, which say nothing of BatchNorm's statistics: use a method that takes "
                "steps at home (fedavg, ditto, ...), or a model with GroupNorm."
            )
        one = Walk(np.ones(len(self)), np.ones(len(self), dtype=np.int64), draws)
        return self._trained(theta, one, "A gradient of", BatchedClients.gradient, SequentialClients.gradient)

    def gradient(self, theta: npt.ArrayLike) -> Floats:
        """Gradients (m, d) of the losses at one theta (d,) or at one for each client (m, d)."""
        size = self.sizes()[:, None].astype(self.dtype)
        return np.asarray(size * self.mean_gradient(np.asarray(theta), Draws.of_all(len(self))))

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps lead from theta (m, d)."""
        self.walked["steps"] = max(self.walked.get("steps", 0), int(by.steps.max(initial=0)))
        return self._trained(theta, by, "A step of", BatchedClients.walk, SequentialClients.walk)

    def walk_beside(self, theta: Floats, by: Walk, second: Second) -> Any:
        """Both models (2, m, d) after the steps of ``mean_loss.walk_beside``; none where each is to move by itself."""
        alone = partial(SequentialClients.walk_beside, v=self._theta(second.v), second=second)
        return self._trained(theta, by, "A step of", alone, alone) if self.batched is None or len(self) < FEW else ()

    def walk_ahead(self, theta: Floats, by: Walk, ahead: Ahead) -> Any:
        """Models (m, d) after steps that look ahead; none where each gradient is to be a step of its own."""
        more = [self._batch(np.arange(len(self)), replace(by, draws=one), self.sizes()) for one in ahead.draws]
        alone = partial(SequentialClients.walk_ahead, ahead=ahead, more=more)
        return self._trained(theta, by, "A step of", alone, alone) if self.batched is None or len(self) < FEW else ()

    def _trained(self, theta: Floats, by: Walk, doing: str, together: Work, alone: Work) -> Floats:
        """What is made of theta (m, d) ``together``, by so many clients at a time, or else by each ``alone``."""
        self._need_targets()
        self.walked["rows"] = max(self.walked.get("rows", 0), by.draws.size)
        given, total, draws, every = self._theta(theta), self.sizes(), by.draws, np.arange(len(self))
        out = given if self.batched is None else given.clone()  # batches move it in place
        size = np.full(len(self), draws.size) if draws.size else self.counts

        def batched(clients: BatchedClients) -> None:
            for block in blocks(size, self.dim):
                some = block[np.argsort(-by.steps[block], kind="stable")]
                rows = self._batch(some, by, total)
                here = slice(None) if np.array_equal(some, every) else some  # of all, nothing is copied
                out[here] = together(clients, out[here], by.of(some), rows)

        if self.batched is None or len(self) < FEW or not self.batched.done(batched):
            with explained(self.rows, doing, self.starts):
                out = alone(self.sequential, given, by, self._batch(every, by, total))
        return np.asarray(out.cpu().numpy())

    def _per_row(self, theta: npt.ArrayLike, what: What, head: Sequence[str] = ()) -> Any:
        """What ``what`` says of every row, client after client (sum of counts, ...), without gradients.

        Where something draws random numbers in evaluation, or rows depend on the others of their batch, every client is
        evaluated by itself; what is drawn then depends on its own rows alone, and is the same whenever it is asked for.
        """
        at, models, of = self._theta(theta), np.asarray(theta), self.architecture
        _, index = owned_rows(self.starts, self.stops)
        edges = np.append(0, np.cumsum(self.counts))
        if not len(index):
            return np.zeros(0)
        one = len(self) == 1 or ((models.ndim == 1 or is_one(models)) and not of.mixes)
        found: list[tuple[Any, Any]] = []

        def together(batched: BatchedClients) -> None:
            found[:] = batched.per_row(at, self.rows, self.starts, self.stops, what, head)

        def alone() -> None:
            which = edges[[0, -1]] if one else edges
            found[:] = self.sequential.per_row(at, self.rows, index, which, what, head=head)

        many = None if one or of.random_in_evaluation else self.batched
        done = many is not None and many.done(together)
        if not done and (of.random_in_evaluation or not of.common.quiet(alone)):
            of.random_in_evaluation = True
            with self.sequential.workspace.generators.kept() as seed:
                found[:] = self.sequential.per_row(at, self.rows, index, edges, what, seed, head)
        out = np.empty((len(index), *found[0][1].shape[1:]), found[0][1].dtype)
        for where, values in found:
            out[where] = values
        return out

    def row_losses(self, theta: npt.ArrayLike) -> Floats:
        """The loss of every row, client after client (sum of counts,), without weights or ridge."""
        return np.asarray(self._per_row(theta, self.architecture.loss), dtype=np.float64)

    def value(self, theta: npt.ArrayLike) -> Floats:
        """Losses (m,) at one theta (d,) or at one for each client (m, d), in evaluation mode."""
        return np.asarray(weighted_sums(self, self.row_losses(theta)) + self._decay(theta))

    def _decay(self, theta: npt.ArrayLike) -> Any:
        if not self.training.ridge:
            return 0.0
        layers = np.asarray(theta, dtype=np.float64)[..., : self.architecture.p]
        return 0.5 * self.training.ridge * self.sizes() * np.square(layers).sum(-1)

    def predict(self, theta: npt.ArrayLike) -> Any:
        """The likeliest class of every row, or the outputs where there are no classes, client after client."""
        return self._per_row(theta, lambda outputs, _: outputs.argmax(1) if self.architecture.labels else outputs)

    def outputs(self, theta: npt.ArrayLike) -> Any:
        """What the model gives for every row, client after client (sum of counts, ...)."""
        return self._per_row(theta, lambda outputs, _: outputs)

    def accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Weighted mean score of clients' rows (m,), by default the share of right ones; NaN where none weighs."""
        return self.value_and_accuracy(theta)[:, 1]

    def value_and_accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Both (m, 2), from one pass through the net; a CoterieError for a loss of one's own without a ``score``."""
        if self.architecture.score is None:
            raise CoterieError("This loss has no score that goes with it: give score=function(outputs, targets).")
        said = (self.architecture.loss, self.architecture.score)
        each = self._per_row(theta, lambda *row: torch.stack([one(*row).double() for one in said], 1)).reshape(-1, 2)
        return np.stack([weighted_sums(self, each[:, 0]) + self._decay(theta), weighted_means(self, each[:, 1])], 1)

    def features(self, theta: npt.ArrayLike, head: Sequence[str]) -> Floats:
        """Features (sum of counts, h) of every row: what the first layer that ``head`` names is given.

        Of maps (n, channels, ...), which layers before it have made, the means over all places of each channel; inputs
        are flattened. A CoterieError where such a layer is not called as a module of its own.
        """
        found = np.asarray(self._per_row(theta, lambda seen, _: seen, tuple(head)), dtype=np.float64)
        return found if found.ndim > 1 else np.zeros((0, 1))

    def targets(self) -> npt.NDArray[Any]:
        """Targets of every row, client after client (sum of counts, ...)."""
        self._need_targets()
        return np.asarray(self.rows.gather(owned_rows(self.starts, self.stops)[1])[1].cpu().numpy())
