"""Every method fitted on the training rows of every split, and tested on the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import add
from time import perf_counter

import numpy as np

from coterie.data.clients import Clients
from coterie.evidence.comparison import TableComparison
from coterie.evidence.splits import Splits
from coterie.families import Family
from coterie.methods.estimates import Estimates
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.row_kernels import totals
from coterie.runs.table_methods import client_losses

Fit = Callable[[Clients], Estimates]


def evaluate(
    clients: Clients,
    family: Family,
    fits: Mapping[str, Fit],
    splits: Splits,
    counted: Bools | None = None,
    alike: Mapping[str, Fit] | None = None,
) -> TableComparison:
    """Fit every method on the training rows of every split, and test it on the rest: see :func:`each_split`."""
    return reduce(add, each_split(clients, family, fits, splits, counted, alike))


def each_split(
    clients: Clients,
    family: Family,
    fits: Mapping[str, Fit],
    splits: Splits,
    counted: Bools | None = None,
    alike: Mapping[str, Fit] | None = None,
) -> Iterator[TableComparison]:
    """What the held-out rows of every split say of methods that are fitted on its training rows.

    Parameters
    ----------
    fits : mapping of callable
        ``fit(training clients) -> Estimates``, by name.
    counted : (m,) bool, optional
        Clients that are tested: main clients, where they are named, for others only lend their rows. By default all.
    alike : mapping of callable, optional
        Of methods with a prior of their own, fits of every client's own rows under that prior.
    """
    some: Floats = np.ones(len(clients)) if counted is None else counted.astype(np.float64)
    clustered = any(len(level.labels) > 1 for level in clients.levels)
    for test in splits.masks(clients):
        train, held = clients.split(test)
        losses, seconds = dict[str, Floats](), dict[str, float]()
        for name, fit in fits.items():
            start = perf_counter()
            fitted = fit(train)
            seconds[name] = perf_counter() - start
            losses[name] = client_losses(held, family, fitted.client) * some
        own = {name: client_losses(held, family, fit(train).client) * some for name, fit in (alike or {}).items()}
        weight, rows = totals(held.weights, held.starts, held.stops) * some, held.counts * some
        yield TableComparison(losses, weight, rows, seconds, family, splits.seed, clustered, own)
