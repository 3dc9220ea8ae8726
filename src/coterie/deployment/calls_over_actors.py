"""A call of :func:`coterie.fit` whose rows are Parquet files that actors of Ray read: this process holds no row."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from coterie import files
from coterie.deployment.coordinator.comparison import Evidence
from coterie.deployment.coordinator.fit import Asked, applying, chosen_elsewhere, comparing, single_strengths
from coterie.deployment.site.holdout import set_aside
from coterie.engines.ray import Ray
from coterie.errors import CoterieError
from coterie.federation import require_all_replies
from coterie.methods.method import STRENGTHS
from coterie.methods.registry import applicable
from coterie.methods.tree.penalised_tree import describe
from coterie.results import fit_notes as words
from coterie.results.call_as_config import table_call_sections
from coterie.results.fit_options import Options
from coterie.results.fit_result import FitResult
from coterie.results.table_fit import asked_options, need_applicable, result_of


def need_possible(options: Options) -> None:
    """A CoterieError for what is chosen, or held out, by columns or rows in one place."""
    if by := next(iter(options.by), None):
        raise CoterieError(f"{by} names a column, of which actors tell nothing: leave it out, or read one file.")
    for name in options.asked:
        if (why := chosen_elsewhere(name, options)) is not None:
            raise CoterieError(why)


def fit(rows: str | Path, arguments: dict[str, Any]) -> FitResult:
    """Fit a formula to Parquet files, and compare methods on rows that actors hold out; coefficients come here."""
    start, options, given = perf_counter(), asked_options(arguments), arguments
    need_possible(options)
    engine = {k: v for k, v in options.engine.items() if k not in ("kind", "seed", "folder") and v is not None}
    roles = {name: given[name] for name in ("offset", "weights", "missing")}
    columns = {"formula": given["model"], "client": given["client"], "cluster": list(given["cluster"])}
    seed = int((options.rounds or {}).get("seed", options.engine.get("seed") or 0))
    read: dict[str, Any] = {
        **columns,
        **roles,
        "family": options.family,
        "shared": options.shared,
        "reveal": True,
        "seed": seed,
    }
    evidence: Evidence | None = None
    actors: Any = Ray.parquet(rows, **read, **engine)
    with actors as fed:
        clients, problem, design, mean_weight = fed.described()
        strengths = single_strengths(clients, {name: given[name] for name in STRENGTHS})
        learnable = len(clients) > 1 and problem.learnable
        names = applying(options, problem, clients, bool(strengths))
        if not names:
            names = applicable(problem, learnable, bool(strengths), "auto", options.network is not None)
        every = {name: Asked.of(name, options, clients, problem, strengths) for name in names}
        if options.splits:
            without = comparing(every, options, clients, problem, lambda _, hold: actors.anew(partial(set_aside, hold)))
            evidence, fed = without.over(fed), actors.anew()
        best = "given-strengths" if strengths else "hierarchical" if learnable else "pooled"
        if evidence is not None and evidence.found is not None:
            best = evidence.found.recommended()
        name = best if options.method == "auto" else options.method
        need_applicable(name, problem, clients, bool(strengths), bool(options.shared))
        shared = [t for j, t in enumerate(clients.terms) if j not in problem.personal and t not in options.shared]
        said = words.before(clients, problem, shared, options.method)
        fitted = Asked.of(name, options, clients, problem, strengths).fit(fed, intervals=True)
        sums = require_all_replies(fed.total(describe))
        mean = sums["x"] / sums["w"]
        spread = mean, np.sqrt(np.maximum(sums["xx"] / sums["w"] - mean**2, 0.0))
        said += [*words.after(clients, problem, name, fitted, spread), *options.unheeded([name])]
        ledger = fed.ledger.as_dict() | {"seconds": perf_counter() - start}
    known = {"formula": given["model"], "offset": given["offset"], "weights": given["weights"], "design": design}
    call = table_call_sections(str(files.place(rows)), {**given, "formula": given["model"], "rounds": options.rounds})
    known |= {"notes": said, "ledger": ledger, "mean_weight": mean_weight, "call": call}
    made = result_of(name, clients, problem, fitted, options, {**columns, **roles}, **known)
    return made if evidence is None else evidence.beside(made, clients)
