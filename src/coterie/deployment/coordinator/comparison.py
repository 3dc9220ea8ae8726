"""The comparison of a deployed fit: rows are held out at the sites, whose losses alone come back, as sums if need be.

Models of single clients stay at the sites, except of methods that bring them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.splits import Splits
from coterie.deployment.site.holdout import baselines, keep, losses, moments
from coterie.engines.retry_and_quorum import BelowQuorum, Refused
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError, NotAll
from coterie.evidence.comparison import BASELINES, Triple
from coterie.evidence.table_comparison import TableComparison, all_splits, paths, without_each
from coterie.federation import PerRow, require_all_replies
from coterie.lazy_modules import special
from coterie.methods import local, pooled
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED
from coterie.methods.tree.dispersion import shared_dispersions
from coterie.methods.tree.penalised_tree import prepare
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.queries import Among
from coterie.relations.clusters import ClusterTree
from coterie.results.fit_result import FitResult
from coterie.status_line import steps

Fit = Callable[[Remote], Estimates]
ALIKE = "alike:"
"""How what is kept of a method's own baseline begins: models of clients' own rows under the prior that it has."""


@dataclass(frozen=True)
class Summed(TableComparison):
    """A comparison of which only sums over all clients are known, so that intervals are over clients, not clusters.

    ``sums`` are over the tested clients: their number "tested"; of the losses ``order``, "mean" and "square" of
    clients' means; "apart", squared gains of each over each; "better", how many gain.
    """

    sums: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def tested(self) -> int:
        """Number of clients with a row to test on."""
        return int(self.sums["tested"])

    def over_clients(self, name: str) -> tuple[float, float]:
        """A method's mean loss over clients, and its standard error."""
        at = self.order.index(name)
        mean = float(np.atleast_1d(self.sums["mean"])[at] / self.tested)
        return mean, self._error(np.atleast_1d(self.sums["square"])[at], mean)

    def gain(self, name: str, other: str) -> tuple[float, float, float, float]:
        """Its mean gain over a baseline with the interval's ends, and the share of clients that gain."""
        if other == "local" and f"{ALIKE}{name}" in self.order:
            other = f"{ALIKE}{name}"
        better = self.sums["better"][self.order.index(name), self.order.index(other)]
        return *self._paired(other, name), float(better) / self.tested

    def behind(self, name: str) -> Triple:
        """How far it is behind the best method in the mean, with the interval's ends."""
        return self._paired(name, self.best)

    @cached_property
    def units(self) -> Ints:
        """The tested clients, whatever clusters they are in: sums do not tell them apart."""
        return np.arange(self.tested)

    @cached_property
    def nested(self) -> float:
        """Not known: no client's losses are, which others could be chosen by."""
        return float("nan")

    def _paired(self, worse: str, better: str) -> Triple:
        gain = self.over_clients(worse)[0] - self.over_clients(better)[0]
        if self.tested < 2:
            return gain, float("nan"), float("nan")
        apart = self.sums["apart"][self.order.index(better), self.order.index(worse)]
        least = self._unseen(*(name.removeprefix(ALIKE) for name in (better, worse)))
        half = float(np.hypot(special.stdtrit(self.tested - 1, 0.975) * self._error(apart, gain), least))
        return gain, gain - half, gain + half

    def _error(self, square: Any, mean: float) -> float:
        """Standard error of a mean over the tested clients, from the sum of squares."""
        n = self.tested
        return float(np.sqrt(max(float(square) - n * mean**2, 0.0) / max(n - 1, 1) / n))


@dataclass(frozen=True)
class Evidence:
    """What held-out rows said: ``found``, None where none were, of each split, its cost, and what to say of it."""

    found: TableComparison | None
    splits: Splits  # that were made
    notes: list[str]
    cost: dict[str, float]
    parts: tuple[TableComparison, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether losses are known client by client."""
        return self.found is not None and not isinstance(self.found, Summed)

    def beside(self, result: FitResult, clients: Clients) -> FitResult:
        """A result with this evidence."""
        notes = [*result.notes, *self.notes]
        if self.found is None:
            return replace(result, notes=notes)
        best, made = self.found.recommended(), self.splits
        said = {"splits": made.count, "test_fraction": made.fraction, "held_out": self.cost}
        return replace(
            result,
            comparison=self.found.table,
            client_gains=self.found.by_client(clients, best) if self.alone else result.client_gains,
            recommended=best,
            reason=self.found.reason(best, made),
            notes=notes,
            settings=result.settings | said,
        )


@dataclass(frozen=True)
class Comparing:
    """Methods to be compared over the sites, beside `local` and `pooled`.

    ``fits`` are fits by name, ``alike`` those of a method's own baseline; ``opened(part, hold=split)`` opens the part
    of the run whose sites set the rows of a split aside. Where sums are masked (``secure``), nothing of single clients
    is to be seen; ``each`` are the methods that ask clients one by one. ``counted`` (m,) are the clients that are
    tested; None for all.
    """

    fits: Mapping[str, Fit]
    alike: Mapping[str, Fit]
    opened: Callable[..., Remote]
    problem: GroupedProblem
    splits: Splits
    secure: bool
    each: frozenset[str]
    counted: Bools | None = None
    by: Mapping[str, str] = field(default_factory=dict)
    """The column that says which rows are held out, by the option that names it."""

    def over(self, fed: Remote) -> Evidence:
        """The evidence, of the clients that ``fed`` has, too.

        There is none where sites would not speak of so few held-out rows, and of fewer splits where they do not speak
        of one that differs from others by so few; of several methods, one that a site does not answer is left out.
        """
        parts, alone = list[TableComparison](), True
        once = {"order_by", "given_split"} & self.by.keys()  # which are one split
        splits = replace(self.splits, count=1) if once else self.splits
        cost: dict[str, float] = dict.fromkeys(("exchanges", "bytes_down", "bytes_up"), 0)
        why, names, out = "of some {} at a site they are fewer than its min_group", list(self.fits), dict[str, str]()
        for _ in steps(range(splits.count), splits.count, "Splits"):
            if not alone:
                break
            split: dict[str, Any] = {"seed": splits.seed, "repeat": len(parts), "fraction": float(splits.fraction)}
            split |= {"by": dict(self.by)} if self.by else {}
            part = self.opened(f"split{len(parts)}", hold=split)
            if not np.array_equal(part.clients.ids, fed.clients.ids):
                why = "other clients were there than in the fit"
                break
            groups, clear = disclosable(part)
            if not clear and len(names) > 1:
                out |= dict.fromkeys(self.each, "asks clients one by one, some of whom have too few held-out rows")
                names = [name for name in names if name not in out]
            if not groups or ((self.each & {*names} or parts) and not clear):
                why = why.format("client" if groups else "cluster")
                break
            alone = clear and not self.secure
            try:
                with shared_dispersions():
                    parts.append(_Split(self, part, alone, names, out).made())
            except Refused as refused:
                why = f"sites refuse it: {str(refused).rstrip('.')}"
                break
            finally:
                cost = {key: value + part.ledger.as_dict()[key] for key, value in cost.items()}
        notes = [f"Left out: {name}, which {reason}." for name, reason in out.items()]
        if not parts:
            return Evidence(None, splits, [*notes, f"No rows were held out: {why}."], cost)
        left = "client by client" if alone else "as sums over clients, over whom intervals are"
        note = (
            f"Held-out rows stayed at the sites; their losses left {left}, after {cost['exchanges']:,} more exchanges."
        )
        if (made := len(parts)) < splits.count:
            note += f" Of {splits.count} splits {made} {'was' if made == 1 else 'were'} made."
        parts = [part.of([*BASELINES, *names]) for part in parts]
        return Evidence(all_splits(parts), replace(splits, count=made), [*notes, note], cost, tuple(parts))


def disclosable(fed: Remote) -> tuple[bool, bool]:
    """Whether all sites will speak of every cluster that they have, and of every client: ``min_group`` allows it."""
    groups = clients = True
    if (told := getattr(fed, "participants", None)) is None:  # actors, which are of one owner
        return groups, clients
    for name, rows in zip(fed.names, fed.sites, strict=True):
        least = told.info[name].get("min_group", 0)
        covers, at = told.counts[rows], fed.clients.clusters[rows]
        present = np.unique(at, return_inverse=True)[1]
        groups &= bool(np.all(np.bincount(present, covers) >= least))
        clients &= bool(np.all(covers >= least))
    return groups, clients


@dataclass
class _Split:
    """One split; ``names`` are the methods, of which those that fail are moved to those left ``out``, and why."""

    asked: Comparing
    fed: Remote
    alone: bool
    names: list[str]
    out: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    columns: int = 1

    def made(self) -> TableComparison:
        """The baselines, the methods, and what comes back of their losses."""
        fed, problem, asked = self.fed, self.asked.problem, self.asked
        own = {f"{ALIKE}{name}": fit for name, fit in asked.alike.items() if name in self.names}
        every = {name: asked.fits[name] for name in self.names if name not in BASELINES} | own
        theta: dict[str, Floats] = {}
        if any(map(_over_rounds, every)):
            fed.mark("untouched")
        for name in filter(_over_rounds, every):  # whose clients must find nothing of others in their state
            if (fitted := self._fitted(name, every[name])) is not None and len(fitted.client):
                theta[name] = fitted.client
            fed.restore("untouched")
        start, fed.reveals = perf_counter(), False  # type: ignore[attr-defined]
        root, where = _baselines(fed, problem)
        self.columns = len(root)
        require_all_replies(fed.total(baselines, root=root, **where))
        self.seconds |= dict.fromkeys(BASELINES, perf_counter() - start)
        for name, fit in every.items():
            if name in theta:
                require_all_replies(fed.total(keep, name=name, theta=PerRow(theta[name])))
            elif name not in self.out and (fitted := self._fitted(name, fit)) is not None:
                sent: dict[str, Any] = {"theta": PerRow(fitted.client)} if len(fitted.client) else {}
                require_all_replies(fed.total(keep, name=name, **sent))
        self.names[:] = [name for name in self.names if name not in self.out]
        return self._told([*BASELINES, *(name for name in every if name.removeprefix(ALIKE) not in self.out)])

    def _fitted(self, name: str, fit: Fit) -> Estimates | None:
        """What a method makes of the training rows; None where it is left out, beside others."""
        start = perf_counter()
        # clients keep their coefficients, but for a method that needs them
        self.fed.reveals = FITTED[name.removeprefix(ALIKE)].corrected is not None  # type: ignore[attr-defined]
        try:
            return fit(self.fed)
        except CoterieError as problem:
            away = isinstance(problem, NotAll | BelowQuorum) and not isinstance(problem, Refused)
            if len(self.asked.fits) < 2 or away:
                raise
            self.out[name.removeprefix(ALIKE)] = f"cannot be fitted over these sites ({str(problem).rstrip('.')})"
            return None
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

    def _told(self, names: list[str]) -> TableComparison:
        """The losses that come back, of clients that are tested."""
        fed, asked = self.fed, self.asked
        told = fed.ask(losses, names=names) if self.alone else fed.total(moments, to=asked.counted, names=names)
        told = require_all_replies(told)
        some = np.ones(1) if asked.counted is None or not self.alone else asked.counted.astype(np.float64)
        values = np.atleast_2d(told["losses"])
        found = {n: (values[:, i] * some)[None] for i, n in enumerate(names)}
        weight, rows = ((np.atleast_1d(np.asarray(told[k], dtype=np.float64)) * some)[None] for k in ("weight", "rows"))
        alike = {n.removeprefix(ALIKE): found.pop(n) for n in names if n.startswith(ALIKE)}
        seconds = {n: self.seconds[n] for n in found}
        above, columns = paths(fed.clients.clusters, asked.problem.tree.parents), self.columns
        given = (found, weight, rows, seconds, asked.problem.family, asked.splits.fraction, columns, above, alike)
        if not self.alone:
            return Summed(*given, sums=dict(told), order=tuple(names))
        return TableComparison(*given, without=self._without(above, weight[0] > 0.0))

    def _without(self, above: Sequence[Ints], tested: Bools) -> Floats | None:
        """Losses of one model for all without each of few units, as of a table."""
        problem, losing = replace(self.asked.problem, tree=ClusterTree()), list[str]()
        for left in without_each(above, tested):
            root = FITTED["pooled"].fit(Among(self.fed, left), problem).root
            losing.append(f"pooled without {len(losing)}")
            require_all_replies(self.fed.total(keep, name=losing[-1], theta=root))
        if not losing:
            return None
        told = require_all_replies(self.fed.ask(losses, names=losing))
        return np.where(tested, np.asarray(told["losses"]).T, 0.0)[None]


def _over_rounds(name: str) -> bool:
    return bool(FITTED[name.removeprefix(ALIKE)].rounds)


def _baselines(fed: Remote, problem: GroupedProblem) -> tuple[Floats, dict[str, Any]]:
    """Fit every client alone and all together: the parameters of all (p,), and where clients find their own."""
    if not problem.family.is_quadratic:
        everyone = FITTED["pooled"].fit(fed, problem) if problem.family.unknown else None  # has a dispersion of its own
        found: Estimates = FITTED["local"].fit(fed, problem)
        return (found if everyone is None else everyone).root, {}
    root = pooled.fit(fed, problem).root  # as `local.fit`, whose clients would send their parameters
    setup = prepare(fed, problem.tree, problem.family, np.arange(len(root)), problem.intercept)
    where: dict[str, Any] = {"unit": setup.unit, "origin": setup.raw(np.zeros(len(root)))}
    require_all_replies(fed.total(local.least_squares, table=setup.table, origin=setup.origin))
    return root, where
