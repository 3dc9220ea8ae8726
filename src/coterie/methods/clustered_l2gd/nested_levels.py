"""Rounds of every level of clusters: how often they are, which ties they step on, and what is promised for them.

With levels 0 (the finest clusters) to n (the network), clients are tied to the average of each by ``c_a``, and
in a round of level l all averages up to it are known. Each level has a coin, thrown where no coarser one fell. With
``P_l`` the probability of a round of level l, which takes the share ``s_al`` of tie a, the estimator

    sum_(a <= l) s_al c_a (theta - mean_a) / P_l  in a round of level l,    grad f / P_local  in a local step

is unbiased where ``sum_(l >= a) s_al = 1``. Since l + 1 ties meet in it, ``E |g(theta) - g(theta*)|^2 <= 2 L D_F`` with
``L = max(C_a / sum_(l >= a) P_l / (l + 1), L_i / P_local)`` at the best shares, ``s_al ~ P_l / (l + 1)``: Lemma A.1
bounds each term by itself, as it does two of them in the paper. So Theorems 3.5 and 4.3, which know no more than such
an L, hold for any number of levels; with n = 1 all this is (3.2), (3.3), (3.4) and Proposition 3.3.

What all clients share, p, is F restricted to models with equal copies of it, and its gradient there the mean of
``grad_p f_i``. A round of the network steps on that mean over P_n, no other step does: this is unbiased, and no tie has
a part in p. For differences (g_i, h_i) of clients' gradients in p and in their own parts, ``|mean_i g_i|^2 / P_n +
|h_i|^2 / P_local``, summed over clients, is at most ``2 (L_p / P_n + L_i / P_local) D``, L_p the smoothness of the mean
loss in p and L_i that of f_i in what is i's own: a form with two blocks is at most the sum of its blocks' largest
values. So only that term of L is another one. At the optimum the mean is 0, and there is no more noise. Distances count
every client's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.methods.clustered_l2gd.coins_and_averages import NetworkAverage
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints, over
from coterie.relations.clusters import Ties


@dataclass(frozen=True)
class Levels:
    """The rounds of all levels."""

    ties: Ties
    probability: Floats  # (n + 1, k) of a round of each level, at a step
    local: Floats  # (k,) of a local step
    shares: Floats  # (n + 1, n + 1, k) of tie a, in rounds of level l
    coins: Floats  # (n + 1, k) probabilities of heads, where no coarser coin fell so

    @classmethod
    def of(cls, ties: Ties, p0: float, p: Floats, q: tuple[Floats, ...] = (), tau: Floats | None = None) -> Levels:
        """From coins: p0 of the network, p (k,) of clusters, q of the levels between; tau (k,), where it is given."""
        coins = np.stack([p, *q, np.full(len(p), p0)])
        none = np.cumprod(np.concatenate([np.ones((1, len(p))), 1.0 - coins[::-1]]), axis=0)[::-1]
        probability = coins * none[1:]
        shares = best_shares(probability)
        if tau is not None and not q:
            shares[0] = [1.0 - tau, tau]
        return cls(ties, probability, none[0], shares, coins)

    @property
    def chosen(self) -> tuple[float, Floats, tuple[Floats, ...]]:
        """p_0, p (k,) and q of the levels between."""
        return float(self.coins[-1, 0]), self.coins[0], tuple(self.coins[1:-1])

    def drawn(self, seed: int, first: int, xi0: Bools) -> Ints:
        """The level of the rounds above clusters at steps from ``first`` on, (steps, k); 0 where there is none."""
        steps, n = np.arange(first, first + len(xi0)), len(self.coins) - 1
        out: Any = np.zeros((len(xi0), len(self.local)), dtype=np.int8)
        for level in range(1, n):
            node = self.ties.nodes[level]
            fell = keyed_random.uniform(seed, f"coins of level {level}", np.zeros(len(steps)), steps, node.max() + 1)
            out[fell[:, node] < self.coins[level]] = level
        out[xi0] = n
        return out  # type: ignore[no-any-return]

    def pull(self, level: Ints, mean: Floats, weight: Floats, network: NetworkAverage) -> tuple[Floats, Floats]:
        """What clients step on in rounds of ``level`` (k,), -1 for none: ``gamma_i (c theta_i - u)``, c (k,), u (k, d).

        ``mean`` (k, d) are averages of clusters and ``weight`` (k,) the sums of gamma that are in them.
        """
        means = self.ties.level_means(mean, weight) if level.max(initial=-1) > 0 else [mean]
        if level.max(initial=-1) == len(self.coins) - 1:
            means[-1] = network(self.ties.passed[-1] * weight, mean)
        c, u = np.zeros(len(level)), np.zeros(mean.shape)
        for a, average in enumerate(means):
            here = level >= a
            size = np.where(here, self.weight(a, np.maximum(level, a)), 0.0)
            c, u = c + size, u + size[:, None] * average
        return c, u

    @cached_property
    def weights(self) -> Floats:
        """``s_al c_a / P_l`` of rounds of level l and ties a, (n + 1, n + 1, k)."""
        return over(np.swapaxes(self.shares, 0, 1) * self.ties.share, self.probability[:, None])

    def weight(self, a: int, level: Ints) -> Floats:
        """Those (k,) of tie a in rounds of ``level`` (k,)."""
        return np.asarray(self.weights[level, a, np.arange(len(level))])

    def smoothness(self, L: Floats, shared: float = 0.0) -> float:
        """Calligraphic L, for the expected smoothness L (k,) of clusters' losses, and that in what is ``shared``."""
        pulls = over(self.ties.C, reached(self.probability))
        losses = over(L, self.local) + over(shared, self.probability[-1])
        return float(max(np.max(pulls), np.max(losses)))

    def noise(self, squares: Floats, loss: Floats) -> float:
        """The estimator's noise at the optimum, from the squared gradients of ties (n + 1, k) and of losses (k,)."""
        reach = reached(self.probability)
        return float(np.sum(np.where(reach > 0.0, over(squares, reach), 0.0)) + np.sum(over(loss, self.local)))


def reached(probability: Floats) -> Floats:
    """``sum_(l >= a) P_l / (l + 1)`` (n + 1, k)."""
    terms = np.arange(1.0, len(probability) + 1.0)[:, None]
    return np.asarray(np.cumsum((probability / terms)[::-1], axis=0)[::-1])


def best_shares(probability: Floats) -> Floats:
    """The shares (n + 1, n + 1, k) that minimise calligraphic L: those of tie a are as ``P_l / (l + 1)``, l >= a."""
    n = len(probability)
    reach, terms = reached(probability), np.arange(1.0, n + 1.0)[:, None]
    above = (np.arange(n) >= np.arange(n)[:, None])[:, :, None]
    return np.asarray(np.where(above, over(probability / terms, reach[:, None]), 0.0))


def own_levels(ties: Ties, L: Floats, shared: float = 0.0) -> Levels:
    """Rounds of least calligraphic L, every node with a probability of its own.

    A value l of it is reached if ``sum_(b >= a) P_b / (b + 1) >= C_a / l`` and ``P_local >= L_j / l``. A coarser round
    counts in all ties below it, so as many as its own tie needs are best, and finer ones add what is left. What is
    ``shared`` takes a part w of l, ``P_n >= shared / (w l)``, and leaves ``P_local >= L_j / ((1 - w) l)``.
    """
    from scipy.optimize import minimize_scalar

    def rounds(w: float) -> tuple[float, Floats]:
        C = np.concatenate([ties.C[:-1], np.maximum(ties.C[-1:], over(shared, w * len(ties.C)))])
        most = np.maximum.accumulate(C[::-1], axis=0)[::-1]
        needed = (most - np.concatenate([most[1:], np.zeros((1, len(L)))])) * np.arange(1.0, len(most) + 1.0)[:, None]
        return float(np.max(L / (1.0 - w) + needed.sum(axis=0))), needed

    w = minimize_scalar(lambda w: rounds(w)[0], bounds=(0.0, 1.0), method="bounded").x if shared > 0.0 else 0.0
    least, needed = rounds(w)
    P = over(needed, least)
    none = 1.0 - np.concatenate([np.cumsum(P[::-1], axis=0)[::-1][1:], np.zeros((1, len(L)))])
    coins = over(P, none)
    return Levels.of(ties, float(coins[-1, 0]), coins[0], tuple(coins[1:-1]))
