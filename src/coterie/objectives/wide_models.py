"""Models that are more than the parameters of an objective: several nets, or a net and a memory; what they say of rows.

Answers are mean outcomes: of classes their probabilities. What stands for outputs has these means, and losses are its.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.lazy_modules import special
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives import parameters
from coterie.objectives.client_models import AT_ONCE
from coterie.objectives.gradient_steps import Walk
from coterie.objectives.row_kernels import weighted_means, weighted_sums
from coterie.objectives.softmax import Softmax

LEAST = 1e-300  # a probability of 0, whose logarithm is asked for


def loss_of(objective: Any, what: str) -> str:
    """The name of an objective's loss; a CoterieError for one of the user's own, whose means nobody knows."""
    of = getattr(objective, "architecture", None)
    name = "cross_entropy" if isinstance(objective, Softmax) else getattr(of, "named", None)
    if name is None or (of is not None and of.given[2] is not None):
        raise CoterieError(
            f"{what} mixes what nets say of a row, which a loss or score of your own says nothing of: take the loss "
            "cross_entropy, bce or mse, and no score."
        )
    return str(name)


def means(outputs: Floats, loss: str) -> Floats:
    """The mean outcomes that outputs (n, ...) stand for: probabilities, or the numbers as they are."""
    if loss == "mse":
        return outputs
    return np.asarray(special.softmax(outputs, axis=1) if loss == "cross_entropy" else special.expit(outputs))


@dataclass(frozen=True)
class WideModels(ABC):
    """Rows of an objective whose models (m, dim) are read by a rule."""

    of: Any
    dim: int
    loss: str

    def __len__(self) -> int:
        return len(self.of)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of":
            raise AttributeError(name)
        return getattr(self.of, name)

    def take(self, rows: slice | Ints) -> Self:
        """Some clients."""
        return replace(self, of=self.of.take(rows))

    def has_finite_gradient(self) -> Bools:
        """Whose rows give a gradient (m,)."""
        return parameters.has_finite_gradient(self.of)

    @abstractmethod
    def means(self, theta: Floats) -> Floats:
        """Mean outcomes of every row, client after client (sum of counts, ...)."""

    def _means(self, theta: npt.ArrayLike) -> Floats:
        models = np.asarray(theta)
        return self.means(np.broadcast_to(models, (len(self), models.shape[-1])))

    def outputs(self, theta: npt.ArrayLike) -> Floats:
        """Outputs that have the means: logarithms of probabilities, log odds, or the numbers."""
        found = self._means(theta)
        if self.loss == "mse":
            return found
        return np.asarray(np.log(np.maximum(found, LEAST)) if self.loss == "cross_entropy" else special.logit(found))

    def row_losses(self, theta: npt.ArrayLike) -> Floats:
        """The loss of every row, as the objective has it."""
        return self.losses_of(self._means(theta))

    def losses_of(self, p: Floats) -> Floats:
        """The same at mean outcomes of every row."""
        y = self.of.targets()
        if self.loss == "mse":
            each = np.square(p.reshape(y.shape) - y)
        elif self.loss == "cross_entropy":
            at = np.take_along_axis(p, y.astype(np.int64)[:, None], axis=1)
            each = -np.log(np.maximum(at, LEAST))
        else:
            p = p.reshape(y.shape)
            each = -(y * np.log(np.maximum(p, LEAST)) + (1 - y) * np.log(np.maximum(1 - p, LEAST)))
        return np.asarray(each.reshape(len(y), -1).mean(axis=1), dtype=np.float64)

    def value(self, theta: npt.ArrayLike) -> Floats:
        """Losses (m,), without weight decay."""
        return weighted_sums(self.of, self.row_losses(theta))

    def predict(self, theta: npt.ArrayLike) -> npt.NDArray[Any]:
        """The likeliest class of every row, or its outputs where there are no classes."""
        return self._means(theta).argmax(axis=1) if self.loss == "cross_entropy" else self.outputs(theta)

    def accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Share of every client's weight that is classified rightly (m,)."""
        return self.value_and_accuracy(theta)[:, 1]

    def value_and_accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Both (m, 2), from one pass."""
        p, y = self._means(theta), self.of.targets()
        found = p.argmax(axis=1) if self.loss == "cross_entropy" else (p > 0.5).reshape(y.shape)
        hit = found == (y if self.loss == "cross_entropy" else y > 0.5)
        right = weighted_means(self.of, hit.reshape(len(y), -1).mean(axis=1))
        return np.stack([weighted_sums(self.of, self.losses_of(p)), right], axis=1)

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """No step is taken: what a rule reads has no gradient of its own."""
        if by.steps.any():
            raise CoterieError("The method's models are more than a net, which take no steps: leave steps out.")
        return theta

    def module(self, theta: npt.ArrayLike) -> Any:
        """Of several nets, or of a net and a memory, there is none."""
        raise CoterieError("The method's models are more than one net: predict() and predict_proba() ask all of it.")


@dataclass(frozen=True)
class Mixture(WideModels):
    """K models and what each counts, (K d + K) numbers: the mean is that of the models' means."""

    def means(self, theta: Floats) -> Floats:
        """Mixtures of the models' means."""
        d = self.of.dim
        K, counts, out = theta.shape[1] // (d + 1), self.of.counts, np.zeros(())
        for k in range(K):
            each = means(np.asarray(self.of.outputs(theta[:, k * d : (k + 1) * d]), dtype=np.float64), self.loss)
            share = np.repeat(theta[:, K * d + k].astype(np.float64), counts)
            out = out + share.reshape(-1, *(1,) * (each.ndim - 1)) * each
        return out


@dataclass(frozen=True)
class WithMemory(WideModels):
    """A net and a memory: the net's numbers (d,), lambda, how many rows are remembered, and these, padded with zeros.

    Of a row there are its features (h,), which layers ``head`` of the net are given, and its outcome (q,). A row of
    features z is said to be ``lambda sum_i a_i y_i + (1 - lambda) net`` over the k nearest rows i that are remembered,
    ``a_i ~ exp(-|z - z_i| / scale)``, where y_i is the outcome, or 1 for its class; without memory, the net's alone.
    """

    head: Sequence[str]
    k: int
    scale: float

    def means(self, theta: Floats) -> Floats:
        """Mixtures of what both say."""
        net, remembered = self.both(theta)
        lam = np.where(theta[:, self.of.dim + 1] > 0.0, theta[:, self.of.dim], 0.0).astype(np.float64)
        share = np.repeat(lam, self.of.counts).reshape(-1, *(1,) * (net.ndim - 1))
        return np.asarray(share * remembered + (1.0 - share) * net)

    def both(self, theta: Floats) -> tuple[Floats, Floats]:
        """What the net and the memory say of every row, client after client (sum of counts, ...)."""
        d, o = self.of.dim, self.of
        net = means(np.asarray(o.outputs(theta[:, :d]), dtype=np.float64), self.loss)
        z, many, classes = o.features(theta[:, :d], self.head), theta[:, d + 1], self.loss == "cross_entropy"
        wide = int(np.prod(net.shape[1:], dtype=np.int64))
        h, q = z.shape[1], 1 if classes else wide
        most = (theta.shape[1] - d - 2) // (h + q)
        memory = theta[:, d + 2 : d + 2 + most * (h + q)].reshape(len(theta), most, h + q)
        owner, out = np.repeat(np.arange(len(self)), o.counts), np.zeros((len(z), wide))
        step = max(AT_ONCE // (max(most, 1) * (h + q)), 1)
        for at in range(0, len(z) if most else 0, step):
            some = owner[at : at + step]
            there = memory[some].astype(np.float64)
            away = np.linalg.norm(there[:, :, :h] - z[at : at + step, None], axis=2)
            away = np.where(np.arange(most) < many[some, None], away, np.inf)
            near = np.argsort(away, axis=1, kind="stable")[:, : self.k]
            away, y = (
                np.take_along_axis(away, near, axis=1),
                np.take_along_axis(there, near[:, :, None], axis=1)[:, :, h:],
            )
            a = np.exp(np.where(np.isfinite(away[:, :1]), away[:, :1], 0.0) / self.scale - away / self.scale)
            a /= np.where(a.sum(axis=1, keepdims=True) > 0.0, a.sum(axis=1, keepdims=True), 1.0)
            y = np.eye(wide)[y[:, :, 0].astype(np.int64)] if classes else y
            out[at : at + step] = np.einsum("rk,rkq->rq", a, y)
        return net, out.reshape(net.shape)
