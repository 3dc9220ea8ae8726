"""Metrics of held-out rows by client and over all rows, as scikit-learn defines them.

scikit-learn takes .3 to 8 ms for one metric of one client, however few its rows are, and would take seconds to minutes
for 10,000 clients. Here a metric is made of sums over the rows of all clients at once (AUC .1 s for those); tests hold
each against scikit-learn's function, client by client and over all rows.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.lazy_modules import sparse, special
from coterie.numerics.arrays import Bools, Floats, Ints

LOSS = "loss"
BALANCED, F1 = "balanced_accuracy", "f1"
ALIKE = 1e-26
"""Squared distances from the mean, relative to squares, below which outcomes differ by rounding alone."""


@dataclass(frozen=True)
class Measured:
    """A metric of every client, and what it is over all rows: the mean over columns of ratios of sums over clients."""

    clients: Floats  # (m,) NaN where a client has none
    over: Floats  # (m, K) numerators; NaN for a client whose model is none of finite numbers
    under: Floats  # (m, K) denominators

    @property
    def defined(self) -> Bools:
        """Whose rows have the metric (m,), whatever the model: AUC needs two classes, R2 outcomes that differ."""
        return np.isfinite(self.clients) | np.isnan(self.over).all(axis=1)


@dataclass(frozen=True)
class Answers:
    """Outcomes of held-out rows and what models give for them, client after client, without those that do not count."""

    y: Any  # (n, ...)
    outputs: Any  # (n, ...): of classes (n, K, ...); of numbers, and of two classes by their log odds, shaped as y
    weight: Floats  # (n,)
    owner: Ints  # (n,)
    m: int  # clients
    positive: int = 1  # of two classes, the one that F1 is of

    def sums(self, values: Any) -> Floats:
        """Weighted sums (m, K) over the rows of each client, of values (n, K) or (n,)."""
        n = len(self.weight)
        rows = sparse.csr_array((self.weight, (self.owner, np.arange(n))), shape=(self.m, n))
        values = np.asarray(values, dtype=np.float64)
        return np.asarray(rows @ values.reshape(n, -1 if n else 1))

    @cached_property
    def places(self) -> Answers:
        """Each label or pixel of a row as a row of its own, its outcome a class."""
        y = np.asarray(self.y)
        apart = self.outputs.ndim == y.ndim + 1 and self.outputs.shape[1] > 1  # an axis of classes
        outputs = np.moveaxis(self.outputs, 1, -1).reshape(y.size, -1) if apart else self.outputs.reshape(-1)
        classes = np.maximum(np.nan_to_num(y), 0).astype(np.int64).ravel()
        if len(outputs) != len(classes) or classes.max(initial=0) >= (outputs.shape[1] if apart else 2):
            raise CoterieError(
                f"The model gives outputs of shape {self.outputs.shape[1:]} for a row, which are no classes of "
                f"outcomes up to {classes.max(initial=0)}: take metrics of numbers, such as mae, or another model."
            )
        each = classes.size // max(len(y), 1)
        weight, owner = np.repeat(self.weight, each), np.repeat(self.owner, each)
        return replace(self, y=classes, outputs=outputs, weight=weight, owner=owner)

    def of_target(self, j: int, y: Any) -> Answers:
        """The same of the target in column j of outputs alone."""
        return replace(self, y=y, outputs=self.outputs.reshape(len(y), -1)[:, j])

    @cached_property
    def log_p(self) -> Floats:
        """(n, K) log probabilities of every class."""
        z = np.asarray(self.outputs, dtype=np.float64)
        return np.asarray(
            special.log_softmax(z, axis=1)
            if z.ndim > 1
            else np.stack([special.log_expit(-z), special.log_expit(z)], axis=1)
        )

    @cached_property
    def found(self) -> Ints:
        """The likeliest class of every row."""
        z = np.asarray(self.outputs)
        return np.asarray(z.argmax(axis=1) if z.ndim > 1 else z > 0.0, dtype=np.int64)

    def counts(self, classes: Ints, which: Bools | None = None) -> Floats:
        """The weight (m, K) of rows of each class, of those that are ``which``."""
        K = self.outputs.shape[1] if self.outputs.ndim > 1 else 2
        some = slice(None) if which is None else which
        cell = (self.owner * K + classes)[some]
        sums = np.bincount(cell, self.weight[some], self.m * K).reshape(self.m, K)
        return np.asarray(sums, dtype=np.float64)

    @cached_property
    def numbers(self) -> tuple[Floats, Floats]:
        """Outcomes and outputs (n, D) as numbers."""
        y = np.asarray(self.y, dtype=np.float64)
        if self.outputs.squeeze().shape != y.squeeze().shape:
            raise CoterieError(
                f"The model gives outputs of shape {self.outputs.shape[1:]} for outcomes of shape {y.shape[1:]}: "
                "metrics of numbers need both alike."
            )
        D = max(y[:1].size, 1)
        return y.reshape(-1, D), np.asarray(self.outputs, dtype=np.float64).reshape(-1, D)


def of_sums(over: Floats, under: Floats) -> Measured:
    """A metric that is the mean over columns, where there is anything, of ratios of sums: for a client as for all."""
    some = under > 0.0
    ratio = np.divide(over, under, out=np.zeros_like(over), where=some)
    count = some.sum(axis=1)
    return Measured(np.where(count > 0, ratio.sum(axis=1) / np.maximum(count, 1), np.nan), over, under)


def _mean(of: Answers, values: Any) -> Measured:
    return of_sums(of.sums(values), of.sums(np.ones(len(of.weight))))


def accuracy(of: Answers) -> Measured:
    """The share of outcomes that is classified rightly."""
    places = of.places
    return _mean(places, places.found == places.y)


def balanced_accuracy(of: Answers) -> Measured:
    """The mean over classes of the share that is classified rightly."""
    places = of.places
    return of_sums(places.counts(places.y, places.found == places.y), places.counts(places.y))


def f1_macro(of: Answers) -> Measured:
    """The mean over classes, of those that are there or predicted, of F1: twice the hits over outcomes and answers."""
    places = of.places
    hits = places.counts(places.y, places.found == places.y)
    return of_sums(2.0 * hits, places.counts(places.y) + places.counts(places.found))


def f1(of: Answers) -> Measured:
    """F1 of the positive one of two classes, for clients that have an outcome of it."""
    places = of.places
    if places.outputs.ndim > 1 and places.outputs.shape[1] > 2:
        raise CoterieError("The metric f1 is of two classes, and the model tells more: take f1_macro.")
    true, found = places.y == of.positive, places.found == of.positive
    hits, outcomes, said = (places.sums(which) for which in (true & found, true, found))
    own = of_sums(2.0 * hits, outcomes + said)
    return replace(own, clients=np.where(outcomes[:, 0] > 0.0, own.clients, np.nan))


def log_loss(of: Answers) -> Measured:
    """The mean of minus the log of the outcome's probability."""
    places = of.places
    return _mean(places, -np.take_along_axis(places.log_p, places.y[:, None], axis=1))


def auc(of: Answers) -> Measured:
    """The area under the ROC curve, of several classes the mean of each against the rest.

    Over all rows it is made a ratio of sums by the influence of each client, which is that of DeLong et al. (1988).
    """
    places, z = of.places, np.asarray(of.places.outputs, dtype=np.float64)
    scores = {1: z} if z.ndim == 1 else {1: z[:, 1] - z[:, 0]} if z.shape[1] == 2 else dict(enumerate(places.log_p.T))
    each = [_auc(places, score, places.y == k) for k, score in scores.items()]
    own, over, under = (np.stack(found, axis=1) for found in zip(*each, strict=True))
    count = np.isfinite(own).sum(axis=1)
    clients = np.where(count > 0, np.nansum(own, axis=1) / np.maximum(count, 1), np.nan)
    return Measured(clients, over, under)


def _auc(of: Answers, score: Floats, positive: Bools) -> tuple[Floats, Floats, Floats]:
    """AUC of each client's rows (m,), and numerators and denominators (m,) of that of all rows."""
    w = np.stack([np.where(positive, 0.0, of.weight), np.where(positive, of.weight, 0.0)])
    size = np.stack([np.bincount(of.owner, part, of.m) for part in w])
    pairs = size[0] * size[1]
    wins = np.bincount(of.owner, w[1] * _below(score, w[0], of.owner), of.m)
    own = np.divide(wins, pairs, out=np.full(of.m, np.nan), where=pairs > 0.0)
    negatives, positives = size.sum(axis=1)
    if not negatives * positives > 0.0:
        return own, np.zeros(of.m), np.zeros(of.m)
    nobody = np.zeros_like(of.owner)
    above = w[1] * _below(score, w[0], nobody), w[0] * _below(-score, w[1], nobody)
    area = above[0].sum() / (negatives * positives)
    gained = np.bincount(of.owner, above[0] / negatives, of.m) - area * size[1]
    moved = gained / positives + (np.bincount(of.owner, above[1] / positives, of.m) - area * size[0]) / negatives
    weight = size.sum(axis=0)
    return own, area * weight + weight.sum() * moved, weight


def _below(score: Floats, weight: Floats, owner: Ints) -> Floats:
    """The weight (n,) of an owner's rows with a lower score than each, and half of that of its equals."""
    order = np.lexsort((score, owner))
    s, o = score[order], owner[order]
    fresh = np.append(True, o[1:] != o[:-1])[: len(o)]
    tie = np.cumsum(fresh | np.append(True, s[1:] != s[:-1])[: len(o)]) - 1
    each = np.bincount(tie, weight[order])
    under = np.cumsum(each) - each
    first = tie[np.flatnonzero(fresh)]
    out = np.empty(len(score))
    out[order] = (under + 0.5 * each)[tie] - under[first][np.cumsum(fresh) - 1]
    return out


def r2(of: Answers) -> Measured:
    """One minus squared errors over squared distances from the mean, the mean over outputs."""
    y, found = of.numbers
    error, size = of.sums((y - found) ** 2), of.sums(np.ones(len(y)))
    own = of.sums((y - (of.sums(y) / np.where(size > 0.0, size, 1.0))[of.owner]) ** 2)
    own = np.where(own > ALIKE * of.sums(y**2), own, 0.0)
    whole = of.sums((y - of.sums(y).sum(axis=0) / max(size.sum(), 1e-300)) ** 2)
    return Measured(of_sums(own - error, own).clients, whole - error, whole)


def mae(of: Answers) -> Measured:
    """The mean absolute error."""
    y, found = of.numbers
    return _mean(of, np.abs(y - found).mean(axis=1))


def mse(of: Answers) -> Measured:
    """The mean squared error."""
    y, found = of.numbers
    return _mean(of, ((y - found) ** 2).mean(axis=1))


def dice(of: Answers) -> Measured:
    """The mean over rows of the Dice coefficient of a row's mask; 1 where both masks are empty."""
    places, n = of.places, len(of.weight)
    if places.outputs.ndim > 1 and places.outputs.shape[1] > 2:
        raise CoterieError("The metric dice needs masks of 0 and 1, and the model tells more classes: take f1_macro.")
    found, true = ((part > 0).reshape(n, -1 if n else 1) for part in (places.found, places.y))
    size = found.sum(axis=1) + true.sum(axis=1)
    return _mean(of, np.where(size > 0, 2.0 * (found & true).sum(axis=1) / np.maximum(size, 1), 1.0))


@dataclass(frozen=True)
class Metric:
    """A row of the table: how it is made, which way is better, and between which ends it lies."""

    make: Callable[[Answers], Measured]
    text: str  # in a sentence: what it is of, with its unit
    low: float = 0.0
    high: float = 1.0
    classes: bool = True  # whether outcomes are classes; else numbers
    greater: bool = True  # whether more is better
    without: str = ""  # the rows of a client that has none


class _Metrics(UserDict[str, Metric]):
    """Metrics by name; "auc:ill", of one of several targets, is found as "auc"."""

    def __contains__(self, name: object) -> bool:
        return str(name).partition(":")[0] in self.data

    def __getitem__(self, name: str) -> Metric:
        return self.data[name.partition(":")[0]]


METRICS = _Metrics(
    {
        "accuracy": Metric(accuracy, "share of outcomes classified rightly"),
        BALANCED: Metric(balanced_accuracy, "mean over classes of the share classified rightly"),
        "auc": Metric(
            auc,
            "area under the ROC curve, of several classes the mean of each against the rest",
            without="of one class only",
        ),
        F1: Metric(f1, "F1 of the positive class", without="of which none is of the positive class"),
        "f1_macro": Metric(f1_macro, "mean over classes of F1"),
        "f1_micro": Metric(accuracy, "F1 of all outcomes together, which is accuracy"),
        "log_loss": Metric(log_loss, "mean of -log p of the outcome, in nats", high=np.inf, greater=False),
        "dice": Metric(dice, "mean over rows of the Dice coefficient of the mask"),
        "r2": Metric(
            r2,
            "share of the outcomes' variance that is explained",
            low=-np.inf,
            classes=False,
            without="whose outcomes are all alike",
        ),
        "mae": Metric(mae, "mean absolute error, in the outcome's unit", 0.0, np.inf, False, False),
        "mse": Metric(mse, "mean squared error, in the outcome's unit squared", 0.0, np.inf, False, False),
    }
)
"""By name. "loss" stands beside them in a configuration: what is trained by."""


def names() -> list[str]:
    """What ``metrics`` of a configuration may name."""
    return [*METRICS, LOSS]


def chosen_names(values: tuple[str, ...]) -> tuple[str, ...]:
    """Metrics, of one of several targets as "auc:ill"; a ValueError for what is none, or is there twice."""
    if len({*values}) < len(values) or any(name != LOSS and name not in METRICS for name in values):
        raise ValueError("no metric, or twice the same")
    return values


def targets_of(y: Any, outputs: Any = None) -> dict[str, Any]:
    """Several targets of a row by name, or by place from 0; none where outcomes are of one kind.

    An array (n, D) is of D targets where the model gives as many ``outputs``, and of places in a row where it tells
    classes of each.
    """
    y = np.asarray(y)
    if y.dtype.names:
        return {name: y[name] for name in y.dtype.names}
    apart = y.ndim == 2 and y.shape[1] > 1 and (outputs is None or np.shape(outputs) == y.shape)
    return {str(j): y[:, j] for j in range(y.shape[1])} if apart else {}


def measured(name: str, of: Answers) -> Measured:
    """A metric of the target that its name has, or the mean over targets; of rows where they are of one target."""
    make, target = METRICS[name].make, name.partition(":")[2]
    targets = targets_of(of.y, of.outputs)
    if not targets or (make is dice and not target):
        return make(of)
    if of.outputs.shape[1:] != (len(targets),):
        raise CoterieError(
            f"The model gives outputs of shape {of.outputs.shape[1:]} for a row with {len(targets)} targets: metrics "
            "need one number for each, in their order."
        )
    each = [make(of.of_target(j, y)) for j, (own, y) in enumerate(targets.items()) if target in ("", own)]
    own = np.stack([one.clients for one in each])
    count = np.isfinite(own).sum(axis=0)
    clients = np.where(count > 0, np.nansum(own, axis=0) / np.maximum(count, 1), np.nan)
    return Measured(clients, np.hstack([one.over for one in each]), np.hstack([one.under for one in each]))


def measure(chosen: Sequence[str], of: Answers, judged: Bools, lost: Bools) -> dict[str, Measured]:
    """Metrics of the clients that are ``judged`` (m,); NaN for those ``lost`` (m,), whose models are not finite."""
    broken = ~np.isfinite(of.outputs).reshape(len(of.weight), -1 if len(of.weight) else 1).all(axis=1)
    lost = lost | (judged & (np.bincount(of.owner, broken, of.m) > 0.0))
    keep = (judged & ~lost)[of.owner] & (of.weight > 0.0)
    some = replace(of, y=of.y[keep], outputs=of.outputs[keep], weight=of.weight[keep], owner=of.owner[keep])
    out, none = {}, lost[:, None]
    for name in chosen:
        found = measured(name, some)
        over, under = np.where(none, np.nan, found.over), np.where(none, 1.0, found.under)
        out[name] = Measured(np.where(lost, np.nan, found.clients), over, under)
    return out


def need_outcomes(chosen: Sequence[str], loss: str, y: Any) -> None:
    """A CoterieError for a metric that outcomes, or what the loss takes outputs for, do not have.

    ``loss`` is "cross_entropy", "bce", "mse", or a function of the user's own, which may be of either kind.
    """
    for name in (name for name in chosen if name != LOSS):
        target, targets = name.partition(":")[2], targets_of(y)
        if target and target not in targets:
            known = f" There are {', '.join(targets)}." if targets else ""
            raise CoterieError(f"The metric {name} is of a target '{target}', which outcomes have not.{known}")
        for own, part in targets.items() if targets else [("", np.asarray(y))]:
            if target in ("", own):
                _need_outcomes(name, loss, part, f" of target {own}" * bool(targets))


def _need_outcomes(name: str, loss: str, outcomes: Any, whose: str) -> None:
    """The same of one metric and the outcomes of one target."""
    metric, base = METRICS[name], name.partition(":")[0]
    fitting = ", ".join(other for other, one in METRICS.items() if one.classes != metric.classes)
    if outcomes.dtype.kind not in "biuf":
        raise CoterieError(f"The metric {name} needs outcomes{whose} that are numbers of one shape: leave it out.")
    with np.errstate(invalid="ignore"):
        good = outcomes[np.isfinite(outcomes)] if outcomes.dtype.kind == "f" else outcomes
        whole = bool(np.all((good >= 0) & (good == np.floor(good))))
    if metric.classes and (loss == "mse" or not whole):
        raise CoterieError(
            f"The metric {name} needs outcomes{whose} that are classes, whole numbers from 0, and a loss of classes "
            f"such as cross_entropy: take {fitting}, or give such outcomes."
        )
    if not metric.classes and loss in ("cross_entropy", "bce"):
        raise CoterieError(
            f"The metric {name} is of numbers, and the loss {loss} takes outputs for scores of classes: take "
            f"{fitting}, or another loss, such as mse."
        )
    if base == "dice" and (outcomes.ndim < 2 and not whose):
        raise CoterieError("The metric dice needs outcomes that are masks: take f1_macro for classes of rows.")
    if base == F1 and good.max(initial=0) > 1:
        raise CoterieError(
            f"The metric f1 is of two classes, and outcomes{whose} have {int(good.max()) + 1}: take f1_macro."
        )
