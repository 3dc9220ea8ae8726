"""What methods are tried on: the rows of one seed and the model of a configuration as objectives, made once for all.

The model is Softmax, one of the package's nets, or a user's own torch module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.partition import ClientRows
from coterie.engines.local import local_engine
from coterie.engines.privacy import Private
from coterie.errors import CoterieError, listed, nearest
from coterie.federation import Array
from coterie.methods.method import EVERYTHING, Method
from coterie.methods.registry import TRAINED, trained_method
from coterie.numerics.arrays import Ints
from coterie.objectives.mean_loss import sizes
from coterie.objectives.mixed import Mixed, kinds
from coterie.objectives.parameters import has_finite_gradient, layer_sizes
from coterie.objectives.row_kernels import owned_rows
from coterie.objectives.softmax import Softmax
from coterie.runs.config import Config, called
from coterie.runs.config_data import Federated, federated
from coterie.runs.config_keys import section
from coterie.runs.in_memory import MARK
from coterie.runs.scores import Rule, Scores

_PACKAGED = ("coterie.objectives.deep.losses", "coterie.objectives.deep.nets")
"""Modules whose functions a configuration may also name by their import paths, as it would name its user's own."""
NETS = ("mlp", "cnn", "unet", "nodule_detector")
"""The package's own nets, in ``objectives/deep/nets.py``."""
_MOST = 100_000_000
"""Most numbers of a client's softmax model."""
_ARGS = 100
"""Most arguments of a saved model, and entries of one of them."""
_SOFTMAX = ("path", "ridge", "greater_is_better")
"""Keys of [model] that softmax heeds; the last says nothing without a score of one's own, whatever the model."""
SCORED = ("cross_entropy", "bce")
"""Losses whose outcomes are classes, so that there is an accuracy."""
_GREATER = ("coterie.objectives.deep.losses:dice",)
"""The package's own scores, of which more is better."""
_TAKEN = ("accuracy", "loss", "method", "bytes", "seconds", "diverged", "chosen")


@dataclass(frozen=True)
class TrainingProblem:
    """Rows of one seed, to train on and to be evaluated by, as objectives."""

    config: Config
    seed: int
    data: Federated
    main: Ints | None = None
    """Positions of the clients that alone are evaluated; None: all."""

    @classmethod
    def of(cls, config: Config, seed: int) -> TrainingProblem:
        """The rows of a seed."""
        return cls(config, seed, federated(config, seed))

    def inside(self) -> TrainingProblem:
        """The same with the training rows alone, some of them held out to choose by."""
        return replace(self, data=self.data.inside(self.config.data["validation"], self.seed))

    @cached_property
    def objective(self) -> Any:
        """The clients' objective."""
        return self._objective(self.data.train)

    def _objective(self, rows: ClientRows, held: bool = False) -> Any:
        """Rows of the clients as an objective: with heads, of each group's own net."""
        data, config = self.data, self.config
        if not config.model["heads"]:
            return objective_of(config, rows, data.classes, held, labels=data.labels)
        parts = []
        for g, name in enumerate(self.heads):
            of = slice(*np.searchsorted(data.group, [g, g + 1]))
            _, at = owned_rows(rows.starts[of], rows.stops[of])
            stops = np.cumsum(rows.stops[of] - rows.starts[of])
            own = ClientRows(rows.X[at], rows.y[at], np.concatenate([[0], stops[:-1]]), stops)
            parts.append(objective_of(with_head(config, name), own, data.classes, held, labels=data.labels[of]))
        return Mixed.of(parts)

    @property
    def heads(self) -> tuple[str, ...]:
        """The groups, whose nets may have other shapes; a CoterieError where heads are of none that is known."""
        known = self.data.groups if self.data.known else ()
        for name in self.config.model["heads"]:
            if name not in known:
                hint = nearest(name, known) or (f" There are {listed(known)}." if known else " No groups are known.")
                raise CoterieError(f"heads of [model] name the group '{name}', which no client is of.{hint}")
        return known

    @cached_property
    def pooled(self) -> Any:
        """One client that holds all rows, the same ones in memory, but for those of clients whose rows are broken."""
        part, good = self.data.train, np.flatnonzero(has_finite_gradient(self.objective))
        if 0 < len(good) < len(self.data):
            rows = np.concatenate([np.arange(part.starts[i], part.stops[i]) for i in good])
            part = ClientRows(part.X[rows], part.y[rows], part.starts[:1] * 0, np.array([len(rows)]))
            return objective_of(self.config, part, self.data.classes)
        return replace(self.objective, starts=np.array([0]), stops=np.array([len(part.y)]))

    @cached_property
    def held(self) -> Any:
        """Held-out rows of every client; a CoterieError where there are none to judge by."""
        test = self.data.test
        if not len(test.y):
            raise CoterieError(
                "No client has a row to spare that can be held out: deal rows out among fewer clients, or give more."
            )
        held = self._objective(test, held=True)
        if not np.any(np.where(has_finite_gradient(held), sizes(held), 0.0) > 0.0):
            raise CoterieError("No client has held-out rows that are all finite: fill or drop missing values first.")
        return held

    def engine(self, trainer: Method, folder: Path | None = None) -> Any:
        """A fresh engine; only methods that need known groups, or may have clusters, are told them.

        With [privacy] it is a private one, but for the two that have no coordinator: local and pooled.
        """
        engine, privacy = self.config.engine, self.config.privacy
        where = engine | {"seed": self.seed if engine["seed"] is None else engine["seed"], "folder": folder}
        if self.config.model["heads"] and not trainer.shapes:
            raise CoterieError(
                f"Method '{trainer.name}' knows models of one shape only, and heads give groups others: use "
                "'group-sgd', whose groups share what has one shape, or 'group-models', whose groups share nothing."
            )
        if trainer.groups and not self.data.known:
            raise CoterieError(
                f"The method {trainer.name} needs known groups: give data that have them, or partition = 'rotated'."
            )
        if getattr(trainer.method_class, "by_row", False) and self.config.private and privacy["unit"] != "row":
            raise CoterieError(f"The method {trainer.name} hides rows, not clients: say unit = 'row' in [privacy].")
        if self.config.private and trainer.reveals:
            raise CoterieError(
                f"The method {trainer.name} needs {trainer.reveals}, and [privacy] lets a coordinator see sums with "
                "noise alone: leave [privacy] out, or take a method such as ditto."
            )
        idle = [key for key in ("clip", "momentum") if self.config.model[key]] if trainer.gradients else []
        if idle:
            raise CoterieError(
                f"The method {trainer.name} sends gradients, and only steps of a client's own heed {listed(idle)} of "
                "[model]: leave that out."
            )
        if trainer.pool_rows:
            return local_engine(self.pooled, None, None, **where)
        tree = trainer.relation == "tree" and not trainer.fixed_options and self.data.known
        clusters = self.data.group if trainer.groups or tree else None
        fed = local_engine(self.objective, clusters, self.data.ids, **where)
        if not self.config.private or trainer.fixed_options.get("personal") == EVERYTHING:
            return fed
        return Private(fed, **privacy, rounds=self.config.run["rounds"])

    @cached_property
    def rule(self) -> Rule:
        """What models are judged by: an accuracy, a score of the user's own, or the loss."""
        model = self.config.model
        if path := model["score"]:
            name = path.rpartition(":")[2].partition(" ")[0]
            known = True if path in _GREATER else None
            greater = known if model["greater_is_better"] is None else model["greater_is_better"]
            return Rule(path if name in _TAKEN else name, greater)
        found = outcome_classes(self.config, np.concatenate([self.data.train.y, self.data.test.y]))
        if found is None:
            return Rule()
        common = np.bincount(found.ravel()).max(initial=0) / max(found.size, 1)
        return Rule("accuracy", True, float(common) if len(np.unique(found)) > 1 else 0.0)

    def scores(self, theta: Any, classes: bool = False) -> Scores:
        """Of models of all clients, or of one for all of them, on held-out rows; by class, too, where asked for."""
        if isinstance(theta, np.ndarray) and len(theta) == 1:
            theta = np.broadcast_to(theta, (len(self.data), theta.shape[1]))
        part = self.data.test
        found = outcome_classes(self.config, part.y) if classes else None
        if found is None:
            return Scores.of(self.held, theta, self.rule, main=self.main)
        counts = part.stops - part.starts
        owner = np.repeat(np.arange(len(counts)), counts)
        rows = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - part.starts, counts)
        return Scores.of(self.held, theta, self.rule, found[rows], owner, self.main)


def objective_of(
    config: Config,
    rows: ClientRows,
    classes: int,
    held: bool = False,
    targets: bool = True,
    labels: Sequence[str] | None = None,
) -> Any:
    """The clients' rows as an objective; without its ridge where they are held out.

    Without ``targets`` it only predicts: what ``rows.y`` holds then means nothing. ``labels`` are what clients are
    called where something is wrong: a model that cannot be imported, a missing torch, or what the objective refuses.
    """
    model = config.model
    ridge = 0.0 if held else model["ridge"]
    if model["path"] == "softmax":
        if not classes:
            raise CoterieError("The model softmax needs classes: whole numbers from 0 as y.")
        if idle := [
            key for key, default in section("model", {}).items() if key not in _SOFTMAX and model[key] != default
        ]:
            raise CoterieError(
                f"The model softmax has no use for {listed(idle)} of [model], which a torch model has: take one, such "
                "as mlp, or leave that out."
            )
        flat = np.asarray(rows.X, dtype=np.float64).reshape(len(rows.X), -1)
        X = np.concatenate([np.ones((len(flat), 1)), flat], axis=1)
        if X.shape[1] * classes > _MOST:
            raise CoterieError(
                f"The model softmax would have {X.shape[1] * classes:,} numbers, as y goes up to {classes - 1:,}: code "
                "classes as 0, 1, ... without gaps."
            )
        made = Softmax.of(
            np.nan_to_num(X, posinf=0.0, neginf=0.0), rows.y, rows.starts, rows.stops, classes, ridge=ridge
        )
        return replace(made, X=X)  # a client with rows that are not finite is left out and named when it trains
    made = network(config)
    deep, _ = _deep()
    options = {key: model[key] for key in ("dtype", "device", "buffers", "clip", "momentum")} | {"ridge": ridge}
    loss, score = model["loss"], model["score"]
    options["loss"] = _found(config, loss, "The loss") if ":" in loss else loss
    options["score"] = None if score is None else _found(config, score, "The score")
    y = rows.y if targets else None
    return deep.Deep.of(made, rows.X, y, rows.starts, rows.stops, labels=labels, **options)


def with_head(config: Config, group: str) -> Config:
    """The configuration of a group's own net."""
    model = config.model
    return replace(config, model=model | {"args": model["args"] | model["heads"].get(group, {}), "heads": {}})


def network(config: Config) -> Any:
    """The torch module that was given, or a function without arguments that makes it."""
    path, args = config.model["path"], config.model["args"]
    if ":" in path:
        made = _found(config, path, "The model")
        if path.startswith(MARK) and hasattr(made, "state_dict") and not isinstance(made, type):
            if args:
                raise CoterieError("The model is a module already, and takes no args: give what makes it.")
            return made
    elif path in NETS:
        made = getattr(_deep()[1], path)
    else:
        hint = nearest(path, ("softmax", *NETS)) or f" There are softmax, {', '.join(NETS)}, and package.module:name."
        raise CoterieError(f"There is no model called '{path}'.{hint}")
    return partial(called, made, f"The model '{path}'", args)


def own(path: str) -> bool:
    """Whether a name is the import path of code that is not coterie's."""
    return ":" in path and path.partition(":")[0] not in _PACKAGED


def need_size(config: Config, d: int, softmax: int) -> None:
    """Raise unless a saved model of the package has the d numbers that were read; nothing of its size is made for that.

    ``softmax`` are those that a model of this name would have. The args of the configuration may be from anywhere.
    """
    path = config.model["path"]
    if own(path):
        return
    size = softmax
    if path != "softmax":
        if not _small(config.model["args"], d):
            raise CoterieError(f"The model '{path}' is not of the size of the numbers that were saved: train it again.")
        make = network(config)
        from coterie.objectives.deep import architecture

        size = architecture.size(make)
    if size != d:
        raise CoterieError(f"The model '{path}' has {size:,} numbers, and {d:,} were saved: train it again.")


def _small(args: Any, d: int) -> bool:
    """Whether no size among the args of a model, nor their number, is beyond what d parameters can need."""
    if isinstance(args, dict | list | tuple):
        parts = list(args.values() if isinstance(args, dict) else args)
        return len(parts) <= _ARGS and all(_small(part, d) for part in parts)
    return args is None or isinstance(args, bool | str) or (isinstance(args, int) and abs(args) <= d)


def _found(config: Config, path: str, what: str) -> Any:
    """A function or class that a configuration names by its import path."""
    module, _, name = path.partition(":")
    if module not in _PACKAGED:
        return config.load(path, what)
    _deep()
    made = vars(import_module(module)).get(name)
    if getattr(made, "__module__", None) != module:
        raise CoterieError(f"{what} '{path}': {module} has no '{name}'.")
    return made


def _deep() -> tuple[Any, Any]:
    """The package of deep objectives and its nets, imported only here and only when a model needs them."""
    try:
        from coterie.objectives import deep
        from coterie.objectives.deep import nets
    except ModuleNotFoundError as e:
        raise CoterieError("This model needs PyTorch: pip install 'coterie[torch]'.") from e
    return deep, nets


def layers(config: Config, objective: Any) -> dict[str, tuple[str, ...]]:
    """The layers that are "shared" and those that are "personal", as patterns; what one does not say, the other does.

    A CoterieError for a pattern that matches nothing, and layers that are both or neither.
    """
    shared, personal = config.layout["shared"], config.layout["personal"]
    known = list(dict.fromkeys(name for _, part in kinds(objective) for name in layer_sizes(part)))
    if shared is None and personal is None:
        return {}
    for pattern in (*(shared or ()), *(personal or ())):
        if not matching([pattern], known):
            hint = nearest(pattern, known) or f" There are {listed(known, 12)}."
            raise CoterieError(f"'{pattern}', as [layout] says, matches no layer of the model.{hint}")
    one, other = (matching(patterns or [], known) for patterns in (shared, personal))
    if both := [name for name in known if name in one and name in other]:
        raise CoterieError(f"Layer '{both[0]}' is shared and personal: name it in one of both.")
    kept = set(getattr(objective, "kept", ()))  # frozen layers and statistics stay at home, whatever is said of others
    left = [name for name in known if name not in one and name not in other and name not in kept]
    if left and shared is not None and personal is not None:
        raise CoterieError(
            f"[layout] says nothing of '{left[0]}': leave out shared or personal, which then has the rest."
        )
    rest = tuple(left)
    return {
        "shared": rest if shared is None else tuple(shared),
        "personal": rest if personal is None else tuple(personal),
    }


def need_related(config: Config, names: Sequence[str]) -> None:
    """Refuse a network or a layout that none of some methods uses, and one whose personal layers nothing names."""
    methods, told = [trained_method(name, config.folder) for name in names], any(config.layout.values())
    if told and not any(method.layout for method in methods):
        those = [name for name, method in TRAINED.items() if method.layout]
        raise CoterieError(
            f"{listed(names)} {'trains' if len(names) == 1 else 'train'} the whole model, which has no use for "
            f"[layout]: take one of {', '.join(those)}, or leave it out."
        )
    if config.networked and not any(method.networked for method in methods):
        those = [name for name, method in TRAINED.items() if method.networked]
        raise CoterieError(f"{listed(names)} cannot use [network]: take {' or '.join(those)}, or leave it out.")
    for method in methods:
        if method.layout == "personal" and method.splits and not told and not config.given(method.name).get("personal"):
            raise CoterieError(
                f"The method {method.name} needs layers that are personal: say which in [layout], such as "
                'personal = ["head*"].'
            )


def matching(patterns: Sequence[str], known: Sequence[str]) -> set[str]:
    """Names that some pattern matches."""
    return {name for name in known for pattern in patterns if fnmatchcase(name, pattern)}


def outcome_classes(config: Config, y: Array) -> Ints | None:
    """Outcomes as classes from 0 (n, ...): those of every row, pixel or label; None where they are none."""
    model = config.model
    if model["score"] is not None or not (model["path"] == "softmax" or model["loss"] in SCORED):
        return None
    if model["path"] != "softmax" and model["loss"] == "bce":
        return np.asarray(y > 0.5).astype(np.int64)
    return np.asarray(np.maximum(np.nan_to_num(y), 0), dtype=np.int64)
