"""Random generators that a module may draw from, set by key and given back.

Which function draws does not matter: Python's ``random``, NumPy's and torch's common generators are all set, and so are
generators that objects hold, found by walking through their attributes, closures and the globals that their code names.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from coterie.numerics.keyed_random import at_step

LOCK = threading.RLock()
"""Held while the common generators, which all threads share, are set: another thread's draws would come between."""
MOST = 1000  # items of a container that are looked into
LARGEST = 20_000  # objects that are looked into altogether

Seed = Callable[[int, int], None]  # ``seed(key, step)`` sets all generators


class Generators:
    """The common generators, a device's among them, and those that modules, functions and Datasets (roots) hold."""

    def __init__(self, device: torch.device, *roots: Any) -> None:
        self.common: list[Any] = [random, np.random, torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self.common.append(torch.cuda.default_generators[device.index or 0])
        self.held = held(*roots)

    @contextmanager
    def kept(self) -> Iterator[Seed]:
        """Gives what sets all generators, alone among threads, and leaves them as they were."""
        every = [*self.common, *self.held]

        def seed(key: int, step: int) -> None:
            for k, generator in enumerate(every):  # each by a key of its own, and seeds are below 2**63
                own = np.array([(int(key) + k * 0xD1342543DE82EF95) % 2**64], dtype=np.uint64)
                _seed(generator, int(at_step(own, step)[0]) >> 1)

        with LOCK:
            states = [_state(g) for g in every]
            try:
                yield seed
            finally:
                for generator, state in zip(every, states, strict=True):
                    _restore(generator, state)

    @contextmanager
    def begun(self, seed: int) -> Iterator[None]:
        """All generators begin with one seed, as a user's script that makes a model begins."""
        with self.kept():
            for generator in (*self.common, *self.held):
                _seed(generator, seed)
            yield

    def quiet(self, run: Callable[[], None]) -> bool:
        """Call ``run()``; whether no common generator was drawn from. They are left as they were."""
        with LOCK:  # no other thread's keys are in force now
            before = [_state(g) for g in self.common]
        try:
            run()
        finally:
            with LOCK:
                drawn = [not _same(_state(g), b) for g, b in zip(self.common, before, strict=True)]
                for generator, state in zip(self.common, before, strict=True):
                    if any(drawn):
                        _restore(generator, state)
        return not any(drawn)


def _state(of: Any) -> Any:
    of = of.bit_generator if isinstance(of, np.random.Generator) else of
    if isinstance(of, np.random.BitGenerator):
        return of.state
    return of.get_state() if hasattr(of, "get_state") else of.getstate()


def _restore(of: Any, state: Any) -> None:
    of = of.bit_generator if isinstance(of, np.random.Generator) else of
    if isinstance(of, np.random.BitGenerator):
        of.state = state
    elif hasattr(of, "set_state"):
        of.set_state(state)
    else:
        of.setstate(state)


def _seed(of: Any, seed: int) -> None:
    of = of.bit_generator if isinstance(of, np.random.Generator) else of
    if isinstance(of, torch.Generator):
        of.manual_seed(seed)
    elif isinstance(of, np.random.BitGenerator):
        of.state = type(of)(seed).state
    elif hasattr(of, "get_state"):  # numpy.random and RandomState take 32 bits, or a list of them
        of.seed([seed % 2**32, seed >> 32])
    else:
        of.seed(seed)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple) and len(a) == 5:  # numpy's: its name, 624 words, and how far it is
        return bool(a[2:] == b[2:] and np.array_equal(a[1], b[1]))
    return bool(a == b)


KINDS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
_PLAIN = (str, bytes, int, float, complex, type(None), torch.Tensor, np.ndarray, torch.dtype, torch.device)


def held(*roots: Any) -> list[Any]:
    """Generators that objects hold, in an order that depends on the objects alone."""
    known = {id(torch.default_generator), id(np.random.mtrand._rand), id(random._inst)}
    found: list[Any] = []
    todo = deque(roots)
    alive: list[Any] = []  # what is looked at must not go, or its number is given to another
    while todo and len(alive) < LARGEST:
        here = todo.popleft()
        if isinstance(here, _PLAIN) or id(here) in known:
            continue
        known.add(id(here))
        alive.append(here)
        if isinstance(here, KINDS):
            if not isinstance(here, random.SystemRandom):
                found.append(here)
        else:
            todo.extend(_inside(here))
    return found


def _inside(here: Any) -> Iterator[Any]:
    """What an object holds, and what its functions use."""
    if isinstance(here, dict):  # by its own method: one that is overridden may load whatever it names
        yield from list(dict.values(here))[:MOST]
    elif isinstance(here, MappingProxyType):
        yield from list(here.values())[:MOST]
    elif isinstance(here, (list, tuple, set, frozenset, deque)):
        yield from [x for _, x in zip(range(MOST), here, strict=False)]
    elif isinstance(here, partial):
        yield from (here.func, here.args, here.keywords)
    elif isinstance(here, property):
        yield here.fget
    elif isinstance(here, MethodType):
        yield from (here.__self__, here.__func__)
    elif isinstance(here, FunctionType):
        if not _library(here):
            yield from (cell.cell_contents for cell in here.__closure__ or () if _filled(cell))
            yield from (here.__defaults__, here.__kwdefaults__)
            yield from (here.__globals__[n] for n in _named(here.__code__) if n in here.__globals__)
    elif isinstance(here, type):
        yield from [] if _library(here) else list(vars(here).values())
    elif not isinstance(here, ModuleType):
        yield from getattr(here, "__dict__", {}).values()
        slots = [vars(kind).get("__slots__", ()) for kind in type(here).__mro__]
        for names in slots:
            yield from (getattr(here, n, None) for n in ([names] if isinstance(names, str) else names))
        yield from type(here).__mro__


def _named(code: CodeType) -> Iterator[str]:
    """Names that code looks up, with those of functions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant)


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _library(of: Any) -> bool:
    """Whether code is not the user's: libraries draw from the common generators, or hold theirs in objects."""
    return _installed(str(getattr(of, "__module__", "")).split(".")[0])


@lru_cache(maxsize=1024)
def _installed(package: str) -> bool:
    file = str(getattr(sys.modules.get(package), "__file__", None) or "")
    return package in sys.stdlib_module_names or package == __name__.split(".")[0] or "-packages" in file
