"""How advice is made: on a table by theory and by splits of rows, on nets by their comparison."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.formula import check_syntax
from coterie.data.identifiability import collinear
from coterie.data.prepare_table import check_choices, prepare
from coterie.data.splits import Splits, split_keys
from coterie.data.table import Table, to_pandas
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError, listed, plural
from coterie.evidence.comparison import losing, over_splits
from coterie.evidence.table_comparison import all_splits, each_split
from coterie.evidence.training_comparison import TrainingComparison
from coterie.families import Family, family_named
from coterie.federation import Federation
from coterie.methods.collaboration.choose_collaborators import Choice, choose
from coterie.methods.collaboration.metric_and_similarity import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.relations.clusters import ClusterTree
from coterie.results.advice import Advice, measured, of_clients, of_pairs
from coterie.results.fit_options import Options as FitOptions
from coterie.runs.run_table_method import STARTING, block_size, objective, run, run_alone

log = logging.getLogger(__name__)
LONG = 10.0  # seconds from which splits are announced
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


def advise_on_table(
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
    began = monotonic()
    choice, _, held = together.over(here(clients, problem.family))
    if (seconds := monotonic() - began) * held_out.splits > LONG:
        term, n = Counter(name.partition("[")[0] for name in clients.terms).most_common(1)[0]
        log.warning(
            "Choosing took %.0f s with %s%s, and about as long for each split: %sask for fewer splits (%d).",
            seconds,
            plural(len(clients.terms), "column"),
            f", of which {term} makes {n}" if n > 1 else "",
            "leave terms of many levels out, or " if n > 1 else "",
            held_out.splits,
        )
        together = replace(together, aloud=True)
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
    aloud: bool = False  # whether each split is told, as it takes long

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
        if self.aloud:
            log.warning("  split %d is done", len(self.predicted))
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


def advise_on_nets(found: TrainingComparison) -> Advice:
    """What a comparison of trained methods advises: the best beside `local` and one for all, and whom it helps."""
    sign, name = found.rule.sign, found.score
    one = "pooled" if "pooled" in found.methods else "fedavg"  # over sites, whose rows are nowhere together
    if not {"local", one} <= {*found.methods}:
        raise CoterieError("Heads of other shapes have no `local` and `pooled` to compare with: see coterie.compare.")
    runs = found.runs["local"]
    labels = list(dict.fromkeys(label for run in runs for label in run.labels))

    def losses(method: str) -> pd.DataFrame:
        """Of every client (seeds, clients), so that less is better."""
        values = found.clients(method)
        rows = [dict(zip(run.labels, row, strict=True)) for run, row in zip(runs, values, strict=True)]
        return pd.DataFrame([{k: 1.0 - v if sign > 0 else v for k, v in one.items()} for one in rows], columns=labels)

    others = [method for method in found.methods if method not in ("local", one)]
    best = max(others, key=lambda m: np.nan_to_num(sign * found.values(m).mean(), nan=-np.inf))
    each = {method: losses(method) for method in found.methods}
    gain = each["local"] - each[best]
    ratio, gains = found.config.data["test"] / (1.0 - found.config.data["test"]), gain.to_numpy()
    low, high = over_splits(gains, ratio)
    by = pd.DataFrame({method: one.mean() for method, one in each.items()})
    some = by.dropna()
    frame: dict[str, Any] = {
        "best": some.idxmin(axis=1).reindex(by.index),
        "loss_alone": by["local"],
        "loss_together": by[best],
    }
    frame |= {"loss_pooled": by[one], "gain": gain.mean(), "gain_low": low, "gain_high": high}
    frame["loses"] = losing(np.nan_to_num(gains), np.isfinite(gains).astype(np.float64), ratio)
    clients = pd.DataFrame(frame, index=pd.Index(labels, name="client"))
    table = found.table
    evidence = pd.DataFrame({"loss_rows": 1.0 - table[name] if sign > 0 else table[name]})
    called = {best: "together", one: "pooled"}
    evidence = evidence.rename(index=called).join(table.rename(index=called))
    tally = clients["best"].value_counts()
    counts = listed(f"{method} for {n:,}" for method, n in tally.items())
    notes = [
        f"Over all held-out rows {found.best} does best of {plural(len(found.methods), 'method')}.",
        f"By its own held-out rows alone the best method of a client is {counts}; so few rows tell little, and what "
        "the method does on average is the better guide.",
        "A net has no one optimum, by whose curvature theory would say with whom to collaborate and what that is "
        "worth: name main clients, and weighted-averaging is compared, too.",
    ]
    notes += ["Rows stay at their sites, so that the one model for all is fedavg's."] * (one != "pooled")
    settings = {"method": best, "seed": found.config.run["seeds"][0], "recommended": found.best, "notes": notes}
    return Advice(
        clients, pd.DataFrame(columns=["client", "collaborator", "tau", "weight"]), evidence,
        f"1 - {name}" if sign > 0 else name, settings,
    )  # fmt: skip
