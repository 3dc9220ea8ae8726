"""Ghosh et al. (2020), IFCA, begun several times from models that clients have trained; the best training loss is kept.

Random first models mostly lead clients into one group. A model that one client trained on its own rows suits its group
best, so that first models of clients from all groups find these at once; whether k clients drawn at random are from all
groups is luck, hence the restarts.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, work
from coterie.methods.groups.evaluation import Groups, numbered, training_loss
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.client_work import finite, train
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option, checked


@work
def first_model(site: Site, w: Floats, eta: float, steps: int, B: int) -> dict[str, Any]:
    """A client's model after some steps of its own from w, and whether it is sound."""
    theta = train(site, np.tile(w, (len(site), 1)), eta, steps, 0, B, "first rows")
    good = finite(theta)
    return {"theta": np.where(good[:, None], theta, w), "good": good}


def draw(ids: npt.NDArray[np.uint64], k: int, restart: int, seed: int) -> Ints:
    """Positions of k different clients, for one restart: who they are does not depend on the order of ``ids`` (m,)."""
    u = keyed_random.uniform(seed, "first clients", ids, restart, 1)[:, 0]
    return np.sort(np.argsort(u, kind="stable")[:k])


@checked
def by_restarts(
    fed: Federation,
    method: IFCA,
    w: Floats,
    *,
    rounds: Annotated[int, Option(low=1)],
    restarts: Annotated[int, Option(low=1)] = 20,
    steps: Annotated[int, Option(low=1)] = 50,
) -> Groups:
    """The groups of the restart with the least training loss; the method says k, step size, steps of a round and seed.

    The clients that make first models, of so many ``steps``, start at w (d,); only those that are drawn send theirs.
    Each restart has so many ``rounds``. ``about`` has ``w`` (k, d), the models without what stays with clients; for
    each restart its ``losses`` and ``labels``; and ``same``, the share of restarts that ended with the partition that
    is returned, which says how likely one restart is to succeed where that is right. A CoterieError for more groups
    than clients, and where no restart ends well.
    """
    m, k, eta = len(fed.clients), method.k, method.rate(0)
    if k > m:
        raise CoterieError(f"{m} clients cannot be in {k} groups: give a k of at most {m}.")
    losses, labels, models = np.full(restarts, np.inf), [], []
    for r in range(restarts):
        drawn = draw(fed.clients.ids, k, r, method.seed)
        first = fed.ask(first_model, to=drawn, w=np.asarray(w), eta=eta, steps=steps, B=method.B)
        if not first or len(first.rows) < k or not first["good"].all():
            labels.append(np.full(m, -1))
            models.append(np.zeros(0))
            continue
        state = list(method.run(fed, [rounds], method.init(fed, np.array(first["theta"]))))[-1]
        if state["status"] == "running":
            losses[r] = training_loss(fed, state["w"], method.transport)
        labels.append(np.asarray(state["group"]))
        models.append(state["w"])
    best = int(np.argmin(losses))
    if not np.isfinite(losses[best]):
        raise CoterieError("No restart of IFCA ended with a finite loss: take smaller steps.")
    partitions = np.array([numbered(one) for one in labels])
    same = (partitions == partitions[best]).all(axis=1)
    about = {"w": models[best], "losses": losses, "labels": partitions, "same": float(same.mean())}
    return Groups(partitions[best], {k: float(losses[best])}, about | {"group": labels[best]})
