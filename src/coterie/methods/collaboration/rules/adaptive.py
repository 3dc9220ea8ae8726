"""Weights that follow, from step to step, how alike gradients are (section 7, and the quadratic program of C.2).

Gradients, their noise and the main client's own are averaged over past steps; averages that began at zero are divided
by what they hold. By cosine a collaborator counts as much as its average gradient points the main client's way; by bias
and noise the weights solve ``min sum_k tau_k zeta_k^2 + spread tau_k^2 sigma_k^2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.pairs import Pairs, State
from coterie.numerics.kernels import Floats
from coterie.numerics.simplex_qp import diagonal_simplex_qp

TINY = 1e-12
"""Noise is at least this share of mean squares, which rounding could hide; the first gradient counts as noise alone."""


@dataclass(frozen=True)
class Adaptive:
    """Weights from averages of past gradients, for WGA.

    With BC leave weights alone: their changes are biases that c has yet to follow, less so where 1 - memory
    is far below beta. Neither way finds who is harmful: flipped signs look close near an optimum, large garbage
    points anywhere. Put ``trust.Trust`` before it.

    Attributes
    ----------
    by : {"cosine", "bias"}, default "cosine"
        ``tau_k max(0, cosine of the averages of g_k and g_0)``, or the quadratic program, in which a given weight says
        only whether somebody takes part. Where all cosines of a group are zero or less its main client works alone.
    memory : float, default 0.98
        What is left of a gradient in its average a step later, from 0 to below 1.
    spread : float, default 0.1
        How much noise counts against bias: ``L / (mu T (1 - alpha^2 m))`` in C.2 for T steps, so that fewer
        collaborators, and closer ones, are listened to in a longer run.
    """

    by: Literal["cosine", "bias"] = "cosine"
    memory: float = 0.98
    spread: float = 0.1

    def __post_init__(self) -> None:
        if self.by not in ("cosine", "bias"):
            raise CoterieError(f"Weights adapt by cosine or by bias, not by {self.by!r}.")
        if not (0.0 <= self.memory < 1.0 and 0.0 < self.spread < np.inf):
            raise CoterieError("Adaptive weights need memory from 0 to below 1, and spread above 0.")

    def init(self, who: Collaborators, d: int) -> State:
        """Averages of nothing."""
        state: State = {}
        for kind, n in (("pairs", len(who.who)), ("own", len(who.main))):
            state |= {f"adaptive {kind} g": np.zeros((n, d)), f"adaptive {kind} square": np.zeros(n)}
            state |= {f"adaptive {kind} n": np.zeros(n)}
        return state

    @np.errstate(over="ignore", invalid="ignore")  # squares of what a bad collaborator sends
    def __call__(self, pairs: Pairs, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weights of this step, which its own gradients take part in."""
        of, new = pairs.who.of, dict[str, Floats]()
        fresh = (pairs.age == 0) & pairs.known & (weights > 0.0)
        for kind, g, here in (("pairs", pairs.g, fresh), ("own", pairs.own, pairs.own.any(axis=1))):
            for name, value in (("g", g), ("square", np.sum(g**2, axis=1))):
                old = state[f"adaptive {kind} {name}"]
                mixed = self.memory * old + (1.0 - self.memory) * value
                new[f"adaptive {kind} {name}"] = np.where(here.reshape(-1, *[1] * (old.ndim - 1)), mixed, old)
            new[f"adaptive {kind} n"] = state[f"adaptive {kind} n"] + here
        g, noise, left = self._averages("pairs", new)
        own, own_noise, own_left = self._averages("own", new)
        if self.by == "cosine":
            length = np.linalg.norm(g, axis=1) * np.linalg.norm(own, axis=1)[of]
            cosine = np.sum(g * own[of], axis=1) / np.where(length > 0.0, length, 1.0)
            return np.where(cosine > 0.0, weights * cosine, 0.0), new
        bias = np.sum((g - own[of]) ** 2, axis=1) - left * noise - (own_left * own_noise)[of]
        bias, cost, tau = np.maximum(bias, 0.0), self.spread * noise, np.zeros(len(of))
        at = np.flatnonzero((weights > 0.0) & np.isfinite(bias) & np.isfinite(cost))
        tau[at] = diagonal_simplex_qp(cost[at], bias[at], np.searchsorted(of[at], np.arange(len(own) + 1)))
        return tau, new

    def _averages(self, kind: str, state: dict[str, Floats]) -> tuple[Floats, Floats, Floats]:
        """Mean gradients (n, d), the noise sigma^2 (n,) of one, and the share (n,) of it that is left in the mean."""
        held = 1.0 - self.memory ** state[f"adaptive {kind} n"]
        known = np.where(held > 0.0, held, 1.0)
        g = state[f"adaptive {kind} g"] / known[:, None]
        # The sum of squares of the weights, which are memory^0, ..., memory^(n - 1), over the square of their sum.
        left = np.where(held > 0.0, (1.0 - self.memory) / (1.0 + self.memory) * (2.0 - held) / known, 1.0)
        square = state[f"adaptive {kind} square"] / known
        noise = np.maximum(square - np.sum(g**2, axis=1), TINY * square) / np.maximum(1.0 - left, TINY)
        return g, noise, left
