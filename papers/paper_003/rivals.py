"""The other methods of the study: baselines over rounds on any objective, and exact ones on tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.families import family_named
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.rounds import LocalTraining
from coterie.methods.pfedme import PFedMe
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run
from papers.paper_003.study import Data, Fits, Gridded, Setting

E = 5
"""Local steps of a round."""
ROUNDS = (10, 30, 100)
STEPS = (1.0, 5.0)
"""Step sizes, times one over the curvature that a client's loss has at most; softmax bends less where it starts."""
PULLS = (0.003, 0.03, 0.3, 3.0)
"""Pulls to the shared model, times that curvature."""
FINETUNE = (0, 5, 20, 80)


def grid(**values: Sequence[Any]) -> list[Setting]:
    """All combinations."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


def over_rounds(make: Callable[[Data, Setting], LocalTraining], late: tuple[str, ...] = ("rounds",)) -> Fits:
    """Fits of a method whose settings in ``late`` do not change a run, only when and how it is looked at."""

    def fits(data: Data, settings: Sequence[Setting]) -> list[Floats]:
        runs: dict[Any, list[int]] = {}
        for at, setting in enumerate(settings):
            runs.setdefault(tuple((k, v) for k, v in setting.items() if k not in late), []).append(at)
        out = [np.full((len(data.clients), data.objective.dim), np.nan) for _ in settings]
        for members in runs.values():
            fed = data.fed()
            stops = sorted({settings[at].get("rounds", 1) for at in members})
            for state in make(data, settings[members[0]]).run(fed, stops):
                if state["status"] != "running":
                    break
                for at in members:
                    if settings[at].get("rounds", 1) == state["t"]:
                        out[at] = make(data, settings[at]).models(fed, state)
        return out

    return fits


def alone(data: Data, settings: Sequence[Setting]) -> list[Floats]:
    """Every client alone, by so many steps from zero."""
    fed = data.fed()
    out = []
    for setting in settings:
        method = FedAvg(eta=setting["eta"] / data.curvature, finetune=setting["steps"], strict=True)
        out.append(method.models(fed, method.init(fed)))
    return out


def _fedavg(data: Data, s: Setting) -> FedAvg:
    return FedAvg(eta=s["eta"] / data.curvature, E=E, finetune=s.get("finetune", 0), strict=True)


def _ditto(data: Data, s: Setting) -> Ditto:
    return Ditto(
        eta=s["eta"] / (data.curvature * (1.0 + s["pull"])), E=E, s=E, lam=s["pull"] * data.curvature, strict=True
    )


def _pfedme(data: Data, s: Setting) -> PFedMe:
    lam = s["pull"] * data.curvature
    return PFedMe(eta=1.0 / lam, lam=lam, alpha=s["eta"] / (data.curvature + lam), K=E, strict=True)


def _ifca(data: Data, s: Setting) -> IFCA:
    return IFCA(k=s["k"], eta=s["eta"] / data.curvature, tau=E, seed=s["start"], strict=True)


def by_rounds(steps: Sequence[float] = STEPS, rounds: Sequence[int] = ROUNDS) -> dict[str, Gridded]:
    """FedAvg with fine-tuning, Ditto and pFedMe: a dozen settings for each step size."""
    both: dict[str, Sequence[Any]] = {"eta": steps, "rounds": rounds}
    return {
        "FedAvg + fine-tuning": Gridded(over_rounds(_fedavg, ("rounds", "finetune")), grid(finetune=FINETUNE, **both)),
        "Ditto": Gridded(over_rounds(_ditto), grid(pull=PULLS, **both)),
        "pFedMe": Gridded(over_rounds(_pfedme), grid(pull=PULLS, **both)),
    }


def ifca(ks: Sequence[int], starts: int, steps: Sequence[float] = STEPS, rounds: Sequence[int] = ROUNDS) -> Gridded:
    """IFCA with its number of groups, and which of some first models, chosen too."""
    return Gridded(over_rounds(_ifca), grid(k=ks, start=range(starts), eta=steps, rounds=rounds))


def one_model(steps: Sequence[float] = STEPS, rounds: Sequence[int] = ROUNDS) -> Gridded:
    """One model for all, by FedAvg."""
    return Gridded(over_rounds(_fedavg), grid(eta=steps, rounds=rounds))


def in_groups(groups: Ints, base: Gridded) -> Gridded:
    """A method within each of some groups by itself."""

    def fits(data: Data, settings: Sequence[Setting]) -> list[Floats]:
        out = [np.full((len(data.clients), data.objective.dim), np.nan) for _ in settings]
        for label in np.unique(groups):
            mine = groups == label
            part = replace(data, clients=some(data.clients, mine))
            for whole, theta in zip(out, base.fits(part, settings), strict=True):
                whole[mine] = theta
        return out

    return Gridded(fits, base.settings)


def some(clients: Clients, which: Any) -> Clients:
    """Some clients by themselves, in no cluster; their rows are not copied."""
    none: Any = {"levels": (), "clusters": np.zeros(int(np.sum(which)), dtype=np.int64)}
    there = {name: getattr(clients, name)[which] for name in ("labels", "ids", "starts", "stops")}
    return replace(clients, **there, **none)


def problem(data: Data) -> GroupedProblem:
    """All columns of a table are personal; the first one is the intercept."""
    return GroupedProblem(
        ClusterTree.of(data.clients), family_named(data.family), np.arange(data.clients.X.shape[1]), 0
    )


def exact(name: str, **options: Any) -> Gridded:
    """A method of the library on a table, with nothing to choose."""

    def fits(data: Data, settings: Sequence[Setting]) -> list[Floats]:
        return [run(name, data.clients, problem(data), options)[0].client for _ in settings]

    return Gridded(fits)


def exactly_in_groups(groups: Ints) -> Gridded:
    """One model for each of some groups of a table's clients: least squares, or weakly held maximum likelihood."""

    def fits(data: Data, settings: Sequence[Setting]) -> list[Floats]:
        c = data.clients
        there = Clients.from_arrays(c.X, c.y, c.codes, groups[c.codes])
        fitted, _ = run("clusterwise", there, problem(replace(data, clients=there)), {})
        out = np.empty_like(fitted.client)
        out[np.asarray(there.labels, dtype=np.int64)] = fitted.client
        return [out for _ in settings]

    return Gridded(fits)
