"""A digest of code of the user's own: of what defines a function, a class or a module, and of values that it holds."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "coterie"}
"""Packages whose code is told by its name."""
_PLAIN = (str, bytes, bool, int, float, complex, type(None), type(...), range, slice)
_LAYERS = ("_parameters", "_buffers")
_PASSING = {"training", "__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__", "__annotations__",
            "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "_abc_impl",
            "__abstractmethods__"}  # fmt: skip
MOST, DEEPEST = 10_000, 40  # values that are looked at


@dataclass(frozen=True)
class Digest:
    """SHA-256, in hexadecimal, of code, and names of values that it holds and that have no part in it."""

    sha256: str
    unseen: tuple[str, ...] = ()


def digest(made: Any, numbers: bool = True) -> Digest:
    """That of what a function, a class, a module or another object is: its file and its name there, and what it holds.

    A lambda, a function within another and one of a notebook have no such name or file: theirs is of what they compile
    to as well, which another version of Python may do otherwise. Held are arguments by default, and of functions
    within others, values captured there; of a notebook's, what they call by name; of objects, their attributes. These
    count where they are numbers, texts, arrays, tensors, code, or made of such. Without ``numbers``, parameters and
    statistics of a module count by their shapes alone.
    """
    look = _Look(numbers)
    found = look.of(made, "it")
    return Digest(hashlib.sha256(repr(found).encode()).hexdigest(), tuple(dict.fromkeys(look.unseen)))


@dataclass
class _Look:
    """What was seen on the way through an object, and what could not be."""

    numbers: bool
    unseen: list[str] = field(default_factory=list)
    met: dict[int, tuple[int, Any]] = field(default_factory=dict)  # number of each object, which is kept alive
    depth: int = 0

    def of(self, value: Any, name: str) -> Any:
        """A value as texts, numbers and lists of them."""
        if isinstance(value, _PLAIN):
            return type(value).__name__, repr(value)
        if id(value) in self.met:
            return "again", self.met[id(value)][0]
        if len(self.met) >= MOST or self.depth >= DEEPEST:
            return self.lost(value, name)
        self.met[id(value)] = len(self.met), value
        self.depth += 1
        try:
            return self.told(value, name)
        finally:
            self.depth -= 1

    def told(self, value: Any, name: str) -> Any:
        """The same of what is no plain value, met for the first time."""
        if isinstance(value, Mapping):
            return "mapping", [(self.of(k, name), self.of(v, f"{name}[{k!r}]")) for k, v in value.items()]
        if isinstance(value, list | tuple):
            return "several", [self.of(v, f"{name}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, set | frozenset):
            return "set", sorted(repr(self.of(v, name)) for v in value)
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
            return self.array(value, name)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, partial):
            return "partial", [self.of(v, name) for v in (value.func, value.args, value.keywords)]
        if isinstance(value, classmethod | staticmethod):
            return self.of(value.__func__, name)
        if isinstance(value, property):
            return "property", [self.of(v, name) for v in (value.fget, value.fset)]
        if isinstance(value, type):
            return self.a_class(value)
        if inspect.isroutine(value):
            return self.function(value)
        return ("descriptor", name) if inspect.isdatadescriptor(value) else self.instance(value, name)

    def lost(self, value: Any, name: str) -> Any:
        """What can be told of a value that has no digest: its type."""
        self.unseen.append(f"{name} ({type(value).__name__})")
        return "unseen", type(value).__qualname__

    def array(self, value: Any, name: str, numbers: bool = True) -> Any:
        """An array or a tensor by its numbers, or by its shape alone."""
        try:
            held = value.detach().cpu() if hasattr(value, "detach") else value
            shape, kind = tuple(map(int, held.shape)), str(held.dtype)
            if numbers:
                whole = np.asarray(held.float() if kind == "torch.bfloat16" else held)
                if whole.dtype.hasobject:
                    return self.lost(value, name)
                return "array", kind, shape, hashlib.sha256(np.ascontiguousarray(whole).tobytes()).hexdigest()
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # a lazy, sparse or quantised tensor
            return self.lost(value, name)
        return "array", kind, shape

    def function(self, made: Any) -> Any:
        """A function by its name and file, or by what it compiles to; with what it holds."""
        if (held := getattr(made, "__self__", None)) is not None and not isinstance(held, ModuleType):
            return "method", made.__name__, self.of(held, "self")
        made = inspect.unwrap(made)
        where, named = _home(made)
        code = getattr(made, "__code__", None)
        if code is None or _packaged(made):
            return "function", getattr(made, "__module__", None), getattr(made, "__qualname__", repr(type(made)))
        names = code.co_varnames[: code.co_argcount][-len(made.__defaults__ or ()) or code.co_argcount :]
        defaults = dict(zip(names, made.__defaults__ or (), strict=True)) | (made.__kwdefaults__ or {})
        held = {f"the default of {name}": v for name, v in defaults.items()}
        held |= dict(zip(code.co_freevars, map(_content, made.__closure__ or ()), strict=True))
        if not where:
            held |= {name: made.__globals__[name] for name in _names(code) if name in made.__globals__}
        whole = made.__qualname__ if named else _compiled(code)
        return "function", where, whole, [(name, self.of(v, name)) for name, v in held.items()]

    def a_class(self, made: type) -> Any:
        """A class by its name and file, or by what is in it."""
        if _packaged(made):
            return "class", made.__module__, made.__qualname__
        where, named = _home(made)
        if named:
            return "class", where, made.__qualname__
        parts = [(key, self.of(part, key)) for key, part in vars(made).items() if key not in _PASSING]
        return "class", where, parts, [self.of(base, "a base") for base in made.__bases__]

    def instance(self, value: Any, name: str) -> Any:
        """An object by its class and its attributes; a torch module by its layers."""
        held, cls = getattr(value, "__dict__", None), type(value)
        if str(cls.__module__).partition(".")[0] == "torch" and not held:
            return "torch", repr(value)  # a number type, a device
        if not isinstance(held, dict):
            return self.lost(value, name)
        layers = {key: held[key] for key in _LAYERS if isinstance(held.get(key), dict)}
        parts = [(k, self.of(v, k)) for k, v in held.items() if k not in layers and k not in _PASSING]
        for own in layers.values():
            tensors = {k: v for k, v in own.items() if hasattr(v, "is_floating_point")}
            parts += [(k, self.array(v, k, self.numbers or not v.is_floating_point())) for k, v in tensors.items()]
        return "object", self.of(cls, name), parts


def _packaged(made: Any) -> bool:
    return str(getattr(made, "__module__", None)).partition(".")[0] in _LIBRARIES


def _home(made: Any) -> tuple[bytes, bool]:
    """The file in which something is defined, and whether its name there tells it from the rest."""
    file = getattr(sys.modules.get(made.__module__ or ""), "__file__", None)
    return Path(file).read_bytes() if file else b"", bool(file) and "<" not in getattr(made, "__qualname__", "<")


def _content(cell: Any) -> Any:
    """What a variable of an outer function holds."""
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _names(code: Any) -> list[str]:
    """Names that a function reads, those within it too."""
    inner = [name for const in code.co_consts if hasattr(const, "co_code") for name in _names(const)]
    return [*dict.fromkeys([*code.co_names, *inner])]


def _compiled(code: Any) -> Any:
    """What a function does, wherever it stands."""
    if not hasattr(code, "co_code"):
        return sorted(map(repr, code)) if isinstance(code, frozenset) else repr(code)
    return code.co_code, code.co_names, code.co_freevars, [_compiled(const) for const in code.co_consts]
