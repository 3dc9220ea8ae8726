"""Trained methods on every seed of a configuration, each with the setting that held-out training rows choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.evidence.comparison import TrainingComparison
from coterie.methods.registry import TRAINED, trained_method
from coterie.numerics.arrays import Ints
from coterie.objectives import parameters
from coterie.runs.config import Config
from coterie.runs.loop import Callback
from coterie.runs.training import Trained, train
from coterie.runs.training_problem import TrainingProblem

ALWAYS = ("local", "pooled")
Watch = Callable[[str], Sequence[Callback]]
"""Is told what begins, and gives the callbacks that watch it."""


def chosen(problem: TrainingProblem, names: Sequence[str]) -> list[str]:
    """The methods to compare: local and pooled always, and all that can be used where "all" is asked for."""
    asked = list(ALWAYS)
    for name in names:
        if name == "all":
            asked += [t.name for t in TRAINED.values() if usable(problem, t.name)]
        else:
            trained_method(name, problem.config.folder).check(problem.config.given(name))
            asked.append(name)
    return list(dict.fromkeys(asked))


def usable(problem: TrainingProblem, name: str) -> bool:
    """Whether a method can be used on what there is: known groups, a layout, its layers, privacy of rows."""
    method, config = trained_method(name), problem.config
    layout = any(config.layout.values()) or method.layout in config.given(name)
    layers = not method.normalises or bool(parameters.normalising(problem.objective))
    rows = not getattr(method.method_class, "by_row", False) or (config.private and config.privacy["unit"] == "row")
    return (problem.data.known or not method.groups) and (layout or not method.layout) and layers and rows


def quiet(_: str) -> Sequence[Callback]:
    """Nobody watches."""
    return ()


def compare(config: Config, names: Sequence[str], watch: Watch = quiet) -> TrainingComparison:
    """Train methods by name (or "all"; local and pooled are always in) on every seed of a configuration.

    A seed makes the partition, the held-out rows, the first model and all draws, the same for every method. Where
    several settings of a method are given, each is trained on a part of the training rows, and the one that is best
    on the other part (a share of ``data.validation``) is trained on all of them; test rows choose nothing.
    """
    methods: list[str] = []
    runs: dict[str, list[Trained]] = {}
    groups: list[Ints | None] = []
    for k, seed in enumerate(config.run["seeds"]):
        problem = TrainingProblem.of(config, seed)
        groups.append(problem.data.group if problem.data.known else None)
        methods = methods or chosen(problem, names)
        inner = problem.inside()
        for name in methods:
            where = f"seed {k + 1} of {len(config.run['seeds'])}, {name}"
            run = train(problem, name, pick(inner, name, watch, where), watch(where))
            runs.setdefault(name, []).append(replace(run, theta=None))
    tried = {name: len(trained_method(name).settings(config.given(name))) for name in methods}
    return TrainingComparison(config, runs, groups, {name: n for name, n in tried.items() if n > 1})


def pick(inner: TrainingProblem, name: str, watch: Watch = quiet, where: str = "") -> dict[str, Any]:
    """The setting that is best on held-out training rows; the only one where there is one.

    ``inner`` has training rows only (:meth:`TrainingProblem.inside`). Clients count alike; a run that diverges is the
    worst.
    """
    candidates = trained_method(name).settings(inner.config.given(name))
    if len(candidates) == 1:
        return candidates[0]
    run = inner.config.run
    rare = replace(inner.config, run=run | ({} if run["patience"] else {"evaluate_every": run["rounds"]}))
    problem, standing = TrainingProblem(rare, inner.seed, inner.data), []
    for k, setting in enumerate(candidates):
        done = train(problem, name, setting, watch(f"{where}, setting {k + 1} of {len(candidates)}"))
        standing.append((False, -np.inf) if done.trouble else done.scores.standing)
    return candidates[max(range(len(candidates)), key=standing.__getitem__)]
