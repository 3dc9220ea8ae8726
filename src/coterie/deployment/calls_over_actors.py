"""A call of :func:`coterie.fit` whose rows are Parquet files that actors of Ray read: this process holds no row."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from coterie import files
from coterie.deployment.coordinator.fit import Asked, single_strengths
from coterie.engines.ray import Ray
from coterie.errors import CoterieError
from coterie.federation import require_all_replies
from coterie.methods.method import STRENGTHS
from coterie.methods.registry import FITTED
from coterie.methods.tree.penalised_tree import describe
from coterie.results import notes as words
from coterie.results.call_as_config import table_call_sections
from coterie.results.fit_result import FitResult
from coterie.results.table_fit import asked_options, need_applicable, result_of

COMPARES = (
    "{} is read by actors of Ray, which hold no rows out: say splits=0 (--splits 0), or compare methods on one file, "
    "which this process reads."
)


def fit(rows: str | Path, arguments: dict[str, Any]) -> FitResult:
    """Fit a formula to Parquet files, as to a table with ``splits=0``; coefficients of all clients come here."""
    start, options, given = perf_counter(), asked_options(arguments), arguments
    if options.network is not None or FITTED.get(options.method, FITTED["local"]).corrected is not None:
        raise CoterieError("Who is alike is found where all rows are together: leave engine out, and read one file.")
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
    with Ray.parquet(rows, **read, **engine) as fed:
        clients, problem, design, mean_weight = fed.described()
        strengths = single_strengths(clients, {name: given[name] for name in STRENGTHS})
        usual = "given-strengths" if strengths else "hierarchical" if problem.learnable else "pooled"
        name = usual if options.method == "auto" else options.method
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
    return result_of(name, clients, problem, fitted, options, {**columns, **roles}, **known)


def reads(rows: Any, engine: Any, splits: int | None, methods: Any = ()) -> bool:
    """Whether actors read the rows of a call; a CoterieError where they would have to be compared, too."""
    kind = engine.get("kind") if isinstance(engine, dict) else engine
    if kind != "ray" or not isinstance(rows, (str, Path)):
        return False
    place = files.place(rows)
    folder = place.suffix != ".parquet" and place.is_dir()
    if folder and (splits != 0 or methods):
        raise CoterieError(COMPARES.format(f"'{place}', a folder,"))
    return (folder or place.suffix == ".parquet") and splits == 0 and not methods
