"""Section 3.2's constants of many main clients and their collaborators at once, from gradients at a few points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.collaborators import Collaborators, require_columns
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.theory import packed_hessians
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, full, over
from coterie.objectives.constants import gradient_scatter
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, full_gradient
from coterie.objectives.mean_loss import gradient
from papers.paper_004 import estimated_smoothness, sampled_gradients
from papers.paper_004.sampled_gradients import Estimate, Sampled, sampled


@dataclass(frozen=True)
class Constants:
    """Constants of M main clients and P pairs, each with standard errors, in the units of the metric.

    Attributes
    ----------
    sigma2, growth : Estimate, (M,)
        sigma_0^2 and M_0 of main clients (A5, appendix B).
    others_sigma2, others_growth : Estimate, (P,)
        sigma_k^2 and M_k of collaborators.
    zeta2, m : Estimate, (P,)
        A4.
    delta : Estimate, (P,)
        A3.
    delta_at_most : (P,) float64
        Its upper confidence bound, above it for 95% of pairs: what steps of bias correction go by, as delta itself is
        too low where samples are few or directions are left out.
    L, mu : Estimate, (M,)
        A1, A2.
    square : Estimate, (M,)
        ``|grad f_0|^2`` at the metric's origin, where runs start.
    """

    sigma2: Estimate
    growth: Estimate
    others_sigma2: Estimate
    others_growth: Estimate
    zeta2: Estimate
    m: Estimate
    delta: Estimate
    delta_at_most: Floats
    L: Estimate
    mu: Estimate
    square: Estimate

    @property
    def convexity(self) -> Floats:
        """mu (M,), or its standard error where that is larger: nearer to 0 it cannot be told from 0."""
        return np.maximum(self.mu.value, self.mu.se)

    def loss(self) -> Floats:
        """``f_0 - f_0*`` at the metric's origin (M,) at most: ``|grad f_0|^2 / (2 mu)``, infinite where mu is 0."""
        return over(np.maximum(self.square.value, 0.0), 2.0 * self.convexity)


def estimate_constants(
    fed: Federation,
    metric: Metric,
    pairs: Collaborators,
    *,
    samples: int = 0,
    batch: int = 1,
    population: bool = True,
    reach: float = 1.0,
    directions: int = 8,
    seed: int = 0,
) -> Constants:
    """Ask main clients and their collaborators for gradients around every main client's optimum: two exchanges.

    Points are the metric's origin, one gradient step from there, which in a whitened metric is near the optimum, and
    others around that, in random directions at right angles, as far away as the first one is.

    Parameters
    ----------
    fed : Federation
        All clients asked must answer.
    metric : Metric
    pairs : Collaborators
        Their weights do not matter.
    samples : int, default 0
        Sampled gradients at every point; 0 takes all rows once, and their scatter for the noise. Losses without rows
        have no noise then.
    batch : int, default 1
        Rows of a sampled gradient.
    population : bool, default True
        Whether, with ``samples`` 0, clients' losses are those of the population that their rows are drawn from: then
        what rows scatter is taken off zeta^2. False takes the losses of the rows at hand.
    reach : float, default 1
    directions : int, default 8
        At most; with fewer than d, delta, L and mu are those of these directions.
    seed : int, default 0
        Of the directions.
    """
    M, d, ids = len(pairs.main), len(metric.at), fed.clients.ids[pairs.main]
    if not (np.isfinite(reach) and reach > 0.0) or directions < 1:
        raise CoterieError(f"reach must be above 0 and directions 1 at least, not {reach} and {directions}.")
    require_columns(fed, pairs, d)

    def ask(to: Ints, u: Floats) -> Sampled:
        told = at_points(fed, metric, to, u, samples, batch)
        return told if samples or population else replace(told, v=np.zeros_like(told.v))

    first = ask(pairs.main, np.zeros((M, 1, d)))
    near = -first.g[:, 0]
    step = reach * np.sqrt(np.maximum(np.sum(near**2, axis=1), np.maximum(first.v[:, 0], 1e-12)))
    across = keyed_random.normal(
        keyed_random.starts(seed, "directions", ids), np.zeros(M, dtype=np.int64), d * d
    ).reshape(M, d, d)
    across = np.swapaxes(np.linalg.qr(across)[0], 1, 2)[:, :directions]
    u = np.concatenate([np.zeros((M, 1, d)), near[:, None], near[:, None] + step[:, None, None] * across], axis=1)
    everyone = ask(pairs.request_client, u[pairs.request_main])
    own, others, mine = everyone[:M], everyone[M:], everyone[pairs.pair_main]
    found: dict[str, Estimate] = {}
    found["sigma2"], found["growth"] = sampled_gradients.noise(own)
    found["others_sigma2"], found["others_growth"] = sampled_gradients.noise(others)
    found["zeta2"], found["m"] = sampled_gradients.similarity(mine, others)
    found["L"], found["mu"] = estimated_smoothness.smoothness(u, own)
    found["square"] = Estimate(own.square.value[:, 0], own.square.se[:, 0])
    there = u[pairs.pair_main]
    most = estimated_smoothness.dissimilarity_at_most(there, mine, others, across.shape[1])
    return Constants(**found, delta=estimated_smoothness.dissimilarity(there, mine, others), delta_at_most=most)


def with_hessians(found: Constants, fed: Federation, metric: Metric, pairs: Collaborators) -> Constants:
    """The same, with delta, L and mu of the losses' Hessians at the metric's origin: exact for quadratics.

    Of other losses ``delta_at_most`` is the largest curvature of either client in the region of
    ``objectives.constants.Constants``: the difference of two Hessians without negative eigenvalues does not exceed it.
    One exchange, in which ``d (d + 1)`` numbers leave every client asked; a CoterieError for losses without Hessians.
    """
    told = require_all_replies(
        fed.ask(packed_hessians, to=pairs.request_client, at=metric.at, w=PerRow(np.ones(len(pairs.request_client))))
    )
    H, most = (metric.R.T @ full(told[name]) @ metric.R for name in ("A", "most"))
    M = len(pairs.main)
    high = theory.delta_at_most(H[:M][pairs.pair_main], H[M:], most[:M][pairs.pair_main], most[M:])
    values = np.linalg.eigvalsh(H[:M])
    exact = {
        "delta": theory.delta_of(H[:M][pairs.pair_main], H[M:]),
        "L": values[:, -1],
        "mu": np.maximum(values[:, 0], 0.0),
    }
    estimates = {name: Estimate(value, np.zeros_like(value)) for name, value in exact.items()}
    return replace(found, **estimates, delta_at_most=high)


@work
def tell(site: Site, theta: Floats, R: Floats, samples: int, batch: int) -> dict[str, Any]:
    """Gradients at points theta (m, P, d), in the metric: 2 d + 3 numbers leave a client for each, and d^2 beside."""
    (m, P, d), draws, keys = theta.shape, max(samples, 1), keyed_random.starts(site.seed, "constants", site.ids)
    out = {"halves": np.zeros((m, 2, P, d))} | {name: np.zeros((m, P)) for name in ("v", "s", "s_se")}
    covariance = np.zeros((m, d, d))
    site.count(m * P * draws)
    for p in range(P):
        at = np.ascontiguousarray(theta[:, p])
        if samples:
            steps = (np.full(m, p * samples + t, dtype=np.int64) for t in range(samples))
            drawn = np.stack([gradient(site.objective, at, Draws(keys, step, batch)) @ R for step in steps], axis=1)
            found = sampled(drawn[:, None])
            out["halves"][:, :, p], shape = found.halves[:, :, 0], found.shape
            told = {"v": found.v[:, 0], "s": found.s[:, 0], "s_se": found.s_se[:, 0]}
        else:
            g, shape, told = _rows(site.objective, at, R)
            out["halves"][:, :, p] = g[:, None]
        covariance += told["s"][:, None, None] * shape
        for name, value in told.items():
            out[name][:, p] = value
    total = out["s"].sum(axis=1)[:, None, None]
    return out | {"shape": np.where(total > 0.0, covariance / np.where(total > 0.0, total, 1.0), np.eye(d) / d)}


def _rows(objective: Any, theta: Floats, R: Floats) -> tuple[Floats, Floats, dict[str, Floats]]:
    """From all rows at once: the gradient, its noise's covariance of trace 1, and variances."""
    (m, d), nothing = theta.shape, np.zeros(len(theta))
    if not isinstance(objective, GLM):
        none = {"v": nothing, "s": nothing, "s_se": nothing}
        return full_gradient(objective, theta) @ R, np.zeros((m, d, d)), none
    g, A, rows, w, w2 = gradient_scatter(objective, theta)
    spare = np.maximum(rows - 1, 0)
    known = (spare > 0) & (w2 > 0.0)
    C = R.T @ full(A) @ R
    size = np.einsum("mii->m", C)
    shape = C / np.where(size > 0.0, size, 1.0)[:, None, None]
    s = size * np.divide(rows, spare * w2, out=nothing.copy(), where=known)
    v = s * np.divide(w2, w**2, out=nothing.copy(), where=known)
    twice = 2.0 * np.einsum("mij,mij->m", shape, shape)
    return g @ R, shape, {"v": v, "s": s, "s_se": s * np.sqrt(np.divide(twice, spare, out=nothing, where=known))}


def at_points(fed: Federation, metric: Metric, to: Ints, u: Floats, samples: int, batch: int) -> Sampled:
    """Ask the clients ``to`` for gradients at u (n, P, d): one exchange; a CoterieError where some are not finite."""
    if samples == 1 or samples < 0:
        raise CoterieError(f"samples is {samples}: noise needs two at a point at least, and 0 takes all rows.")
    told = require_all_replies(
        fed.ask(tell, to=to, theta=PerRow(metric.theta(u)), R=metric.R, samples=samples, batch=batch)
    )
    halves, first = told["halves"], samples // 2 / samples if samples else 0.5
    bad = np.unique(to[~np.isfinite(halves).all(axis=(1, 2, 3))])
    if len(bad):
        names = ", ".join(map(str, bad[:5]))
        raise CoterieError(
            f"Clients at positions {names} have gradients that are not finite: leave them out, or ask nearer to their "
            "optima (reach)."
        )
    g = first * halves[:, 0] + (1.0 - first) * halves[:, 1]
    return Sampled(g, told["v"], told["s"], told["s_se"], told["shape"], halves, together=not samples)
