"""What looks for groups gives: who is in which, and what else was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.numerics.kernels import Ints
from coterie.relations.agreement import by_first


@dataclass(frozen=True)
class Groups:
    """Clients in groups.

    Attributes
    ----------
    labels : (m,) int64
        Group of every client, in the order of ``fed.clients``, counted from 0 in the order of their first clients;
        -1 for clients that did not answer.
    score : dict
        What was tried, and how good it was: number of groups -> silhouette, or held-out or training loss.
    about : dict
        More to tell.
    """

    labels: Ints
    score: Mapping[int, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def k(self) -> int:
        """Number of groups."""
        return int(self.labels.max(initial=-1)) + 1

    @property
    def sizes(self) -> Ints:
        """Clients in every group (k,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.k)


def numbered(labels: Ints) -> Ints:
    """The same partition counted in the order of first clients; -1 stays."""
    out = np.full(len(labels), -1, dtype=np.int64)
    there = labels >= 0
    if there.any():
        out[there] = by_first(labels[there])
    return out


def right(labels: Ints, known: Ints) -> int:
    """How many clients are in the right group, groups being matched as well as can be (m at most).

    Parameters
    ----------
    labels, known : (m,)
        Groups that were found, and those that are true; -1 is never right.
    """
    from scipy.optimize import linear_sum_assignment

    a, b = np.asarray(labels), np.unique(known, return_inverse=True)[1]
    table = np.zeros((int(a.max(initial=-1)) + 1, int(b.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(table, (a[a >= 0], b[a >= 0]), 1)
    return int(table[linear_sum_assignment(-table)].sum())
