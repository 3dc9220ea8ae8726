"""How good models are on held-out rows, client by client, and in a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.client_models import by_block, finite
from coterie.objectives.mean_loss import sizes, value_and_accuracy
from coterie.objectives.mixed import kinds
from coterie.objectives.parameters import has_finite_gradient
from coterie.runs.metrics import LOSS, METRICS, Answers, Measured, measure, of_sums

RARE = 0.8
"""With so large a share of held-out outcomes in one class, accuracy says little: methods are judged by the loss."""


@dataclass(frozen=True)
class Rule:
    """What models are judged by."""

    score: str = ""  # a metric, the name of a score of the user's own, or "" where the loss judges
    greater: bool | None = True  # whether a larger score is better; None where nobody has said so
    common: float = 0.0  # share of the most frequent class among held-out outcomes; 0: none, or the metric was chosen
    finite: bool = True  # whether some client has the score, and it is a number for all that have it

    @property
    def by(self) -> str:
        """The score; "loss" where there is none, one class is nearly all, or its direction or its value is unknown."""
        good = self.score and self.greater is not None and self.common < RARE and self.finite
        return self.score if good else "loss"

    @property
    def sign(self) -> float:
        """1 where a larger value of :attr:`by` is better, -1 where a smaller one is."""
        return 1.0 if self.by != "loss" and self.greater else -1.0


@dataclass(frozen=True)
class Scores:
    """Held-out rows of every client, all (m,)."""

    loss: Floats  # mean of a client's rows; NaN where it has none
    score: Floats | None  # what is judged by beside the loss: a metric, or the mean of the user's own score
    weight: Floats  # of the rows; 0 for a client whose rows are not finite
    rule: Rule = Rule("accuracy")
    metrics: dict[str, Measured] = field(default_factory=dict)  # those that were chosen, or asked for

    @classmethod
    def of(
        cls,
        held: Any,
        theta: Any,
        rule: Rule,
        metrics: Sequence[str] = (),
        y: Any = None,
        main: Ints | None = None,
        positive: int = 1,
    ) -> Scores:
        """Of models theta (m, d) on an objective of held-out rows; of the ``main`` clients alone where they are named.

        ``metrics`` need the outcomes y (n, ...) of their rows, client after client, and F1 which of two classes counts
        as ``positive``.
        """
        weight = np.where(has_finite_gradient(held), sizes(held), 0.0)
        if main is not None:
            weight = np.where(np.isin(np.arange(len(weight)), main), weight, 0.0)
        safe = np.where(weight > 0.0, weight, 1.0)
        judged = weight > 0.0
        if hasattr(theta, "ndim"):  # the largest of outputs that are no numbers would be a class as any other
            judged &= finite(theta)
        found: dict[str, Measured] = {}
        with np.errstate(over="ignore", invalid="ignore"):
            score = None
            if rule.score and rule.score not in metrics:  # both in one pass
                total, score = _each(held, theta, value_and_accuracy).T
                score = np.where(judged, score, np.nan)
            else:
                total = np.asarray(_each(held, theta, lambda part, models: part.value(models)), dtype=np.float64)
            loss = np.where(weight > 0.0, total / safe, np.nan)
            if asked := [name for name in metrics if name != LOSS]:
                owner = np.repeat(np.arange(len(weight)), counts(held))
                outputs = np.asarray(_each(held, theta, lambda part, models: part.outputs(models)))
                answers = Answers(y, outputs, held.row_weights(), owner, len(weight), positive)
                found = measure(asked, answers, judged, (weight > 0.0) & ~judged)
                score = found[rule.score].clients if rule.score in found else score
        out = cls(loss, score, weight, rule, found)
        if score is None:
            return out
        some = score[out.having(rule.score)]
        return replace(out, rule=replace(rule, finite=bool(len(some) and np.isfinite(some).all())))

    @classmethod
    def none(cls, m: int, rule: Rule) -> Scores:
        """Of m clients without a row that is held out."""
        return cls(np.full(m, np.nan), np.full(m, np.nan) if rule.score else None, np.zeros(m), rule)

    @property
    def known(self) -> bool:
        """Whether any row was held out to judge by."""
        return bool(self.weight.any())

    @property
    def accuracy(self) -> Floats | None:
        """The share that is classified rightly (m,), where there are classes."""
        return self.score if self.rule.score == "accuracy" else None

    def of_clients(self, what: str) -> Floats:
        """The loss, the score, or a metric (m,)."""
        if what in self.metrics:
            return self.metrics[what].clients
        return self.loss if what == LOSS or self.score is None else self.score

    def having(self, what: str) -> Bools:
        """Clients (m,) with held-out rows that have the loss, the score, or a metric, whatever its value."""
        seen = self.weight > 0.0
        return seen & self.metrics[what].defined if what in self.metrics else seen

    def judged(self, rule: Rule) -> Floats:
        """What a rule judges by (m,)."""
        return self.of_clients(rule.by)

    @property
    def best(self) -> Floats:
        """The same so that larger is better (m,); NaN for a client that has none."""
        return np.where(self.having(self.rule.by), self.rule.sign * self.judged(self.rule), np.nan)

    @property
    def standing(self) -> tuple[bool, float]:
        """What models are chosen by, larger is better: whether the score judges, and its mean over clients, or -inf."""
        best = self.best[self.having(self.rule.by)]
        good = len(best) > 0 and bool(np.isfinite(best).all())
        return self.rule.by != LOSS, float(best.mean()) if good else -np.inf

    def ratio(self, what: str) -> tuple[Floats, Floats]:
        """Numerators and denominators (m, K), whose ratios of sums over clients have ``what`` as their mean."""
        if what in self.metrics:
            return self.metrics[what].over, self.metrics[what].under
        return np.where(self.weight > 0.0, self.of_clients(what) * self.weight, 0.0)[:, None], self.weight[:, None]

    def summary(self) -> dict[str, float]:
        """Of the score, each metric and the loss: over all rows, the mean over clients, the worst, the 10th percentile.

        Fairness is their variance and Jain's index, ``(sum x)^2 / (m sum x^2)``: 1 where all clients have the same, 1 /
        m where one has all. Clients without a metric are left out. Of a score whose direction nobody has said there are
        the means alone.
        """
        out: dict[str, float] = {}
        for name in dict.fromkeys([self.rule.score, *self.metrics]):
            if name:
                out |= self._few(name, METRICS[name].greater if name in self.metrics else self.rule.greater)
        return out | self._few(LOSS, False)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # losses of models that diverged
    def _few(self, name: str, greater: bool | None) -> dict[str, float]:
        one = self.of_clients(name)[self.having(name)]
        if not (self.weight > 0.0).any():
            return {}
        rows = of_sums(*(part.sum(axis=0, keepdims=True) for part in self.ratio(name))).clients[0]
        out = {name: float(rows), f"{name}_clients": float(one.mean()) if len(one) else np.nan}
        if greater is None or not len(one):
            return out
        worst, tail = (one.min(), "10th") if greater else (one.max(), "90th")
        out |= {f"{name}_worst": float(worst), f"{name}_{tail}": float(np.quantile(one, int(tail[:2]) / 100))}
        jain = one.sum() ** 2 / (len(one) * np.square(one).sum()) if one.min() >= 0.0 else np.nan
        return out | {f"{name}_variance": float(one.var()), f"{name}_jain": float(jain)}


def counts(held: Any) -> Ints:
    """Rows (m,) of every client."""
    out = np.zeros(len(held), dtype=np.int64)
    for rows, part in kinds(held):
        out[rows] = part.counts
    return out


def _each(held: Any, theta: Any, says: Callable[[Any, Any], Any]) -> Any:
    """What an objective says of models, some clients at a time where there are many numbers."""
    if getattr(theta, "ndim", 1) < 2:
        return says(held, theta)

    def some(rows: slice, models: Any) -> Any:
        part = held if rows == slice(0, len(held)) else held.take(rows)
        return says(part, models if hasattr(part, "kinds") else models[:, : part.dim])

    return by_block(some, theta)
