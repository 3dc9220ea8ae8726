"""Evidence: every method on the same held-out rows of every client, and paired gains with intervals over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.data.split import split_rows
from coterie.evidence.intervals import bootstrap, less, median_ratio
from coterie.families import Family
from coterie.methods.estimates import Estimates
from coterie.methods.registry import FITTED
from coterie.numerics import keyed_random
from coterie.numerics.kernels import Bools, Floats
from coterie.objectives.mean_loss import totals
from coterie.runs.table_methods import client_losses

if TYPE_CHECKING:
    import pandas as pd

FEW = 10
"""So few clients that a bootstrap over them is not to be trusted."""

Fit = Callable[[Clients], Estimates]


@dataclass(frozen=True)
class Splits:
    """How rows are held out.

    Attributes
    ----------
    count : int
        Repeated splits; one where rows have an order.
    fraction : float
        Share of each client's rows that is tested on.
    seed : int
    order, groups : (n,) arrays or None
        By sorted row: test on the latest rows, or keep rows of the same group together.
    """

    count: int = 5
    fraction: float = 0.25
    seed: int = 0
    order: npt.NDArray[Any] | None = None
    groups: npt.NDArray[Any] | None = None

    def masks(self, clients: Clients) -> Iterator[npt.NDArray[np.bool_]]:
        """Test rows (n,) of every split."""
        for repeat in range(1 if self.order is not None else self.count):
            yield split_rows(clients, self.fraction, self.seed, repeat, self.order, self.groups)


@dataclass(frozen=True)
class Evidence:
    """Held-out losses of methods on the same rows.

    Attributes
    ----------
    losses : dict of (m,) float64
        Sum over splits of each client's held-out losses, by method.
    weight, rows : (m,) float64
        Weights and numbers of the rows tested on, over all splits.
    seconds : dict of float
        Time of a method's quickest fit (the first may have had to compile its kernels).
    family : Family
    seed : int
        Of the splits and of the bootstrap.
    clustered : bool
        Whether there are clusters to tell apart.
    alike : dict of (m,) float64
        Of methods with a prior that `local` does not have: losses of a model of each client's own rows under that
        prior. Their gains over local are measured against it.
    """

    losses: dict[str, Floats]
    weight: Floats
    rows: Floats
    seconds: dict[str, float]
    family: Family
    seed: int = 0
    clustered: bool = False
    alike: dict[str, Floats] = field(default_factory=dict)

    @property
    def tested(self) -> int:
        """Number of clients with a row to test on."""
        return int(np.sum(self.weight > 0))

    def best(self) -> str:
        """The method with the lowest held-out loss over rows; of those that rounding alone tells apart the first."""
        loss = {name: float(np.nan_to_num(each.sum(), nan=np.inf)) for name, each in self.losses.items()}
        least = min(loss.values())
        return next(name for name, value in loss.items() if value <= least + 1e-10 * abs(least))

    def recommended(self) -> str:
        """The method to take: :meth:`best`, or where that ignores the clusters, one with them that may be as good.

        Clients never seen are then answered by their cluster. Of several the one with the lowest loss over rows. With
        fewer clients than ``FEW`` nearly all methods may be as good, which says nothing.
        """
        best, others = self.best(), list[str]()
        if self.clustered and self.tested >= FEW and not has_clusters(best):
            others = [name for name in may_be_as_good(self.table, best) if has_clusters(name)]
        return min(others, key=lambda name: float(self.losses[name].sum()), default=best)

    def mean(self, name: str) -> Floats:
        """Each client's mean held-out loss (m,); NaN where it has no test row."""
        return self._mean(self.losses[name])

    def _mean(self, losses: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.weight > 0, losses / self.weight, np.nan))

    def against(self, other: str, name: str) -> Floats:
        """Each client's mean held-out loss (m,) of the baseline ``other`` that a method is compared with."""
        return self._mean(self.alike.get(name, self.losses[other]) if other == "local" else self.losses[other])

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # a run that diverged has infinite losses, or their squares are
    def table(self) -> pd.DataFrame:
        """One row for each method: see ``FitResult.comparison``."""
        import pandas as pd

        tested = self.weight > 0
        means = {name: self.mean(name)[tested] for name in self.losses}
        best, rows = means[self.best()], []
        for name, mean in means.items():
            row: dict[str, Any] = {"method": name, "loss_rows": self.losses[name].sum() / self.weight.sum()}
            error = mean.std(ddof=min(1, len(mean) - 1)) / len(mean) ** 0.5
            row |= {"loss_clients": mean.mean(), "se_clients": error}
            for other in ("local", "pooled"):
                gain = self.against(other, name)[tested] - mean
                low, high = bootstrap(gain, keyed_random.generator(self.seed, "bootstrap", 0, 0))
                row |= {f"gain_over_{other}": gain.mean(), f"gain_over_{other}_low": low}
                row |= {f"gain_over_{other}_high": high, f"better_than_{other}": float((gain > 0).mean())}
            low, high = bootstrap(mean - best, keyed_random.generator(self.seed, "bootstrap", 0, 0))
            row |= {"behind_best": (mean - best).mean(), "behind_best_low": low, "behind_best_high": high}
            rows.append(row | {"seconds": self.seconds[name]})
        return pd.DataFrame(rows).set_index("method")

    def by_client(self, clients: Clients, recommended: str) -> pd.DataFrame:
        """One row for each client: see ``FitResult.client_gains``."""
        import pandas as pd

        frame: dict[str, Any] = {}
        if clients.levels:
            frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
        frame |= {"rows": clients.counts, "test_rows": self.rows.astype(np.int64)}
        frame |= {f"loss_{other}": self.against(other, recommended) for other in ("local", "pooled")}
        frame["loss_recommended"] = self.mean(recommended)
        for other in ("local", "pooled"):
            frame[f"gain_over_{other}"] = frame[f"loss_{other}"] - frame["loss_recommended"]
        return pd.DataFrame(frame, index=pd.Index(clients.labels, name=clients.name))

    def reason(self, recommended: str, splits: Splits) -> str:
        """Why a method is recommended, and which ones may be as good."""
        each, best = {name: float(v.sum() / self.weight.sum()) for name, v in self.losses.items()}, self.best()
        shown = [name for name in each if name in ("local", "pooled", recommended) and name != best]
        others = [f"{each[name]:.4g} for {name}" for name in shown]
        held = "the latest rows" if splits.order is not None else f"{splits.count} split{'s' * (splits.count > 1)}"
        text = "It has"
        if best != recommended:
            text = f"It has a model of every cluster, for clients never seen, unlike {best}, which has"
        text += f" the lowest held-out {self.family.loss} over rows ({each[best]:.4g}"
        against = f", against {_joined(others)}" if others else ""
        text += f"{against}), on {held} with {100.0 * splits.fraction:.3g}% of each client's rows held out."
        text += self._of_median(recommended)
        if tied := may_be_as_good(self.table, best):
            names = ("Method " if len(tied) == 1 else "Methods ") + _joined(tied)
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


def has_clusters(name: str) -> bool:
    """Whether a method has a model of every cluster."""
    method = FITTED[name]
    return not method.flat and (method.learns or method.clustered or "gamma" in method.takes)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def may_be_as_good(table: pd.DataFrame, recommended: str) -> list[str]:
    """Methods of a comparison, without the recommended one, that cannot be told from that with the lowest loss."""
    behind = table["behind_best_low"] <= 0.0
    return [str(name) for name in table.index[behind] if name != recommended]


def evaluate(
    clients: Clients,
    family: Family,
    fits: Mapping[str, Fit],
    splits: Splits,
    counted: Bools | None = None,
    alike: Mapping[str, Fit] | None = None,
) -> Evidence:
    """Fit every method on the training rows of every split, and test it on the rest.

    Parameters
    ----------
    fits : mapping of callable
        ``fit(training clients) -> Estimates``, by name.
    counted : (m,) bool, optional
        Clients that are tested: main clients, where they are named, for others only lend their rows. By default all.
    alike : mapping of callable, optional
        Of methods with a prior of their own, fits of every client's own rows under that prior.
    """
    m = len(clients)
    losses = {name: np.zeros(m) for name in fits}
    seconds = dict.fromkeys(fits, np.inf)
    weight, rows = np.zeros(m), np.zeros(m)
    own = {name: np.zeros(m) for name in alike or {}}
    for test in splits.masks(clients):
        train, held = clients.split(test)
        weight += totals(held.weights, held.starts, held.stops)
        rows += held.counts
        for name, fit in fits.items():
            start = perf_counter()
            fitted = fit(train)
            seconds[name] = min(seconds[name], perf_counter() - start)
            losses[name] += client_losses(held, family, fitted.client)
        for name in own:
            own[name] += client_losses(held, family, (alike or {})[name](train).client)
    if counted is not None:
        weight, rows = weight * counted, rows * counted
        own = {name: loss * counted for name, loss in own.items()}
        losses = {name: loss * counted for name, loss in losses.items()}
    clustered = any(len(level.labels) > 1 for level in clients.levels)
    return Evidence(losses, weight, rows, seconds, family, splits.seed, clustered, own)
