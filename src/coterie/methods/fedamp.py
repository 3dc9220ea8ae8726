"""Huang, Chu, Zhou, Wang, Liu, Pei, Zhang (2021), Personalized cross-silo federated learning on non-IID data: FedAMP.

Algorithm 1 minimises ``sum_i F_i(w_i) + lambda sum_{i < j} A(|w_i - w_j|^2)`` with ``A(x) = 1 - exp(-x / sigma)``: the
server makes ``u_i = w_i + alpha sum_j A'(|w_i - w_j|^2) (w_j - w_i)``, which attends most to those that are near, and a
client nearly minimises ``F_i(w) + lambda / (2 alpha) |w - u_i|^2``. HeurFedAMP attends by cosines. (PFLlib has the norm
where the square of it should be, begins at w_i, and attends to those of the last round alone.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from coterie.methods import fedprox
from coterie.methods.local_training.personalized_aggregation import OwnModels
from coterie.methods.local_training.rounds import Passes, Smoothness, State
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


def message_passing(W: Floats, alpha: float, sigma: float) -> Floats:
    """Weights xi (k, k) of models W (k, d); where those of the others would add up to more than 1, they make 1."""
    square, G = np.einsum("ij,ij->i", W, W), W @ W.T
    xi = alpha / sigma * np.exp(-np.maximum(square[:, None] + square - 2.0 * G, 0.0) / sigma)
    np.fill_diagonal(xi, 0.0)
    xi /= np.maximum(xi.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(xi + np.diag(1.0 - xi.sum(axis=1)))


def by_cosine(W: Floats, own: float, sigma: float) -> Floats:
    """Weights of HeurFedAMP (8): ``own`` for a client's model, the rest as ``exp(sigma cos(w_i, w_j))``."""
    unit = W / np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-300)
    xi = np.exp(sigma * (unit @ unit.T - 1.0))
    np.fill_diagonal(xi, 0.0)
    return np.asarray((1.0 - own) * xi / xi.sum(axis=1, keepdims=True) + own * np.eye(len(W)))


@dataclass(frozen=True, kw_only=True)
class FedAMP(OwnModels):
    """Algorithm 1 with the paper's symbols, or HeurFedAMP; local steps begin at u_i.

    Notes
    -----
    sigma is in units of squared distances of models: far above them all are heard alike, far below nobody is. With
    ``attention="cosine"`` it has no unit.
    """

    lam: Annotated[float, Option("lambda; steps are stable for ``eta (L + lambda / alpha) < 2``.", low=0.0)]
    E: Passes = 1
    alpha: Annotated[float, Option("alpha_k: step of the server towards others' models.", above=0.0)] = 1.0
    sigma: Annotated[float, Option("How far, or how alike, those are who are heard.", above=0.0)] = 1.0
    attention: Annotated[Literal["distance", "cosine"], Option("FedAMP, or HeurFedAMP.")] = "distance"
    own: Annotated[
        float,
        Option("xi_ii: what a client's own model counts.", low=0.0, below=1.0, beside=("attention", ("cosine",))),
    ] = 0.5
    bends = "mu"
    update = staticmethod(fedprox.update)

    @property
    def mu(self) -> float:
        """The pull to u_i."""
        return self.lam / self.alpha

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Some passes, and steps that are stable."""
        return {"E": 5, "eta": 1.0 / (losses.L + how["lam"] / how.get("alpha", 1.0))}

    def weigh(self, state: State, known: Ints) -> Floats:
        """Attention among the models."""
        W = self.trained(state, known).astype(np.float64)
        if self.attention == "cosine":
            return by_cosine(W, self.own, self.sigma)
        return message_passing(W, self.alpha, self.sigma)
