"""One fit of clients: what is compared, what is chosen and why, and everything that was found as one result."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import INTERCEPT, Design
from coterie.data.identifiability import collinear, constant_within_clients, orthogonal_columns, shared_terms
from coterie.errors import CoterieError, NotIdentified
from coterie.evidence.compare_fits import evaluate
from coterie.evidence.comparison import TableComparison
from coterie.evidence.selection import SPAN, STEPS, choose_lam, clusterpath, resolved, select
from coterie.families import family_named
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.network.options import Asked
from coterie.methods.registry import FITTED, applicable
from coterie.methods.tree.penalised_tree import Basis
from coterie.relations.clusters import ClusterTree
from coterie.relations.network import Network
from coterie.results import notes as words
from coterie.results.model import Model
from coterie.results.options import Options
from coterie.results.result import FitResult
from coterie.runs.labelled_options import main_clients, plain_strength
from coterie.runs.table_methods import STARTING, run, run_alone

DRAWN = 1000
"""Clients at most whose merging along a network's path is followed for its picture."""
EXACT = 1e-6
"""KKT residual along the path, where it is said which clients are equal."""


@dataclass(frozen=True)
class Fitting:
    """One fit: the clients, what is asked for, and what is found on the way."""

    clients: Clients
    design: Design | None
    formula: str
    options: Options
    settings: dict[str, Any]
    offset: str | None = None

    def result(self, start: float, data: str) -> FitResult:
        """Compare, choose, fit on all rows, and say what was found."""
        problem, auto_shared = self.problem()
        if self.options.method != "auto" and FITTED[self.options.method].corrected is not None:
            auto_shared = []  # main clients have all coefficients, whoever they learn them from
        sentences = words.before(self.clients, problem, auto_shared, self.options.method)
        learnable = len(self.clients) > 1 and problem.learnable
        network = self.options.network is not None
        names = applicable(problem, learnable, bool(self.options.strengths), self.options.method, network)
        evidence, name, reason = self.choose(problem, names, learnable)
        if evidence is not None and (untested := self.untested(evidence)):
            sentences.append(
                f"{untested:,} held-out row{'s' * (untested > 1)} of all splits were not tested: terms are learned "
                "from a split's training rows alone, whose range does not hold these rows."
            )
        fitted, ledger = self.fit(name, problem, self.clients)
        if "network" in fitted.info:
            fitted.info["network"] |= described(
                self.clients, problem, self.options.network or {}, fitted.info["network"]
            )
        if network and not FITTED[name].networked:
            sentences.append(words.beside_network(name, evidence is not None))
        sentences += words.after(self.clients, problem, name, fitted, self.clients.terms)
        ledger["seconds"] = perf_counter() - start
        local = None
        if evidence is not None:
            local = self.fit("local", problem, self.clients)[0]
        return self.assemble(problem, name, reason, fitted, evidence, ledger, sentences, data, local)

    def fit(self, name: str, problem: GroupedProblem, clients: Clients) -> tuple[Estimates, dict[str, float]]:
        """One method on some of the rows, and what it cost."""
        options = self.options.learning | {"rounds": self.options.rounds}
        if (corrected := FITTED[name].corrected) is not None:
            options["rounds"] = resolved(clients, problem, self.options.rounds, corrected, self.options.hold)
        tried: list[tuple[float, float]] = []
        if FITTED[name].networked:
            options["network"], tried = choose_lam(clients, problem, self.options.network or {}, self.options.hold)
        given = bool(self.options.strengths) and "gamma" in FITTED[name].takes
        if given:
            strengths = select(clients, problem, self.options.strengths, self.options.hold)
            options |= strengths
        fitted, ledger = run(name, clients, problem, options)
        if tried:
            fitted.info["network"]["tried"] = tried
        if given and "rounds" not in fitted.info:
            numbers = {k: plain_strength(v) for k, v in strengths.items()}
            fitted = replace(fitted, info=fitted.info | {"strengths": numbers})
        return fitted, ledger

    @property
    def sums(self) -> bool:
        """Whether a method takes part that sums the columns as they are."""
        method = self.options.method
        return self.options.network is not None or (method != "auto" and not FITTED[method].turns)

    def problem(self) -> tuple[GroupedProblem, list[str]]:
        """Which terms are personal; and those that are shared because no client varies in them."""
        clients, options = self.clients, self.options
        if (trouble := collinear(clients, self.sums)) is not None:
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
            basis = Basis.of(clients.X, matrix, intercept)
        return GroupedProblem(
            ClusterTree.of(clients), family_named(options.family), personal, intercept, single, basis
        ), auto

    def choose(
        self, problem: GroupedProblem, names: list[str], learnable: bool
    ) -> tuple[TableComparison | None, str, str]:
        """The evidence, the method to fit, and why."""
        options, clients = self.options, self.clients
        asked = options.method
        if asked != "auto" and FITTED[asked].whole:
            self.need_all_personal(asked, problem)
        if asked != "auto" and FITTED[asked].corrected is not None and options.shared:
            raise CoterieError(f"Method '{asked}' gives every main client all coefficients: leave shared out.")
        if asked != "auto" and asked not in names:
            if not learnable and FITTED[asked].learns:
                raise NotIdentified(f"{words.before(clients, problem, [])[-1]} Use --method pooled.")
            if FITTED[asked].clustered and not clients.levels:
                raise CoterieError(f"Method '{asked}' needs clusters: name a cluster column (--cluster).")
            if FITTED[asked].intercept:
                raise CoterieError(
                    f"Method '{asked}' needs an intercept that is not shared and differs between clients."
                )
            if asked == "given-strengths":
                raise CoterieError("Method 'given-strengths' needs strengths: give gamma (and lam or alpha).")
            names = [*names, asked]
        default = "given-strengths" if options.strengths else "hierarchical" if learnable else "pooled"
        STARTING.get()()
        if options.splits == 0:
            return None, default if asked == "auto" else asked, ""
        fits = {n: lambda train, n=n: self.fit(n, problem, train)[0] for n in names}
        held = [n for n in names if FITTED[n].corrected is not None and self.has_prior()]
        alike = {n: lambda train, n=n: run_alone(n, train, problem, {"rounds": options.rounds}) for n in held}
        evidence = evaluate(clients, problem.family, fits, options.hold, self.counted(), alike)
        if not evidence.weight.sum() > 0:
            return None, default if asked == "auto" else asked, "No client has a row to spare for a test."
        best = evidence.recommended()
        return evidence, best if asked == "auto" else asked, evidence.reason(best, options.hold)

    def has_prior(self) -> bool:
        """Whether main clients are pulled to the pooled model, as `local` is not."""
        asked = self.options.rounds.get("prior", "auto")
        return family_named(self.options.family).needs_prior if asked == "auto" else asked not in ("none", 0)

    def untested(self, evidence: TableComparison) -> int:
        """Held-out rows that terms learned from the training rows cannot be computed for."""
        if self.clients.relearn is None or self.counted() is not None:
            return 0
        return sum(int(mask.sum()) for mask in self.options.hold.masks(self.clients)) - int(evidence.rows.sum())

    def counted(self) -> Any:
        """Which clients (m,) bool the evidence is about: the main ones where a method names them; None for all."""
        corrected = FITTED[self.options.method].corrected if self.options.method != "auto" else None
        if corrected is None or self.options.rounds.get("main") is None:
            return None
        mask = np.zeros(len(self.clients), dtype=bool)
        mask[main_clients(self.clients, self.options.rounds["main"])] = True
        return mask

    def need_all_personal(self, asked: str, problem: GroupedProblem) -> None:
        """Raise where a method that ties whole vectors meets columns that all clients share."""
        shared = [t for j, t in enumerate(self.clients.terms) if j not in problem.personal]
        if len(self.clients.levels) > 1:
            finest = self.clients.levels[0].name
            raise CoterieError(f"Method '{asked}' takes one level of clusters: name '{finest}' only.")
        if shared:
            raise CoterieError(
                f"Method '{asked}' ties all coefficients of a client, and {', '.join(shared)} "
                f"{'is' if len(shared) == 1 else 'are'} shared, as asked or because no {self.clients.name} varies in "
                "it: leave such columns out, or use an exact method."
            )

    def assemble(
        self,
        problem: GroupedProblem,
        name: str,
        reason: str,
        fitted: Estimates,
        evidence: TableComparison | None,
        ledger: dict[str, float],
        sentences: list[str],
        data: str,
        local: Estimates | None,
    ) -> FitResult:
        """Everything found, as one result."""
        import pandas as pd

        clients = self.clients
        index = pd.Index(clients.labels, name=clients.name)
        alone = None if local is None else pd.DataFrame(local.client, index=index, columns=list(clients.terms))
        evident: dict[str, Any] = {}
        if evidence is not None:
            best = evidence.recommended()
            evident = {"comparison": evidence.table, "client_gains": evidence.by_client(clients, best)}
            evident["recommended"] = best
        return result_of(
            name,
            clients,
            problem,
            fitted,
            self.options,
            design=self.design,
            formula=self.formula,
            reason=reason,
            notes=sentences,
            ledger=ledger,
            settings=self.settings,
            data_fingerprint=data,
            offset=self.offset,
            local_coefficients=alone,
            **evident,
        )


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
    import pandas as pd

    said = ("family", "method", "covariance", "seed", "splits", "test_fraction", "reml", "cluster_variance", "residual")
    chosen: dict[str, Any] = {option: getattr(options, option) for option in said} | {"fitted": name, **fitted.info}
    chosen |= {"shared": [t for j, t in enumerate(clients.terms) if j not in problem.personal]}
    unknown: dict[str, Any] = {
        "comparison": pd.DataFrame(),
        "client_gains": pd.DataFrame(),
        "recommended": name,
        "reason": "",
    }
    return FitResult(
        model=model_of(name, clients, problem, fitted),
        log_likelihood=float("nan") if fitted.log_likelihood is None else fitted.log_likelihood,
        reml=bool(fitted.info.get("reml", False)),
        loss=problem.family.loss,
        settings={**settings, **chosen},
        versions=dict(versions()),
        **unknown | more,
    )


def model_of(name: str, clients: Clients, problem: GroupedProblem, fitted: Estimates) -> Model:
    """A method's coefficients with the names of clients, clusters and terms."""
    flat = FITTED[name].flat
    levels = () if flat else clients.levels
    return Model(
        method=name,
        family=problem.family.name,
        terms=clients.terms,
        client_name=clients.name,
        labels=clients.labels,
        levels=levels,
        clusters=np.zeros(len(clients), dtype=np.int64) if flat else clients.clusters,
        personal=problem.personal,
        root=fitted.root,
        root_cov=fitted.root_cov,
        nodes=fitted.nodes,
        node_cov=fitted.node_cov,
        client=fitted.client,
        client_cov=fitted.client_cov,
        D_client=fitted.D_client,
        D_levels=fitted.D_levels,
        sigma2=fitted.sigma2,
        client_sigma2=fitted.client_sigma2,
        info=fitted.info,
    )


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    names = ("coterie", "numpy", "scipy", "numba", "pandas", "formulaic")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def described(
    clients: Clients, problem: GroupedProblem, network: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """How clients merge along the path, and how well the network agrees with their finest clusters.

    Paths of more clients than ``DRAWN`` are not followed.

    Parameters
    ----------
    found : mapping
        What the fit says of the network: its edges, lam, and the candidates that were tried for it.
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
