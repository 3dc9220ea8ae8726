"""The paper's constants of many main clients and their collaborators at once, from gradients at a few points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration import estimate
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.sampled import Estimate, Sampled, sampled
from coterie.methods.complete import complete
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, full
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import gradient
from coterie.objectives.row_noise import deviations
from coterie.objectives.steps import Draws, full_gradient


@work
def tell(site: Site, theta: Floats, R: Floats, samples: int, batch: int) -> dict[str, Any]:
    """Mean gradients at P points (m, P, d) in the metric; variances of these, and of a single sampled gradient."""
    m, P, d = theta.shape
    g, v, s, s_se = np.zeros((m, P, d)), np.zeros((m, P)), np.zeros((m, P)), np.zeros((m, P))
    site.count(m * P * max(samples, 1))
    if samples:
        keys = keyed.starts(site.seed, "constants", site.ids)
        drawn = np.zeros((m, P, samples, d))
        for p, t in np.ndindex(P, samples):
            step = np.full(m, p * samples + t, dtype=np.int64)
            drawn[:, p, t] = gradient(site.objective, np.ascontiguousarray(theta[:, p]), Draws(keys, step, batch)) @ R
        found = sampled(drawn)
        return {"g": found.g, "v": found.v, "s": found.s, "s_se": found.s_se}
    if not isinstance(site.objective, GLM):
        for p in range(P):
            g[:, p] = full_gradient(site.objective, theta[:, p]) @ R
        return {"g": g, "v": v, "s": s, "s_se": s_se}
    for p in range(P):
        raw, A, rows, w, w2 = deviations(site.objective, theta[:, p])
        spare = np.maximum(rows - 1, 0)
        known = (spare > 0) & (w2 > 0.0)
        row = np.einsum("mij,ij->m", full(A), R @ R.T)
        g[:, p] = raw @ R
        s[:, p] = row * np.divide(rows, spare * w2, out=np.zeros(m), where=known)
        v[:, p] = s[:, p] * np.divide(w2, w**2, out=np.zeros(m), where=known)
        s_se[:, p] = s[:, p] * np.sqrt(np.divide(2.0, d * spare, out=np.zeros(m), where=known))
    return {"g": g, "v": v, "s": s, "s_se": s_se}


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
    L, mu : Estimate, (M,)
        A1, A2.
    """

    sigma2: Estimate
    growth: Estimate
    others_sigma2: Estimate
    others_growth: Estimate
    zeta2: Estimate
    m: Estimate
    delta: Estimate
    L: Estimate
    mu: Estimate


def constants(
    fed: Federation,
    metric: Metric,
    who: Collaborators,
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
    who : Collaborators
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
    M, d, ids = len(who.main), len(metric.at), fed.clients.ids[who.main]
    first = _ask(fed, metric, who.main, np.zeros((M, 1, d)), samples, batch, population)
    near = -first.g[:, 0]
    step = reach * np.sqrt(np.maximum(np.sum(near**2, axis=1), np.maximum(first.v[:, 0], 1e-12)))
    across = keyed.normal(keyed.starts(seed, "directions", ids), np.zeros(M, dtype=np.int64), d * d).reshape(M, d, d)
    across = np.swapaxes(np.linalg.qr(across)[0], 1, 2)[:, : max(directions, 1)]
    u = np.concatenate([np.zeros((M, 1, d)), near[:, None], near[:, None] + step[:, None, None] * across], axis=1)
    everyone = _ask(fed, metric, who.requests, u[who.places], samples, batch, population)
    own, others, mine = (_rows(everyone, at) for at in (np.arange(M), np.arange(M, M + len(who.of)), who.of))
    found: dict[str, Estimate] = {}
    found["sigma2"], found["growth"] = estimate.noise(own)
    found["others_sigma2"], found["others_growth"] = estimate.noise(others)
    found["zeta2"], found["m"] = estimate.similarity(mine, others)
    found["L"], found["mu"] = estimate.smoothness(u, own)
    return Constants(**found, delta=estimate.dissimilarity(u[who.of], mine, others))


def _ask(fed: Federation, metric: Metric, to: Any, u: Floats, samples: int, batch: int, population: bool) -> Sampled:
    told = complete(fed.ask(tell, to=to, theta=PerRow(metric.theta(u)), R=metric.R, samples=samples, batch=batch))
    v = told["v"] if samples or population else np.zeros_like(told["v"])
    return Sampled(told["g"], v, told["s"], told["s_se"], together=not samples)


def _rows(of: Sampled, at: Any) -> Sampled:
    return Sampled(of.g[at], of.v[at], of.s[at], of.s_se[at], of.together)
