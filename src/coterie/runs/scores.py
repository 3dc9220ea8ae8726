"""How good models are on held-out rows, client by client, and in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.mean_loss import sizes
from coterie.objectives.parameters import has_finite_gradient

RARE = 0.8
"""With so large a share of held-out outcomes in one class, accuracy says little: methods are judged by the loss."""
BALANCED = "balanced accuracy"


@dataclass(frozen=True)
class Rule:
    """What models are judged by."""

    score: str = ""  # "accuracy", the name of a score of the user's own, or "" where there is the loss alone
    greater: bool | None = True  # whether a larger score is better; None where nobody has said so
    common: float = 0.0  # share of the most frequent class among held-out outcomes; 0 where there are no classes
    finite: bool = True  # whether the score is a number for every client with held-out rows

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
    score: Floats | None  # mean: the share that is classified rightly, where there are classes, or the user's own
    weight: Floats  # of the rows; 0 for a client whose rows are not finite
    rule: Rule = Rule("accuracy")
    hits: Floats | None = None  # (m, K) where there are classes: outcomes of each that were classified rightly ...
    counts: Floats | None = None  # ... and all of them

    @classmethod
    def of(
        cls,
        held: Any,
        theta: Any,
        rule: Rule,
        outcomes: Ints | None = None,
        owner: Ints | None = None,
        main: Ints | None = None,
    ) -> Scores:
        """Of models theta (m, d) on an objective of held-out rows; of the ``main`` clients alone where they are named.

        Where the classes of their rows are given, ``outcomes`` (n, ...) client after client and the client ``owner``
        (n,) of each, it is counted by class, too.
        """
        weight = np.where(has_finite_gradient(held), sizes(held), 0.0)
        if main is not None:
            weight = np.where(np.isin(np.arange(len(weight)), main), weight, 0.0)
        safe = np.where(weight > 0.0, weight, 1.0)
        judged = weight > 0.0
        if isinstance(theta, np.ndarray):  # the largest of outputs that are no numbers would be a class as any other
            judged &= np.isfinite(theta).all(axis=-1)
        with np.errstate(over="ignore", invalid="ignore"):
            loss = np.where(weight > 0.0, np.asarray(held.value(theta), dtype=np.float64) / safe, np.nan)
            score = np.where(judged, held.accuracy(theta), np.nan) if rule.score else None
        hits = counts = None
        if outcomes is not None and owner is not None:
            found = np.asarray(held.predict(theta))
            found = found if found.dtype.kind == "i" else (found.reshape(outcomes.shape) > 0.0).astype(np.int64)
            hits, counts = by_class(outcomes, found, np.where(judged[owner], owner, -1), len(weight))
        if score is not None:
            rule = replace(rule, finite=bool(np.isfinite(score[weight > 0.0]).all()))
        return cls(loss, score, weight, rule, hits, counts)

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

    def judged(self, rule: Rule) -> Floats:
        """What a rule judges by (m,)."""
        return self.loss if self.score is None or rule.by == "loss" else self.score

    @property
    def best(self) -> Floats:
        """The same so that larger is better (m,)."""
        return self.rule.sign * self.judged(self.rule)

    @property
    def standing(self) -> tuple[bool, float]:
        """What models are chosen by, larger is better: whether the score judges, and its mean over clients, or -inf."""
        best = self.best[self.weight > 0.0]
        good = len(best) > 0 and bool(np.isfinite(best).all())
        return self.rule.by != "loss", float(best.mean()) if good else -np.inf

    def ratio(self, what: str) -> tuple[Floats, Floats]:
        """Numerators and denominators (m, K), whose ratios of sums over clients have ``what`` as their mean."""
        if what == BALANCED:
            m = len(self.weight)
            none = np.zeros((m, 0))
            return (none, none) if self.hits is None or self.counts is None else (self.hits, self.counts)
        value = self.loss if what == "loss" or self.score is None else self.score
        return np.where(self.weight > 0.0, value * self.weight, 0.0)[:, None], self.weight[:, None]

    def summary(self) -> dict[str, float]:
        """Means over rows and over clients, the worst client and the 10th percentile, of the score and of the loss.

        Of a score whose direction nobody has said there are the means alone.
        """
        out: dict[str, float] = {}
        if self.score is not None:
            out |= self._few(self.rule.score, self.score, self.rule.greater)
        return out | self._few("loss", self.loss, False)

    def _few(self, name: str, values: Floats, greater: bool | None) -> dict[str, float]:
        seen = self.weight > 0.0
        if not seen.any():
            return {}
        one, weight = values[seen], self.weight[seen]
        out = {name: float(one @ weight / weight.sum()), f"{name}_clients": float(one.mean())}
        if greater is None:
            return out
        worst, tail = (one.min(), "10th") if greater else (one.max(), "90th")
        with np.errstate(invalid="ignore"):
            return out | {f"{name}_worst": float(worst), f"{name}_{tail}": float(np.quantile(one, int(tail[:2]) / 100))}


def by_class(outcomes: Ints, found: Ints, owner: Ints, m: int) -> tuple[Floats, Floats]:
    """Outcomes of each class that were found and all of them (m, K); an owner of -1 is nobody."""
    K, per = int(outcomes.max(initial=0)) + 1, outcomes[0].size if len(outcomes) else 1
    whose = np.repeat(owner, per)
    true, right = outcomes.ravel(), (outcomes == found).ravel()
    cell = whose * K + true
    good = whose >= 0
    hits, counts = (np.bincount(cell[some], minlength=m * K).reshape(m, K) for some in (good & right, good))
    return hits.astype(np.float64), counts.astype(np.float64)
