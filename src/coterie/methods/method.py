"""One row of the table of methods: what it is, what it needs and takes, and how it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from coterie.errors import RAISED, CoterieError
from coterie.options import annotated, check, need_names, unheeded

STRENGTHS, EVERYTHING = ("gamma", "lam", "alpha"), ("*",)
STEPS: dict[str, Any] = {"eta": 0.1, "B": 10}
TRAINED_ON_ROWS = "local_training.fit:fit"  # the function that trains a class of rounds on a table
Relation = Literal["nothing", "layers", "tree", "groups", "found groups", "network", "main client"]


@dataclass(frozen=True)
class Method:
    """A method by name; paths are "module:name" below ``coterie.methods`` and are imported when they are used."""

    name: str
    summary: str  # in one line
    relation: Relation = "nothing"  # what it knows, or learns, of how clients are related
    fits: str = ""  # path of ``fit(federation, problem, **options) -> Estimates``, for a table and a formula
    fit_with: Mapping[str, Any] = field(default_factory=dict)  # arguments of that function that make it what it is
    takes: tuple[str, ...] = ()  # names of the options that the function takes
    not_for: Mapping[str, str] = field(default_factory=dict)  # why it cannot be for a "table", or for "torch"
    rounds: str = ""  # path of the class of its options over rounds, which has ``of(mapping)``
    trains: str = ""  # path of a class of rounds over any objective, or "package.module:Class" of the user's own
    defaults: Mapping[str, Any] = field(default_factory=lambda: dict(STEPS))  # of the class's options
    fixed_options: Mapping[str, Any] = field(default_factory=dict)  # those that cannot be given
    learns: bool = False  # variances (unless given strengths), which needs more than one row for some clients
    flat: bool = False  # ignores clusters
    clustered: bool = False  # says something else than the others only where there are clusters
    intercept: bool = False  # needs one that can be personal
    asked: bool = False  # is compared only where it is asked for by name
    convex: bool = False  # needs convex losses
    tried: bool = False  # is one of the few that "auto" compares for nets, where its relation is given
    all_own: bool = False  # gives every client, or group, all coefficients, those of shared columns too
    turns: bool = False  # knows ``GroupedProblem.basis``, so that it may be given other columns that say the same
    layout: str = ""  # of a class that splits a model: its option that names layers, "personal" or "shared"
    splits: bool = True  # whether it is about the layout; otherwise it takes the whole model where there is none
    reveals: str = ""  # what it needs to know of single clients, for which it cannot train on sums with noise
    idle: Mapping[str, str] = field(default_factory=dict)  # keys of [model], and options, that change no net, and why
    shapes: bool = False  # trains groups whose models have other shapes
    normalises: bool = False  # is about layers that normalise, one of which a model must have
    pool_rows: bool = False  # trains one client that holds all rows
    paper_module: str = ""  # the module that reads like its paper, where it is not called like the method

    def fit(self, fed: Any, problem: Any, **options: Any) -> Any:
        """What it estimates of a table; a dispersion of outcomes that is unknown is found first."""
        fits = partial(_imported(f"coterie.methods.{self.fits}"), **self.fit_with)
        return _imported("coterie.methods.tree.dispersion:fit_at")(fits, fed, problem, not self.pool_rows, options)

    @cached_property
    def method_class(self) -> Any:
        """The class of rounds."""
        return _imported(self.trains if self.user_defined else f"coterie.methods.{self.trains}")

    @property
    def options_of_fit(self) -> Any:
        """The class of options over rounds of a table."""
        return _imported(f"coterie.methods.{self.rounds}")

    def over_rounds(self, given: Mapping[str, Any]) -> Any:
        """A user's options over rounds, checked; a CoterieError for a name or a value that cannot be."""
        return self.options_of_fit.of(given, **{k: v for k, v in self.fit_with.items() if k in ("corrected", "name")})

    @property
    def needs(self) -> str:
        """What must be known of clients, or be part of a model, in words; empty where nothing must."""
        by_relation = {"groups": "known groups", "main client": "main clients, or all are", "network": "who is alike"}
        parts = [by_relation.get(self.relation, "")]
        parts += ["shared and personal layers (columns)"] * bool(self.layout and self.splits)
        parts += ["layers that normalise"] * self.normalises + ["own intercepts"] * self.intercept
        parts += ["clusters"] * (self.clustered and not self.groups) + ["given strengths"] * (self.takes == STRENGTHS)
        parts += ["several rows of some clients"] * self.learns
        return ", ".join(filter(None, parts))

    def why_not(self, model: str, sites: bool = False) -> str | None:
        """Why it is not for a "table", or for "torch", here or over sites that keep their rows; None where it is."""
        if sites and model == "torch" and self.pool_rows:
            return f"Method '{self.name}' trains on all rows in one place, and these stay at their sites: use 'fedavg'."
        return self.not_for.get(model)

    @property
    def paper(self) -> str:
        """The first line of the module that reads like its paper."""
        own = self.paper_module or self.name.replace("-", "_")
        paths = [own, *(path.partition(":")[0] for path in (self.trains, self.fits) if path)]
        modules = [path for path in paths if find_spec(f"coterie.methods.{path}") is not None]
        return (import_module(f"coterie.methods.{modules[0]}").__doc__ or "").partition("\n")[0].rstrip(":")

    @property
    def corrected(self) -> bool | None:
        """Of a main client and its collaborators: whether their bias is corrected."""
        return self.fit_with.get("corrected")

    @property
    def divides(self) -> bool:
        """Whether it tells columns that clients share from those of their own; to others ``shared`` says nothing."""
        return (self.learns or self.takes == STRENGTHS or bool(self.layout)) and not self.all_own

    @property
    def length(self) -> str:
        """Which of the options over rounds says how many of them, or steps, there are."""
        return "rounds" if self.fits == TRAINED_ON_ROWS else "steps"

    @property
    def networked(self) -> bool:
        """Whether it ties clients along a network."""
        return self.relation == "network"

    @property
    def groups(self) -> bool:
        """Whether it needs groups that are known."""
        return self.relation == "groups"

    @property
    def user_defined(self) -> bool:
        """Whether it is the user's."""
        return self.name == self.trains

    @cached_property
    def hyper_parameters(self) -> dict[str, Field[Any]]:
        """Options of the class that can be given."""
        ours = {"seed"} if self.user_defined else {"seed", "group", "labels", "group_labels", *self.fixed_options}
        return {f.name: f for f in fields(self.method_class) if f.init and f.name not in ours}

    def check(self, given: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
        """A CoterieError for an option that is not known, cannot be, or, where it is its ``own``, changes nothing."""
        if name := next((one for one in given if one in self.idle and one not in self.hyper_parameters), None):
            raise CoterieError(f"The method {self.name} has no {name}, as it {self.idle[name]}: leave it out.")
        need_names(f"The method {self.name}", given, self.hyper_parameters, "hyper-parameter")
        for setting in self.settings(given):
            self.make(0, **({self.layout: EVERYTHING} if self.layout else {}) | setting)
        first, *others = (unheeded(self.method_class, given if own is None else own, s) for s in self.settings(given))
        if name := next((name for name in first if all(name in one for one in others)), None):
            raise CoterieError(f"{name} of the method {self.name} changes nothing{first[name]}")

    def several(self, name: str, value: Any) -> bool:
        """Whether a value is a list of settings to choose among, not one that is a list itself."""
        kinds = (annotated(cls).get(name) for cls in self.method_class.__mro__)
        return isinstance(value, list) and not _listed(next(filter(None, kinds), None))

    def merge(self, below: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given above what stands below it: of two that exclude each other, the one given drops the other."""
        dropped = {n for pair in getattr(self.method_class, "EXCLUSIVE", ()) if set(pair) & set(given) for n in pair}
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
        """An instance of the class, with the defaults below what is given."""
        values = self.merge(self.defaults, given) | dict(self.fixed_options)
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        if any(f.name == "seed" for f in fields(self.method_class)):
            values["seed"] = seed
        for name, f in self.hyper_parameters.items():
            if name not in values and f.default is MISSING and f.default_factory is MISSING:
                raise CoterieError(f"The method {self.name} needs a value of {name}.")
        try:
            made = self.method_class(**values)
            if self.user_defined:
                check(made)
            return made
        except CoterieError as e:
            raise CoterieError(f"The method {self.name}: {e}") from e
        except RAISED as e:
            raise CoterieError(f"The method {self.name} cannot be made: it raises {type(e).__name__}: {e}.") from e


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return attrgetter(name)(import_module(module))


def _listed(kind: Any) -> bool:
    """Whether a type is that of lists, or of lists and None."""
    if get_origin(kind) is Annotated:
        return _listed(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return all(one is type(None) or _listed(one) for one in get_args(kind))
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, Iterable) and not issubclass(plain, (str, Mapping))
