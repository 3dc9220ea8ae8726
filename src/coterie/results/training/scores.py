"""How good models are on held-out rows, client by client, and in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.numerics.kernels import Floats
from coterie.objectives.mean_loss import sizes
from coterie.objectives.parts import sound


@dataclass(frozen=True)
class Scores:
    """Held-out rows of every client.

    Attributes
    ----------
    loss : (m,) float64
        Mean loss of a client's rows; NaN where it has none.
    accuracy : (m,) float64 or None
        Share that is classified rightly, where there are classes.
    weight : (m,) float64
        Of the rows; 0 for a client whose rows are not finite.
    """

    loss: Floats
    accuracy: Floats | None
    weight: Floats

    @classmethod
    def of(cls, held: Any, theta: Any, classified: bool) -> Scores:
        """Of models theta (m, d) on an objective of held-out rows."""
        weight = np.where(sound(held), sizes(held), 0.0)
        safe = np.where(weight > 0.0, weight, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            loss = np.where(weight > 0.0, np.asarray(held.value(theta), dtype=np.float64) / safe, np.nan)
            accuracy = np.where(weight > 0.0, held.accuracy(theta), np.nan) if classified else None
        return cls(loss, accuracy, weight)

    @property
    def best(self) -> Floats:
        """What is judged by, larger is better (m,): accuracy, or minus the loss."""
        return -self.loss if self.accuracy is None else self.accuracy

    def summary(self) -> dict[str, float]:
        """Means over rows and over clients, the worst client and the 10th percentile, of accuracy and of loss."""
        seen = self.weight > 0.0
        out: dict[str, float] = {}
        if self.accuracy is not None and seen.any():
            one, weight = self.accuracy[seen], self.weight[seen]
            out |= {"accuracy": float(one @ weight / weight.sum()), "accuracy_clients": float(one.mean())}
            out |= {"accuracy_worst": float(one.min()), "accuracy_10th": float(np.quantile(one, 0.1))}
        if seen.any():
            one, weight = self.loss[seen], self.weight[seen]
            out |= {"loss": float(one @ weight / weight.sum()), "loss_clients": float(one.mean())}
            out |= {"loss_worst": float(one.max()), "loss_90th": float(np.quantile(one, 0.9))}
        return out
