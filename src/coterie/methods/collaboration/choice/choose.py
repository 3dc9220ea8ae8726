"""With whom a main client should collaborate, and how much: the trade-off of Theorem 4.1, on estimates.

In a metric with ``L = mu = 1`` and rows as samples (T = n_0), weights ``omega = (1 - alpha, alpha tau)`` on the main
client 0 and its collaborators leave a squared error of ``sum omega_k^2 s_k / n_k + |bias|^2`` in the gradient where the
main client should end. What the bias of a client is measured against is never its own noisy gradient, but what all
clients together say the main client's true gradient is (``likeness``). Measured from g_0, the nearest of thousands of
clients are those with the same noise: they seem to help, and do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.collaboration.choice.doubt import contradicted
from coterie.methods.collaboration.choice.likeness import Likeness, likeness
from coterie.methods.collaboration.choice.nearest import nearest_of, nearest_pairs
from coterie.methods.collaboration.choice.weigh import by_theorem, exactly
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.numerics.kernels import Floats, Ints

LEAST = 1e-3
"""Weights omega below this are left out: they cost a message, and change nothing."""


@dataclass(frozen=True)
class Choice:
    """Who collaborates, and what is predicted of it.

    Attributes
    ----------
    who : Collaborators
        Only weights that are not zero; a main client that better stays alone has none.
    alpha : (M,)
        Weight of the collaborators; 0 for those who stay alone.
    speedup : (M,)
        By how much the expected squared error of the gradient falls: of as many times its rows, a client alone would
        learn as much. Where weights are chosen by theory (``bias="theorem"``), ``1 / (1 - alpha)``.
    gain : (M,)
        Expected fall of the main client's own mean loss, against staying alone.
    noise : (n,)
        Variance of the gradient of every client of the federation: ``s_k / n_k``.
    about : dict
        ``between``: the variance of true gradients between clients; ``noise``: its median within.
    """

    who: Collaborators
    alpha: Floats
    speedup: Floats
    gain: Floats
    noise: Floats
    about: dict[str, Any] = field(default_factory=dict)


def choose(
    fed: Federation,
    metric: Metric,
    main: Ints | None = None,
    candidates: Collaborators | None = None,
    count: int = 10,
    *,
    bias: str = "exact",
    same_cluster: bool = False,
    keep: bool = False,
) -> Choice:
    """Choose collaborators and weights of many main clients at once, by what clients' gradients say.

    A few exchanges, in which d + 5 numbers leave every client, and sums; then ``O(n log n)`` work. A main client of
    binomial or Poisson outcomes stays alone where its own rows contradict what it would have with others (``doubt``).

    Parameters
    ----------
    fed : Federation
        All clients must answer; their losses must be of rows.
    metric : Metric
        In which all rows together have L = mu = 1.
    main : (M,) int64, optional
        By default every client.
    candidates : Collaborators, optional
        Who may be chosen, for the same main clients; by default everybody.
    count : int, default 10
        Collaborators of a main client at most.
    bias : {"exact", "theorem"}, default "exact"
        Whether the bias of a combination is that of the combination, or Theorem 4.1's upper bound
        ``sum_k tau_k zeta_k^2`` with ``alpha = s_0 / (s_0 + R)``. The bound takes no account of rows being used twice,
        to choose and to fit, and promises too much where clients are small.
    same_cluster : bool, default False
        Look for collaborators in the main client's own cluster only.
    keep : bool, default False
        Take the candidates' tau as they are, and choose alpha only.

    Returns
    -------
    Choice
    """
    n = len(fed.clients)
    main = np.arange(n) if main is None else np.asarray(main, dtype=np.int64)
    if bias not in ("exact", "theorem"):
        raise CoterieError(f"bias must be exact or theorem, not {bias!r}.")
    if n < 2:
        raise CoterieError("There are no collaborators: there is one client only, so fit it alone.")
    groups = fed.clients.clusters if fed.clients.k > 1 else None
    like = likeness(fed, metric, groups)
    theorem = bias == "theorem"
    near = (like.posterior, like.loose + like.unsure) if theorem else (like.p, like.loose)
    if candidates is not None:
        of, who = candidates.of, candidates.who
        if not keep:
            at = nearest_pairs(*near, like.posterior[main], of, who, count)
            of, who = of[at], who[at]
    else:
        places = fed.clients.clusters if same_cluster else np.zeros(n, dtype=np.int64)
        of, who = nearest_of(*near, like.posterior, main, places, count)
    tau = candidates.tau if candidates is not None and keep else None
    solved = by_theorem(like, main, of, who, tau) if theorem else exactly(fed, metric, like, main, of, who, tau)
    about = {"between": float(np.trace(like.between)), "noise": float(np.median(like.noise)), "bias": bias}
    choice = _tidy(like, main, of, who, *solved, about)
    if metric.prior > 0.0 and choice.alpha.any():
        own, tau, error = solved
        doubted = contradicted(fed, metric, choice.who, choice.alpha)
        choice = _tidy(like, main, of, who, np.where(doubted, 1.0, own), tau, error, about)
    return choice


def _tidy(
    like: Likeness, main: Ints, of: Ints, who: Ints, own: Floats, tau: Floats, error: Floats, about: dict[str, Any]
) -> Choice:
    """Without weights that are nearly zero, and without main clients that others would harm."""
    alone = like.noise[main]
    alpha = np.where(own < 1.0 - LEAST, 1.0 - own, 0.0)
    kept = (alpha[of] * tau > LEAST) & (alpha[of] > 0.0)
    tau = np.where(kept, tau, 0.0)
    sums = np.bincount(of, tau, minlength=len(main))
    alpha = np.where(sums > 0.0, alpha, 0.0)
    error = np.where(alpha > 0.0, np.minimum(error, alone), alone)
    speedup = alone / np.maximum(error, np.finfo(np.float64).tiny)
    collaborators = Collaborators(main, of[kept], who[kept], tau[kept] / sums[of[kept]])
    return Choice(collaborators, alpha, speedup, 0.5 * (alone - error) / like.bend[main], like.noise, about)
