"""A method whose clients train at home, and its hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from coterie.errors import RAISED, CoterieError, nearest
from coterie.options import annotated

STEPS: dict[str, Any] = {"eta": 0.1, "B": 10}
EVERYTHING = ("*",)


@dataclass(frozen=True)
class Trainer:
    """A method by name.

    Attributes
    ----------
    name : str
    import_path : str
        "module:class" below ``coterie.methods``, or "package.module:Class" of the user's own; imported when it is used.
    summary : str
        In one line.
    defaults : dict
        Hyper-parameters where nothing else is given.
    groups : bool
        Needs groups that are known.
    layout : str
        Of a method that splits a model: its hyper-parameter that names layers, "personal" or "shared".
    normalises : bool
        Whether it is about layers that normalise, one of which a model must have.
    pool_rows : bool
        Trains one client that holds all rows.
    fixed_options : dict
        Hyper-parameters that make it what it is; they cannot be given.
    """

    name: str
    import_path: str
    summary: str
    defaults: dict[str, Any] = field(default_factory=lambda: dict(STEPS))
    groups: bool = False
    layout: str = ""
    normalises: bool = False
    pool_rows: bool = False
    fixed_options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def method_class(self) -> Any:
        """The class."""
        module, _, name = self.import_path.partition(":")
        return attrgetter(name)(import_module(module if self.user_defined else f"coterie.methods.{module}"))

    @property
    def user_defined(self) -> bool:
        """Whether it is the user's."""
        return self.name == self.import_path

    @cached_property
    def takes(self) -> dict[str, Field[Any]]:
        """Hyper-parameters that can be given."""
        ours = {"seed"} if self.user_defined else {"seed", "group", *self.fixed_options}
        return {f.name: f for f in fields(self.method_class) if f.init and f.name not in ours}

    def check(self, given: Mapping[str, Any]) -> None:
        """A CoterieError for a hyper-parameter that the method does not have, with the nearest one, or a wrong value.

        A list of values of one number is a choice among them: every one is checked.
        """
        for name in given:
            if name not in self.takes:
                hint = nearest(name, self.takes) or f" It has {', '.join(self.takes)}."
                raise CoterieError(f"The method {self.name} has no hyper-parameter '{name}'.{hint}")
        for setting in self.settings(given):
            self.make(0, **({self.layout: EVERYTHING} if self.layout else {}) | setting)

    def several(self, name: str, value: Any) -> bool:
        """Whether a value is a list of settings to choose among, not one that is a list itself."""
        kinds = (annotated(cls).get(name) for cls in self.method_class.__mro__)
        return isinstance(value, list) and not _listed(next(filter(None, kinds), None))

    def merge(self, below: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given above what stands below it: of two that exclude each other, the one given drops the other."""
        dropped = {
            name for pair in getattr(self.method_class, "EXCLUSIVE", ()) if set(pair) & set(given) for name in pair
        }
        return {name: value for name, value in below.items() if name not in dropped} | dict(given)

    def settings(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every combination of what is given, defaults below it."""
        out: list[dict[str, Any]] = [{}]
        for name, value in self.merge(self.defaults, given).items():
            choice = value if self.several(name, value) else [value]
            if not choice:
                raise CoterieError(f"The method {self.name} needs one value of {name} at least to choose among.")
            out = [one | {name: v} for one in out for v in choice]
        return out

    def make(self, seed: int, **given: Any) -> Any:
        """The method with its hyper-parameters, the defaults below those given."""
        values = self.merge(self.defaults, given) | self.fixed_options
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        if any(f.name == "seed" for f in fields(self.method_class)):
            values["seed"] = seed
        for name, f in self.takes.items():
            if name not in values and f.default is MISSING and f.default_factory is MISSING:
                raise CoterieError(f"The method {self.name} needs a value of {name}.")
        try:
            return self.method_class(**values)
        except CoterieError as e:
            raise CoterieError(f"The method {self.name}: {e}") from e
        except RAISED as e:
            raise CoterieError(f"The method {self.name} cannot be made: it raises {type(e).__name__}: {e}.") from e


def _listed(kind: Any) -> bool:
    """Whether a type is that of lists, or of lists and None."""
    if get_origin(kind) is Annotated:
        return _listed(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return all(one is type(None) or _listed(one) for one in get_args(kind))
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, Iterable) and not issubclass(plain, (str, Mapping))
