"""Rules that put gradients of one step together: means, and what few bad clients cannot move far.

``Received`` is what main clients received of each of their collaborators; an ``Aggregator`` weighs it and combines it.
The rules are trimmed means, centred clipping, trust, and adaptive weights.

``Trust``: the condition on delta (A3, remark of section 5.2 of the 2022 paper) "eliminates adversarial agents that
would have a big delta". Mean gradients of one window of steps are compared with those of the next: on the way that x
went, delta is the change of ``g_k - g_0`` and the main client's own L is that of ``g_0``, so that the length of the way
cancels. A copy of the main client, shifted by any constant, has delta = 0; one that always sends the same has L, one
that flips signs 2 L.

``Adaptive`` (section 7, and the quadratic program of C.2): gradients, their noise and the main client's own are
averaged over past steps; averages that began at zero are divided by what they hold. Weights solve ``min sum_k tau_k
zeta_k^2 + spread tau_k^2 sigma_k^2``.

References
----------
Yin, Chen, Ramchandran, Bartlett (2018), Byzantine-robust distributed learning, ICML, Definition 2.
Karimireddy, He, Jaggi (2021), Learning from history for Byzantine robust optimization, ICML, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np

from coterie.lazy_modules import sparse
from coterie.numerics.arrays import Bools, Floats, Ints, kernel
from coterie.numerics.simplex_qp import diagonal_simplex_qp
from coterie.options import Checked, Option

State = dict[str, Any]  # arrays by name: what a rule remembers from step to step, so that a run can be resumed


@dataclass(frozen=True)
class Received:
    """The gradients of one step: M main clients' own, and those of P clients that were asked at their models."""

    main: Ints  # (P,) at whose model a client was asked: numbers of main clients, rising
    g: Floats  # (P, d) the last gradient that each client sent, always finite; zero where it never sent one
    known: Bools  # (P,) whether it ever sent one
    age: Ints  # (P,) steps since then; 0: in this one
    own: Floats  # (M, d) the main clients' own gradients
    t: int  # number of the step

    @cached_property
    def starts(self) -> Ints:
        """Where the clients of every main client begin, and where the last ones end, (M + 1,)."""
        return np.searchsorted(self.main, np.arange(len(self.own) + 1)).astype(np.int64)


class Rule(Protocol):
    """A rule that changes weights from step to step, or one that makes one gradient of many."""

    def init(self, M: int, P: int, d: int) -> State:
        """What it remembers before the first step, by default nothing; names must be its own."""
        return {}

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """New weights (P,), or the collaborators' gradient for every main client (M, d); what it remembers now.

        Weights are not negative and need not add up to 1; a main client whose weights are all zero works alone.
        """


def weighted_mean(g: Floats, weights: Floats, starts: Ints) -> Floats:
    """Weighted means (M, d) of the rows of g (P, d) within ``starts`` (M + 1,); zero where all weights are."""
    M, counted = len(starts) - 1, np.flatnonzero(weights > 0.0)
    of = np.repeat(np.arange(M), np.diff(starts))[counted]
    share = weights[counted] / np.bincount(of, weights[counted], minlength=M)[of]
    return np.asarray(sparse.csr_array((share, (of, counted)), shape=(M, len(g))) @ g)


class Mean(Rule):
    """Algorithm 2's average: ``sum_k tau_k g_k``, over the collaborators whose weight is not zero."""

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weighted mean."""
        return weighted_mean(received.g, weights, received.starts), {}


@dataclass(frozen=True)
class Aggregator:
    """How gradients that were received one by one are weighed, in this order, and combined."""

    weigh: Sequence[Rule] = ()
    combine: Rule = field(default_factory=Mean)

    def init(self, M: int, P: int, d: int) -> State:
        """What all rules remember before the first step."""
        state: State = {}
        for rule in (*self.weigh, self.combine):
            state |= rule.init(M, P, d)
        return state

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, Bools, State]:
        """The collaborators' gradient (M, d), whether there is any (M,), and what the rules remember now."""
        for rule in self.weigh:
            weights, new = rule(received, weights, state)
            state = state | new
        average, new = self.combine(received, weights, state)
        helped = np.bincount(received.main, weights, minlength=len(received.own)) > 0.0
        return average, helped, state | new


@kernel
def _trimmed(g: Floats, weights: Floats, starts: Ints, fraction: float, out: Floats) -> None:
    for i in range(out.shape[0]):
        members = starts[i] + np.flatnonzero(weights[starts[i] : starts[i + 1]] > 0.0)
        n = members.shape[0]
        cut = min(int(np.ceil(fraction * n - 1e-9)), (n - 1) // 2)
        column = np.empty(n)
        for j in range(out.shape[1]):
            for a in range(n):
                column[a] = g[members[a], j]
            kept = np.argsort(column, kind="mergesort")[cut : n - cut]
            total = 0.0
            for a in kept:
                total += weights[members[a]]
            for a in kept:
                out[i, j] += weights[members[a]] / total * column[a]


def trimmed_mean(g: Floats, weights: Floats, starts: Ints, fraction: float) -> Floats:
    """Weighted means (M, d) of the rows of g (P, d) within ``starts`` (M + 1,), without the ends of each coordinate.

    Of n rows whose weight is not zero, ``fraction * n``, rounded up, are left out at either end, and never all; zero
    where there are none. With a fraction of 0.5 and equal weights these are medians.
    """
    out = np.zeros((len(starts) - 1, g.shape[1]))
    _trimmed(np.ascontiguousarray(g), np.ascontiguousarray(weights), starts, fraction, out)
    return out


@kernel
def _clip(g: Floats, weights: Floats, starts: Ints, radius: float, steps: int, v: Floats) -> None:
    for i in range(v.shape[0]):
        members = starts[i] + np.flatnonzero(weights[starts[i] : starts[i + 1]] > 0.0)
        n, total, far, move = members.shape[0], 0.0, np.empty(members.shape[0]), np.empty(v.shape[1])
        for p in members:
            total += weights[p]
        for _ in range(steps if n else 0):
            for a in range(n):
                square = 0.0
                for j in range(v.shape[1]):
                    square += (g[members[a], j] - v[i, j]) ** 2
                far[a] = np.sqrt(square)
            r = radius if radius > 0.0 else np.sort(far)[(n - 1) // 2]
            move[:] = 0.0
            for a in range(n):
                if far[a] < np.inf:
                    share = weights[members[a]] / total * (1.0 if far[a] <= r else r / far[a])
                    for j in range(v.shape[1]):
                        move[j] += share * (g[members[a], j] - v[i, j])
            v[i] += move


@dataclass(frozen=True)
class Trimmed(Checked, Rule):
    """The mean without the largest and the smallest values of each coordinate.

    The share is of those whose weight is not zero, rounded up, so that as many bad ones cannot leave the range of the
    good ones. One or two collaborators are kept as they are: of two nobody can say which is bad. The others keep the
    ratios of their weights.
    """

    fraction: Annotated[float, Option("Share of the collaborators left out at either end.", low=0.0, high=0.5)] = 0.2

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The trimmed means."""
        return trimmed_mean(received.g, weights, received.starts, self.fraction), {}


@dataclass(frozen=True)
class Clipped(Checked):
    """Centred clipping: ``v <- v + sum_k tau_k min(1, r / |g_k - v|) (g_k - v)``, from the v of the step before.

    The first v is the median, coordinate by coordinate, of a main client's first collaborators.

    By default the radius r is the median of ``|g_k - v|`` within the group (the lower one of two).
    """

    radius: Annotated[float | None, Option("r, in the units of gradients; by default the median.", above=0.0)] = None
    steps: Annotated[int, Option("How often that is done in a step; the paper takes 1 to 3.", low=1)] = 1

    def init(self, M: int, P: int, d: int) -> State:
        """No v yet."""
        return {"clipped around": np.zeros((M, d)), "clipped before": np.zeros(M, dtype=bool)}

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """v, for those that hear anybody; it is remembered."""
        starts, M = received.starts, len(received.own)
        weights, g = np.ascontiguousarray(weights), np.ascontiguousarray(received.g)
        helped = np.bincount(received.main, weights, minlength=M) > 0.0
        first = trimmed_mean(g, (weights > 0.0).astype(np.float64), starts, 0.5)
        v = np.where(state["clipped before"][:, None], state["clipped around"], first)
        _clip(g, weights, starts, self.radius or 0.0, self.steps, v)
        new = {"clipped around": v, "clipped before": state["clipped before"] | helped}
        return np.where(helped[:, None], v, 0.0), new


ENOUGH = 4  # answers in a window, from which its mean and its variance are taken


def lower_median(own: Floats, values: Floats, of: Ints, counted: Bools) -> Floats:
    """The lower median (M,) of ``own`` (M,) and of those of ``values`` (P,) that are counted and belong to it."""
    M = len(own)
    groups = np.concatenate([np.arange(M), of[counted]])
    together = np.concatenate([own, values[counted]])
    together = together[np.lexsort((together, groups))]
    n = np.bincount(groups, minlength=M)
    return np.asarray(together[np.cumsum(n) - n + (n - 1) // 2])


@dataclass(frozen=True)
class Trust(Checked):
    """Collaborators' weights, zero for those that are found harmful.

    Nobody is judged by delta before the second window ends. Where x hardly moves, its standard errors are large and
    nothing is said. ``direction`` is for WGA: BC can use a collaborator whose gradient is shifted, and whose direction
    says nothing. Who is dropped goes on being judged, and is dropped twice as long each time again. A gradient is too
    large by the median of the group's squares, by the main client's own, and by the largest of the latter so far.
    """

    window: Annotated[int, Option("Steps of a window.", low=ENOUGH)] = 50
    multiple: Annotated[float, Option("How many times the main client's own L a delta may be.", above=0.0)] = 0.75
    errors: Annotated[float, Option("By how many standard errors it must be more.", low=1.0)] = 3.0
    direction: Annotated[bool, Option("Whether to drop whose mean gradient points against the main client's.")] = False
    size: Annotated[float, Option("How many times too large a gradient's square may be.", above=1.0)] = 100.0
    pause: Annotated[int, Option("For how many windows somebody is dropped.", low=1)] = 50
    memory: Annotated[float, Option("What is left of evidence about delta a window later.", low=0.0, below=1.0)] = 0.9

    def init(self, M: int, P: int, d: int) -> State:
        """Nobody is dropped."""
        state: State = {f"trust {name}": np.zeros(P, dtype=np.int64) for name in ("again", "times")}
        state |= {"trust largest": np.zeros(M), "trust evidence": np.zeros((3, P))}
        for kind, n in (("pairs", P), ("own", M)):
            state |= {f"trust {kind} {name}": np.zeros((n, d)) for name in ("sum", "squares", "mean", "noise")}
            state |= {f"trust {kind} {name}": np.zeros(n) for name in ("received", "received before")}
        return state

    @np.errstate(over="ignore", invalid="ignore")  # squares of what a bad collaborator sends
    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weights of those that are trusted."""
        of, own = received.main, received.own
        square, own_square = np.sum(received.g**2, axis=1), np.sum(own**2, axis=1)
        largest = np.maximum(state["trust largest"], own_square)
        usual = lower_median(own_square, square, of, received.known & (weights > 0.0))
        fits = square <= self.size * np.maximum(usual, largest)[of]
        has_own = own_square > 0.0
        fresh = received.known & (received.age == 0) & fits & has_own[of]
        b = np.where(fresh[:, None], received.g - own[of], 0.0)
        new: State = {"trust largest": largest}
        for kind, value, received_now in (("pairs", b, fresh), ("own", own, has_own)):
            for name, more in (("sum", value), ("squares", value**2), ("received", received_now)):
                new[f"trust {kind} {name}"] = state[f"trust {kind} {name}"] + more
        state = state | new
        if (received.t + 1) % self.window == 0:
            state = self._judge(received, state)
        new = {name: value for name, value in state.items() if name.startswith("trust ")}
        return np.where(fits & (state["trust again"] <= received.t), weights, 0.0), new

    def _judge(self, received: Received, state: State) -> State:
        """At the end of a window: who is dropped, and the next window begins."""
        of, state = received.main, dict(state)
        moved: dict[str, tuple[Floats, Floats]] = {}
        enough = {name: state[f"trust pairs {name}"] >= ENOUGH for name in ("received", "received before")}
        for kind in ("pairs", "own"):
            mean, noise = (state[f"trust {kind} {name}"] for name in ("mean", "noise"))
            n = np.maximum(state[f"trust {kind} received"], 2.0)[:, None]
            new, square = state[f"trust {kind} sum"] / n, state[f"trust {kind} squares"] / n
            now = np.maximum(square - new**2, 1e-15 * square) / (n - 1.0)  # with what rounding adds
            moved[kind] = (new - mean) ** 2, now + noise
            state |= {f"trust {kind} mean": new, f"trust {kind} noise": now}
            state[f"trust {kind} received before"] = state[f"trust {kind} received"]
            for name in ("sum", "squares", "received"):
                state[f"trust {kind} {name}"] = np.zeros_like(state[f"trust {kind} {name}"])
        excess, both = self._excess(*moved["pairs"], *moved["own"], of), enough["received"] & enough["received before"]
        evidence = np.where(both, excess, 0.0)
        evidence[:2] += np.array([[self.memory], [self.memory**2]]) * state["trust evidence"][:2]
        evidence[2] = np.maximum(evidence[2], self.memory * state["trust evidence"][2])
        # The second term is Cornish and Fisher's, for squares are skewed.
        noise = self.errors * np.sqrt(evidence[1]) + 2.0 / 3.0 * (self.errors**2 - 1.0) * evidence[2]
        harmful = (evidence[0] > noise) | (self.direction & enough["received"] & self._against(of, state))
        times = state["trust times"] + (harmful & (state["trust again"] <= received.t))
        pause = self.pause * self.window * 2 ** np.clip(times - 1, 0, 20)
        again = np.where(harmful, received.t + 1 + pause, state["trust again"])
        return state | {"trust evidence": evidence, "trust again": again, "trust times": times}

    def _excess(self, b: Floats, b_noise: Floats, own: Floats, own_noise: Floats, of: Ints) -> Floats:
        """``|change of b|^2 - multiple^2 |change of g_0|^2`` without noise, its variance if it is zero, most noise.

        From squared changes of means, and their noise, coordinate by coordinate. A window is compared with both its
        neighbours, which adds at most half to the variance of a sum.
        """
        times = self.multiple**2
        B, L = np.sum(b - b_noise, axis=1), np.sum(own - own_noise, axis=1)
        signal = np.sum(np.maximum(b - b_noise, 0.0) * b_noise, axis=1)
        signal *= np.minimum(1.0, times * np.maximum(L, 0.0)[of] / np.where(B > 0.0, B, 1.0))
        L_var = np.sum(4.0 * np.maximum(own - own_noise, 0.0) * own_noise + 2.0 * own_noise**2, axis=1)
        variance = 4.0 * signal + 2.0 * np.sum(b_noise**2, axis=1) + times**2 * L_var[of]
        return np.stack([B - times * L[of], 1.5 * variance, np.max(b_noise, axis=1)])

    def _against(self, of: Ints, state: State) -> Bools:
        """Where the product of the mean gradients is below zero by more than noise explains."""
        own, own_noise = state["trust own mean"][of], state["trust own noise"][of]
        g, g_noise = state["trust pairs mean"] + own, state["trust pairs noise"]
        spread = np.sum(own**2 * g_noise + g**2 * own_noise + g_noise * own_noise, axis=1)
        return np.asarray(np.sum(g * own, axis=1) + self.errors * np.sqrt(spread) < 0.0)


TINY = 1e-12
"""Noise is at least this share of mean squares, which rounding could hide; the first gradient counts as noise alone."""


@dataclass(frozen=True)
class Adaptive(Checked):
    """Weights by bias and noise of past gradients, for WGA; a given weight says only whether somebody takes part.

    With BC leave weights alone: their changes are biases that c has yet to follow, less so where 1 - memory
    is far below beta. Neither way finds who is harmful: flipped signs look close near an optimum, large garbage
    points anywhere. Put ``Trust`` before it.

    ``spread`` is ``L / (mu T (1 - alpha^2 m))`` in C.2 for T steps, so that fewer
    collaborators, and closer ones, are listened to in a longer run.
    """

    memory: Annotated[float, Option("What is left of a gradient a step later.", low=0.0, below=1.0)] = 0.98
    spread: Annotated[float, Option("How much noise counts against bias.", above=0.0)] = 0.1

    def init(self, M: int, P: int, d: int) -> State:
        """Averages of nothing."""
        state: State = {}
        for kind, n in (("pairs", P), ("own", M)):
            state |= {f"adaptive {kind} g": np.zeros((n, d)), f"adaptive {kind} square": np.zeros(n)}
            state |= {f"adaptive {kind} n": np.zeros(n)}
        return state

    @np.errstate(over="ignore", invalid="ignore")  # squares of what a bad collaborator sends
    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weights of this step, which its own gradients take part in."""
        of, new = received.main, dict[str, Floats]()
        fresh = (received.age == 0) & received.known & (weights > 0.0)
        for kind, g, answered in (("pairs", received.g, fresh), ("own", received.own, received.own.any(axis=1))):
            for name, value in (("g", g), ("square", np.sum(g**2, axis=1))):
                old = state[f"adaptive {kind} {name}"]
                mixed = self.memory * old + (1.0 - self.memory) * value
                new[f"adaptive {kind} {name}"] = np.where(answered.reshape(-1, *[1] * (old.ndim - 1)), mixed, old)
            new[f"adaptive {kind} n"] = state[f"adaptive {kind} n"] + answered
        g, noise, left = self._averages("pairs", new)
        own, own_noise, own_left = self._averages("own", new)
        bias = np.sum((g - own[of]) ** 2, axis=1) - left * noise - (own_left * own_noise)[of]
        bias, cost, tau = np.maximum(bias, 0.0), self.spread * noise, np.zeros(len(of))
        counted = np.flatnonzero((weights > 0.0) & np.isfinite(bias) & np.isfinite(cost))
        tau[counted] = diagonal_simplex_qp(
            cost[counted], bias[counted], np.searchsorted(of[counted], np.arange(len(own) + 1))
        )
        return tau, new

    def _averages(self, kind: str, state: dict[str, Floats]) -> tuple[Floats, Floats, Floats]:
        """Mean gradients (n, d), the noise sigma^2 (n,) of one, and the share (n,) of it that is left in the mean."""
        filled = 1.0 - self.memory ** state[f"adaptive {kind} n"]
        known = np.where(filled > 0.0, filled, 1.0)
        g = state[f"adaptive {kind} g"] / known[:, None]
        # The sum of squares of the weights, which are memory^0, ..., memory^(n - 1), over the square of their sum.
        left = np.where(filled > 0.0, (1.0 - self.memory) / (1.0 + self.memory) * (2.0 - filled) / known, 1.0)
        square = state[f"adaptive {kind} square"] / known
        noise = np.maximum(square - np.sum(g**2, axis=1), TINY * square) / np.maximum(1.0 - left, TINY)
        return g, noise, left


AGGREGATORS: dict[str, Callable[[bool], Aggregator | None]] = {
    "mean": lambda corrected: None,
    "trimmed": lambda corrected: Aggregator(combine=Trimmed(0.2)),
    "clipped": lambda corrected: Aggregator(combine=Clipped()),
    "trust": lambda corrected: Aggregator([Trust(direction=not corrected)], Clipped()),
    "adaptive": lambda corrected: Aggregator([Trust(direction=True), Adaptive()]),
}
"""By name, given whether biases are corrected: None adds gradients up at the sites. "trust" drops harmful collaborators
and clips the others; "adaptive" drops them and weighs the others by their bias and noise so far.
"""
