"""The coins of Algorithms 1 and 2, rounds of every level of clusters, and averages, of a coordinator or among clusters.

Coins are a function of (seed, step) and drawn ahead: nobody has to be sent them one by one, and the communications
that they ask for are known.

Lyu, Hanzely, Kolar (2022), the end of section 3: no central server is needed. Among peers the coin is a majority of
FRESH coins of the clusters: reusing their xi_j would make these depend on xi_0. Votes depend on no data, so those of
many steps travel in one message.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from coterie.federation import Federation, PerRow, Work, require_all_replies
from coterie.lazy_modules import special
from coterie.methods.clustered_l2gd.client_work import Monitor, State, parts_of_models
from coterie.methods.stepwise import Stepwise
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints, over
from coterie.relations.clusters import ClusterTies


@dataclass(frozen=True)
class Coordinated:
    """A coordinator draws the global coin: heads with probability p0."""

    p0: float

    def draw(self, seed: int, steps: Ints) -> Bools:
        """Whether each step (n,) is a global round."""
        return np.asarray(keyed_random.uniform(seed, "global coin", np.zeros(len(steps)), steps, 1)[:, 0] < self.p0)


@dataclass(frozen=True)
class Majority:
    """The global coin as a majority vote of k clusters, with probability p0."""

    p0: float
    k: int
    ties: Literal["tails", "heads"] = "tails"  # how a tie falls, where k is even

    @property
    def needed(self) -> int:
        """Votes that make a global round."""
        return (self.k + 1) // 2 if self.ties == "heads" else self.k // 2 + 1

    @cached_property
    def q(self) -> float:
        """Own probability of heads, at which a majority has p0: ``P(Binomial(k, q) >= needed)`` is a beta function."""
        return float(special.betaincinv(self.needed, self.k - self.needed + 1, self.p0))

    def votes(self, seed: int, steps: Ints) -> Bools:
        """Every cluster's fresh coin at each step, (n, k)."""
        return np.asarray(keyed_random.uniform(seed, "votes", np.zeros(len(steps)), steps, self.k) < self.q)

    def draw(self, seed: int, steps: Ints) -> Bools:
        """Whether each step (n,) is a global round."""
        return np.asarray(self.votes(seed, steps).sum(axis=1) >= self.needed)


Vote = Coordinated | Majority
"""How the global coin falls."""
AHEAD = 2_000_000  # coins held in memory at a time


def cluster_coins(seed: int, steps: Ints, p: Floats) -> Bools:
    """Whether clusters would speak among themselves at each step, (n, k): heads with probability p_j."""
    return np.asarray(keyed_random.uniform(seed, "cluster coins", np.zeros(len(steps)), steps, len(p)) < p)


def draw(seed: int, first: int, count: int, vote: Vote, p: Floats) -> Iterator[tuple[int, Bools, Bools]]:
    """Coins, as many at a time as may be held: the first step, and which are global (n,) and cluster rounds (n, k)."""
    ahead = max(AHEAD // max(len(p), 1), 1)
    for lo in range(first, first + count, ahead):
        steps = np.arange(lo, min(lo + ahead, first + count), dtype=np.int64)
        yield lo, vote.draw(seed, steps), cluster_coins(seed, steps, p)


def previous(seed: int, t: int, vote: Vote, p: Floats) -> tuple[bool, Bools]:
    """The coins of the step before t; everybody begins at the same point, as after a global round."""
    if t == 0:
        return True, np.ones(len(p), dtype=bool)
    ((_, xi0, xi),) = draw(seed, t - 1, 1, vote, p)
    return bool(xi0[0]), xi[0]


def communications(xi0: Bools, xi: Bools, free: Bools, last: tuple[bool, Bools]) -> tuple[int, Ints]:
    """How many communications steps with coins (n,), (n, k) after the ``last`` need between clusters, and within (k,).

    A round that follows one of its kind at once is free where a pull leaves the averages where they were: in clusters
    that are ``free`` (k,), those of equal gamma (``ClusterTies.equal``) in Algorithm 1, none in Algorithm 2.
    """
    was_global = np.concatenate([[last[0]], xi0[:-1]])
    was_local = ~np.concatenate([last[1][None], xi[:-1]]) & ~was_global[:, None]
    between = xi0 & ~(was_global & free.all())
    within = xi & ~xi0[:, None] & (was_local | ~free)
    return int(between.sum()), within.sum(axis=0)


def expected_communications(p0: float, p: Floats, T: int, free: Bools) -> dict[str, float | Floats]:
    """What ``communications`` is in the mean over T steps: ``between`` and ``within`` (k,).

    ``printed`` (k,) is Proposition 3.2's count within clusters, which skips over the global rounds in between; where
    all rounds that follow one are free, ``between`` is that proposition's too.
    """
    within = (1.0 - p0) * p * T
    printed = within * (1.0 - p)
    between = p0 * (1.0 - p0) * T if free.all() else p0 * T
    return {"between": between, "within": np.where(free, (1.0 - p0) * printed, within), "printed": printed}


NetworkAverage = Callable[[Floats, Floats], Floats]
"""``(weights (k,), averages (k, d)) -> (k, d)``: the network's average as every cluster has it."""


def central(weights: Floats, averages: Floats) -> Floats:
    """A coordinator computes the network's average and tells every cluster; 0 where nothing has a weight."""
    total = float(weights.sum())
    mean = weights @ averages / total if total > 0.0 else np.zeros(averages.shape[1])
    return np.broadcast_to(mean, averages.shape)


def ring(weights: Floats, averages: Floats) -> Floats:
    """The average around a ring, where each cluster sends 2 (k - 1) messages of a k-th of d + 1 numbers."""
    k = len(weights)
    payload = np.c_[weights[:, None] * averages, weights]
    sums = [
        payload[(part + 1 + np.arange(k)) % k][:, columns].sum(axis=0)  # begins at the next cluster, ends at its own
        for part, columns in enumerate(np.array_split(np.arange(payload.shape[1]), k))
    ]
    total = np.concatenate(sums)
    mean = total[:-1] / total[-1] if total[-1] > 0.0 else np.zeros(averages.shape[1])
    return np.broadcast_to(mean, averages.shape)


NETWORKS: dict[str, NetworkAverage] = {"all-to-all": central, "ring": ring}
"""How clusters average among themselves. All to all, each adds up the averages of all as a coordinator would."""


def traffic(network: str, k: int, d: int, rounds: int, steps: int, ahead: int = 1024) -> dict[str, int]:
    """Messages between clusters and their bytes (float64): averages, and votes that travel ``ahead`` at a time."""
    votes = -(-steps // ahead) * k * (k - 1)
    ballots = k * (k - 1) * -(-steps // 8)
    averages, numbers = 2 * k * (k - 1), 2 * (k - 1) * (d + 1)
    if network == "all-to-all":
        averages, numbers = k * (k - 1), k * (k - 1) * (d + 1)
    return {"messages": rounds * averages + votes, "bytes": 8 * rounds * numbers + ballots}


@dataclass(frozen=True)
class Levels:
    """The rounds of all levels."""

    ties: ClusterTies
    probability: Floats  # (n + 1, k) of a round of each level, at a step
    local: Floats  # (k,) of a local step
    shares: Floats  # (n + 1, n + 1, k) of tie a, in rounds of level l
    coins: Floats  # (n + 1, k) probabilities of heads, where no coarser coin fell so

    @classmethod
    def of(
        cls, ties: ClusterTies, p0: float, p: Floats, q: tuple[Floats, ...] = (), tau: Floats | None = None
    ) -> Levels:
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


def own_levels(ties: ClusterTies, L: Floats, shared: float = 0.0) -> Levels:
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


@dataclass(frozen=True)
class ClusterRounds(Stepwise):
    """What Algorithms 1 and 2 have in common, with the paper's symbols; ``theory`` chooses them."""

    ties: ClusterTies  # gamma_i and alpha_j
    p0: float
    p: Floats
    tau: Floats
    _: KW_ONLY
    seed: int = 0  # of the coins; rows are drawn by the engine's
    vote: Vote | None = None  # who draws the global coin
    network: NetworkAverage = field(default=central)  # who computes the network's average
    monitor: Monitor = field(default_factory=Monitor)  # what is "observed" after a step
    personal: Sequence[str] | None = None  # each client's own columns, or layers; all share the others. None is all
    untied: Sequence[str] | None = None  # those of them that nothing ties, nor what the objective keeps; None is none
    q: tuple[Floats, ...] = ()  # probabilities (k,) of a communication within clusters of clusters, fine to coarse
    free: Ints | None = None  # the clients that take part; None is all

    @property
    def parts(self) -> dict[str, Any]:
        """What clients are told of the parts of models."""
        named = {"personal": self.personal, "untied": self.untied}
        return {name: list(patterns) for name, patterns in named.items() if patterns is not None}

    @cached_property
    def levels(self) -> Levels:
        """The rounds of all levels; clusters without ties have none of their own."""
        return Levels.of(self.ties, self.p0, np.where(self.ties.Gamma > 0.0, self.p, 0.0), self.q, self.tau)

    @property
    def coin(self) -> Vote:
        """What draws the global coin."""
        return self.vote or Coordinated(self.p0)

    def begin(
        self, fed: Federation, start: Work, d: int, w: Floats | None, **how: Any
    ) -> tuple[Floats, Floats, Floats]:
        """All clients ``start`` at w (d,), by default zero: averages (k, d1) of what is tied, and what is shared (d2,).

        At last what is tied (d,), which is empty where all is.
        """
        at: dict[str, Any] = {} if w is None else {"w": np.asarray(w, dtype=np.float64)}
        require_all_replies(fed.ask(start, gamma=PerRow(self.ties.gamma), **how, **at))
        means = np.full((len(self.p), d), at.get("w", 0.0))
        if not self.parts:
            return means, np.empty(0), np.empty(0)
        masks = require_all_replies(fed.ask(parts_of_models, to=[0], **self.parts))
        return means[:, masks["tied"][0]], means[0, masks["shared"][0]], 1.0 * masks["tied"][0]

    def step(self, fed: Federation, state: State) -> State:
        """One iteration."""
        return self.advance(fed, state, 1)
