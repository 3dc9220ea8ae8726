"""Torch's random numbers as a function of (client, step, call, element), for a batch of clients as for one alone.

A forward pass under :class:`KeyedDraws` has what torch's own functions draw (dropout, ``torch.randn``, ...) filled with
outputs of SplitMix64, so that no generator is set and no client's numbers depend on who stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import U64, fraction, key, scramble
from coterie.objectives.deep.architecture import Architecture

aten = torch.ops.aten


@kernel
def fractions(keys: U64, steps: Ints, call: int, size: int) -> Floats:
    """Numbers above 0 and below 1 (k, size): those of call number ``call`` of clients in their steps."""
    out = np.empty((keys.shape[0], size))
    for i in range(keys.shape[0]):
        at = scramble(key(keys[i], steps[i]) ^ np.uint64(call))  # the rows of a step go by the key itself
        for j in range(size):
            out[i, j] = max(fraction(at, j), 2.0**-54)
    return out


class Unkeyed(RuntimeError):
    """A function draws for several clients at once what is not keyed."""


class KeyedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, torch's functions draw by ``keys`` (k,) of clients and their ``steps`` (k,).

    ``batched`` says that what is drawn has a leading axis of k clients, as it has in ``torch.func.vmap`` with
    ``randomness="different"``; else there is one client and none. Calls are numbered from the first on. Functions that
    are given a generator draw from it, and those that are not in RULES from the common one.
    """

    def __init__(self, keys: U64, steps: Ints, device: torch.device, batched: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.steps, self.device, self.batched, self.calls = keys, steps, device, batched, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles here, and torch's compiler takes seconds to import

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What a function of torch makes of its arguments."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func not in RULES or kwargs.get("generator") is not None:
            if self.batched:
                raise Unkeyed(str(func))
            return func(*args, **kwargs)
        return RULES[func](self._next, *args, **kwargs)

    def _next(self, shape: Any) -> Tensor:
        """The fractions (shape) of the next call."""
        k, size = len(self.keys), math.prod(shape)
        if self.batched and shape[0] != k:
            raise Unkeyed(f"{tuple(shape)} for {k} clients")
        self.calls += 1
        found = fractions(self.keys, self.steps, self.calls, size // k)
        return torch.from_numpy(found).to(self.device).view(shape)


Fractions = Callable[[Any], Tensor]


def drawing(of: Architecture, keys: U64, steps: Ints, batched: bool = False) -> AbstractContextManager[Any]:
    """The context in which a model draws, where it does."""
    return KeyedDraws(keys, steps, of.device, batched) if of.keyed else nullcontext()


def _uniform(u: Tensor, out: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    unit = torch.finfo(out.dtype).eps / 2  # of numbers below 1, so that none is rounded up to it
    return torch.div(u, unit, rounding_mode="floor").mul_(unit * (high - low)).add_(low)


def _normal(u: Tensor, out: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    normal: Tensor = torch.special.ndtri(u)
    return normal.mul_(std).add_(mean)


def _bernoulli(u: Tensor, out: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return u < p


def _in_place(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(draw: Fractions, out: Tensor, *given: Any, generator: None = None) -> Tensor:
        return out.copy_(how(draw(out.shape), out, *given))

    return rule


def _like(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(draw: Fractions, like: Tensor, *given: Any, generator: None = None, **named: Any) -> Tensor:
        out = torch.empty_like(like, **named)
        return out.copy_(how(draw(out.shape), out, *given))

    return rule


def _sized(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(draw: Fractions, size: Any, generator: None = None, **named: Any) -> Tensor:
        out = torch.empty(size, **named)
        return out.copy_(how(draw(out.shape), out))

    return rule


def _dropout(draw: Fractions, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """What the kernel of accelerators does."""
    mask = draw(x.shape) < 1.0 - p if train is not False else torch.ones_like(x, dtype=torch.bool)
    return x * mask * (1.0 / (1.0 - p) if p < 1.0 and train is not False else 1.0), mask


RULES: dict[Any, Callable[..., Any]] = {
    aten.uniform_.default: _in_place(_uniform),
    aten.normal_.default: _in_place(_normal),
    aten.exponential_.default: _in_place(lambda u, out, rate=1.0: -u.log() / rate),
    aten.bernoulli_.float: _in_place(_bernoulli),
    aten.bernoulli_.Tensor: _in_place(_bernoulli),
    aten.bernoulli.p: _like(_bernoulli),
    aten.bernoulli.default: lambda draw, p, generator=None: (draw(p.shape) < p).to(p.dtype),
    aten.rand_like.default: _like(_uniform),
    aten.randn_like.default: _like(_normal),
    aten.rand.default: _sized(_uniform),
    aten.randn.default: _sized(_normal),
    aten.native_dropout.default: _dropout,
}
