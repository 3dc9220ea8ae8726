"""Groups of clients that are found: by their updates, or by restarts of IFCA.

By updates: every client takes some steps on its own rows from the same model, and sends the direction in which it went,
q numbers; clients whose local steps go the same way are a group. One step is not enough, as first gradients mostly say
what all clients have in common. Halves of clients' rows tell whether there are groups at all.

By restarts: IFCA (Ghosh et al. 2020) is begun several times from models that clients have trained, and the best
training loss is kept. Random first models mostly lead clients into one group. A model that one client trained on its
own rows suits its group best, so that first models of clients from all groups find these at once; whether k clients
drawn at random are from all groups is luck, hence the restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, plural
from coterie.federation import Federation, Site, work
from coterie.lazy_modules import sparse
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.client_work import ModelTransport, finite, merge, train
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.holdout import halves
from coterie.objectives.mean_loss import decode_loss, encode_loss, sizes, value
from coterie.options import Option, checked
from coterie.relations.clusters import by_first


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


SKETCH = 4096
"""Numbers a client sends of its update."""
SAMPLED = 2000
"""Clients among whom all pairs are looked at for the silhouette."""
SIGNIFICANCE = 0.05
"""How often clients that are all alike may be taken for several groups."""
SHUFFLES = 999
"""How often clients are paired at random for that."""


@work
def direction(site: Site, w: Floats, eta: float, steps: int, B: int, q: int, seed: int) -> dict[str, Any]:
    """Where local steps from w lead, as a vector of length 1 (m, q) and its length; zero where they diverge."""
    if np.shape(w) != (site.objective.dim,):
        raise CoterieError(
            f"The common model must be {plural(site.objective.dim, 'number')}, not of shape {np.shape(w)}."
        )
    u, size = _walked(site, site.objective, w, eta, steps, B, q, seed)
    return {"u": u, "size": size}


@work
def halved(site: Site, w: Floats, eta: float, steps: int, B: int, q: int, seed: int) -> dict[str, Any]:
    """The same on either half of a client's rows, (m, 2, q); zero where there are no rows to halve."""
    d = site.objective.dim
    u = np.zeros((len(site), 2, min(q, d) or d))
    for h, half in enumerate(halves(site.objective, site.ids, site.seed)):
        known = sizes(half) > 0.0
        u[known, h] = _walked(site, half, w, eta, steps, B, q, seed, f" {h}")[0][known]
    return {"u": u}


def _walked(
    site: Site, objective: Any, w: Floats, eta: float, steps: int, B: int, q: int, seed: int, half: str = ""
) -> tuple[Floats, Floats]:
    """Where ``steps`` steps on an objective of the site's clients lead, and how far."""
    start = np.tile(w, (len(site), 1))
    theta = train(site, start, eta, steps, 0, B, f"direction rows{half}", objective)
    change = np.where(finite(theta)[:, None], theta - start, 0.0).astype(np.float64)
    size = np.linalg.norm(change, axis=1)
    return sketch(change / np.where(size > 0.0, size, 1.0)[:, None], q, seed), size


def alike(halves: Floats, seed: int = 0) -> float:
    """How often halves of rows would agree as much with the other half of the same client if clients did not differ.

    That is the p-value of a permutation test: the mean cosine of a client's two halves against that with another
    client's second half. It is exact for clients whose rows are drawn alike, and says nothing of *how* clients differ.
    All pairings of 6 clients or fewer, ``SHUFFLES`` and the right one otherwise. ``halves`` (n, 2, q) are directions of
    both halves; what all have in common is taken off: their mean, and all along it, since clients with more rows follow
    it more closely.
    """
    from itertools import permutations

    off = halves - halves.mean(axis=0)
    common = halves.mean(axis=(0, 1))
    length = np.linalg.norm(common)
    common = common / length if length > 0.0 else common
    off = off - (off @ common)[..., None] * common
    size = np.linalg.norm(off, axis=2, keepdims=True)
    off = off / np.where(size > 1e-12, size, np.inf)
    cosines, n = off[:, 0] @ off[:, 1].T, len(off)
    if n <= 6:
        pairs = np.array(list(permutations(range(n))))
    else:
        u = keyed_random.uniform(seed, "pairings", np.arange(SHUFFLES), 0, n)
        pairs = np.concatenate([np.arange(n)[None], np.argsort(u, axis=1)])
    agree = cosines[np.arange(n), pairs].sum(axis=1)
    return float(np.mean(agree >= agree[0] - 1e-9))


@checked
def by_updates(
    fed: Federation,
    w: Floats,
    *,
    eta: Annotated[float, Option(above=0.0)],
    steps: Annotated[int, Option(low=1)] = 50,
    k: Annotated[tuple[int, ...], Option(low=1)] = tuple(range(1, 9)),
    B: Annotated[int, Option(low=0)] = 0,
    q: Annotated[int, Option(low=0)] = SKETCH,
    seed: Annotated[int, Option(low=0)] = 0,
) -> Groups:
    """Cluster normalised updates after several local ``steps`` from the common model w (d,).

    Of several numbers of groups k (1 to 8), the one with the largest mean silhouette (by cosines) is taken. One group
    has none: where 1 is among several, it is what is found if clients do not differ (``alike``), for which they send
    the directions of both halves of their rows, too. Clients send q numbers of a keyed random projection, or all d for
    q = 0; the seed is that of the projection and of k-means' 20 starts.

    Clients that have not moved, or did not answer, are in group -1. ``about`` has the ``directions``, the
    ``partitions`` into each number of groups, and as ``alike`` the p-value of one group, None where it was not looked
    at or cannot be, as rows are not to be halved. A CoterieError for a number of groups not below that of the clients,
    and for one group alone.
    """
    ks = list(k)
    how_far: dict[str, Any] = {"w": np.asarray(w), "eta": float(eta), "steps": steps, "B": B, "q": q, "seed": seed}
    replies = fed.ask(direction, **how_far)
    u = np.zeros((len(fed.clients), replies["u"].shape[1] if replies else 1))
    if replies:
        u[replies.to[replies.rows]] = replies["u"]
    moved = np.flatnonzero((u != 0.0).any(axis=1))
    labels, score = {}, {}
    points = u[moved] / np.linalg.norm(u[moved], axis=1, keepdims=True)
    one, different = len(ks) > 1 and 1 in ks and len(moved) > 0, len(np.unique(points.round(9), axis=0))
    ks = [n for n in ks if 1 < n < min(len(moved), different + 1)]
    if not (ks or one):
        raise CoterieError(
            f"{plural(len(moved), 'client')} sent updates: give a number of groups from 2 to one less than that."
        )
    for n in ks:
        labels[n] = cluster(points, n, seed)
        score[n] = silhouette(points, labels[n], seed)
    p = _differ(fed.ask(halved, to=moved, **how_far), seed) if one else None
    every = {n: _spread(labels[n], moved, len(u)) for n in ks}
    if ks and (p is None or p <= SIGNIFICANCE):
        groups = every[max(ks, key=lambda n: score[n])]
    else:
        groups = _spread(np.zeros(len(moved), dtype=np.int64), moved, len(u))
    return Groups(groups, score, {"directions": u, "partitions": every, "alike": p})


def _differ(replies: Any, seed: int) -> float | None:
    """The p-value of ``alike`` for the clients that have two halves of rows; of ``SAMPLED`` where there are more."""
    both = replies["u"] if replies else np.zeros((0, 2, 1))
    both = both[(both != 0.0).any(axis=2).all(axis=1)].astype(np.float64)
    some = np.argsort(keyed_random.uniform(seed, "alike", [0], 0, max(len(both), 1))[0])[:SAMPLED]
    return alike(both[np.sort(some)], seed) if len(both) > 1 else None


def _spread(labels: Ints, positions: Ints, m: int) -> Ints:
    out = np.full(m, -1, dtype=np.int64)
    out[positions] = labels
    return numbered(out)


def cluster(points: Floats, k: int, seed: int = 0) -> Ints:
    """Labels (m,) of unit vectors (m, q) in k clusters."""
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(k, n_init=20, random_state=seed).fit_predict(points), dtype=np.int64)


def silhouette(points: Floats, labels: Ints, seed: int = 0) -> float:
    """Mean silhouette by cosines; of ``SAMPLED`` random clients where there are more, and -1 if all are alike."""
    from sklearn.metrics import silhouette_score

    some = np.argsort(keyed_random.uniform(seed, "silhouette", [0], 0, len(points))[0])[:SAMPLED]
    points, labels = points[some], labels[some]
    if len(np.unique(labels)) < 2:
        return -1.0
    return float(silhouette_score(points, labels, metric="cosine"))


def sketch(update: Floats, q: int, seed: int = 0) -> Floats:
    """Random projection (m, q) of updates (m, d) that keeps inner products in the mean: a count sketch.

    Every coordinate is added, with a random sign, to one of q sums, which needs O(d) and no matrix; the error of a
    cosine is about ``1 / sqrt(q)``. With q = 0 or q >= d the updates themselves are returned. Charikar, Chen,
    Farach-Colton (2002), Finding frequent items in data streams; Weinberger et al. (2009).
    """
    d = update.shape[1]
    if not 0 < q < d:
        return update
    u = keyed_random.uniform(seed, "sketch", np.zeros(1, dtype=np.uint64), 0, 2 * d)[0]
    place, sign = (u[:d] * q).astype(np.int64), np.where(u[d:] < 0.5, -1.0, 1.0)
    return np.asarray(update @ sparse.csr_array((sign, place, np.arange(d + 1)), shape=(d, q)))


@work
def least_loss(site: Site, w: Floats, transport: ModelTransport) -> dict[str, Floats]:
    """The training loss of the best of the models w (k, d1), with clients' own parts, times the weight of rows."""
    losses = np.array([value(site.objective, merge(site, model, transport)) for model in w])
    return weighed_loss(site, site.objective, encode_loss(losses).min(axis=0))


def training_loss(fed: Federation, w: Floats, transport: ModelTransport | None = None) -> float:
    """Mean training loss over all rows, each client with the one of the models w (k, d1) that suits it best."""
    return mean_loss(fed.total(least_loss, w=w, transport=transport or {}))


def weighed_loss(site: Site, objective: Any, loss: Floats) -> dict[str, Floats]:
    """What a mean of losses (m,) over rows is made from."""
    weight = site.weights * sizes(objective)
    return {"x": np.where(weight > 0.0, weight, 1.0) * np.where(weight > 0.0, encode_loss(loss), 0.0), "w": weight}


def mean_loss(sums: Any) -> float:
    """That mean; infinite where nobody answered."""
    return float(decode_loss(sums["x"] / sums["w"])) if sums and float(sums["w"]) > 0.0 else np.inf


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
        raise CoterieError(f"{plural(m, 'client')} cannot be in {plural(k, 'group')}: give a k of at most {m}.")
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
