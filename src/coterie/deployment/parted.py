"""A site's rows in two: those that a model learns from, and those that are held out to judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.split import split_rows
from coterie.errors import CoterieError
from coterie.federation import Ints
from coterie.numerics.kernels import Bools
from coterie.objectives.glm import GLM
from coterie.results.metrics import objective


@dataclass(frozen=True)
class Parted(GLM):
    """The clients' training rows.

    Attributes
    ----------
    held : GLM
        The same clients' rows that are held out.
    """

    held: GLM = field(kw_only=True)

    @property
    def covers(self) -> Ints:
        """Rows of every client that a sum tells of: the difference from the sum of all rows tells of those held out."""
        return np.minimum(self.counts, self.held.counts)

    def take(self, rows: slice | Ints) -> Parted:
        """The same rows seen as other clients."""
        return replace(self, starts=self.starts[rows], stops=self.stops[rows], held=self.held.take(rows))


def parted(o: GLM, labels: Any, ids: Any, hold: Any) -> tuple[Parted, Bools]:
    """A site's objective with the rows of a split set aside: those that :func:`coterie.fit` holds out with its seed.

    Parameters
    ----------
    o : GLM
        All rows of m clients.
    labels, ids : (m,) array
    hold : dict
        ``seed``, ``repeat`` and ``fraction``, as for :func:`coterie.data.split.split_rows`.

    Returns
    -------
    objective : Parted
    held : (n,) bool
        Which of the rows are held out.
    """
    kinds = {"seed": int, "repeat": int, "fraction": float}
    if not isinstance(hold, Mapping) or {k: type(v) for k, v in hold.items()} != kinds:
        raise CoterieError("A split is a seed, a repeat and a fraction: use one version of coterie at all sites.")
    clients = Clients(
        o.X, o.y, o.offset, o.weights, o.starts, o.stops, (), labels, "", ids, (),
        np.zeros(len(ids), np.int64), np.arange(len(o.y)),
    )  # fmt: skip
    test = split_rows(clients, **hold)
    train, held = (objective(clients.subset(rows), o.family) for rows in (~test, test))
    return Parted(**vars(train), held=held), test
