"""What methods are tried on: the rows of one seed and the model of a configuration as objectives, made once for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coterie.data.net_inputs import longest
from coterie.data.partition import ClientRows
from coterie.engines.local_engines import local_engine
from coterie.engines.privacy import Private
from coterie.errors import CoterieError, listed, nearest
from coterie.methods.method import EVERYTHING, Method
from coterie.methods.registry import TRAINED, trained_method
from coterie.numerics.arrays import Ints
from coterie.objectives.mean_loss import sizes
from coterie.objectives.mixed import Mixed
from coterie.objectives.parameters import has_finite_gradient
from coterie.objectives.row_kernels import owned_rows
from coterie.runs.config import Config
from coterie.runs.federated_data import Federated, federated
from coterie.runs.metrics import BALANCED, F1, LOSS, METRICS, need_outcomes
from coterie.runs.model_objective import objective_of, of_layout, outcome_classes, with_head
from coterie.runs.scores_over_clients import RARE, Rule, Scores

_GREATER = ("coterie.objectives.deep.losses:dice",)
"""The package's own scores, of which more is better."""
_TAKEN = (*METRICS, LOSS, "method", "bytes", "seconds", "diverged", "chosen")


@dataclass(frozen=True)
class TrainingProblem:
    """Rows of one seed, to train on and to be evaluated by, as objectives."""

    config: Config
    seed: int
    data: Federated
    main: Ints | None = None
    """Positions of the clients that alone are evaluated; None: all."""
    baselines: ClassVar[tuple[str, ...]] = ("local", "pooled")
    """The methods that are always compared."""
    sites: ClassVar[bool] = False
    """Whether rows stay at the sites of a federation."""

    @classmethod
    def of(cls, config: Config, seed: int) -> TrainingProblem:
        """The rows of a seed, and the configuration with what they decide of it."""
        data = federated(config, seed)
        return cls(with_positive(replace(config, data=config.data | data.said), data.class_names), seed, data)

    def but(self, **changes: Any) -> TrainingProblem:
        """The same with another engine, course of runs or main clients: what was made of rows and model stays made."""
        changed = replace(self, **changes)
        changed.__dict__.update(self.__dict__ | vars(changed))
        return changed

    def inside(self) -> TrainingProblem:
        """The same with the training rows alone, some of them held out to choose by."""
        return replace(self, data=self.data.inside(self.config.data["validation"], self.seed))

    def without(self, judge: TrainingProblem) -> TrainingProblem:
        """The same without the training rows that ``judge``, which is :meth:`inside`, holds out."""
        return replace(self, data=replace(judge.data, test=self.data.test))

    @cached_property
    def objective(self) -> Any:
        """The clients' objective."""
        return self._objective(self.data.train)

    def _objective(self, rows: ClientRows, held: bool = False) -> Any:
        """Rows of the clients as an objective: with heads, of each group's own net."""
        data, config = self.data, self.config
        if not config.model["heads"]:
            return objective_of(config, rows, data.classes, held, labels=data.labels, longest=self.longest)
        parts = []
        for g, name in enumerate(self.heads):
            of = slice(*np.searchsorted(data.group, [g, g + 1]))
            _, at = owned_rows(rows.starts[of], rows.stops[of])
            stops = np.cumsum(rows.stops[of] - rows.starts[of])
            w = None if rows.weights is None else rows.weights[at]
            own = ClientRows(rows.X[at], rows.y[at], np.concatenate([[0], stops[:-1]]), stops, w)
            own_net = with_head(config, name)
            parts.append(objective_of(own_net, own, data.classes, held, labels=data.labels[of], longest=self.longest))
        return Mixed.of(parts)

    @cached_property
    def longest(self) -> dict[str, int]:
        """To what rows of several lengths are padded where a net takes no mask, to train on and held out."""
        return longest(self.data.train.X, self.data.test.X)

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
            _, rows = owned_rows(part.starts[good], part.stops[good])
            w = None if part.weights is None else part.weights[rows]
            part = ClientRows(part.X[rows], part.y[rows], part.starts[:1] * 0, np.array([len(rows)]), w)
            return objective_of(self.config, part, self.data.classes, longest=self.longest)
        return replace(self.objective, starts=np.array([0]), stops=np.array([len(part.y)]))

    @property
    def final(self) -> bool:
        """Whether no row is held out, as was asked for."""
        data = self.config.data
        return not len(self.data.test.y) and (not data["test"] or data["given_split"] is not None)

    @cached_property
    def held(self) -> Any:
        """Held-out rows of every client; a CoterieError where there are none to judge by."""
        test = self.data.test
        if self.final:
            return None
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
                f"The method {trainer.name} needs known groups: say group of rows or clients, or partition 'rotated'."
            )
        if getattr(trainer.method_class, "by_row", False) and self.config.private and privacy["unit"] != "row":
            raise CoterieError(f"The method {trainer.name} hides rows, not clients: say unit = 'row' in [privacy].")
        if self.config.private and trainer.reveals:
            raise CoterieError(
                f"The method {trainer.name} needs {trainer.reveals}, and [privacy] lets a coordinator see sums with "
                "noise alone: leave [privacy] out, or take a method such as ditto."
            )
        if trainer.pool_rows:
            return local_engine(self.pooled, None, None, **where)
        tree = trainer.relation == "tree" and not trainer.fixed_options and self.data.known
        fed = self.federation(trainer.groups or tree, where)
        if not self.config.private or at_home(trainer):
            return fed
        return Private(fed, **privacy, rounds=self.config.run["rounds"])

    def federation(self, clustered: bool, where: Mapping[str, Any]) -> Any:
        """The clients on an engine, which knows their groups where it is to be ``clustered``."""
        return local_engine(self.objective, self.data.group if clustered else None, self.data.ids, **where)

    @cached_property
    def rule(self) -> Rule:
        """What models are judged by: the first metric that was chosen, an accuracy, the user's own score, or the loss.

        A CoterieError for metrics that the outcomes, or the loss, do not have.
        """
        model = self.config.model
        if path := model["score"]:
            name = path.rpartition(":")[2].partition(" ")[0]
            known = True if path in _GREATER else None
            greater = known if model["greater_is_better"] is None else model["greater_is_better"]
            return Rule(path if name in _TAKEN else name, greater)
        outcomes = np.concatenate([self.data.train.y, self.data.test.y])
        if chosen := model["metrics"]:
            need_outcomes(chosen, "cross_entropy" if model["path"] == "softmax" else model["loss"], outcomes)
            return Rule() if chosen[0] == LOSS else Rule(chosen[0], METRICS[chosen[0]].greater)
        found = outcome_classes(self.config, outcomes)
        if found is None:
            return Rule()
        common = np.bincount(found.ravel()).max(initial=0) / max(found.size, 1)
        return Rule("accuracy", True, float(common) if len(np.unique(found)) > 1 else 0.0)

    def scores(self, theta: Any, method: Any = None, last: bool = False) -> Scores:
        """Of models of all clients, or of one for all of them, on held-out rows, as their method reads them.

        Beside what was chosen, the ``last`` look has accuracy balanced over classes, where one of them is nearly all.
        """
        if self.final:
            return Scores.none(len(self.data), self.rule)
        if isinstance(theta, np.ndarray) and len(theta) == 1:
            theta = np.broadcast_to(theta, (len(self.data), theta.shape[1]))
        part, rule = self.data.test, self.rule
        metrics = self.config.model["metrics"] or ((BALANCED,) if last and rule.common >= RARE else ())
        y = part.y[owned_rows(part.starts, part.stops)[1]] if metrics else None
        reads = getattr(method, "reads", None)
        held = self.held if reads is None else reads(self.held, theta.shape[1])
        return Scores.of(held, theta, rule, metrics, y, self.main, self.positive)

    @property
    def positive(self) -> int:
        """Which of two classes the metric F1 is of."""
        named = self.config.model["positive"]
        return 1 if named is None else (self.data.class_names or (0, 1)).index(named)

    def by_client(self, run: Any) -> dict[str, npt.NDArray[Any]]:
        """Columns, with a row for each client: rows, their weight, scores, groups, the round that left it out."""
        data = self.data
        frame: dict[str, Any] = {
            "rows": data.train.stops - data.train.starts,
            "test_rows": data.test.stops - data.test.starts,
        }
        if data.train.weights is not None:
            before = np.append(0.0, np.cumsum(data.train.weights))
            frame["weight"] = before[data.train.stops] - before[data.train.starts]
        if run.scores.score is not None and run.scores.known:
            frame[run.scores.rule.score] = run.scores.score
        if run.scores.known:
            frame |= {name: one.clients for name, one in run.scores.metrics.items()}
            frame["loss"] = run.scores.loss
        if run.helpers:
            frame["main"] = ~np.isin(data.labels, run.helpers)
        if data.known:
            frame["group"] = data.group + 1
        if run.group is not None:
            frame["found_group"] = run.group + 1
        if run.quarantined:
            frame["quarantined"] = [run.quarantined.get(label, (0, ""))[0] for label in data.labels]
        return {name: np.asarray(values) for name, values in frame.items()}


def with_positive(config: Config, class_names: tuple[str, ...]) -> Config:
    """With the class that the metric F1 is of, by default the larger of two; a CoterieError for one that is none."""
    said, classes = config.model["positive"], class_names or (0, 1)
    if F1 in [name.partition(":")[0] for name in config.model["metrics"]]:
        if said is not None and (said not in classes or said is True):
            raise CoterieError(f"positive must be a class of the outcomes, {listed(map(str, classes))}, not {said!r}.")
        return replace(config, model=config.model | {"positive": classes[-1] if said is None else said})
    if said is not None:
        raise CoterieError("positive is of the metric f1: name that among metrics, or leave positive out.")
    return config


def at_home(method: Method) -> bool:
    """Whether nothing is sent: every client trains alone, or all rows are in one place."""
    return method.pool_rows or method.fixed_options.get("personal") == EVERYTHING


def need_related(config: Config, names: Sequence[str], objective: Any) -> None:
    """Refuse a network or a layout that none of some methods uses, and one whose personal layers nothing names."""
    methods, told = [trained_method(name, config.folder) for name in names], any(config.layout.values())
    if told and not any(method.layout or of_layout(method, config, objective) for method in methods):
        those = [name for name, method in TRAINED.items() if method.layout]
        raise CoterieError(
            f"{listed(names)} {'trains' if len(names) == 1 else 'train'} the whole model, which has no use for "
            f"[layout]: take one of {', '.join(those)}, or leave it out."
        )
    if config.networked and not any(method.networked for method in methods):
        those = [name for name, method in TRAINED.items() if method.networked]
        raise CoterieError(f"{listed(names)} cannot use [network]: take {' or '.join(those)}, or leave it out.")
    if config.private and all(map(at_home, methods)):
        raise CoterieError(
            f"{listed(names)} {'sends' if len(names) == 1 else 'send'} nothing that [privacy] could hide: leave it "
            "out, or add a method that does."
        )
    for method in methods:
        if method.layout == "personal" and method.splits and not told and not config.given(method.name).get("personal"):
            raise CoterieError(
                f"The method {method.name} needs layers that are personal: say which in [layout], such as "
                'personal = ["head*"].'
            )
