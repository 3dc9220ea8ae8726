"""A method of ``coterie fit`` over sites that keep their rows: the same model, from the same sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import Design
from coterie.deployment.coordinator import identifiability
from coterie.deployment.coordinator.comparison import Comparing
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.schema import Schema, clusters_of, design_of
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError, listed
from coterie.evidence.table_selection import resolved
from coterie.families import DEFAULT
from coterie.methods.method import STRENGTHS, Method
from coterie.methods.networks.options import HELD_OUT
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED
from coterie.options import declared, need_names
from coterie.queries import Unclustered
from coterie.relations.clusters import ClusterTree
from coterie.relations.relations_by_label import aligned, by_position
from coterie.results.fit_notes import after
from coterie.results.fit_options import Options
from coterie.results.fit_result import FitResult
from coterie.results.table_fit import counted, need_applicable, need_given, result_of, why_not
from coterie.runs.run_table_method import ALONE

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
    start, task = perf_counter(), program.task
    given, options, design = settled(program, schema, program.seed or 0)
    found, shared, mean, spread = identifiability.problem(fed, design.terms, options.family, options.shared)
    feds = [fed]
    if task.get("weights"):  # relative to their mean, which no site knows
        fed, opened = opened("weighed", mean_weight=mean), partial(opened, mean_weight=mean)
        feds.append(fed)
    clients = clients_without_rows(fed, design.terms, task)
    named, strengths = program.program in FITTED, single_strengths(clients, given)
    names = applying(options, found, clients, bool(strengths))
    every = {name: Asked.of(name, options, clients, found, strengths) for name in names}
    notes = fed.participants.notes
    if shared:
        notes.append(f"Shared, because no client varies in them: {', '.join(shared)}.")

    def result(name: str) -> FitResult:
        fitted = every[name].fit(fed, intervals=True)
        ledger = {k: sum(f.ledger.as_dict()[k] for f in feds) for k in fed.ledger.as_dict()}
        columns = {"formula": task["formula"], "client": clients.name, "cluster": clusters_of(task)}
        made = result_of(
            name,
            clients,
            found,
            fitted,
            options,
            design=design,
            formula=task["formula"],
            notes=[*notes, *after(clients, found, name, fitted, spread), *options.unheeded(names)],
            ledger=ledger | {"seconds": perf_counter() - start},
            settings=columns | {"sites": list(fed.names), "quarantined": dict(fed.quarantined)},
            offset=task.get("offset"),
            weights=task.get("weights"),
            mean_weight=mean,
        )
        if not options.splits:
            made.notes.append(NOTHING)
        return made

    if named:
        save(first := result(program.program))
    if options.splits:
        evidence = comparing(every, options, clients, found, opened, secure).over(fed)
        if not named:
            best = "pooled" if evidence.found is None else evidence.found.recommended()
            if best not in every:
                every[best] = Asked.of(best, options, clients, found, strengths)
            first = result(best)
        save(evidence.beside(first, clients))


def comparing(
    every: Mapping[str, Asked],
    options: Options,
    clients: Clients,
    problem: GroupedProblem,
    opened: Callable[..., Remote],
    secure: bool = False,
) -> Comparing:
    """What compares methods on rows that sites hold out."""
    alike = {n: one.alone for n, one in every.items() if one.method.corrected is not None and options.has_prior}
    each = frozenset(n for n, one in every.items() if one.each or options.residual == "by-client")
    fits, main = {n: one.fit for n, one in every.items()}, counted(clients, options)
    return Comparing(fits, alike, opened, problem, options.hold, secure, each, main, options.by)


@dataclass(frozen=True)
class Asked:
    """A method with its options, on a problem of clients at sites."""

    method: Method
    problem: GroupedProblem
    given: Mapping[str, Any]

    @classmethod
    def of(
        cls, name: str, options: Options, clients: Clients, problem: GroupedProblem, strengths: Mapping[str, Any]
    ) -> Asked:
        """By its name, of the options of a call."""
        method = FITTED[name]
        every = options.learning | dict(strengths) | {"rounds": options.drawn(name)}
        if method.corrected is not None:
            every["rounds"] = resolved(clients, problem, every["rounds"], method.corrected, options.hold)
        if options.network is not None:
            every["network"] = by_position(clients, options.network)
        problem = replace(problem, tree=ClusterTree()) if method.flat else problem
        return cls(method, problem, {k: v for k, v in every.items() if k in method.takes})

    @property
    def each(self) -> bool:
        """Whether it asks clients one by one."""
        return bool(self.method.rounds) or self.method.intercept

    def fit(self, fed: Any, intervals: bool = False) -> Estimates:
        """What it finds over a federation; ``intervals``: they are wanted."""
        fed = Unclustered(fed) if self.method.flat and fed.clients.k > 1 else fed
        more = {"intervals": True} if intervals and "intervals" in self.method.takes else {}
        return self.method.fit(fed, self.problem, **self.given, **more)  # type: ignore[no-any-return]

    def alone(self, fed: Any) -> Estimates:
        """Of a main client's method: models of clients' own rows under its prior."""
        rounds = {k: v for k, v in self.given["rounds"].items() if k in ("prior", "seed")}
        return replace(self, method=replace(self.method, fits=ALONE), given={"rounds": rounds}).fit(fed)


def applying(options: Options, problem: GroupedProblem, clients: Clients, strengths: bool) -> list[str]:
    """The methods that are asked for; a CoterieError where one does not apply, but of "all" those that do."""
    for name in options.asked:
        # without clusters, as sites were asked, the one that ignores them is the other
        applies = "hierarchical" if FITTED[name].flat and FITTED[name].clustered and not clients.levels else name
        need_applicable(applies, problem, clients, strengths, bool(options.shared))
    if "all" not in options.methods:
        return list(options.asked)
    some = [n for n in FITTED if why_not(n, problem, clients, strengths) is None and not chosen_elsewhere(n, options)]
    return list(dict.fromkeys([*some, *options.asked]))


def settled(program: RunConfig, schema: Schema, seed: int) -> tuple[dict[str, Any], Options, Design]:
    """The options of a program by name, those of every fit, and its design: checked before any site is asked.

    A CoterieError names options that no method takes, columns that the schema does not have, and what only rows in one
    place can choose.
    """
    task, name = program.task, program.method
    given = dict(program.options)
    need_names(f"'{program.program}'", given, {**declared(Options), **({} if name in FITTED else {"methods": None})})
    learned = {key: value for key, value in given.items() if key not in STRENGTHS}
    learned |= {"method": name} if name in FITTED else {"methods": tuple(given.get("methods", ()))}
    options = Options(**{"splits": 0, "family": task.get("family", DEFAULT), "seed": seed} | learned)
    if name not in FITTED and not options.splits:
        raise CoterieError("A comparison needs at least one split.")
    for one in options.asked:
        need_given(one, bool(task.get("cluster")), given.get("gamma") is not None)
        if (why := chosen_elsewhere(one, options)) is not None:
            raise CoterieError(why)
    return given, options, design_of(schema, task)


def need_rows(told: Mapping[str, Any]) -> str | None:
    """Why a site takes no part whose clients have too few rows for it to tell of them, as it would say at the end.

    A site tells its ``min_group``, and of clients with fewer rows no more than that they are such.
    """
    few = told["labels"][told["counts"] < (least := told["info"].get("min_group", 0))]
    if not len(few):
        return None
    who = listed([f"'{label}'" for label in few])
    return (
        f"it tells nothing of clients with fewer than {least} rows (min_group), and a fit asks for every client's "
        f"model: {who} {'has' if len(few) == 1 else 'have'} fewer; name another client column, or none, so that every "
        "site is a client, or let the owner join their rows with others'"
    )


def chosen_elsewhere(name: str, options: Options) -> str | None:
    """What held-out rows, or columns, of all sites together would have to say for a method, in a sentence."""
    method, network = FITTED[name], options.network or {}
    for key, value in {**options.rounds_of(name), **({"lam": HELD_OUT} | network if method.networked else {})}.items():
        if isinstance(value, str) and value == HELD_OUT:
            whose = f"{key} of the network" if method.networked else key
            return f"Held-out rows choose {whose} where all rows are together: give a number over sites."
    if network.get("covariates") is not None:
        return "A network by covariates needs their columns in one place: name a space, or give edges."
    return None


def single_strengths(clients: Clients, given: Mapping[str, Any]) -> dict[str, Any]:
    """Strengths that are given, by name; a CoterieError for a grid of them."""
    found = aligned(clients, {name: given.get(name) for name in STRENGTHS})
    if several := [name for name, candidates in found.items() if len(candidates) > 1]:
        raise CoterieError(
            f"{several[0]} must be one strength: the best of a grid is chosen where all rows are together."
        )
    return {name: candidates[0] for name, candidates in found.items()}


def clients_without_rows(fed: Remote, terms: tuple[str, ...], task: Mapping[str, Any]) -> Clients:
    """All clients with their numbers of rows, without a row."""
    participants, none = fed.participants, np.empty(0)
    stops = np.cumsum(participants.counts)
    return Clients(
        np.empty((0, len(terms))), none, none, none, stops - participants.counts, stops, terms, participants.labels,
        task.get("client") or "site", fed.clients.ids, participants.levels, fed.clients.clusters, np.empty(0, np.int64),
    )  # fmt: skip
