"""Groups that were found: how they agree with known ones, how well their models do, and how many are best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.local_training.personal_layers import Transport, merge
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.mean_loss import decode_loss, encode_loss, sizes, value
from coterie.relations.clusterings import by_first


@dataclass(frozen=True)
class Groups:
    """Clients in groups."""

    # (m,) group of every client, in the order of ``fed.clients``, counted from 0 in the order of their first clients;
    # -1 for clients that did not answer
    labels: Ints
    # What was tried, and how good it was: number of groups -> silhouette, or held-out or training loss
    score: Mapping[int, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)  # more to tell

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


def correctly_grouped(labels: Ints, known: Ints) -> int:
    """How many clients (m,) are in the right group, groups being matched as well as can be; -1 is never right."""
    from scipy.optimize import linear_sum_assignment

    a, b = np.asarray(labels), np.unique(known, return_inverse=True)[1]
    table = np.zeros((int(a.max(initial=-1)) + 1, int(b.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(table, (a[a >= 0], b[a >= 0]), 1)
    return int(table[linear_sum_assignment(-table)].sum())


@work
def least_loss(site: Site, w: Floats, transport: Transport) -> dict[str, Floats]:
    """The training loss of the best of the models w (k, d1), with clients' own parts, times the weight of rows."""
    losses = np.array([value(site.objective, merge(site, model, transport)) for model in w])
    return _weighed(site, site.objective, encode_loss(losses).min(axis=0))


@work
def model_loss(site: Site, theta: Floats, held: bool) -> dict[str, Floats]:
    """The loss of each client's model theta (m, d) on the rows kept back or those to train on, times their weight."""
    if held and not hasattr(site.objective, "held"):
        raise CoterieError("No rows were kept back to judge by: make the objective with objectives.holdout.hold_out.")
    objective = site.objective.held if held else site.objective
    return _weighed(site, objective, value(objective, theta))


def _weighed(site: Site, objective: Any, loss: Floats) -> dict[str, Floats]:
    weight = site.weights * sizes(objective)
    return {"x": np.where(weight > 0.0, weight, 1.0) * np.where(weight > 0.0, encode_loss(loss), 0.0), "w": weight}


def training_loss(fed: Federation, w: Floats, transport: Transport | None = None) -> float:
    """Mean training loss over all rows, each client with the one of the models w (k, d1) that suits it best."""
    return _mean(fed.total(least_loss, w=w, transport=transport or {}))


def held_loss(fed: Federation, theta: Floats, to: Ints | None = None, held: bool = True) -> float:
    """Mean loss over the rows that clients ``to`` (by default all) keep back, at their models theta (m, d)."""
    to = np.arange(len(fed.clients)) if to is None else to
    return _mean(fed.total(model_loss, to=to, theta=PerRow(theta[to]), held=held))


def _mean(sums: Any) -> float:
    return float(decode_loss(sums["x"] / sums["w"])) if sums and float(sums["w"]) > 0.0 else np.inf


def by_held_out(fed: Federation, partitions: Mapping[int, Ints], *, rounds: int, **training: Any) -> Groups:
    """The partition, labels (m,) by number of groups, whose models lose least on rows that clients keep back.

    The federation's objective keeps rows back (``objectives.holdout.hold_out``; a CoterieError where it does not). A
    model for each group is trained by FedAvg within it, in so many ``rounds`` with ``training`` options of
    ``GroupSGD``; one model for all is tried too. Clients in no group (-1) train in group 0, and are left out of the
    losses. Of the partitions with the least loss it is the one of fewest groups; ``score`` has all losses.
    """
    m = len(fed.clients)
    every, score = {1: np.zeros(m, dtype=np.int64), **partitions}, {}
    for k, labels in sorted(every.items()):
        group = numbered(np.maximum(labels, 0))
        method = GroupSGD(**{"own": "averaged", "weigh": "rows", **training, "group": group})
        state = list(method.run(fed, [rounds]))[-1]
        good = state["status"] == "running"
        theta = np.asarray(method.models(fed, state))
        score[k] = held_loss(fed, theta, np.flatnonzero(labels >= 0)) if good else np.inf
    best = min(score, key=lambda k: (score[k], k))
    return Groups(numbered(every[best]), score)
