"""What a training is chosen by: methods that can be used, and the setting that is best on held-out training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coterie.methods.method import Method
from coterie.methods.registry import TRAINED, trained_method
from coterie.objectives import parameters
from coterie.runs.config import ALL, AUTO, Config, judged
from coterie.runs.loop_and_callbacks import Callback
from coterie.runs.model_objective import matching, of_layout
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem, at_home

Watch = Callable[[str], Sequence[Callback]]  # is told what begins, and gives the callbacks that watch it


def chosen(problem: TrainingProblem, names: Sequence[str]) -> list[str]:
    """The methods to compare: local and pooled always, and of "all" and "auto" those that can be used.

    The latter are a few for each of the relations that are given, and of those that know none.
    """
    asked = [] if problem.config.model["heads"] else list(problem.baselines)
    for name in names:
        if name in (ALL, AUTO):
            known = {"nothing", *given(problem)}
            some = [t.name for t in TRAINED.values() if name == ALL or (t.tried and t.relation in known)]
            asked += filter(partial(usable, problem), some)
        else:
            trained_method(name, problem.config.folder).check(problem.config.given(name), {})
            asked.append(name)
    return list(dict.fromkeys(asked))


def given(problem: TrainingProblem) -> set[str]:
    """The relations of clients that are given."""
    known, layout = problem.data.known, any(problem.config.layout.values())
    said = [(method.relation, problem.config.given(name)) for name, method in TRAINED.items()]
    tied = {relation for relation, options in said if {"network", "edges", "main"} & options.keys()}
    return {*["groups", "tree"] * known, *["layers"] * layout, *tied}


def usable(problem: TrainingProblem, name: str) -> bool:
    """Whether a method can be used on what there is: known groups, a layout, its layers, classes, privacy of rows."""
    method, config = trained_method(name), problem.config
    if problem.sites and method.why_not("torch", sites=True) is not None:
        return False
    layout = any(config.layout.values()) or method.layout in config.given(name) or not method.splits
    layers = not method.normalises or bool(parameters.normalising(problem.objective))
    said = of_layout(method, config, problem.objective) | config.given(name)
    for option in {"head", "bias"} & method.hyper_parameters.keys():
        patterns = said.get(option, getattr(method.method_class, option))
        layers &= all(matching([one], parameters.layer_sizes(problem.objective)) for one in patterns)
        layers &= config.model["loss"] == "cross_entropy" or option != "bias"  # of classes
    if hasattr(method.method_class, "reads"):  # answers of several nets, or of a net and a memory, are mixed
        layers &= config.model["score"] is None and ":" not in config.model["loss"]
        layers &= not (getattr(problem.objective, "kept", ()) and getattr(method.method_class, "several", False))
    known = problem.data.known or not method.groups
    known &= method.shapes or not config.model["heads"]
    return (
        known and (layout or not method.layout) and layers and private_enough(config, method) and apart(problem, name)
    )


def apart(problem: TrainingProblem, name: str) -> bool:
    """Whether a method of several first models has different ones: a module that is no function has a single start."""
    method, deep = trained_method(name, problem.config.folder), problem.objective
    settings = method.settings(problem.config.given(name))
    if not getattr(method.method_class, "several", False) or all(one.get("k") == 1 for one in settings):
        return True
    first, second = (parameters.initial_parameters(deep, seed) for seed in (0, 1))
    return not hasattr(deep, "start") or not np.array_equal(first, second)


def private_enough(config: Config, method: Method) -> bool:
    """Whether [privacy], or that there is none, lets a method train."""
    by_row = bool(getattr(method.method_class, "by_row", False))
    if not config.private:
        return not by_row
    return at_home(method) or (not method.reveals and by_row == (config.privacy["unit"] == "row"))


def quiet(_: str) -> Sequence[Callback]:
    """Nobody watches."""
    return ()


def pick(inner: TrainingProblem, name: str, watch: Watch = quiet, where: str = "") -> dict[str, Any]:
    """The setting that is best on held-out training rows; the only one where there is one.

    ``inner`` has training rows only (:meth:`TrainingProblem.inside`). Clients count alike; a run that diverges is the
    worst.
    """
    candidates = trained_method(name).settings(inner.config.given(name))
    if len(candidates) == 1:
        return candidates[0]
    run = inner.config.run
    rare = replace(inner.config, run=run | ({} if judged(run) else {"evaluate_every": run["rounds"]}))
    problem, standing = inner.but(config=rare), []
    for k, setting in enumerate(candidates):
        done = train(problem, name, setting, watch(f"{where}, setting {k + 1} of {len(candidates)}"))
        standing.append((False, -np.inf) if done.trouble else done.scores.standing)
    return candidates[max(range(len(candidates)), key=standing.__getitem__)]
