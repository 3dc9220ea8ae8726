"""Methods compared on nets over sites that keep their rows: the comparison of one process, of scores that sites send.

Models are trained and brought by the methods as in one process; what is held out stays where it is, and a site answers
how good the models are on it, client by client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from coterie.data.partition import ClientRows
from coterie.data.splits import BY
from coterie.deployment.coordinator.comparison import disclosable
from coterie.deployment.federation_toml import Config as Federation
from coterie.deployment.schema import Schema
from coterie.deployment.site import nets as site
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError, listed
from coterie.federation import PerRow, require_all_replies
from coterie.methods.registry import TRAINED
from coterie.numerics.arrays import Floats
from coterie.objectives.client_models import finite, is_one
from coterie.options import need_names
from coterie.queries import Unclustered, WrappedFederation
from coterie.report.progress import Progress
from coterie.results.training_result import TrainingResult, train
from coterie.runs.config import Config, judged, tables
from coterie.runs.config_keys import Run
from coterie.runs.federated_data import Federated
from coterie.runs.metrics import METRICS, Measured
from coterie.runs.scores_over_clients import Rule, Scores
from coterie.runs.training_problem import TrainingProblem, with_positive

UNTOUCHED = "untouched"
_ALWAYS = ("source", "partition", "test", "validation")
_KEPT = {False: _ALWAYS, True: (*_ALWAYS, "column", "group", "weights", *BY)}
"""Keys of [data] that are heeded, and whether rows are those of tables."""
_WHOLE = ("auc", "r2")
"""Metrics whose value over all rows is no ratio of sums over clients."""


@dataclass(frozen=True)
class Told:
    """The clients' objective as far as sites tell of it: names and sizes of its layers."""

    names: Mapping[str, int]
    kept: Sequence[str]
    statistics: Sequence[str]
    normalising: Sequence[str]
    dtype: str
    classes: int
    score: str
    clients: int
    features: ClassVar[None] = None  # which a net has

    @classmethod
    def of(cls, fed: Remote) -> Told:
        """Of all sites that have clients; a CoterieError where two differ."""
        said = {name: told["net"] for name, told in fed.participants.info.items() if "net" in told}
        first, *others = said.items()
        for name, one in others:
            if one != first[1]:
                raise CoterieError(f"Sites {first[0]} and {name} train other models: give all sites the same one.")
        need_names("What a site tells of its model", first[1], [f.name for f in fields(cls)])
        return cls(**first[1], clients=len(fed.clients))

    def __len__(self) -> int:
        return self.clients

    @property
    def dim(self) -> int:
        """Numbers of a model."""
        return sum(self.names.values())


class Afresh(WrappedFederation):
    """The sites as they were before any method, whenever a run begins, and with a ledger that is the run's own."""

    def __init__(self, fed: Any, memory: dict[str, Any]) -> None:
        super().__init__(fed)
        self.memory = memory

    def at_home(self, told: Mapping[str, Any], nets: Floats) -> Floats:
        """Nets (m, d) without what clients remember, which sites are to read them with: they make it of ``told``."""
        self.memory.update(told)
        return np.concatenate([nets, np.zeros((len(nets), 2), dtype=nets.dtype)], axis=1)

    def __enter__(self) -> Self:
        self.memory.clear()
        self.restore(UNTOUCHED)
        self.ledger.load(dict.fromkeys(self.ledger.as_dict(), 0))
        return self

    def close(self) -> None:
        """The next run needs the sites, too."""


@dataclass(frozen=True)
class SitesProblem(TrainingProblem):
    """Rows of one seed at the sites of a federation, which hold some of them out."""

    fed: Any = None
    memory: dict[str, Any] = field(default_factory=dict)
    """Of the method that trains: by what clients make a memory of their rows, which stays with them."""
    cut: tuple[int, int] = 0, 0
    """How often training rows are cut for choices, and which cut's rows stand beside them: 0, those to test on."""
    part: Any = None
    """What opens the same rows with others held out, once."""
    baselines: ClassVar[tuple[str, ...]] = ("local", "fedavg")
    sites: ClassVar[bool] = True

    @classmethod
    def over(cls, config: Config, seed: int, fed: Remote, class_names: tuple[str, ...] = ()) -> SitesProblem:
        """The clients of an opened part of a run, with all that is known of them."""
        clients, told, inputs = fed.clients, fed.participants, tuple(config.model["inputs"] or ())
        stops = np.cumsum(told.counts)
        rows = ClientRows(np.empty((0, len(inputs))), np.empty(0), stops - told.counts, stops)
        known, labels = bool(told.levels), tuple(map(str, told.labels))
        groups = tuple(map(str, told.levels[0].labels)) if known else ()
        classes = Told.of(fed).classes
        data = Federated(rows, rows, labels, clients.ids, clients.clusters, known, classes, groups, inputs, class_names)
        fed.mark(UNTOUCHED)
        config = replace(config, data=config.data | {"partition": "given"})
        return cls(with_positive(config, class_names), seed, data, fed=fed)

    def inside(self) -> TrainingProblem:
        """The same with the training rows alone, some of which sites hold out to choose by."""
        return self._cut(self.cut[0] + 1, self.cut[0] + 1)

    def without(self, judge: TrainingProblem) -> TrainingProblem:
        """The same without the training rows that ``judge``, which is :meth:`inside`, holds out."""
        return self._cut(self.cut[0] + 1, self.cut[1])

    def _cut(self, depth: int, side: int) -> TrainingProblem:
        found: TrainingProblem = self.part((depth, side))
        return found.but(config=self.config, main=self.main, memory=self.memory)

    @cached_property
    def objective(self) -> Any:
        """What sites tell of it."""
        return Told.of(self.fed)

    @property
    def final(self) -> bool:
        """Whether no row is held out, as was asked for."""
        return not self.config.data["test"] and not self.cut[1]

    @cached_property
    def held(self) -> Any:
        """Outcomes of each class (K,), 0 where they are none; a CoterieError where there are no rows to judge by."""
        if self.final:
            return None
        said = require_all_replies(self.fed.total(site.outcomes))
        if not said["judged"] > 0:
            raise CoterieError("No client has held-out rows that are all finite: give clients more rows.")
        return said["classes"]

    @cached_property
    def rule(self) -> Rule:
        """As in one process, by what sites tell."""
        model, told = self.config.model, self.objective
        if model["score"] or told.score != "accuracy":
            return Rule(told.score, model["greater_is_better"])
        if chosen := model["metrics"]:
            return Rule() if chosen[0] == "loss" else Rule(chosen[0], METRICS[chosen[0]].greater)
        found = np.zeros(1) if self.final else self.held
        some = found[: site.CLASSES - 1].max(initial=0) / max(found.sum(), 1)
        return Rule("accuracy", True, float(some) if (found > 0).sum() > 1 else 0.0)

    def federation(self, clustered: bool, where: Mapping[str, Any]) -> Any:
        """The sites, whatever ``[engine]`` says."""
        return Afresh(self.fed if clustered or self.fed.clients.k == 1 else Unclustered(self.fed), self.memory)

    def scores(self, theta: Any, method: Any = None, last: bool = False) -> Scores:
        """Of models of all clients on rows that sites hold out, which tell a mean loss, and a score, of each client."""
        if self.final:
            return Scores.none(len(self.data), self.rule)
        theta, rule, m = (
            theta if hasattr(theta, "strides") else theta[np.arange(len(self.data))],
            self.rule,
            len(self.data),
        )
        one = is_one(theta) or len(theta) == 1
        asked: dict[str, Any] = {"theta": theta[0] if one else PerRow(theta), "score": rule.score}
        asked |= {"metrics": [name for name in self.config.model["metrics"] if name != "loss"]}
        asked |= {"positive": self.positive} | ({"memory": dict(self.memory)} if self.memory else {})
        said = require_all_replies(self.fed.ask(site.scores, **asked, **_reader(method)))
        values = {name: site.decode(said[name]) for name in said}
        weight = values["weight"]
        if self.main is not None:
            weight = np.where(np.isin(np.arange(m), self.main), weight, 0.0)
        good = (weight > 0.0) & np.broadcast_to(finite(theta), m)
        metrics = {
            name: Measured(*(values[f"{part} of {name}"] for part in ("clients", "over", "under")))
            for name in asked["metrics"]
        }
        score = np.where(good, values["score"], np.nan) if rule.score else None
        score = metrics[rule.score].clients if rule.score in metrics else score
        found = Scores(np.where(weight > 0.0, values["loss"], np.nan), score, weight, rule, metrics)
        if score is None:
            return found
        some = score[found.having(rule.score)]
        return replace(found, rule=replace(rule, finite=bool(len(some) and np.isfinite(some).all())))


def _reader(method: Any) -> dict[str, Any]:
    """What a site needs to read models that answer by more than one net."""
    if not hasattr(method, "reads"):
        return {}
    name = next((n for n, row in TRAINED.items() if row.method_class is type(method)), None)
    if name is None:
        raise CoterieError(f"{type(method).__name__} reads models in its own way, which sites do not know.")
    options = {key: getattr(method, key) for key in TRAINED[name].hyper_parameters}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items() if not callable(v) and v is not None}
    return {"method": name, "options": plain}


def configured(sections: Mapping[str, Any], seed: int, folder: Path) -> Config:
    """The configuration of a run, of the federation's seed where it does not say, and judged after the last round.

    Where training rows choose the round, it is judged after each.
    """
    run = dict(sections.get("run", {}))
    often = judged({"patience": 0, "keep": "last"} | run)
    usual = {"seeds": [seed]} | ({} if often else {"evaluate_every": run.get("rounds", Run.rounds)})
    return Config.of({**sections, "run": usual | run}, folder)


def need_possible(config: Config, federation: Federation) -> None:
    """A CoterieError for what a configuration says, and the sites of a federation cannot do."""
    if wrong := [key for key in tables(config).get("data", {}) if key not in _KEPT[config.model["target"] is not None]]:
        raise CoterieError(f"{listed(wrong)} of [data] is of rows in one place: leave it out over sites.")
    if federation.privacy or federation.secure:
        loss = "include the loss, which has no bound that noise could be scaled by"
        what = loss if federation.privacy else "and models are told client by client, which secure sums hide"
        raise CoterieError(
            f"Held-out scores {what}: leave [{'privacy' if federation.privacy else 'secure'}] out of federation.toml, "
            "or train one method (coterie fit --method NAME)."
        )
    if unknown := [name for name in config.model["metrics"] if name.partition(":")[0] in _WHOLE]:
        raise CoterieError(f"{unknown[0]} over all rows is no sum over clients, which sites send: take other metrics.")
    for name in (*config.compare, config.method):
        if name in TRAINED and (why := TRAINED[name].why_not("torch", sites=True)) is not None:
            raise CoterieError(why)


def compare(config: Config, fed: Remote, opened: Callable[..., Remote], schema: Schema | None) -> TrainingResult:
    """Train and compare what a configuration says on every seed.

    ``fed`` has all rows of the sites, and ``opened(part, seed=..., hold=split)`` opens a part of the run whose sites
    set the rows of a split aside. Of rows of tables ``schema`` says what classes are called.
    """
    of_classes = config.model["path"] == "softmax" or config.model["loss"] == "cross_entropy"
    target = None if schema is None or not of_classes else schema.columns.get(config.model["target"])
    levels = () if target is None else target.levels
    class_names = () if list(levels) == [*map(str, range(len(levels)))] else levels  # as of numbers
    if config.data["weights"]:  # relative to their mean, which no site knows
        said = require_all_replies(fed.total(site.weighed))
        opened = partial(opened, mean_weight=float(said["weight"] / said["rows"]))

    def problem(config: Config, seed: int) -> SitesProblem:
        fraction, inner = float(config.data["test"]), float(config.data["validation"])
        hold: dict[str, Any] = {"seed": seed, "repeat": 0, "fraction": fraction}
        hold |= {"by": by} if (by := {name: config.data[name] for name in BY if config.data[name]}) else {}

        @cache
        def part(cut: tuple[int, int]) -> SitesProblem:
            depth, side = cut
            inside = {"inside": {"fraction": inner, "depth": depth, "side": side}} if depth else {}
            asked: dict[str, Any] = {"hold": hold | inside} if fraction or depth else {}
            fed = opened(f"seed{seed}" + f"-{depth}-{side}" * bool(depth), seed=seed, **asked)
            if asked and not disclosable(fed)[1]:
                raise CoterieError(
                    "Sites do not speak of so few held-out rows: of some client there are fewer than its min_group."
                )
            return replace(SitesProblem.over(config, seed, fed, class_names), cut=cut, part=part)

        return part((0, 0))

    return train(config, watch=lambda what: [Progress(what)], of=problem)
