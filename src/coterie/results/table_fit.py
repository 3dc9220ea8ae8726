"""A fit of a table: what is compared, what is chosen and why, all that was found as one result; and the call, read."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from coterie import files
from coterie.data.clients import Clients, mean_weight
from coterie.data.design import INTERCEPT
from coterie.data.formula import check_syntax
from coterie.data.identifiability import collinear, constant_within_clients, orthogonal_columns, shared_terms
from coterie.data.prepare_table import prepare
from coterie.data.splits import given_test, split_keys
from coterie.data.table import Table, as_name, as_names
from coterie.data.table_files import read_table
from coterie.engines.local_engines import ready
from coterie.errors import CoterieError, NotIdentified, plural
from coterie.evidence.comparison import BASELINES
from coterie.evidence.table_comparison import TableComparison, all_splits, each_split
from coterie.evidence.table_selection import (
    SPAN,
    STEPS,
    choose_lam,
    chooses_lam,
    clusterpath,
    positioned,
    resolved,
    select,
)  # fmt: skip
from coterie.families import family_named
from coterie.methods.networks.options import Asked
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED, applicable
from coterie.methods.tree.dispersion import shared_dispersions
from coterie.methods.tree.penalised_tree import Basis
from coterie.numerics.arrays import compile_seconds
from coterie.options import declared
from coterie.relations.clusters import ClusterTree
from coterie.relations.network import Network
from coterie.relations.relations_by_label import LeftOut, aligned, by_position, main_clients, plain_strength
from coterie.results import fit_notes as words
from coterie.results.call_as_config import in_words_of_a_call, over_rounds, table_call_sections
from coterie.results.fit_options import Options
from coterie.results.fit_result import FitResult
from coterie.results.model import Model
from coterie.runs import rows_and_models_in_memory as in_memory
from coterie.runs.config_keys import engine_of
from coterie.runs.run_table_method import STARTING, run, run_alone

DRAWN = 1000
"""Clients at most whose merging along a network's path is followed for its picture."""
EXACT = 1e-6
"""KKT residual along the path, where it is said which clients are equal."""


@dataclass(frozen=True)
class Fitting:
    """One fit: the clients, what is asked for, and fields of its result that are known before it: the ``facts``.

    It counts its time since the ``start``.
    """

    clients: Clients
    options: Options
    settings: dict[str, Any]
    facts: dict[str, Any]
    start: float

    def result(self) -> FitResult:
        """Compare, choose, fit on all rows, and say what was found."""
        with ready(self.options.engine), shared_dispersions():
            return self._found()

    def _found(self) -> FitResult:
        clients, options, compiled = self.clients, self.options, compile_seconds()
        problem, auto_shared = self.problem()
        if options.method != "auto" and FITTED[options.method].all_own:
            auto_shared = []  # clients have all coefficients, whoever they learn them from
        sentences = words.before(clients, problem, auto_shared, options.method)
        evidence, name, reason = self.choose(problem)
        sentences += options.unheeded([name] if evidence is None else evidence.methods)
        if evidence is not None and (untested := self.untested(evidence)):
            sentences.append(
                f"{plural(untested, 'held-out row')} of all splits were not tested: terms are learned "
                "from a split's training rows alone, whose range does not hold these rows."
            )
        fitted, ledger = self.fit(name, problem, clients, intervals=True)
        if "network" in fitted.info:
            fitted.info["network"] |= described(clients, problem, options.network or {}, fitted.info["network"])
        if options.network is not None and not FITTED[name].networked:
            sentences.append(words.beside_network(name, evidence is not None))
        sentences += words.after(clients, problem, name, fitted)
        ledger |= {"seconds": perf_counter() - self.start, "compiling": compile_seconds() - compiled}
        more: dict[str, Any] = {**self.facts, "notes": sentences, "ledger": ledger, "reason": reason}
        more["fitting"] = self
        if evidence is not None:
            best, index = evidence.recommended(), pd.Index(clients.labels, name=clients.name)
            alone = self.fit("local", problem, clients)[0].client
            more["local_coefficients"] = pd.DataFrame(alone, index=index, columns=list(clients.terms))
            more |= {"recommended": best, "comparison": evidence.table}
            more["client_gains"] = evidence.by_client(clients, best)
        return result_of(name, clients, problem, fitted, options, self.settings, **more)

    def fit(
        self, name: str, problem: GroupedProblem, clients: Clients, intervals: bool = False
    ) -> tuple[Estimates, dict[str, float]]:
        """One method on some of the rows, and what it cost; ``intervals``: they are wanted."""
        hold, spent = self.options.hold.inside(self.clients, clients), dict[str, float]()
        if FITTED[name].networked:
            chooses_lam(Asked.of(self.options.network or {}), hold)  # refused before work
        if problem.family.unknown and (FITTED[name].networked or self.options.strengths):  # strengths depend on it
            first = replace(FITTED["hierarchical" if problem.learnable else "pooled"], fits="tree.dispersion:find")
            known, spent = run(first, clients, problem, self.options.learning, self.options.engine)
            problem = replace(problem, family=family_named(known.family).at(known.sigma2))
        options = self.options.learning | {"rounds": self.options.drawn(name), "intervals": intervals}
        if (corrected := FITTED[name].corrected) is not None:
            options["rounds"] = resolved(clients, problem, options["rounds"], corrected, hold)
        tried: list[tuple[float, float]] = []
        if FITTED[name].networked:
            options["network"], tried = choose_lam(clients, problem, self.options.network or {}, hold)
        given = bool(self.options.strengths) and "gamma" in FITTED[name].takes
        if given:
            strengths = select(clients, problem, self.options.strengths, hold)
            options |= strengths
        fitted, ledger = run(name, clients, problem, options, self.options.engine)
        ledger = {entry: cost + spent.get(entry, 0) for entry, cost in ledger.items()}
        if tried:
            fitted.info["network"]["tried"] = tried
        if given and "rounds" not in fitted.info:
            numbers = {k: plain_strength(v) for k, v in strengths.items()}
            fitted = replace(fitted, info=fitted.info | {"strengths": numbers})
        return fitted, ledger

    def problem(self) -> tuple[GroupedProblem, list[str]]:
        """Which terms are personal; and those that are shared because no client varies in them."""
        clients, options = self.clients, self.options
        asked_for = FITTED.get(options.method)
        sums = options.network is not None or (asked_for is not None and not asked_for.turns)  # columns as they are
        if (trouble := collinear(clients, sums)) is not None:
            raise CoterieError(trouble)
        single = clients.single_rows
        if single and options.residual == "by-client":
            raise NotIdentified(
                "A residual variance of each client needs more than one row of some: leave residual out."
            )
        must = constant_within_clients(clients.finest_clusters if single and clients.levels else clients)
        asked = shared_terms(clients.terms, options.shared)
        must &= ~asked
        said = len(clients) > 1 and (not single or len(clients.levels) > 0)
        auto = [clients.terms[j] for j in np.flatnonzero(must) if said]
        personal = np.flatnonzero(~(asked | must))
        intercept = clients.terms.index(INTERCEPT) if INTERCEPT in clients.terms else None
        basis = None
        if (matrix := orthogonal_columns(clients, personal)) is not None:
            basis = Basis.of(clients.X, clients.weights, matrix, intercept)
        return GroupedProblem(
            ClusterTree.of(clients), family_named(options.family), personal, intercept, single, basis
        ), auto

    def choose(self, problem: GroupedProblem) -> tuple[TableComparison | None, str, str]:
        """The evidence, the method to fit, and why."""
        options, clients, asked = self.options, self.clients, self.options.method
        learnable, strengths = len(clients) > 1 and problem.learnable, bool(options.strengths)
        for name in options.asked:
            need_applicable(name, problem, clients, strengths, bool(options.shared))
            if FITTED[name].corrected is not None:
                positioned(clients, options.rounds_of(name))
        default = "given-strengths" if strengths else "hierarchical" if learnable else "pooled"
        STARTING.get()()
        if options.cluster_variance == "own" and not clients.levels:
            raise CoterieError("cluster_variance is of clusters: name a cluster column, or leave it out.")
        if options.splits == 0:
            return None, default if asked == "auto" else asked, ""
        if "all" in options.methods:
            names = [n for n in FITTED if why_not(n, problem, clients, strengths) is None]
        elif options.methods and "auto" not in options.methods:
            names = list(BASELINES)
        else:
            names = applicable(problem, learnable, strengths, asked, options.network is not None)
        names = list(dict.fromkeys([*names, *options.asked]))
        fits = {n: lambda train, n=n: self.fit(n, problem, train)[0] for n in names}
        held = [n for n in names if FITTED[n].corrected is not None and options.has_prior]
        alike = {n: lambda train, n=n: run_alone(n, train, problem, {"rounds": options.drawn(n)}) for n in held}
        evidence = all_splits(each_split(clients, problem.family, fits, options.hold, counted(clients, options), alike))
        if not evidence.weight.sum() > 0:
            return None, default if asked == "auto" else asked, "No client has a row to spare for a test."
        best = evidence.recommended()
        return evidence, best if asked == "auto" else asked, evidence.reason(best, options.hold)

    def untested(self, evidence: TableComparison) -> int:
        """Held-out rows that terms learned from the training rows cannot be computed for."""
        if self.clients.relearn is None or counted(self.clients, self.options) is not None:
            return 0
        return sum(int(mask.sum()) for mask in self.options.hold.masks(self.clients)) - int(evidence.rows.sum())


def counted(clients: Clients, options: Options) -> Any:
    """Which clients (m,) bool the evidence is about: the main ones where a method names them; None for all."""
    corrected = any(FITTED[name].corrected is not None for name in options.asked)
    if not corrected or options.rounds.get("main") is None:
        return None
    mask = np.zeros(len(clients), dtype=bool)
    mask[main_clients(clients, options.rounds["main"])] = True
    return mask


def need_applicable(
    name: str, problem: GroupedProblem, clients: Clients, strengths: bool, shared_asked: bool = False
) -> None:
    """Raise for what a method that is asked for needs and a problem does not have; ``strengths``: some are given."""
    method, learnable = FITTED[name], len(clients) > 1 and problem.learnable
    if method.all_own and shared_asked:
        who = "main client" if method.corrected is not None else "group" if "group" in method.relation else "client"
        raise CoterieError(f"Method '{name}' gives every {who} all coefficients: leave shared out.")
    if method.relation == "layers" and not 0 < len(problem.personal) < len(clients.terms):
        lacks, remedy = "columns of clients' own, and all are shared", "use method 'fedavg'"
        if len(problem.personal):
            lacks, remedy = "columns that all clients share, and there are none", "name some with shared (--shared)"
        raise CoterieError(f"Method '{name}' needs {lacks}: {remedy}.")
    if method.convex and not problem.family.convex:
        raise CoterieError(
            f"Method '{name}' needs losses that are convex, and those of family {problem.family} are flat far out: "
            "take family gaussian, or method 'hierarchical'."
        )
    if name in applicable(problem, learnable, strengths, name):
        return
    if not learnable and method.learns:
        raise NotIdentified(f"{words.before(clients, problem, [])[-1]} Use --method pooled.")
    need_given(name, bool(clients.levels), strengths)
    if method.intercept:
        raise CoterieError(f"Method '{name}' needs an intercept that is not shared and differs between clients.")


def need_given(name: str, clusters: bool, strengths: bool) -> None:
    """Raise for clusters, or strengths, that a method is about and that are not given."""
    if FITTED[name].clustered and not clusters:
        raise CoterieError(f"Method '{name}' needs clusters: name a cluster column (--cluster).")
    if name == "given-strengths" and not strengths:
        raise CoterieError("Method 'given-strengths' needs strengths: give gamma (and lam or alpha).")


def why_not(name: str, problem: GroupedProblem, clients: Clients, strengths: bool) -> str | None:
    """Why a method does not apply to a problem, in a sentence; None where it does."""
    try:
        need_applicable(name, problem, clients, strengths)
    except CoterieError as why:
        return str(why)
    return None


def result_of(
    name: str,
    clients: Clients,
    problem: GroupedProblem,
    fitted: Estimates,
    options: Options,
    settings: Mapping[str, Any],
    **more: Any,
) -> FitResult:
    """A method's estimates as a result, with the options that led to it; ``more`` are fields of :class:`FitResult`."""
    said = ("family", "method", "covariance", "seed", "splits", "test_fraction", "reml", "cluster_variance", "residual")
    chosen: dict[str, Any] = {option: getattr(options, option) for option in said} | {"fitted": name, **fitted.info}
    chosen |= {"shared": [t for j, t in enumerate(clients.terms) if j not in problem.personal]}
    nothing: dict[str, Any] = {"comparison": pd.DataFrame(), "client_gains": pd.DataFrame()}
    flat = FITTED[name].flat
    model = Model(
        method=name,
        family=fitted.family or problem.family.name,
        terms=clients.terms,
        client_name=clients.name,
        labels=clients.labels,
        levels=() if flat else clients.levels,
        clusters=np.zeros(len(clients), dtype=np.int64) if flat else clients.clusters,
        personal=problem.personal,
        **{f.name: getattr(fitted, f.name) for f in fields(Estimates) if f.name != "family"},
    )
    return FitResult(
        model=model,
        log_likelihood=float("nan") if fitted.log_likelihood is None else fitted.log_likelihood,
        reml=bool(fitted.info.get("reml", False)),
        loss=problem.family.loss,
        settings={**settings, **chosen},
        versions=dict(_versions()),
        **nothing | {"recommended": name, "reason": ""} | more,
    )


@cache
def _versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    names = ("coterie", "numpy", "scipy", "numba", "pandas", "formulaic")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def described(
    clients: Clients, problem: GroupedProblem, network: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """How clients merge along the path, and how well the network agrees with their finest clusters.

    Paths of more clients than ``DRAWN`` are not followed. ``found`` is what the fit says of the network: its edges,
    lam, and the candidates that were tried for it.
    """
    out: dict[str, Any] = {}
    if clients.levels and found.get("edges"):
        graph = Network(len(clients), np.array(found["edges"], dtype=np.int64), np.array(found["weight"]))
        agrees = graph.against(clients.clusters)
        out["against"] = {name: None if np.isnan(value) else value for name, value in agrees.items()}
    if not 1 < len(clients) <= DRAWN:
        return out
    lam = np.array([value for value, _ in found.get("tried", [])] or [found["lam"]])
    lam = np.sort(lam[(lam > 0.0) & (lam < np.inf)])
    values = None
    if len(lam):
        with np.errstate(over="ignore"):
            between = np.sqrt(lam[1:] * lam[:-1]) if len(lam) > 1 else lam * np.geomspace(SPAN, 1.0 / SPAN, STEPS)
        values = np.unique(np.concatenate([lam, between]))
        values = values[(values > 0.0) & np.isfinite(values)]
    tree = clusterpath(clients, problem, Asked.of(network), values, kkt=EXACT).tree
    return out | {"merges": [[value, list(who), size] for value, who, size in tree.merges if value < np.inf]}


def asked_options(arguments: dict[str, Any]) -> Options:
    """What is asked for of a table, checked before it is read; in ``arguments`` names and rounds are put in order."""
    if arguments["client"] is None:
        raise CoterieError("A formula needs client: name the column that says whose row it is.")
    for name in ("splits", "seed"):
        if arguments[name] is None:
            arguments[name] = declared(Options)[name].default
    with in_words_of_a_call():
        engine = engine_of(arguments["engine"])
    arguments |= {"rounds": over_rounds(arguments), "shared": as_names("shared", arguments["shared"])}
    arguments |= {
        "client": as_name("client", arguments["client"]),
        "cluster": as_names("cluster", arguments["cluster"]),
    }
    for name in ("order_by", "split_by", "given_split"):
        as_names(name, arguments[name])
    check_syntax(arguments["model"])
    asked = {name: arguments[name] for name in declared(Options)}
    return Options(**asked, methods=arguments.get("methods", ()), engine=engine)


def fitting(df: Any, arguments: dict[str, Any]) -> Fitting:
    """A fit of a table, once its rows are read and its options are checked."""
    start, options = perf_counter(), asked_options(arguments)
    names = ("model", "client", "cluster", "offset", "weights", "order_by", "split_by", "given_split", "missing")
    formula, client, cluster, offset, weights, order_by, split_by, given_split, missing = (
        arguments[name] for name in names
    )
    table = Table.of(_read(df, arguments) if isinstance(df, (str, Path)) else df)
    clients, design = prepare(table, formula, client, cluster, options.family, offset, weights, missing)
    order, groups, notes = split_keys(table, clients, order_by, split_by)
    given = given_test(table, clients, given_split)
    clients = replace(clients, notes=(*clients.notes, *notes))
    left_out = LeftOut.of(clients, {name: table[name].series for name in cluster})
    ties = aligned(clients, {name: arguments[name] for name in ("gamma", "lam", "alpha")}, left_out)
    network = None if options.network is None else by_position(clients, options.network, table.frame)
    options = replace(options, network=network, strengths=ties, order=order, groups=groups, given=given)
    settings = {"formula": formula, "client": client, "cluster": list(cluster), "offset": offset}
    settings |= {"weights": weights, "order_by": order_by, "split_by": split_by, "missing": missing}
    settings |= {} if given_split is None else {"given_split": given_split}
    same = [*design.parsed.outcome_columns, client, *(name for name in (offset, weights) if name is not None)]
    settings["outcome"] = table.fingerprint(same)
    about = table.frame.attrs.get("coterie", {})
    if about.get("na_values") is not None:
        settings["na_values"] = about["na_values"]
    mean = 1.0 if weights is None else mean_weight(table[weights].floats[clients.order])
    used = [*design.parsed.outcome_columns, *design.columns, client, *cluster]
    used += [name for name in (offset, weights, order_by, split_by, given_split) if name is not None]
    fingerprint = table.fingerprint(used)
    source = about.get("source") or f"{in_memory.MARK}table {fingerprint}"
    rounds = {"rounds": options.each} if options.methods and options.each is not None else options.rounds
    said = {**arguments, **about, "rounds": rounds, "formula": formula, "client": client, "cluster": cluster}
    facts = {"design": design, "formula": formula, "offset": offset, "weights": weights, "mean_weight": mean}
    facts |= {"data_fingerprint": fingerprint, "call": table_call_sections(source, said)}
    return Fitting(clients, options, settings, facts, start)


def _read(path: str | Path, arguments: dict[str, Any]) -> pd.DataFrame:
    """A table's file, whose labels stay text."""
    labels = [arguments["client"], *as_names("cluster", arguments["cluster"]), arguments["split_by"]]
    frame = read_table(path, [name for name in labels if name is not None], arguments.pop("na_values", None))
    frame.attrs.setdefault("coterie", {})["source"] = str(files.place(path))  # without keys in a URL
    return frame
