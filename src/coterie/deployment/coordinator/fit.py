"""A method of ``coterie fit`` over sites that keep their rows: the same model, from the same sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import Design
from coterie.deployment.coordinator import identifiability
from coterie.deployment.coordinator.comparison import compare_on_holdout
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.schema import Schema, clusters_of, design_of
from coterie.engines.policy import Refused
from coterie.engines.remote_federation import Participants, Remote
from coterie.errors import CoterieError, listed
from coterie.evidence.selection import resolved
from coterie.families import DEFAULT
from coterie.methods.method import STRENGTHS, Method
from coterie.methods.networks.options import HELD_OUT
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED
from coterie.options import declared, need_names
from coterie.relations.network_by_labels import by_position
from coterie.relations.strengths_by_labels import aligned
from coterie.results.fit_options import Options
from coterie.results.fit_result import FitResult
from coterie.results.notes import after
from coterie.results.table_fit import need_applicable, need_given, result_of

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
    method = FITTED[name]
    # without clusters, as sites were asked, the one that ignores them is the other
    applies = "hierarchical" if method.flat and method.clustered else name
    need_applicable(applies, found, clients, given.get("gamma") is not None, bool(options.shared))
    every = _by_position(method, options, clients, found) | _strengths(clients, given)

    def fits(fed: Remote) -> Estimates:
        return method.fit(fed, found, **{k: v for k, v in every.items() if k in method.takes})  # type: ignore[no-any-return]

    fitted = fits(fed)
    notes = list(dict.fromkeys(n for told in fed.participants.info.values() for n in told.get("notes", ())))
    if shared:
        notes.append(f"Shared, because no client varies in them: {', '.join(shared)}.")
    notes += after(clients, found, name, fitted, spread)
    ledger = {k: sum(f.ledger.as_dict()[k] for f in feds) for k in fed.ledger.as_dict()}
    columns = {"formula": task["formula"], "client": clients.name, "cluster": clusters_of(task)}
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
    result.notes.extend(options.unheeded([name]))
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

    A CoterieError names options that the method does not take, columns that the schema does not have, and what only
    rows in one place can choose.
    """
    task, name = program.task, program.program
    method = FITTED[name]
    given = dict(program.options)
    need_names(f"Method '{name}'", given, declared(Options))
    if method.rounds and isinstance(given.get("rounds", {}), Mapping):
        given["rounds"] = {"seed": seed, **given.get("rounds", {})}
    learned = {key: value for key, value in given.items() if key not in STRENGTHS}
    options = Options(**{"splits": 0, "family": task.get("family", DEFAULT), "method": name, "seed": seed} | learned)
    need_given(name, bool(task.get("cluster")), given.get("gamma") is not None)
    if method.corrected is not None and options.splits:
        raise CoterieError(f"Method '{name}' is compared where all rows are together: leave splits out.")
    _need_chosen(method, options)
    return given, options, design_of(schema, task)


def need_rows(participants: Participants) -> None:
    """Refused where a site's answer says that clients have too few rows for it to tell of them, as it would at the end.

    A site tells its ``min_group``, and of clients with fewer rows no more than that they are such.
    """
    for (site, info), rows in zip(participants.info.items(), participants.sites, strict=True):
        few = rows[participants.counts[rows] < (least := int(info.get("min_group", 0)))]
        if len(few):
            who = listed([f"'{participants.labels[i]}'" for i in few])
            raise Refused(
                f"Site '{site}' tells nothing of clients with fewer than {least} rows (min_group), and a fit asks for "
                f"every client's model: {who} {'has' if len(few) == 1 else 'have'} fewer. Name another client "
                "column, or none, so that every site is a client, or let the owner join their rows with others'."
            )


def _need_chosen(method: Method, options: Options) -> None:
    """A CoterieError for what held-out rows, or columns, of all sites together would have to say."""
    network = options.network or {}
    for name, value in {**options.rounds, **({"lam": HELD_OUT} | network if method.networked else {})}.items():
        if isinstance(value, str) and value == HELD_OUT:
            whose = f"{name} of the network" if method.networked else name
            raise CoterieError(f"Held-out rows choose {whose} where all rows are together: give a number over sites.")
    if network.get("covariates") is not None:
        raise CoterieError("A network by covariates needs their columns in one place: name a space, or give edges.")


def _by_position(method: Method, options: Options, clients: Clients, problem: GroupedProblem) -> dict[str, Any]:
    """What a method may take, with positions of clients for the labels that were given."""
    every = options.learning | {"rounds": options.rounds}
    if method.corrected is not None:
        every["rounds"] = resolved(clients, problem, options.rounds, method.corrected, options.hold)
    return every if options.network is None else every | {"network": by_position(clients, options.network)}


def _strengths(clients: Clients, given: Mapping[str, Any]) -> dict[str, Any]:
    found = aligned(clients, {name: given.get(name) for name in STRENGTHS})
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
