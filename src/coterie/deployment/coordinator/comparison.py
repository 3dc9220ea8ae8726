"""The comparison of a deployed fit: rows are held out at the sites, whose losses alone come back, as sums if need be.

Models of single clients stay at the sites, except of methods that bring them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.deployment.site.holdout import baselines, losses, moments
from coterie.engines.policy import Refused
from coterie.engines.remote_federation import Remote
from coterie.evidence.comparison import BASELINES, Triple
from coterie.evidence.splits import Splits
from coterie.evidence.table_comparison import TableComparison
from coterie.federation import PerRow, require_all_replies
from coterie.methods import local, pooled
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED
from coterie.methods.tree.penalised_tree import prepare
from coterie.numerics.arrays import Floats
from coterie.results.fit_result import FitResult

Fit = Callable[[Remote], Estimates]
Hold = Callable[[Mapping[str, Any]], Remote]


@dataclass(frozen=True)
class Summed(TableComparison):
    """A comparison of which only sums over all clients are known, so that intervals are normal ones.

    ``sums`` are over the tested clients: their number "tested"; "mean" and "square" (methods,) of their mean losses;
    "apart" (methods, methods), squared gains of each over each; "better", how many gain.
    """

    sums: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tested(self) -> int:
        """Number of clients with a row to test on."""
        return int(self.sums["tested"])

    def over_clients(self, name: str) -> tuple[float, float]:
        """A method's mean loss over clients, and its standard error."""
        at = self.methods.index(name)
        mean = float(np.asarray(self.sums["mean"])[at] / self.tested)
        return mean, self._error(self.sums["square"][at], mean)

    def gain(self, name: str, other: str) -> tuple[float, float, float, float]:
        """Its mean gain over a baseline with the interval's ends, and the share of clients that gain."""
        better = self.sums["better"][self.methods.index(name), BASELINES.index(other)]
        return *self._paired(other, name), float(better) / self.tested

    def behind(self, name: str) -> Triple:
        """How far it is behind the best method in the mean, with the interval's ends."""
        return self._paired(name, self.best)

    def _paired(self, worse: str, better: str) -> Triple:
        gain = self.over_clients(worse)[0] - self.over_clients(better)[0]
        if self.tested < 2:
            return gain, float("nan"), float("nan")
        half = 1.96 * self._error(self.sums["apart"][self.methods.index(better), self.methods.index(worse)], gain)
        return gain, gain - half, gain + half

    def _error(self, square: Any, mean: float) -> float:
        """Standard error of a mean over the tested clients, from the sum of squares."""
        n = self.tested
        return float(np.sqrt(max(float(square) - n * mean**2, 0.0) / max(n - 1, 1) / n))


def compare_on_holdout(
    result: FitResult,
    clients: Clients,
    fit: Fit,
    fed: Remote,
    hold: Hold,
    problem: GroupedProblem,
    splits: Splits,
    secure: bool,
    each: bool,
) -> FitResult:
    """A result with held-out losses of its method, of every client alone, and of all together.

    ``clients`` are all with their numbers of rows; ``fit(federation)`` gives the method's estimates; ``hold(split)``
    opens the run whose sites set the rows of a split aside, with the same clients as ``fed`` has. Where sums are masked
    (``secure``), nothing of single clients is to be seen; ``each`` says that the method asks clients one by one. There
    is no comparison where sites would not speak of so few held-out rows, and fewer splits where they do not speak of
    one that differs from others by so few; a note says so.
    """
    kept, alone, made = None, True, 0
    cost: dict[str, float] = dict.fromkeys(("exchanges", "bytes_down", "bytes_up"), 0)
    why = "of some {} at a site they are fewer than its min_group"
    while made < splits.count and alone:
        part = hold({"seed": splits.seed, "repeat": made, "fraction": float(splits.fraction)})
        if not np.array_equal(part.clients.ids, fed.clients.ids):
            why = "other clients were there than in the fit"
            break
        groups, clear = disclosable(part)
        if not groups or ((each or made) and not clear):
            why = why.format("client" if groups else "cluster")
            break
        alone = clear and not secure
        try:
            found = _split(result.method, fit, part, problem, splits, alone)
        except Refused as refused:
            why = f"sites refuse it: {str(refused).rstrip('.')}"
            break
        finally:
            cost = {key: value + part.ledger.as_dict()[key] for key, value in cost.items()}
        kept, made = found if kept is None else kept + found, made + 1
    if kept is None:
        return replace(result, notes=[*result.notes, f"No rows were held out: {why}."])
    left = "client by client" if alone else "as sums over clients, so that intervals are normal ones"
    note = f"Held-out rows stayed at the sites; their losses left {left}, after {cost['exchanges']:,} more exchanges."
    if made < splits.count:
        note += f" Of {splits.count} splits {made} {'was' if made == 1 else 'were'} made."
    best = kept.recommended()
    return replace(
        result,
        comparison=kept.table,
        client_gains=kept.by_client(clients, best) if alone else result.client_gains,
        recommended=best,
        reason=kept.reason(best, replace(splits, count=made)),
        notes=[*result.notes, note],
        settings=result.settings | {"splits": made, "test_fraction": splits.fraction, "held_out": cost},
    )


def disclosable(fed: Remote) -> tuple[bool, bool]:
    """Whether all sites will speak of every cluster that they have, and of every client: ``min_group`` allows it."""
    groups = clients = True
    for name, rows in zip(fed.names, fed.sites, strict=True):
        least = int(fed.participants.info[name].get("min_group", 0))
        covers, at = fed.participants.counts[rows], fed.clients.clusters[rows]
        present = np.unique(at, return_inverse=True)[1]
        groups &= bool(np.all(np.bincount(present, covers) >= least))
        clients &= bool(np.all(covers >= least))
    return groups, clients


def _split(name: str, fit: Fit, fed: Remote, problem: GroupedProblem, splits: Splits, alone: bool) -> TableComparison:
    """One split: the baselines, the method, and what comes back of their losses."""
    fed.reveals = False  # type: ignore[attr-defined]  # clients keep their coefficients
    early, took = None, perf_counter()
    if FITTED[name].rounds:  # its clients must find nothing of the baselines in their state, nor these of it
        fed.mark("untouched")
        early = fit(fed)
        fed.restore("untouched")
    took = perf_counter() - took
    start = perf_counter()
    root, where = _baselines(fed, problem)
    require_all_replies(fed.total(baselines, root=root, **where))
    seconds = dict.fromkeys(BASELINES, perf_counter() - start)
    names, sent = list(BASELINES), dict[str, Any]()
    if name not in BASELINES:
        start = perf_counter()
        fitted = fit(fed) if early is None or not len(early.client) else early
        names.append(name)
        seconds[name] = took + perf_counter() - start
        sent = {"theta": PerRow(fitted.client)} if len(fitted.client) else {}
    sent["fitted"] = len(names) > 2
    told = require_all_replies(fed.ask(losses, **sent) if alone else fed.total(moments, **sent))
    values = np.atleast_2d(told["losses"])
    found = {n: np.array(values[:, i]) for i, n in enumerate(names)}
    weight, rows = (np.atleast_1d(np.asarray(told[k], dtype=np.float64)) for k in ("weight", "rows"))
    clustered = any(size > 1 for size in problem.tree.sizes)
    given = (found, weight, rows, seconds, problem.family, splits.seed, clustered)
    return TableComparison(*given) if alone else Summed(*given, sums=dict(told))


def _baselines(fed: Remote, problem: GroupedProblem) -> tuple[Floats, dict[str, Any]]:
    """Fit every client alone and all together: the parameters of all (p,), and where clients find their own."""
    if not problem.family.is_quadratic:
        return local.fit(fed, problem).root, {}
    root = pooled.fit(fed, problem).root  # as `local.fit`, whose clients would send their parameters
    setup = prepare(fed, problem.tree, problem.family, np.arange(len(root)), problem.intercept)
    where: dict[str, Any] = {"unit": setup.unit, "origin": setup.raw(np.zeros(len(root)))}
    require_all_replies(fed.total(local.least_squares, table=setup.table, origin=setup.origin))
    return root, where
