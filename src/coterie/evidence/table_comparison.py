"""Methods on the same held-out rows of a table, fitted on the training rows of every split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from time import perf_counter
from typing import Any, Self

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.splits import Splits
from coterie.errors import joined, plural
from coterie.evidence.comparison import (
    BASELINES,
    UNITS,
    Comparison,
    Triple,
    interval,
    interval_columns,
    less,
    losing,
    median_ratio,
    statistic,
)
from coterie.families import Family
from coterie.methods.problem_and_estimates import Estimates
from coterie.methods.registry import FITTED
from coterie.methods.tree.dispersion import shared_dispersions
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.row_kernels import totals
from coterie.runs.run_table_method import client_losses
from coterie.status_line import steps

FEW = 10  # so few clients that nearly all methods may be as good
FEW_UNITS = 5  # without each of which the one model for all is fitted anew: of more, each moves it little
FOLDS = 10  # parts of the clients at most, for each of which the others choose a method

Fit = Callable[[Clients], Estimates]


@dataclass(frozen=True)
class TableComparison(Comparison):
    """Held-out losses of methods on the same rows of a table, over splits.

    Intervals promise the gain that methods fitted on as many rows have in the mean over splits, for new rows, and for
    other units of the top level as for those at hand.
    """

    losses: dict[str, Floats]  # (splits, m): sum of each client's held-out losses, by method
    weight: Floats  # (splits, m): of the rows tested on
    rows: Floats  # (splits, m): how many
    seconds: dict[str, float]  # of a method's quickest fit: the first may have had to compile its kernels
    family: Family
    fraction: float = 0.25  # of each client's rows that a split holds out
    columns: int = 1  # of a client's model
    above: tuple[Ints, ...] = ()  # (m,) each: the cluster of every client at every level, fine to coarse
    alike: dict[str, Floats] = field(default_factory=dict)
    """Of methods with a prior that `local` does not have: losses of a model of each client's own rows under that prior.
    Their gains over local are measured against it."""
    without: Floats | None = None
    """(splits, units, m): losses of one model for all that is fitted without a unit, where they are few."""

    @property
    def methods(self) -> list[str]:
        """Names, in the order in which they were tried."""
        return list(self.losses)

    @cached_property
    def total(self) -> Floats:
        """Weight of each client's rows tested on (m,), over all splits."""
        return np.asarray(self.weight.sum(axis=0))

    @property
    def tested(self) -> int:
        """Number of clients with a row to test on."""
        return int(np.sum(self.total > 0))

    @property
    def clustered(self) -> bool:
        """Whether there are clusters to tell apart."""
        return any(len(node) and np.ptp(node) > 0 for node in self.above)

    @cached_property
    def units(self) -> Ints:
        """Of every tested client what it belongs to at the top: the coarsest level with ``UNITS``, or itself."""
        return top_units(self.above, self.total > 0)

    @property
    def best(self) -> str:
        """The method with the lowest held-out loss over rows; of those that rounding alone tells apart the first."""
        loss = {name: float(np.nan_to_num(each.sum(), nan=np.inf)) for name, each in self.losses.items()}
        least = min(loss.values())
        return next(name for name, value in loss.items() if value <= least + 1e-10 * abs(least))

    def recommended(self) -> str:
        """The method to take: :attr:`best`, or where that ignores the clusters, one with them that may be as good.

        Clients never seen are then answered by their cluster. Of several the one with the lowest loss over rows. With
        fewer clients than ``FEW`` nearly all methods may be as good, which says nothing.
        """
        best, others = self.best, list[str]()
        if self.clustered and self.tested >= FEW and not has_clusters(best):
            others = [name for name in self.losses if has_clusters(name) and self.behind(name)[1] <= 0.0]
        return min(others, key=lambda name: float(self.losses[name].sum()), default=best)

    def mean(self, name: str) -> Floats:
        """Each client's mean held-out loss (m,); NaN where it has no test row."""
        return self._mean(self.losses[name])

    def against(self, other: str, name: str) -> Floats:
        """Each client's mean held-out loss (m,) of the baseline ``other`` that a method is compared with."""
        return self._mean(self.alike.get(name, self.losses[other]) if other == "local" else self.losses[other])

    def _mean(self, losses: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.total > 0, losses.sum(axis=0) / self.total, np.nan))

    def __add__(self, other: TableComparison) -> Self:
        """The evidence of two splits together."""
        losses, alike = (
            {name: np.concatenate([value, b[name]]) for name, value in a.items()}
            for a, b in ((self.losses, other.losses), (self.alike, other.alike))
        )
        seconds = {name: min(value, other.seconds[name]) for name, value in self.seconds.items()}
        weight, rows = (np.concatenate(both) for both in ((self.weight, other.weight), (self.rows, other.rows)))
        each = [part.without for part in (self, other) if part.without is not None]
        without = np.concatenate(each) if len({w.shape[1] for w in each}) == 1 and len(each) == 2 else None
        return replace(self, losses=losses, alike=alike, seconds=seconds, weight=weight, rows=rows, without=without)

    def of(self, names: Collection[str]) -> Self:
        """The same of some of the methods."""
        losses, alike = ({n: v for n, v in each.items() if n in names} for each in (self.losses, self.alike))
        return replace(self, losses=losses, alike=alike, seconds={n: self.seconds[n] for n in losses})

    def row(self, name: str) -> dict[str, Any]:
        """What the table says of a method: see ``FitResult.comparison``."""
        row: dict[str, Any] = {"loss_rows": self.losses[name].sum() / self.weight.sum()}
        row |= dict(zip(("loss_clients", "se_clients"), self.over_clients(name), strict=True))
        for other in BASELINES:
            gain, low, high, better = self.gain(name, other)
            row |= interval_columns(f"gain_over_{other}", (gain, low, high)) | {f"better_than_{other}": better}
        row |= interval_columns("behind_best", self.behind(name))
        row["loss_nested"] = self.nested if name == self.recommended() else row["loss_rows"]
        return row | {"seconds": self.seconds[name]}

    def over_clients(self, name: str) -> tuple[float, float]:
        """A method's mean loss over clients, and its standard error."""
        mean = self._tested(self.mean(name))
        return mean.mean(), mean.std(ddof=min(1, len(mean) - 1)) / len(mean) ** 0.5

    def gain(self, name: str, other: str) -> tuple[float, float, float, float]:
        """Its mean gain over a baseline with the interval's ends, and the share of clients that gain."""
        gain = self._tested(self.against(other, name)) - self._tested(self.mean(name))
        return *self._interval(name, other), float((gain > 0).mean())

    def behind(self, name: str) -> Triple:
        """How far it is behind the best method in the mean, with the interval's ends."""
        return self._interval(self.best, name, alike=False)

    @property
    def _ratio(self) -> float:
        """Of test rows to training rows."""
        return self.fraction / (1.0 - self.fraction)

    def _gains(self, name: str, other: str, alike: bool = True) -> Floats:
        """Sums of paired differences of losses (splits, m), positive where a method has less than another."""
        theirs = self.alike.get(name, self.losses[other]) if alike and other == "local" else self.losses[other]
        return np.asarray(theirs - self.losses[name])

    def _interval(self, name: str, other: str, alike: bool = True) -> Triple:
        """A method's mean gain over another over clients, with its interval."""
        if name == other:
            return 0.0, 0.0, 0.0
        some = self.total > 0
        sums, weight, total = self._gains(name, other, alike)[:, some], self.weight[:, some], self.total[some]
        gain, units, splits = sums.sum(axis=0) / total, self.units, len(sums)
        size = np.bincount(units)
        value, moved = statistic(np.bincount(units, gain)[:, None], size[:, None].astype(np.float64))
        apart = (sums - gain * weight) * (splits / total / len(total))
        changed = np.array([np.bincount(units, one, len(size)) for one in apart])
        moved = moved + self._retrained(name, other)
        return interval(value + changed.sum(axis=1), moved + changed, 1.0, self._ratio, self._unseen(name, other))

    def _retrained(self, name: str, other: str) -> Floats | float:
        """Each unit's influence (m,) on a gain by its part in the one model for all, which few units move."""
        sign = (other == "pooled") - 1.0 * (name == "pooled")
        if self.without is None or sign == 0.0 or self.without.shape[1] != (count := int(self.units.max()) + 1):
            return 0.0
        some = self.total > 0
        lower = (self.losses["pooled"][:, None, some] - self.without[:, :, some]).sum(axis=0) / self.total[some]
        others = self.units != np.arange(count)[:, None]
        influence = (lower * others).sum(axis=1) / others.sum(axis=1) * (sign * (count - 1) / count)
        return np.asarray(influence - influence.mean())

    def _unseen(self, name: str, other: str) -> float:
        """What two methods may differ by in tables alike, where they are one in this: a variance learned to be zero.

        For every column it is what one parameter costs in held-out loss, as in Akaike's criterion.
        """
        least = min(float(self.losses[each].sum()) for each in (name, other))
        noise = least / float(self.weight.sum()) if self.family.any_number else 1.0
        trained = float(self.weight.sum()) / len(self.weight) / self._ratio
        return self.columns * 0.5 * self.family.loss_factor * noise / trained

    @cached_property
    def nested(self) -> float:
        """The loss over rows of choosing: each client's rows are tested by the method that others' rows choose.

        Of up to ``FOLDS`` parts of the units the others choose as :meth:`recommended` does, so that no row has a say in
        what it is tested by, and nothing is fitted for it. NaN where there is one unit.
        """
        units = np.full(len(self.total), -1)
        units[self.total > 0] = self.units
        folds = min(int(units.max()) + 1, FOLDS)
        loss = 0.0 if folds > 1 else np.nan
        for fold in range(folds if folds > 1 else 0):
            out = (units >= 0) & (units % folds == fold)
            chosen = self._without(out).recommended()
            loss += float(self.losses[chosen][:, out].sum())
        return loss / float(self.weight.sum())

    def _without(self, out: Bools) -> Self:
        """The same of other clients than these (m,)."""
        losses, alike = ({n: v[:, ~out] for n, v in each.items()} for each in (self.losses, self.alike))
        above = tuple(node[~out] for node in self.above)
        weight, rows = self.weight[:, ~out], self.rows[:, ~out]
        return replace(self, losses=losses, alike=alike, above=above, weight=weight, rows=rows, without=None)

    def _tested(self, values: Floats) -> Floats:
        return values[self.total > 0]

    def by_client(self, clients: Clients, recommended: str) -> pd.DataFrame:
        """One row for each client: see ``FitResult.client_gains``."""
        frame: dict[str, Any] = {}
        if clients.levels:
            frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
        frame |= {"rows": clients.counts, "test_rows": self.rows.sum(axis=0).astype(np.int64)}
        frame |= {f"loss_{other}": self.against(other, recommended) for other in BASELINES}
        frame["loss_recommended"] = self.mean(recommended)
        frame |= {f"gain_over_{other}": frame[f"loss_{other}"] - frame["loss_recommended"] for other in BASELINES}
        for other in BASELINES:
            frame[f"worse_than_{other}"] = losing(self._gains(recommended, other), self.weight, self._ratio)
        return pd.DataFrame(frame, index=pd.Index(clients.labels, name=clients.name))

    def reason(self, recommended: str, splits: Splits) -> str:
        """Why a method is recommended, and which ones may be as good."""
        each, best = {name: float(v.sum() / self.weight.sum()) for name, v in self.losses.items()}, self.best
        shown = [name for name in each if name in (*BASELINES, recommended) and name != best]
        others = [f"{each[name]:.4g} for {name}" for name in shown]
        held = "the latest rows" if splits.order is not None else plural(splits.count, "split")
        held += f" with {100.0 * splits.fraction:.3g}% of each client's rows held out"
        held = held if splits.given is None else "the rows given to test on"
        text = f"{recommended} has"
        if best != recommended:
            text += f" a model of every cluster, for clients never seen, unlike {best}, which has"
        text += f" the lowest held-out {self.family.loss} over rows ({each[best]:.4g}"
        against = f", against {joined(others)}" if others else ""
        text += f"{against}), on {held}."
        text += self._of_median(recommended)
        if tied := may_be_as_good(self.table, best):
            names = ("Method " if len(tied) == 1 else "Methods ") + joined(tied)
            good = "may be as good" if best == recommended else f"may be as good as {best}"
            who = "clients" if len(np.unique(self.units)) == len(self.units) else "clusters"
            text += f" {names} {good}: the 95% interval of the difference over {who} holds 0."
        if np.isfinite(self.nested):
            text += f" Where other clients' rows choose the method for each, the loss is {self.nested:.4g}."
        if self.tested < FEW:
            text += f" With {plural(self.tested, 'client')}, intervals over clients say little."
        return text

    def _of_median(self, recommended: str) -> str:
        """What the median client gains over a model of its own, where losses of single clients are known."""
        other = "pooled" if recommended == "local" else "local"
        if other not in self.losses or self.tested != len(self._tested(self.total)):
            return ""
        ratio = median_ratio(self.mean(recommended), self.against(other, recommended))
        if np.isnan(ratio):
            return ""
        model = "one model for all" if other == "pooled" else "a model of its own"
        text = f" The median client has {less(ratio, 1.0, self.family.loss)} than with {model}."
        gains = np.sort(np.abs(self._tested(self.against(other, recommended) - self.mean(recommended))))[::-1]
        with np.errstate(invalid="ignore", divide="ignore"):  # no gains, or infinite ones
            share = np.cumsum(gains) / gains.sum()
        few = int(np.sum(share <= 0.5)) + 1
        if few <= self.tested // FEW and share[few - 1] > 0.5:
            text += f" Against that {few:,} of {self.tested:,} clients account for {100.0 * share[few - 1]:.0f}%"
            text += " of all gains and losses: the mean gain and its interval rest on them."
        return text


def each_split(
    clients: Clients,
    family: Family,
    fits: Mapping[str, Fit],
    splits: Splits,
    counted: Bools | None = None,
    alike: Mapping[str, Fit] | None = None,
) -> Iterator[TableComparison]:
    """What the held-out rows of every split say of methods that are fitted on its training rows.

    ``counted`` (m,) are the clients that are tested: main clients, where they are named, for others only lend their
    rows. ``alike`` are, of methods with a prior of their own, fits of every client's own rows under that prior.
    """
    some: Floats = np.ones(len(clients)) if counted is None else counted.astype(np.float64)
    above = paths(clients.clusters, [level.parent for level in clients.levels])
    for train, held in steps(splits.parts(clients), splits.count, "Splits"):
        losses, seconds = dict[str, Floats](), dict[str, float]()
        with shared_dispersions():
            for name, fit in fits.items():
                start = perf_counter()
                fitted = fit(train)
                seconds[name] = perf_counter() - start
                losses[name] = client_losses(held, family, fitted.client) * some
            own = {name: client_losses(held, family, fit(train).client) * some for name, fit in (alike or {}).items()}
            weight, rows = totals(held.weights, held.starts, held.stops) * some, held.counts * some
            without = _without(fits, train, held, family, above, weight > 0.0)
        found, own = ({name: loss[None] for name, loss in each.items()} for each in (losses, own))
        given = (found, weight[None], rows[None], seconds, family, splits.fraction, clients.X.shape[1], above, own)
        yield TableComparison(*given, without=without)


def _without(
    fits: Mapping[str, Fit], train: Clients, held: Clients, family: Family, above: Sequence[Ints], tested: Bools
) -> Floats | None:
    """Losses (1, units, m) of one model for all without each of few units, see ``TableComparison.without``."""
    losses = []
    for left in without_each(above, tested) if "pooled" in fits else ():
        fitted = fits["pooled"](train.subset(left[train.codes]))
        losses.append(np.where(tested, client_losses(held, family, fitted.client), 0.0))
    return np.stack(losses)[None] if losses else None


def without_each(above: Sequence[Ints], tested: Bools) -> list[Bools]:
    """The clients (m,) that are left without each of few units; nothing where they are many, or one."""
    units, at = top_units(above, tested), np.flatnonzero(tested)
    if not 1 < (count := len(np.unique(units))) <= FEW_UNITS:
        return []
    return [~np.isin(np.arange(len(tested)), at[units == k]) for k in range(count)]


def top_units(above: Sequence[Ints], some: Bools) -> Ints:
    """Of every client that is tested (m,) bool what it belongs to at the coarsest level with ``UNITS``, or itself."""
    for node in reversed(above):
        found, at = np.unique(node[some], return_inverse=True)
        if len(found) >= UNITS:
            return np.asarray(at)
    return np.arange(int(np.sum(some)))


def paths(clusters: Ints, parents: Sequence[Ints]) -> tuple[Ints, ...]:
    """The cluster (m,) of every client at every level, fine to coarse."""
    out = [clusters] * bool(parents)
    for level in parents[:-1]:
        out.append(level[out[-1]])
    return tuple(out)


def all_splits(parts: Iterable[TableComparison]) -> TableComparison:
    """The evidence of all splits together."""
    return reduce(add, parts)


def has_clusters(name: str) -> bool:
    """Whether a method has a model of every cluster."""
    method = FITTED.get(name)
    return method is not None and not method.flat and (method.learns or method.clustered or "gamma" in method.takes)


def may_be_as_good(table: pd.DataFrame, recommended: str) -> list[str]:
    """Methods of a comparison, without the recommended one, that cannot be told from that with the lowest loss."""
    behind = table["behind_best_low"] <= 0.0
    return [str(name) for name in table.index[behind] if name != recommended]
