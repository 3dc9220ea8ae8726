"""Models of many clients (m, d), of which only some rows are made at a time where there is no room for all.

An array whose rows are one row (``np.broadcast_to``) is a model that all clients share, and takes the room of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.numerics.arrays import Bools, Floats, neighbours
from coterie.numerics.mapped_arrays import release

AT_ONCE = 1 << 23  # about how many numbers of models are worked on at a time
LARGE = 1 << 27  # of so many numbers, models are not made all at once


@dataclass(frozen=True, eq=False)
class ClientModels:
    """Models (m, d) that share most of their numbers: rows are made when they are asked for, as ``models[rows]``."""

    common: Floats  # (d,) what all have, and anything where they differ
    own: Bools  # (d,) where they differ
    personal: Floats  # (m, d2) each one's numbers there

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Clients and numbers of a model."""
        return len(self.personal), len(self.common)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers."""
        return self.common.dtype

    def __len__(self) -> int:
        return len(self.personal)

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        personal = self.personal[rows]
        out = np.empty((*personal.shape[:-1], len(self.common)), self.common.dtype)
        out[...] = self.common
        start = 0
        for run in neighbours(self.own):
            stop = start + run.stop - run.start
            out[..., run], start = personal[..., start:stop], stop
        return out[(..., *rest[-1:])] if rest else out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.asarray(self[:], dtype=dtype)


def is_one(theta: Any) -> bool:
    """Whether an array of models (m, d) is one row, seen m times."""
    return isinstance(theta, np.ndarray) and theta.ndim == 2 and theta.strides[0] == 0


def by_block(call: Callable[[slice, Any], Any], theta: Any) -> Any:
    """``call(rows, models of these)`` for so many of models (m, d) at a time as there is room for, put together."""
    m, d = theta.shape
    step = m if is_one(theta) else max(AT_ONCE // max(d, 1), 1)
    if step >= m:
        return call(slice(0, m), theta)
    found = []
    for at in range(0, m, step):
        found.append(call(slice(at, at + step), theta[at : at + step]))
        release(theta.personal if isinstance(theta, ClientModels) else theta)
    return np.concatenate(found)


def finite(theta: Any) -> Bools:
    """Which models (m, d) have finite numbers alone (m,)."""
    if theta.ndim < 2 or is_one(theta):
        return np.full(theta.shape[:-1], bool(np.isfinite(np.atleast_2d(theta)[0]).all()))
    if isinstance(theta, ClientModels):
        return np.asarray(np.isfinite(theta.personal).all(axis=1) & np.isfinite(theta.common[~theta.own]).all())
    return np.asarray(by_block(lambda _, some: np.isfinite(some).all(axis=-1), theta))


def mean(theta: Any, which: Bools) -> Floats:
    """The mean (d,) of some of the models (m, d)."""
    if is_one(theta):
        return np.array(theta[0])
    if isinstance(theta, ClientModels):
        return np.asarray(ClientModels(theta.common, theta.own, theta.personal[which].mean(axis=0)[None])[0])
    return np.asarray(theta[which].mean(axis=0))
