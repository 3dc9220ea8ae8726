"""Advice on a table: its clients, their collaborators by theory, and what splits of their rows say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.formula import check_syntax
from coterie.data.identifiability import collinear
from coterie.data.prepare_table import check_choices, prepare
from coterie.data.table import Table, to_pandas
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.evidence.splits import Splits, split_keys
from coterie.evidence.table_comparison import all_splits, each_split
from coterie.families import Family, family_named
from coterie.federation import Federation
from coterie.methods.collaboration.choose_collaborators import Choice, choose
from coterie.methods.collaboration.gradient_metric import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.relations.clusters import ClusterTree
from coterie.results.advice import Advice, measured, of_clients, of_pairs
from coterie.results.fit_options import Options as FitOptions
from coterie.runs.run_table_method import STARTING, block_size, objective, run, run_alone

_HOW = ("splits", "test_fraction", "seed", "order_by", "split_by")


def check_call(
    formula: str, cluster: Any, family: str, prior: Any, collaborators: int, within: str, missing: str, **how: Any
) -> tuple[Options, FitOptions]:
    """What advice takes and how rows are held out; a CoterieError for what it refuses without reading a table."""
    asked = Options(prior=prior, collaborators=collaborators, within=within)  # type: ignore[arg-type]
    held_out = FitOptions(family=family, **how)
    if within == "cluster" and not cluster:
        raise CoterieError("Collaborators within a cluster need clusters: name a cluster column (--cluster).")
    check_choices(family, missing)
    check_syntax(formula)
    return asked, held_out


def advise(
    df: Any,
    formula: str,
    client: str,
    levels: Sequence[str],
    offset: str | None,
    weights: str | None,
    missing: str,
    asked: Options,
    held_out: FitOptions,
) -> Advice:
    """Advice on the clients of a table, as ``asked`` and tested on rows ``held_out``: see :func:`coterie.advise`."""
    table, family = Table.of(to_pandas(df)), held_out.family
    clients, _ = prepare(table, formula, client, levels, family, offset, weights, missing)  # type: ignore[arg-type]
    order, groups, notes = split_keys(table, clients, held_out.order_by, held_out.split_by)
    if (trouble := collinear(clients, sums=True)) is not None:
        raise CoterieError(trouble)
    problem = GroupedProblem(ClusterTree.of(clients), family_named(family), np.arange(clients.X.shape[1]), None)
    together = Together(problem, asked)
    STARTING.get()()
    choice, _, held = together.over(here(clients, problem.family))
    frame, evidence = of_clients(clients, choice), pd.DataFrame()
    if held_out.splits:
        measured, evidence = _on_holdout(clients, together, replace(held_out, order=order, groups=groups).hold)
        frame = frame.assign(**measured)
    settings: dict[str, Any] = {"formula": formula, "client": client, "cluster": list(levels), "family": family}
    settings |= {"collaborators": asked.collaborators, "within": asked.within}
    settings |= {name: getattr(held_out, name) for name in _HOW}
    settings |= {"offset": offset, "weights": weights, "missing": missing}
    settings |= {"columns": clients.X.shape[1], "prior": held, **choice.about, "notes": [*clients.notes, *notes]}
    return Advice(frame, of_pairs(clients, choice), evidence, problem.family.loss, settings)


def here(clients: Clients, family: Family) -> InProcess:
    """Clients whose rows are in this process."""
    clusters = clients.clusters if clients.levels else None
    return InProcess(objective(clients, family), clusters, ids=clients.ids, block=block_size(clients))


@dataclass(frozen=True)
class Together:
    """Fits clients with the collaborators that their own rows choose.

    ``predicted`` are the gains (m,) that theory promised on the training rows of each split.
    """

    problem: GroupedProblem
    options: Options
    predicted: list[Floats] = field(default_factory=list)

    def over(self, fed: Federation) -> tuple[Choice, Estimates, float]:
        """Who collaborates, the models, and the rows of the prior that holds them at the pooled model."""
        asked = self.options
        everyone, metric = around_pooled(fed, self.problem)
        choice = choose(fed, metric, count=asked.collaborators, same_cluster=asked.within == "cluster")
        held = asked.with_prior(metric)
        theta = optimum(fed, choice.pairs, choice.alpha, held).theta
        return choice, replace(everyone, client=theta), held.prior

    def in_split(self, fed: Federation) -> Estimates:
        """The models of a split's training rows."""
        choice, fitted, _ = self.over(fed)
        self.predicted.append(self.problem.family.loss_factor * choice.gain)
        return fitted

    def alone(self, clients: Clients) -> Estimates:
        """Models of clients' own rows under the same prior."""
        if not self.problem.family.needs_prior and self.options.prior in ("auto", "none"):
            return run("local", clients, self.problem, {})[0]
        return run_alone("weighted-averaging", clients, self.problem, {"rounds": {"prior": self.options.prior}})


def _on_holdout(clients: Clients, together: Together, splits: Splits) -> tuple[dict[str, Any], pd.DataFrame]:
    """What held-out rows say of clients alone, pooled and together: columns for each client, and the comparison.

    Each is fitted on the training rows of every split. A CoterieError without test rows.
    """
    problem = together.problem
    fits = {
        "local": together.alone,
        "pooled": lambda train: run("pooled", train, problem, {})[0],
        "together": lambda train: together.in_split(here(train, problem.family)),
    }
    parts = list(each_split(clients, problem.family, fits, splits))
    whole = all_splits(parts)
    if not whole.weight.sum() > 0.0:
        raise CoterieError("No client has a row to spare for a test: ask for predictions only (splits 0).")
    return measured(parts, splits.fraction, together.predicted), whole.table
