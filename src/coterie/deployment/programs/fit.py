"""A method of ``coterie fit`` over sites that keep their rows: the same model, from the same sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.deployment.programs import identifiability
from coterie.deployment.programs.comparison import compare_on_holdout
from coterie.deployment.programs.run_toml import RunConfig
from coterie.deployment.schema import Schema, design_of
from coterie.engines.remote import Remote
from coterie.errors import CoterieError
from coterie.families import DEFAULT
from coterie.methods.problem_and_estimates import Estimates
from coterie.methods.registry import FITTED
from coterie.options import need_names
from coterie.results.fitting import need_applicable, result_of
from coterie.results.notes import after
from coterie.results.options import Options
from coterie.results.result import FitResult
from coterie.runs.labelled_options import aligned

if TYPE_CHECKING:
    from coterie.data.design import Design

_STRENGTHS = ("gamma", "lam", "alpha")
_OPTIONS = (
    *("splits", "test_fraction", "shared", "covariance", "reml", "cluster_variance", "residual", "rounds"),
    *_STRENGTHS,
)
NOTHING = (
    "No rows were held out, so this cannot say whether sharing helps: with one split (--splits 1) sites hold rows out "
    "and compare, for further exchanges."
)
"""Said of a run without splits, which is the default: what they cost depends on the engine."""


def fit(
    fed: Remote,
    program: RunConfig,
    schema: Schema,
    save: Callable[[FitResult], object],
    opened: Callable[..., Remote],
    secure: bool = False,
) -> None:
    """Fit the program's method, and put what came of it into the form that ``coterie fit`` writes.

    ``save`` is given the result; where rows are held out twice, with the model and then with the evidence for it.
    ``opened(part, **task)`` opens a part of the run, whose task says more: the rows of a split, or the mean weight.
    ``secure`` says that sums are masked. A CoterieError says what all rows together cannot identify.
    """
    start, task, name = perf_counter(), program.task, program.program
    given, options, design = settled(program, schema, fed.seed)
    family = options.family
    found, shared, mean, spread = identifiability.problem(fed, design.terms, family, options.shared)
    feds = [fed]
    if task.get("weights"):  # relative to their mean, which no site knows
        fed, opened = opened("weighed", mean_weight=mean), partial(opened, mean_weight=mean)
        feds.append(fed)
    clients = _clients_without_rows(fed, design.terms, task)
    need_applicable(name, found, clients, given.get("gamma") is not None)
    method = FITTED[name]
    every = options.learning | {"rounds": options.rounds} | _strengths(clients, given)

    def fits(fed: Remote) -> Estimates:
        return method.fit(fed, found, **{k: v for k, v in every.items() if k in method.takes})  # type: ignore[no-any-return]

    fitted = fits(fed)
    notes = list(dict.fromkeys(n for told in fed.participants.info.values() for n in told.get("notes", ())))
    if shared:
        notes.append(f"Shared, because no client varies in them: {', '.join(shared)}.")
    notes += after(clients, found, name, fitted, spread)
    ledger = {k: sum(f.ledger.as_dict()[k] for f in feds) for k in fed.ledger.as_dict()}
    columns = {"formula": task["formula"], "client": clients.name, "cluster": [level.name for level in clients.levels]}
    result = result_of(
        name,
        clients,
        found,
        fitted,
        options,
        design=design,
        formula=task["formula"],
        notes=notes,
        ledger=ledger | {"seconds": perf_counter() - start},
        settings=columns | {"sites": list(fed.names), "quarantined": dict(fed.quarantined)},
        offset=task.get("offset"),
        weights=task.get("weights"),
        mean_weight=mean,
    )
    if not options.splits:
        result.notes.append(NOTHING)
    save(result)
    if options.splits:
        each = bool(method.rounds) or name == "own-intercept" or options.residual == "by-client"

        def hold(split: Mapping[str, Any]) -> Remote:
            return opened(f"split{split['repeat']}", hold=split)

        save(compare_on_holdout(result, clients, fits, fed, hold, found, options.hold, secure, each))


def settled(program: RunConfig, schema: Schema, seed: int) -> tuple[dict[str, Any], Options, Design]:
    """The options of a program by name, those of every fit, and its design: checked before any site is asked.

    Options of a method over rounds may stand beside the others, as ``steps=500``. A CoterieError names options that the
    method does not take, and columns that the schema does not have.
    """
    task, name = program.task, program.program
    method = FITTED[name]
    given = {key: value for key, value in program.options.items() if key in _OPTIONS}
    others = {key: value for key, value in program.options.items() if key not in _OPTIONS}
    if method.rounds:
        given["rounds"] = {"seed": seed, **given.get("rounds", {}), **others}
    elif others:
        need_names(f"Method '{name}'", others, _OPTIONS)
    learned = {key: value for key, value in given.items() if key not in _STRENGTHS}
    options = Options(**{"splits": 0, "family": task.get("family", DEFAULT), "method": name, "seed": seed} | learned)
    if method.flat:
        raise CoterieError(f"Method '{name}' ignores clusters: leave the clusters out, and use 'hierarchical'.")
    if name == "given-strengths" and given.get("gamma") is None:
        raise CoterieError("Method 'given-strengths' needs strengths: give gamma (and lam or alpha).")
    if method.clustered and not task.get("cluster"):
        raise CoterieError(f"Method '{name}' needs clusters: name a cluster column (--cluster).")
    if method.corrected is not None and options.splits:
        raise CoterieError(f"Method '{name}' is compared where all rows are together: leave splits out.")
    return given, options, design_of(schema, task)


def _strengths(clients: Clients, given: Mapping[str, Any]) -> dict[str, Any]:
    found = aligned(clients, {name: given.get(name) for name in _STRENGTHS})
    if several := [name for name, candidates in found.items() if len(candidates) > 1]:
        raise CoterieError(
            f"{several[0]} must be one strength: the best of a grid is chosen where all rows are together."
        )
    return {name: candidates[0] for name, candidates in found.items()}


def _clients_without_rows(fed: Remote, terms: tuple[str, ...], task: Mapping[str, Any]) -> Clients:
    """All clients with their numbers of rows, without a row."""
    participants, none = fed.participants, np.empty(0)
    stops = np.cumsum(participants.counts)
    return Clients(
        np.empty((0, len(terms))), none, none, none, stops - participants.counts, stops, terms, participants.labels,
        task.get("client") or "site", fed.clients.ids, participants.levels, fed.clients.clusters, np.empty(0, np.int64),
    )  # fmt: skip
