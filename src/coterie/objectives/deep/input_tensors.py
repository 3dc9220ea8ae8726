"""Several tensors as one: inputs of a module by name or by place, targets of a loss, and series of any length."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree

from coterie.data.net_inputs import leaves, several
from coterie.errors import CoterieError

MASK, LENGTHS = "attention_mask", "lengths"
"""Parameters of a module's forward that say what of a padded series is there: 1 or 0 at each place, or how many are."""


class Several:
    """Tensors (b, ...) by name whose first axes are those of rows, which are taken and counted as those of one."""

    def __init__(self, tensors: Mapping[str, Tensor], form: str) -> None:
        self.tensors, self.form = dict(tensors), form

    @property
    def first(self) -> Tensor:
        """The tensor that is asked for shapes and types."""
        return next(iter(self.tensors.values()))

    @property
    def shape(self) -> torch.Size:
        """Of the first."""
        return self.first.shape

    @property
    def ndim(self) -> int:
        """Of the first."""
        return self.first.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Of the first."""
        return self.first.dtype

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Any) -> Several:
        return self.map(lambda values: values[rows])

    def __setitem__(self, rows: Any, value: float) -> None:
        for values in self.tensors.values():
            values[rows] = value

    def map(self, of: Callable[[Tensor], Tensor]) -> Several:
        """The same of other tensors."""
        return Several({name: of(values) for name, values in self.tensors.items()}, self.form)

    def is_floating_point(self) -> bool:
        """Whether any tensor has real numbers."""
        return any(values.is_floating_point() for values in self.tensors.values())

    def to(self, device: torch.device) -> Several:
        """The same on a device."""
        return self.map(lambda values: values.to(device))

    @property
    def given(self) -> Any:
        """As they were given: a dict, or a tuple."""
        return self.tensors if self.form in ("dict", "keywords") else tuple(self.tensors.values())


_pytree.register_pytree_node(
    Several,
    lambda several: ([*several.tensors.values()], (tuple(several.tensors), several.form)),
    lambda values, context: Several(dict(zip(context[0], values, strict=True)), context[1]),
)  # as torch.func.vmap takes them apart


def called(module: Callable[..., Any], x: Any) -> Any:
    """What a module makes of inputs; of an output with logits, as of the package transformers, these."""
    if not isinstance(x, Several):
        outputs = module(x)
    elif x.form == "keywords":
        outputs = module(**x.tensors)
    else:
        outputs = module(*x.given) if x.form == "places" else module(x.given)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def losses_of(y: Any, *losses: Any) -> list[Any]:
    """Losses and scores as they compare outputs with several targets; a CoterieError for one that is given by name."""
    if not several(y):
        return list(losses)
    if named := [loss for loss in losses if isinstance(loss, str)]:
        raise CoterieError(
            f"There are several targets, which the loss '{named[0]}' does not know: give a function (outputs, targets) "
            "-> (rows,), or the targets as one array (n, k)."
        )
    return [loss and partial(compared, loss) for loss in losses]


def doubled(x: Any) -> Any:
    """Inputs twice, one after another."""
    return x.map(lambda values: torch.cat([values, values])) if isinstance(x, Several) else torch.cat([x, x])


def compared(loss: Callable[[Tensor, Any], Tensor], outputs: Tensor, targets: Any) -> Tensor:
    """A loss of several targets, which it is given as they were."""
    return loss(outputs, targets.given if isinstance(targets, Several) else targets)


def tensors_of(values: Any) -> list[Tensor]:
    """All tensors of inputs or targets."""
    return [*values.tensors.values()] if isinstance(values, Several) else [values]


class Series:
    """Rows (n,) of several lengths, which lie one after another."""

    def __init__(self, rows: Any, tensor: Callable[[Any, str], Tensor], name: str) -> None:
        self.lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        self.values = tensor(np.concatenate([*rows]), name)
        self.starts = torch.cumsum(self.lengths, 0) - self.lengths
        self.longest = max(int(self.lengths.max()) if len(rows) else 0, 1)

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, at: Tensor, longest: int) -> Tensor:
        """Rows ``at`` (...) with zeros after their ends, (..., longest, ...)."""
        place = torch.arange(longest)
        there = place < self.lengths[at][..., None]
        index = torch.where(there, self.starts[at][..., None] + place, 0).to(self.values.device)
        if not len(self.values):
            return self.values.new_zeros((*at.shape, longest, *self.values.shape[1:]))
        out = self.values[index]
        out[~there.to(out.device)] = 0
        return out


class Packed:
    """Rows (n,) of several arrays or of series that lie in memory, as a module whose forward is known takes them.

    A series is padded with zeros: to the longest of a batch where forward takes a mask (``attention_mask``) or
    ``lengths``, or a mask is among the arrays; else, of whole numbers alone, to the ``longest`` of each array, by
    default of these rows, so that no row's outputs depend on which others are beside it.
    """

    def __init__(
        self,
        X: Any,
        takes: Mapping[str, inspect.Parameter],
        tensor: Callable[[Any, str], Tensor],
        longest: Mapping[str, int] | None = None,
    ) -> None:
        self.columns: dict[str, Any] = {}
        for name, part in leaves(X).items():
            self.columns[name] = Series(part, tensor, name) if part.dtype.kind == "O" else tensor(part, name)
        self.form, names = form_of([*self.columns], takes)
        self.columns = dict(zip(names, self.columns.values(), strict=True))
        self.series = [name for name, part in self.columns.items() if isinstance(part, Series)]
        beside = [name for name in (MASK, LENGTHS) if name in takes and name not in self.columns]
        self.beside = beside if self.series and self.form in ("keywords", "one") else []
        self.short = bool(self.beside) or MASK in self.columns or LENGTHS in self.columns
        blind = [name for name in self.series if self.columns[name].values.is_floating_point() and not self.short]
        if blind:
            raise CoterieError(
                f"Rows of {blind[0] or 'X'} have several lengths, up to {self.columns[blind[0]].longest}: pad them to "
                f"one, or let the model's forward take {MASK} or {LENGTHS}, which say what is there."
            )
        for said, series in zip(leaves(X), self.columns.values(), strict=True):
            most = (longest or {}).get(said)
            if not self.short and isinstance(series, Series) and most:
                if series.longest > most:
                    raise CoterieError(
                        f"A row of {said or 'X'} has {series.longest} numbers, and the model, whose forward takes no "
                        f"{MASK} or {LENGTHS}, was trained on rows padded to {most}: cut it to {most}."
                    )
                series.longest = most
        if self.beside and self.form == "one":
            self.form, self.columns = "keywords", {next(iter(takes)): self.columns[names[0]]}
            self.series = [*self.columns]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what has a row for each: (n,)."""
        return (len(self),)

    @property
    def ndim(self) -> int:
        """One axis, that of rows."""
        return 1

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        part = next(iter(self.columns.values()))
        found: torch.device = (part.values if isinstance(part, Series) else part).device
        return found

    def __getitem__(self, rows: Tensor | int) -> Any:
        at = torch.as_tensor(rows).cpu()
        out, device = dict[str, Tensor](), self.device
        for name, part in self.columns.items():
            if isinstance(part, Series):
                longest = max(int(part.lengths[at].max()), 1) if self.short and at.numel() else part.longest
                out[name] = part.padded(at, longest)
            else:
                out[name] = part[at.to(device)]
        if self.beside:
            series = self.columns[self.series[0]]
            lengths = series.lengths[at]
            if MASK in self.beside:
                width = out[self.series[0]].shape[at.ndim]
                out[MASK] = (torch.arange(width) < lengths[..., None]).long().to(device)
            if LENGTHS in self.beside:
                out[LENGTHS] = lengths.to(device)
        return out[""] if self.form == "one" else Several(out, self.form)


def form_of(names: list[str], takes: Mapping[str, inspect.Parameter]) -> tuple[str, list[str]]:
    """How a module is given arrays of these names, and what they are called then."""
    kinds = inspect.Parameter
    if names == [""]:
        return "one", names
    positional = [n for n, p in takes.items() if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = {n for n, p in takes.items() if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)}
    if names == [str(k) for k in range(len(names))]:
        if len(names) <= len(positional) and {*positional[: len(names)]} <= named:
            return "keywords", positional[: len(names)]
        several = any(p.kind is kinds.VAR_POSITIONAL for p in takes.values())
        return "places" if several or len(names) <= len(positional) else "tuple", names
    every = {*names} <= named or any(p.kind is kinds.VAR_KEYWORD for p in takes.values())
    return "keywords" if every else "dict", names


def forward_of(made: Callable[[], Any] | None) -> Mapping[str, inspect.Parameter]:
    """The parameters by name of the forward of a module that is made for this."""
    try:
        return {} if made is None else inspect.signature(made().forward).parameters
    except (TypeError, ValueError):
        return {}


def numbers(values: npt.ArrayLike, kind: type) -> Any:
    """An array of this kind of numbers, or one without a shape that fits where they are something else."""
    try:
        return np.ascontiguousarray(values, dtype=kind)
    except (TypeError, ValueError):
        return np.full((1, 1), np.nan)
