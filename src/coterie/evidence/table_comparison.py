"""Methods on the same held-out rows of a table, fitted on the training rows of every split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from time import perf_counter
from typing import Any, Self

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.evidence.comparison import BASELINES, Comparison, Triple, interval_columns
from coterie.evidence.intervals import bootstrap, less, median_ratio
from coterie.evidence.splits import Splits
from coterie.families import Family
from coterie.methods.problem_and_estimates import Estimates
from coterie.methods.registry import FITTED
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.row_kernels import totals
from coterie.runs.run_table_method import client_losses

FEW = 10  # so few clients that a bootstrap over them is not to be trusted

Fit = Callable[[Clients], Estimates]


@dataclass(frozen=True)
class TableComparison(Comparison):
    """Held-out losses of methods on the same rows of a table, over splits, which add up."""

    losses: dict[str, Floats]  # (m,): sum of each client's held-out losses, by method
    weight: Floats  # (m,): of the rows tested on
    rows: Floats  # (m,): how many
    seconds: dict[str, float]  # of a method's quickest fit: the first may have had to compile its kernels
    family: Family
    seed: int = 0  # of the splits and of the bootstrap
    clustered: bool = False  # whether there are clusters to tell apart
    alike: dict[str, Floats] = field(default_factory=dict)
    """Of methods with a prior that `local` does not have: losses of a model of each client's own rows under that prior.
    Their gains over local are measured against it."""

    @property
    def methods(self) -> list[str]:
        """Names, in the order in which they were tried."""
        return list(self.losses)

    @property
    def tested(self) -> int:
        """Number of clients with a row to test on."""
        return int(np.sum(self.weight > 0))

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
            others = [name for name in may_be_as_good(self.table, best) if has_clusters(name)]
        return min(others, key=lambda name: float(self.losses[name].sum()), default=best)

    def mean(self, name: str) -> Floats:
        """Each client's mean held-out loss (m,); NaN where it has no test row."""
        return self._mean(self.losses[name])

    def against(self, other: str, name: str) -> Floats:
        """Each client's mean held-out loss (m,) of the baseline ``other`` that a method is compared with."""
        return self._mean(self.alike.get(name, self.losses[other]) if other == "local" else self.losses[other])

    def _mean(self, losses: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.weight > 0, losses / self.weight, np.nan))

    def __add__(self, other: TableComparison) -> Self:
        """The evidence of two splits together."""
        losses, alike = (
            {name: value + b[name] for name, value in a.items()}
            for a, b in ((self.losses, other.losses), (self.alike, other.alike))
        )
        seconds = {name: min(value, other.seconds[name]) for name, value in self.seconds.items()}
        weight, rows = self.weight + other.weight, self.rows + other.rows
        return replace(self, losses=losses, alike=alike, seconds=seconds, weight=weight, rows=rows)

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
        return row | interval_columns("behind_best", self.behind(name)) | {"seconds": self.seconds[name]}

    def over_clients(self, name: str) -> tuple[float, float]:
        """A method's mean loss over clients, and its standard error."""
        mean = self._tested(self.mean(name))
        return mean.mean(), mean.std(ddof=min(1, len(mean) - 1)) / len(mean) ** 0.5

    def gain(self, name: str, other: str) -> tuple[float, float, float, float]:
        """Its mean gain over a baseline with the interval's ends, and the share of clients that gain."""
        gain = self._tested(self.against(other, name)) - self._tested(self.mean(name))
        return *self._interval(gain), float((gain > 0).mean())

    def behind(self, name: str) -> Triple:
        """How far it is behind the best method in the mean, with the interval's ends."""
        return self._interval(self._tested(self.mean(name)) - self._tested(self.mean(self.best)))

    def _interval(self, values: Floats) -> Triple:
        return values.mean(), *bootstrap(values, self.seed)

    def _tested(self, values: Floats) -> Floats:
        return values[self.weight > 0]

    def by_client(self, clients: Clients, recommended: str) -> pd.DataFrame:
        """One row for each client: see ``FitResult.client_gains``."""
        frame: dict[str, Any] = {}
        if clients.levels:
            frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
        frame |= {"rows": clients.counts, "test_rows": self.rows.astype(np.int64)}
        frame |= {f"loss_{other}": self.against(other, recommended) for other in BASELINES}
        frame["loss_recommended"] = self.mean(recommended)
        frame |= {f"gain_over_{other}": frame[f"loss_{other}"] - frame["loss_recommended"] for other in BASELINES}
        return pd.DataFrame(frame, index=pd.Index(clients.labels, name=clients.name))

    def reason(self, recommended: str, splits: Splits) -> str:
        """Why a method is recommended, and which ones may be as good."""
        each, best = {name: float(v.sum() / self.weight.sum()) for name, v in self.losses.items()}, self.best
        shown = [name for name in each if name in (*BASELINES, recommended) and name != best]
        others = [f"{each[name]:.4g} for {name}" for name in shown]
        held = "the latest rows" if splits.order is not None else f"{splits.count} split{'s' * (splits.count > 1)}"
        text = "It has"
        if best != recommended:
            text = f"It has a model of every cluster, for clients never seen, unlike {best}, which has"
        text += f" the lowest held-out {self.family.loss} over rows ({each[best]:.4g}"
        against = f", against {_listed(others)}" if others else ""
        text += f"{against}), on {held} with {100.0 * splits.fraction:.3g}% of each client's rows held out."
        text += self._of_median(recommended)
        if tied := may_be_as_good(self.table, best):
            names = ("Method " if len(tied) == 1 else "Methods ") + _listed(tied)
            good = "may be as good" if best == recommended else f"may be as good as {best}"
            text += f" {names} {good}: the 95% interval of the difference over clients holds 0."
        if self.tested < FEW:
            text += f" With {self.tested} client{'s' * (self.tested != 1)}, intervals over clients say little."
        return text

    def _of_median(self, recommended: str) -> str:
        """What the median client gains over a model of its own, where losses of single clients are known."""
        other = "pooled" if recommended == "local" else "local"
        if other not in self.losses or self.tested != np.sum(self.weight > 0):
            return ""
        ratio = median_ratio(self.mean(recommended), self.against(other, recommended))
        if np.isnan(ratio):
            return ""
        model = "one model for all" if other == "pooled" else "a model of its own"
        return f" The median client has {less(ratio, 1.0, self.family.loss)} than with {model}."


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
    clustered = any(len(level.labels) > 1 for level in clients.levels)
    for train, held in splits.parts(clients):
        losses, seconds = dict[str, Floats](), dict[str, float]()
        for name, fit in fits.items():
            start = perf_counter()
            fitted = fit(train)
            seconds[name] = perf_counter() - start
            losses[name] = client_losses(held, family, fitted.client) * some
        own = {name: client_losses(held, family, fit(train).client) * some for name, fit in (alike or {}).items()}
        weight, rows = totals(held.weights, held.starts, held.stops) * some, held.counts * some
        yield TableComparison(losses, weight, rows, seconds, family, splits.seed, clustered, own)


def all_splits(parts: Iterable[TableComparison]) -> TableComparison:
    """The evidence of all splits together."""
    return reduce(add, parts)


def has_clusters(name: str) -> bool:
    """Whether a method has a model of every cluster."""
    method = FITTED[name]
    return not method.flat and (method.learns or method.clustered or "gamma" in method.takes)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def may_be_as_good(table: pd.DataFrame, recommended: str) -> list[str]:
    """Methods of a comparison, without the recommended one, that cannot be told from that with the lowest loss."""
    behind = table["behind_best_low"] <= 0.0
    return [str(name) for name in table.index[behind] if name != recommended]
