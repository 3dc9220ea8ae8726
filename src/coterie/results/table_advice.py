"""Advice on a table: its clients, their collaborators by theory, and what splits of their rows say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.formula import check_syntax
from coterie.data.identifiability import collinear
from coterie.data.prepare_table import check_choices, prepare
from coterie.data.table import Table, as_names, to_pandas
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError
from coterie.evidence.splits import Splits, split_keys
from coterie.evidence.table_comparison import all_splits, each_split
from coterie.families import family_named
from coterie.federation import Federation
from coterie.methods.collaboration.choose_collaborators import Choice, choose
from coterie.methods.collaboration.gradient_metric import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.results.advice import Advice, measured, of_clients, of_pairs
from coterie.results.fit_options import Options as FitOptions
from coterie.runs.run_table_method import STARTING, block_size, objective, run, run_alone


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
    cluster: str | Sequence[str] | None,
    family: str,
    collaborators: int,
    within: str,
    prior: Any,
    splits: int,
    test_fraction: float,
    seed: int,
    order_by: str | None,
    split_by: str | None,
    offset: str | None,
    weights: str | None,
    missing: str,
) -> Advice:
    """See :func:`coterie.advise`."""
    levels = as_names("cluster", cluster)
    how = {"splits": splits, "test_fraction": test_fraction, "seed": seed, "order_by": order_by, "split_by": split_by}
    asked, held_out = check_call(formula, levels, family, prior, collaborators, within, missing, **how)
    table = Table.of(to_pandas(df))
    clients, _ = prepare(table, formula, client, levels, family, offset, weights, missing)  # type: ignore[arg-type]
    order, groups, notes = split_keys(table, clients, order_by, split_by)
    if (trouble := collinear(clients, sums=True)) is not None:
        raise CoterieError(trouble)
    problem = GroupedProblem(ClusterTree.of(clients), family_named(family), np.arange(clients.X.shape[1]), None)
    together = Together(problem, asked)
    STARTING.get()()
    choice, _, held = together.fit(clients)
    frame, evidence = of_clients(clients, choice), pd.DataFrame()
    if splits:
        measured, evidence = _on_holdout(clients, together, replace(held_out, order=order, groups=groups).hold)
        frame = frame.assign(**measured)
    settings: dict[str, Any] = {"formula": formula, "client": client, "cluster": list(levels), "family": family}
    settings |= {"collaborators": asked.collaborators, "within": within}
    settings |= {name: getattr(held_out, name) for name in how}
    settings |= {"offset": offset, "weights": weights, "missing": missing}
    settings |= {"columns": clients.X.shape[1], "prior": held, **choice.about, "notes": [*clients.notes, *notes]}
    return Advice(frame, of_pairs(clients, choice), evidence, problem.family.loss, settings)


@dataclass(frozen=True)
class Together:
    """Fits clients with the collaborators that their own rows choose."""

    problem: GroupedProblem
    options: Options

    def fit(self, clients: Clients) -> tuple[Choice, Estimates, float]:
        """The same of rows that are here."""
        c, family = clients, self.problem.family
        fed = InProcess(objective(c, family), c.clusters if c.levels else None, ids=c.ids, block=block_size(c))
        return self.over(fed)

    def over(self, fed: Federation) -> tuple[Choice, Estimates, float]:
        """Who collaborates, the models, and the rows of the prior that holds them at the pooled model."""
        asked = self.options
        everyone, metric = around_pooled(fed, self.problem)
        choice = choose(fed, metric, count=asked.collaborators, same_cluster=asked.within == "cluster")
        held = asked.with_prior(metric)
        theta = optimum(fed, choice.pairs, choice.alpha, held).theta
        return choice, replace(everyone, client=theta), held.prior

    def alone(self, clients: Clients) -> Estimates:
        """Models of clients' own rows under the same prior."""
        if not self.problem.family.needs_prior and self.options.prior in ("auto", "none"):
            return run("local", clients, self.problem, {})[0]
        return run_alone("weighted-averaging", clients, self.problem, {"rounds": {"prior": self.options.prior}})


def _on_holdout(clients: Clients, together: Together, splits: Splits) -> tuple[dict[str, Any], pd.DataFrame]:
    """What held-out rows say of clients alone, pooled and together: columns for each client, and the comparison.

    Each is fitted on the training rows of every split. A CoterieError without test rows.
    """
    problem, predicted = together.problem, []

    def fit(train: Clients) -> Estimates:
        choice, fitted, _ = together.fit(train)
        predicted.append(problem.family.loss_factor * choice.gain)
        return fitted

    fits = {"local": together.alone, "pooled": lambda train: run("pooled", train, problem, {})[0], "together": fit}
    parts = list(each_split(clients, problem.family, fits, splits))
    whole = all_splits(parts)
    if not whole.weight.sum() > 0.0:
        raise CoterieError("No client has a row to spare for a test: ask for predictions only (splits 0).")
    return measured(parts, splits.fraction, np.mean(predicted, axis=0)), whole.table
