"""Rows of clients for a torch model: tensors, or what Datasets and DataLoaders give, one client after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from coterie.errors import CoterieError
from coterie.numerics.kernels import Bools, Ints


class Rows(Protocol):
    """Inputs and targets by row number."""

    def __len__(self) -> int:
        """Number of rows."""

    def gather(self, index: Ints) -> tuple[Any, Tensor]:
        """Inputs and targets of the rows ``index``, of any shape."""

    @property
    def sound(self) -> Bools:
        """Which rows hold finite numbers only (rows,)."""


class Tensors:
    """Inputs (n, ...) and targets (n, ...) that lie in memory; floating numbers take the model's type.

    Whole numbers are handed on as they are, so that embeddings can be told which row to look up. Targets that are None
    are not known: 0 stands for each.
    """

    def __init__(self, X: Any, y: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.X, self.known = _tensor(X, dtype, device), y is not None
        self.y = _tensor(y, dtype, device) if self.known else self.X.new_zeros(self.X.shape[:1])
        if not self.X.ndim or len(self.X) != (len(self.y) if self.y.ndim else -1):
            raise CoterieError("X and y must have one row for each other.")

    def __len__(self) -> int:
        return len(self.X)

    def gather(self, index: Ints) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows ``index``."""
        at = torch.from_numpy(index).to(self.X.device)
        return self.X[at], self.y[at]

    @cached_property
    def sound(self) -> Bools:
        """Which rows are finite."""
        good = np.ones(len(self), dtype=bool)
        for values in (self.X, self.y):
            if values.is_floating_point():
                good &= torch.isfinite(values).reshape(len(values), -1).all(1).cpu().numpy()
        return good


class Sets:
    """Items of map-style Datasets, one Dataset or DataLoader for each client, put together as a DataLoader would."""

    def __init__(self, clients: Sequence[Any], dtype: torch.dtype, device: torch.device) -> None:
        self.sets: list[Any] = [_items(c) for c in clients]
        loader = next((c for c in clients if isinstance(c, DataLoader)), None)
        self.collate: Callable[[list[Any]], Any] = loader.collate_fn if loader is not None else default_collate
        for number, data in enumerate(self.sets):
            if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise CoterieError(
                    f"The data of client {number} can only be read in order ({type(data).__name__}): give a Dataset "
                    "with a length and items by number, so that rows can be drawn."
                )
        self.stops = np.cumsum([len(data) for data in self.sets], dtype=np.int64)
        self.dtype, self.device = dtype, device

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def gather(self, index: Ints) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows ``index``, which are loaded now."""
        flat = index.ravel()
        owner = np.searchsorted(self.stops, flat, side="right")
        local = flat - np.concatenate([[0], self.stops])[owner]
        items = [self.sets[o][int(i)] for o, i in zip(owner, local, strict=True)]
        try:
            X, y = self.collate(items)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise CoterieError(
                f"Items of Datasets must be pairs of inputs and targets, of the same shapes: {problem}."
            ) from problem
        return self._shaped(X, index), self._shaped(y, index)

    def _shaped(self, values: Any, index: Ints) -> Tensor:
        got = _tensor(values, self.dtype, self.device)
        return got.reshape(*index.shape, *got.shape[1:])

    @cached_property
    def sound(self) -> Bools:
        """Which rows are finite; every item is loaded once, some at a time."""
        good = np.ones(len(self), dtype=bool)
        for at in range(0, len(self), 1024):
            X, y = self.gather(np.arange(at, min(at + 1024, len(self))))
            for values in (X, y):
                if values.is_floating_point():
                    good[at : at + len(values)] &= torch.isfinite(values).flatten(1).all(1).cpu().numpy()
        return good


def _items(data: Any) -> Any:
    """What has items by number: of a loader its Dataset, of a pair (X, y) one of both."""
    if isinstance(data, tuple) and len(data) == 2:
        return TensorDataset(*(torch.as_tensor(np.asarray(values)) for values in data))
    return data.dataset if isinstance(data, DataLoader) else data


def _tensor(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if not isinstance(values, Tensor):
        array: npt.NDArray[Any] = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise CoterieError(
                f"Inputs and targets must be numbers, not of type {array.dtype}: code classes as 0, 1, ... first."
            )
        values = torch.from_numpy(np.ascontiguousarray(array if array.dtype.kind != "u" else array.astype(np.int64)))
    if values.is_floating_point():
        values = values.to(dtype)
    placed: Tensor = values.to(device).contiguous()
    return placed
