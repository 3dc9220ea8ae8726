"""Rows of nets held out where they are: which rows, what a site tells of its model, and how good models are on them.

A comparison of methods is a run for every seed (``<run>.seed0``), whose objectives have the rows that are held out
beside those to train on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.partition import ClientRows
from coterie.data.splits import KeyedRows
from coterie.deployment.site.disclosure import Behind, TooFew, nameless
from coterie.deployment.site.holdout import Cut
from coterie.errors import CoterieError
from coterie.federation import Site, work
from coterie.methods.knn_per import remember
from coterie.methods.registry import TRAINED
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives import parameters
from coterie.objectives.gradient_steps import RowRanges
from coterie.objectives.holdout import HeldOut, set_aside
from coterie.objectives.mean_loss import LIMIT, OVERFLOW, sizes
from coterie.objectives.mixed import padded
from coterie.runs.config import Config
from coterie.runs.model_objective import SCORED, need_bounded, objective_of, own
from coterie.runs.scores_over_clients import Rule, Scores, counts

CLASSES = 256
"""Classes of outcomes that are counted; of more, no share is known."""


def held_out(objective: Any, ids: Any, hold: Any, rows: str) -> tuple[HeldOut, tuple[Behind, ...]]:
    """A site's objective with rows set aside, and the rows of both sides; where its code has held some out, these are.

    ``hold`` is a :class:`~coterie.deployment.site.holdout.Cut`; ``rows`` is one name for the same rows in all runs,
    whose splits must not differ by few of them.
    """
    cut = Cut.of(hold)
    if cut.by:
        raise CoterieError("Rows of the site's own code have no columns to split by: leave these out.")
    held = objective.held if isinstance(objective, HeldOut) else None
    if held is not None:
        if not cut.depth:
            return objective, ()
        objective, cut = objective.train, replace(cut, hold=cut.hold | {"fraction": 0.0})
    n = np.asarray(objective.counts) if isinstance(objective, RowRanges) else np.zeros(len(objective), np.int64)
    left, sides = cut.sides(KeyedRows(ids, np.repeat(np.arange(len(n)), n), n))
    made, every = set_aside(objective, left, sides[cut.side]), nameless(rows, n)
    if held is not None and not cut.side:
        return HeldOut(made.train, held), (every.take(left),)
    return made, tuple(map(every.take, cut.told(left, sides)))


def of_table(rows: Any, net: Any, folder: Path, allow: Sequence[str], guarded: bool = False) -> Any:
    """The rows of a formula as those of a net: ``model`` is a section of its configuration, and K ``classes``.

    The intercept's column is left out. Of code that is not the package's the net, its loss and its score may be what
    the owner ``allow``s. Where rows are ``guarded``, a TooFew says of what they hold that the net cannot take it; any
    other error would be the same of other rows.
    """
    known = isinstance(net, Mapping) and net.keys() == {"model", "classes"}
    if not (known and type(classes := net["classes"]) is int and classes >= 0):
        raise CoterieError("A net is a model and a number of classes: use one version of coterie at all sites.")
    config = Config.of({"model": net["model"]}, folder)
    for key in ("path", "loss", "score"):
        if own(path := str(config.model[key] or "")) and path not in allow:
            raise CoterieError(f"{path!r} is not allowed here: the site's owner adds it to allow in site.toml.")
    need_bounded(config, rows.X.shape[1] * classes)

    def made(X: Any, y: Any, starts: Any, stops: Any, weights: Any = None, held: bool = False) -> Any:
        if classes and (y != np.rint(y)).any():
            raise CoterieError("Outcomes that are classes are whole numbers from 0.")
        y = y.astype(np.int64) if classes else y
        return objective_of(config, ClientRows(X[:, 1:], y, starts, stops, weights), classes, held)

    def both() -> Any:
        train = made(rows.X, rows.y, rows.starts, rows.stops, rows.weights)
        if not hasattr(rows, "held"):
            return train
        held = rows.held
        return HeldOut(train, made(held.X, held.y, held.starts, held.stops, held.weights, held=True))

    if not guarded:
        return both()
    made(np.zeros((1, rows.X.shape[1])), np.zeros(1), np.array([0]), np.array([1]))
    try:
        return both()
    except Exception as problem:
        raise TooFew(f"The net cannot take the rows: {problem}") from problem


def by_class(behind: Behind, net: Mapping[str, Any]) -> Behind:
    """The rows behind a net, where outcomes are classes with these as levels: a sum tells of each one's rows."""
    binary = net["model"].get("loss") == "bce"
    if not (net["classes"] or binary):
        return behind
    y = behind.values[:, -3]  # before offsets and weights
    return replace(behind, cells=np.column_stack([behind.cells, (y > 0.5 if binary else y.clip(0)).astype(np.int64)]))


def told(objective: Any) -> dict[str, Any]:
    """What a coordinator must know of the model that clients train: names and sizes of its layers, and its score."""
    train = getattr(objective, "train", objective)
    said: dict[str, Any] = {name: list(getattr(train, name, ())) for name in ("kept", "statistics")}
    said |= {"names": parameters.layer_sizes(train), "normalising": list(parameters.normalising(train))}
    said |= {"dtype": str(parameters.precision(train)), "classes": int(getattr(train, "classes", 0))}
    scored = getattr(getattr(train, "architecture", None), "score", None) is not None
    return said | {"score": "accuracy" if _classes(train) is not None else "score" if scored else ""}


def _classes(objective: Any) -> Ints | None:
    """The class of every outcome, client after client; None where outcomes are none."""
    net = getattr(objective, "architecture", None)
    own = net is not None and (net.named not in SCORED or net.given[2] is not None)
    if own or not hasattr(objective, "accuracy"):
        return None
    y = np.asarray(objective.targets())
    return np.asarray(y > 0.5 if net is not None and net.named == "bce" else np.maximum(y, 0), dtype=np.int64)


@work
def weighed(site: Site) -> dict[str, Any]:
    """The rows of each client, and what they weigh."""
    train = getattr(site.objective, "train", site.objective)
    return {"rows": counts(train), "weight": sizes(train)}


@work
def outcomes(site: Site) -> dict[str, Any]:
    """How many outcomes of each client are of each class, held-out ones too, and which clients can be judged."""
    o, m = site.objective, len(site)
    found = np.zeros((m, CLASSES), dtype=np.int64)
    for part in (o.train, o.held):
        if (classes := _classes(part)) is not None:
            owner = np.repeat(np.arange(m), counts(part) * (classes.size // max(len(classes), 1)))  # of pixels, too
            np.add.at(found, (owner, np.minimum(classes.ravel(), CLASSES - 1)), 1)
    good = parameters.has_finite_gradient(o.held) & (counts(o.held) > 0)
    return {"classes": found, "judged": good.astype(np.int64)}


@work
def scores(
    site: Site,
    theta: Floats,
    score: str,
    metrics: list[str],
    positive: int = 1,
    method: str = "",
    options: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """How good models theta, (d,) of all or (m, d), are on each client's held-out rows: mean loss and score, weight.

    A ``method`` whose models answer by more than one net reads them, by its ``options``, and ``memory`` is what kNN-Per
    says that clients remember of their rows; F1 is of the
    class ``positive``. ``rows`` and ``held`` are how
    many rows each client trains on and holds out.
    """
    o, m = site.objective, len(site)
    models = np.broadcast_to(theta, (m, theta.shape[-1]))
    if memory is not None:
        models = padded(remember(site, **memory)["theta"])
    held = TRAINED[method].make(0, **options or {}).reads(o.held, models.shape[1]) if method else o.held
    y = o.held.targets() if metrics else None
    found = Scores.of(held, models, Rule(score), metrics, y, positive=positive)
    said: dict[str, Any] = {"rows": counts(o.train), "held": counts(o.held), "weight": found.weight}
    said |= {"loss": encode(found.loss), "score": encode(np.zeros(m) if found.score is None else found.score)}
    for name, one in found.metrics.items():
        said |= {f"{part} of {name}": encode(getattr(one, part)) for part in ("clients", "over", "under")}
    return said


def encode(values: Floats) -> Floats:
    """Numbers as they travel: what is not finite, or missing, as numbers that are (as in :mod:`mean_loss`)."""
    return np.where(np.isnan(values), -OVERFLOW, np.where(np.abs(values) < LIMIT, values, OVERFLOW))


def decode(values: Any) -> Floats:
    """What :func:`encode` was given."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(values <= -LIMIT, np.nan, np.where(values < LIMIT, values, np.inf))
