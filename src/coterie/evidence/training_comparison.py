"""Trained methods over the seeds of a configuration, each with the setting that held-out training rows choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie import files
from coterie.engines.local_engines import ready
from coterie.errors import CoterieError, listed
from coterie.evidence.comparison import UNITS, Comparison, Triple, interval, interval_columns, statistic
from coterie.evidence.training_selection import Watch, apart, chosen, pick, quiet
from coterie.methods.registry import TRAINED, trained_method
from coterie.numerics.arrays import Floats, Ints
from coterie.options import declared
from coterie.runs.config import ALL, Config
from coterie.runs.config_keys import Run
from coterie.runs.loop_and_callbacks import callbacks
from coterie.runs.metrics import BALANCED, LOSS, METRICS
from coterie.runs.model_objective import layers
from coterie.runs.scores_over_clients import RARE, Rule
from coterie.runs.training import FILE, Trained, need_able, train
from coterie.runs.training_problem import TrainingProblem, need_related

if TYPE_CHECKING:
    import pandas as pd


def compare(
    config: Config,
    names: Sequence[str],
    watch: Watch = quiet,
    *,
    alone: bool = False,
    models: bool = False,
    folder: Path | None = None,
    resume: bool = False,
    of: Callable[[Config, int], TrainingProblem] = TrainingProblem.of,
) -> TrainingComparison:
    """Train methods by name (or "all" or "auto"; local and pooled are always in) on every seed of a configuration.

    A seed makes the partition, the held-out rows, the first model and all draws, the same for every method. Where
    several settings of a method are given, each is trained on a part of the training rows, and the one that is best
    on the other part (a share of ``data.validation``) is trained on all of them; test rows choose nothing. With
    ``alone`` no other methods than those named are trained; with ``models`` those of the first seed are kept.
    Checkpoints go into a subfolder of ``run.checkpoint``, or of ``folder``, for each run, and ``resume`` goes on from
    those that are there. ``of`` makes the problem of a seed, by default of rows in this process.
    """
    methods, runs = list[str](), dict[str, list[Trained]]()
    first: TrainingProblem | None = None
    groups: list[Ints | None] = []
    watching, place, seeds = callbacks(config), checkpoints(config, folder, resume), config.run["seeds"]
    if place is None and config.run["checkpoint_every"] != declared(Run)["checkpoint_every"].default:
        raise CoterieError(
            "checkpoint_every of [run] changes nothing without checkpoint, their folder: name one (or --out of coterie "
            "fit), or leave checkpoint_every out."
        )
    with ready(config.engine):
        for k, seed in enumerate(seeds):
            problem = of(config, seed)
            first = first or problem
            groups.append(problem.data.group if problem.data.known else None)
            methods = methods or (list(names) if alone else chosen(problem, names))
            if problem.final and len(methods) > 1:
                raise CoterieError(
                    f"Without held-out rows nothing can be said of which of {listed(methods)} is best: name the one to "
                    "fit on all rows as the method, or let test of [data] be above 0."
                )
            need_known(config, methods)
            need_related(config, methods, problem.objective)
            layers(config, problem.objective)
            problem = problem.but(main=main_clients(problem, methods))
            need_heeded(config, {name: need_able(problem, name) for name in methods})  # before anything is trained
            if same := [name for name in methods if not apart(problem, name)]:
                raise CoterieError(
                    f"The groups of {same[0]} must begin apart, and this module always begins with the same numbers: "
                    "give the function that makes it instead of the module."
                )
            folders = {name: place and place / f"{name.replace(':', '.')}-seed{seed}" for name in methods}
            if resume and k == 0 and not any(own and (own / FILE).exists() for own in folders.values()):
                raise CoterieError(
                    f"'{place}' has no checkpoint of {listed(methods)} with seed {seed} to resume from: begin without "
                    "--resume."
                )
            tried = {name: len(trained_method(name, config.folder).settings(config.given(name))) for name in methods}
            inner = problem.inside() if max(tried.values()) > 1 else problem  # one setting needs no other rows
            for name in methods:
                where = name if alone and len(seeds) == 1 else f"seed {k + 1} of {len(seeds)}, {name}"
                own = folders[name]
                again = resume and own is not None and (own / FILE).exists()
                setting = {} if again else pick(inner, name, watch, where)
                run = train(problem, name, setting, [*watch(where), *watching], own, again)
                runs.setdefault(name, []).append(run if models and k == 0 else replace(run, theta=None, shared=None))
    config = config if first is None else first.config
    classes = config.model["path"] == "softmax" or config.model["loss"] == "cross_entropy"
    counts = first.data.class_counts if first is not None and classes else None
    return TrainingComparison(config, runs, groups, {name: n for name, n in tried.items() if n > 1}, first, counts)


def need_heeded(config: Config, idle: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse what changes nothing in the method that it is given to, or in any of those that it is given to together.

    ``idle`` has that and the reason, by method.
    """
    has = {name: config.model.keys() | trained_method(name, config.folder).hyper_parameters.keys() for name in idle}
    for name, keys in idle.items():
        for key, why in keys.items():
            own = key in config.options.get(name, {})
            if own or not any(key in has[other] and key not in idle[other] for other in idle):
                whose = f"{key} of [model]" if key in config.model else key
                raise CoterieError(f"{whose} changes nothing for the method {name}{why}")


def need_known(config: Config, methods: Sequence[str]) -> None:
    """Refuse a hyper-parameter that is given for all methods, of which those that are trained have none."""
    known = {key for name in methods for key in trained_method(name, config.folder).hyper_parameters}
    for key in config.options.get(ALL, {}):
        if key not in known:
            having = [name for name, method in TRAINED.items() if key in method.hyper_parameters]
            raise CoterieError(
                f"{key} is an option of {listed(having)}, and the training is by {listed(methods, 12)}: name one that "
                f"has it as the method, or leave {key} out."
            )


def checkpoints(config: Config, folder: Path | None, resume: bool) -> Path | None:
    """The folder of all checkpoints; a CoterieError where there is none to resume from."""
    beside = config.run["checkpoint"]  # given relative to the configuration
    place = files.place(beside, config.folder) if beside else folder
    if resume and place is None:
        raise CoterieError("There is no folder to resume from: name one with --out, or run.checkpoint.")
    if resume and place is not None and not any(place.glob(f"*/{FILE}")):
        raise CoterieError(f"There is no file of a checkpoint in '{place}' to resume from: begin without it.")
    return place


def main_clients(problem: TrainingProblem, methods: Sequence[str]) -> Ints | None:
    """Positions of the clients on which methods are compared: the main ones of each that has some; None: all."""
    both: set[int] | None = None
    for method in (trained_method(name, problem.config.folder) for name in methods):
        if method.relation == "main client":
            setting = method.settings(problem.config.given(method.name))[0]
            main = method.make(problem.seed, **setting, labels=problem.data.labels).positions()
            both = both if main is None else set(main.tolist()) & (set(main.tolist()) if both is None else both)
    if both is not None and not both:
        raise CoterieError("The methods have no main client in common on which to compare them: name the same ones.")
    return None if both is None else np.array(sorted(both), dtype=np.int64)


@dataclass(frozen=True)
class TrainingComparison(Comparison):
    """Trained models of methods, over seeds."""

    config: Config
    runs: dict[str, list[Trained]]  # one for each seed, by method
    groups: Sequence[Ints | None]  # (m,): those that are known, for each seed
    tried: dict[str, int]  # settings among which a method chose, where there were more than one
    problem: TrainingProblem | None = None  # that of the first seed; None of what was read
    class_counts: Ints | None = None  # (m, K): rows of each class at each client, of the first seed
    drawn_anew: bool = False  # clients and rows, for each seed: no two share any

    @property
    def fingerprint(self) -> str:
        """Of the configuration with all methods that were compared."""
        return self.config.fingerprint(*self.runs)

    @property
    def methods(self) -> list[str]:
        """Names, in the order in which they were trained."""
        return list(self.runs)

    @cached_property
    def rule(self) -> Rule:
        """What methods are judged by, in every seed alike."""
        rules = [[run.scores.rule for run in runs] for runs in self.runs.values()]
        first = max((rule for one in rules for rule in one), key=lambda rule: rule.common)
        return replace(first, finite=any(all(rule.finite for rule in one) for one in rules))

    @property
    def score(self) -> str:
        """What is judged by: "accuracy", a score's own name, or "loss"."""
        return self.rule.by

    @property
    def others(self) -> list[str]:
        """What stands beside it: other metrics, the score where the loss judges, balanced accuracy, and the loss."""
        more = self.config.model["metrics"] or ((BALANCED,) if self.rule.common >= RARE else ())
        return [name for name in dict.fromkeys((self.rule.score, *more, LOSS)) if name and name != self.score]

    def values(self, name: str, what: str = "") -> Floats:
        """A score of every seed (seeds,), by default the one over rows."""
        return np.array([run.scores.summary().get(what or self.score, np.nan) for run in self.runs[name]])

    @cached_property
    def best(self) -> str:
        """The method with the best mean score over rows; of equals the first."""
        sign = self.rule.sign
        return max(self.runs, key=lambda name: np.nan_to_num(sign * self.values(name).mean(), nan=-np.inf))

    def clients(self, name: str) -> Floats:
        """The score of every client (seeds, m)."""
        return np.stack([r.scores.judged(self.rule) for r in self.runs[name]])

    def gains(self, name: str, over: str) -> Floats:
        """What every client gains by a method over another one (m,), the mean over seeds: above 0 it does better."""
        return np.asarray((self.rule.sign * (self.clients(name) - self.clients(over))).mean(axis=0))

    @np.errstate(invalid="ignore")  # infinite losses of models that diverged
    def interval(self, name: str, other: str | None = None, what: str = "") -> Triple:
        """A method's mean score over rows with its 95% interval; its difference to another one where that is named.

        Over clients, or known groups of them, and seeds together: see :mod:`~coterie.evidence.comparison`. The ends lie
        where a metric can, those of a packaged loss are not below 0, which no such loss is.
        """
        what = what or self.score
        value, moved = self._moved(name, what)
        if other is not None:
            less, by = self._moved(other, what)
            value, moved = value - less, moved - by
        data = self.config.data
        anew = data["partition"] not in ("given", "by_column") and data["seed"] is None
        same = data["seed"] is not None or data["given_split"] is not None or data["order_by"] is not None
        apart = same or self.drawn_anew  # all seeds hold these rows out, or none holds out another's
        ratio = 0.0 if apart else data["test"] / (1.0 - data["test"])
        alike = (np.nextafter(1.0, 0.0) if same else data["test"]) if anew else 1.0  # other clients may have them
        mean, low, high = interval(value, moved, 0.0 if self.drawn_anew else float(alike), ratio)
        if other is None and what in METRICS:
            low, high = max(low, METRICS[what].low), min(high, METRICS[what].high)
        if other is None and what == LOSS and self.config.loss_is_not_negative:
            low = max(low, 0.0)
        return mean, low, high

    def _moved(self, name: str, what: str) -> tuple[Floats, Floats]:
        """Values (seeds,) and influences (seeds, units), each unit in the same column whatever its place in a seed.

        Units are groups of clients that are known, where there are ``UNITS`` of them, else clients.
        """
        known = [group for group in self.groups if group is not None]
        grouped = (
            bool(known) and len(known) == len(self.groups) and all(len(np.unique(group)) >= UNITS for group in known)
        )
        runs = self.runs[name]
        units: list[Any] = known if grouped else [run.labels or range(len(run.scores.weight)) for run in runs]
        column = {unit: k for k, unit in enumerate(dict.fromkeys(unit for one in units for unit in one))}
        value, moved = np.zeros(len(runs)), np.zeros((len(runs), len(column)))
        for k, (run, one) in enumerate(zip(runs, units, strict=True)):
            at, sums = [column[unit] for unit in one], list[Floats]()
            for part in run.scores.ratio(what):
                sums.append(np.zeros((len(column), part.shape[1])))
                np.add.at(sums[-1], at, part)
            value[k], moved[k] = statistic(*sums)
        return value, moved

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each method, best first.

        Columns: the score over rows with its interval; over clients, of the worst client and of the 10th percentile
        of clients (the 90th of losses), their variance, Jain's index, and how many clients count (the mean over seeds);
        the paired difference to the best method with its interval; what stands beside the score (the loss, ...) with
        its interval; bytes that a seed's run sent (NaN where all rows are in one place), seconds that it took without
        those of compiling, and the settings that were chosen.
        """
        table = super().table
        return table.sort_values(self.score, ascending=self.rule.sign < 0, kind="stable") if self.known else table

    @property
    def known(self) -> bool:
        """Whether any row was held out to judge by."""
        return any(run.scores.known for runs in self.runs.values() for run in runs)

    def row(self, name: str) -> dict[str, Any]:
        """What the table says of a method."""
        runs, row = self.runs[name], self._scored(name) if self.known else {}
        # rows that move to one place are not counted: what is sent there afterwards stays in it
        rows_moved = name in TRAINED and TRAINED[name].pool_rows
        moved = [np.nan if rows_moved else r.ledger["bytes_up"] + r.ledger["bytes_down"] for r in runs]
        seconds = [run.seconds - run.ledger.get("compiling", 0.0) for run in runs]
        row |= {"bytes": float(np.mean(moved)), "seconds": float(np.mean(seconds))}
        settings = (", ".join(f"{option}={value}" for option, value in run.setting.items()) for run in runs)
        return row | {"diverged": sum(bool(r.trouble) for r in runs), "chosen": "; ".join(dict.fromkeys(settings))}

    def _scored(self, name: str) -> dict[str, Any]:
        """The columns of scores."""
        score, tail = self.score, "10th" if self.rule.sign > 0 else "90th"
        row: dict[str, Any] = interval_columns(score, self.interval(name))
        ends = ("clients", "worst", tail, "variance", "jain")
        row |= {f"{score}_{end}": self.values(name, f"{score}_{end}").mean() for end in ends}
        row[f"{score}_counted"] = float(np.mean([run.scores.having(score).sum() for run in self.runs[name]]))
        row |= interval_columns("to_best", self.interval(name, self.best))
        for beside in self.others:
            row |= interval_columns(beside, self.interval(name, what=beside))
        return row
