"""The paper's constants of many main clients and their collaborators at once, from gradients at a few points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.constants import bending, estimate
from coterie.methods.collaboration.constants.at_points import at_points
from coterie.methods.collaboration.constants.sampled import Estimate, Sampled
from coterie.methods.collaboration.curvature import bend
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.needs import need_columns
from coterie.methods.collaboration.theory.descent_theory import over
from coterie.methods.replies import require_all_replies
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, Ints, full


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
    if not (np.isfinite(reach) and reach > 0.0) or directions < 1:
        raise CoterieError(f"reach must be above 0 and directions 1 at least, not {reach} and {directions}.")
    need_columns(fed, who, d)

    def ask(to: Ints, u: Floats) -> Sampled:
        told = at_points(fed, metric, to, u, samples, batch)
        return told if samples or population else replace(told, v=np.zeros_like(told.v))

    first = ask(who.main, np.zeros((M, 1, d)))
    near = -first.g[:, 0]
    step = reach * np.sqrt(np.maximum(np.sum(near**2, axis=1), np.maximum(first.v[:, 0], 1e-12)))
    across = keyed.normal(keyed.starts(seed, "directions", ids), np.zeros(M, dtype=np.int64), d * d).reshape(M, d, d)
    across = np.swapaxes(np.linalg.qr(across)[0], 1, 2)[:, :directions]
    u = np.concatenate([np.zeros((M, 1, d)), near[:, None], near[:, None] + step[:, None, None] * across], axis=1)
    everyone = ask(who.requests, u[who.places])
    own, others, mine = everyone[:M], everyone[M:], everyone[who.of]
    found: dict[str, Estimate] = {}
    found["sigma2"], found["growth"] = estimate.noise(own)
    found["others_sigma2"], found["others_growth"] = estimate.noise(others)
    found["zeta2"], found["m"] = estimate.similarity(mine, others)
    found["L"], found["mu"] = bending.smoothness(u, own)
    found["square"] = Estimate(own.square.value[:, 0], own.square.se[:, 0])
    there = u[who.of]
    most = bending.dissimilarity_at_most(there, mine, others, across.shape[1])
    return Constants(**found, delta=bending.dissimilarity(there, mine, others), delta_at_most=most)


def with_hessians(found: Constants, fed: Federation, metric: Metric, who: Collaborators) -> Constants:
    """The same, with delta, L and mu of the losses' Hessians at the metric's origin: exact for quadratics.

    Of other losses ``delta_at_most`` is the largest curvature of either client in the region of
    ``objectives.constants.Constants``: the difference of two Hessians without negative eigenvalues does not exceed it.
    One exchange, in which ``d (d + 1)`` numbers leave every client asked; a CoterieError for losses without Hessians.
    """
    told = require_all_replies(fed.ask(bend, to=who.requests, at=metric.at, w=PerRow(np.ones(len(who.requests)))))
    H, most = (metric.R.T @ full(told[name]) @ metric.R for name in ("A", "most"))
    M = len(who.main)
    high = bending.delta_at_most(H[:M][who.of], H[M:], most[:M][who.of], most[M:])
    values = np.linalg.eigvalsh(H[:M])
    exact = {"delta": bending.delta_of(H[:M][who.of], H[M:]), "L": values[:, -1], "mu": np.maximum(values[:, 0], 0.0)}
    estimates = {name: Estimate(value, np.zeros_like(value)) for name, value in exact.items()}
    return replace(found, **estimates, delta_at_most=high)
