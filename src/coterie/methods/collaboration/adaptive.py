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
from coterie.numerics.kernels import Bools, Floats, Ints, kernel

TINY = 1e-12
"""Noise and what is left of it are at least this much: they divide."""


@kernel
def _shares(price: Floats, growth: Floats, counted: Bools, starts: Ints, w: Floats) -> None:
    for i in range(starts.shape[0] - 1):
        here = starts[i] + np.flatnonzero(counted[starts[i] : starts[i + 1]])
        here = here[np.argsort(price[here], kind="mergesort")]
        supply, cost, level = 0.0, 1.0, np.inf
        for p in here:
            if price[p] >= level:
                break
            supply += 1.0 / growth[p]
            cost += price[p] / growth[p]
            level = cost / supply
        for p in here:
            w[p] = max(0.0, (level - price[p]) / growth[p])


def shares(price: Floats, growth: Floats, counted: Bools, starts: Ints) -> Floats:
    """Within each group: ``min sum_k price_k w_k + growth_k w_k^2 / 2``, w not negative, adding up to 1.

    Water filling: ``w_k = max(0, (level - price_k) / growth_k)``.

    Parameters
    ----------
    price, growth : (P,)
        growth must be above zero.
    counted : (P,) bool
        Others get zero, as do all in a group where nobody counts.
    starts : (M + 1,) int64
        Where groups begin.
    """
    w = np.zeros(len(price))
    _shares(np.ascontiguousarray(price), np.ascontiguousarray(growth), counted, starts, w)
    return w


@dataclass(frozen=True)
class Adaptive:
    """Weights from averages of past gradients, for WGA.

    With bias correction weights must change more slowly than c follows: 1 - memory far below beta. Neither way finds
    who is harmful: flipped signs look close near an optimum, large garbage points anywhere. Put ``trust.Trust`` before.

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
        bias, growth = np.maximum(bias, 0.0), 2.0 * self.spread * noise
        counted = (weights > 0.0) & np.isfinite(bias) & np.isfinite(growth)
        return shares(bias, growth, counted, pairs.who.starts), new

    def _averages(self, kind: str, state: dict[str, Floats]) -> tuple[Floats, Floats, Floats]:
        """Mean gradients (n, d), the noise sigma^2 (n,) of one, and the share (n,) of it that is left in the mean."""
        held = 1.0 - self.memory ** state[f"adaptive {kind} n"]
        known = np.where(held > 0.0, held, 1.0)
        g = state[f"adaptive {kind} g"] / known[:, None]
        # The sum of squares of the weights, which are memory^0, ..., memory^(n - 1), over the square of their sum.
        left = np.where(held > 0.0, (1.0 - self.memory) / (1.0 + self.memory) * (2.0 - held) / known, 1.0)
        square = state[f"adaptive {kind} square"] / known
        noise = np.maximum(square - np.sum(g**2, axis=1), TINY * square) / np.maximum(1.0 - left, TINY)
        return g, np.maximum(noise, 1e-100), left
