"""Methods whose clients train at home, by name: their classes, what they are, and default hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any

from coterie.errors import CoterieError, nearest

STEPS: dict[str, Any] = {"eta": 0.1, "B": 10}
EVERYTHING = ("*",)


@dataclass(frozen=True)
class Trainer:
    """A method by name.

    Attributes
    ----------
    name : str
    home : str
        "module:class" below ``coterie.methods``; imported only when it is used.
    what : str
        In one line.
    defaults : dict
        Hyper-parameters where nothing else is given.
    groups : bool
        Needs groups that are known.
    layout : str
        Of a method that splits a model: its hyper-parameter that names layers, "personal" or "shared".
    layers : tuple of str
        Patterns of layers that it is about, one of which a model must have.
    together : bool
        Trains one client that holds all rows.
    fixed : dict
        Hyper-parameters that make it what it is; they cannot be given.
    """

    name: str
    home: str
    what: str
    defaults: dict[str, Any] = field(default_factory=lambda: dict(STEPS))
    groups: bool = False
    layout: str = ""
    layers: tuple[str, ...] = ()
    together: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def made_of(self) -> Any:
        """The class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"coterie.methods.{module}"), name)

    @cached_property
    def takes(self) -> dict[str, Field[Any]]:
        """Hyper-parameters that can be given."""
        ours = {"seed", "group", *self.fixed}
        return {f.name: f for f in fields(self.made_of) if f.init and f.name not in ours}

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
        return isinstance(value, list) and not str(self.takes[name].type).startswith("tuple")

    def settings(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every combination of what is given, defaults below it."""
        out: list[dict[str, Any]] = [{}]
        for name, value in (self.defaults | dict(given)).items():
            choice = value if self.several(name, value) else [value]
            if not choice:
                raise CoterieError(f"The method {self.name} needs one value of {name} at least to choose among.")
            out = [one | {name: v} for one in out for v in choice]
        return out

    def make(self, seed: int, **given: Any) -> Any:
        """The method with its hyper-parameters, the defaults below those given."""
        values = self.defaults | given | self.fixed
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        try:
            return self.made_of(**values, seed=seed)
        except CoterieError as e:
            raise CoterieError(f"The method {self.name}: {e}") from e


_WHOLE: dict[str, Any] = {"B": 0, "personal": (), "up": "none", "down": "none"}
_PASSES = STEPS | {"E": 1}
_GROUPED = _PASSES | {"own": "averaged", "weigh": "rows"}
_EVERY = (
    Trainer("local", "fedavg:FedAvg", "every client alone", fixed={"personal": EVERYTHING}),
    Trainer("pooled", "fedavg:FedAvg", "one client that holds all rows", together=True),
    Trainer("fedavg", "fedavg:FedAvg", "one model, the average of clients' own steps"),
    Trainer("fedavg-finetune", "fedavg:FedAvg", "the same, then steps of each client alone", STEPS | {"finetune": 20}),
    Trainer("dp-sgd", "dp_sgd:DPSGD", "clipped gradients of rows, for their privacy", {"eta": 0.1}, fixed=_WHOLE),
    Trainer("fedprox", "fedprox:FedProx", "clients' steps held near the average", STEPS | {"mu": 0.1}),
    Trainer("scaffold", "scaffold:Scaffold", "clients' steps corrected for their drift"),
    Trainer("ditto", "ditto:Ditto", "own models pulled to the average", STEPS | {"lam": 0.1, "s": 5}),
    Trainer("pfedme", "pfedme:PFedMe", "own models in Moreau envelopes", STEPS | {"lam": 5.0, "alpha": 0.05, "R": 5}),
    Trainer("l2gd", "l2gd:L2GD", "own models pulled to their mean where a coin falls so", STEPS | {"lam": 0.1}),
    Trainer("apfl", "apfl:APFL", "own models mixed with the average"),
    Trainer("fedper", "fedper:FedPer", "own last layers", layout="personal"),
    Trainer("fedrep", "fedrep:FedRep", "own last layers, trained first", layout="personal"),
    Trainer("fedbn", "fedbn:FedBN", "own normalisation", layers=("*bn*", "*norm*")),
    Trainer("ifca", "ifca:IFCA", "a model for each of k groups, chosen by loss", STEPS | {"k": 4, "tau": 5}),
    Trainer("cfl", "cfl:CFL", "groups split where their updates disagree", STEPS | {"eps1": 0.4, "eps2": 1.6}),
    Trainer("found-groups", "found_groups:FoundGroups", "groups found by updates, then a model for each", _GROUPED),
    Trainer("group-sgd", "group_sgd:GroupSGD", "known groups, some layers shared", _GROUPED, True, "shared"),
    Trainer("cluster-l2gd", "l2gd:L2GD", "the same for known groups", STEPS | {"lam": 0.1, "alpha": 0.3}, True),
    Trainer("group-models", "group_sgd:GroupSGD", "a model for each known group", _GROUPED, True, fixed={"shared": ()}),
    Trainer(
        "group-penalty",
        "group_penalty:GroupPenalty",
        "own layers pulled together within known groups",
        STEPS | {"lam": 0.1, "tau": 5},
        True,
        "personal",
    ),
)
TRAINERS = {t.name: t for t in _EVERY}


def trainer(name: str) -> Trainer:
    """A method by name.

    Raises
    ------
    CoterieError
        For an unknown name, with those that may have been meant.
    """
    if name not in TRAINERS:
        hint = nearest(name, TRAINERS) or f" There are {', '.join(TRAINERS)}."
        raise CoterieError(f"There is no method to train called '{name}'.{hint}")
    return TRAINERS[name]
