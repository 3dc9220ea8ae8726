"""With whom a main client should collaborate, and how much: the trade-off of Theorem 4.1, on estimates.

In a metric with ``L = mu = 1`` and rows as samples (T = n_0), weights ``omega = (1 - alpha, alpha tau)`` on the main
client 0 and its collaborators leave a squared error of ``sum omega_k^2 s_k / n_k + |bias|^2`` in the gradient where the
main client should end. What the bias of a client is measured against is never its own noisy gradient, but what all
clients together say the main client's true gradient is (``client_similarity``). Measured from g_0, the nearest of
thousands of clients are those with the same noise: they seem to help, and do not.

Weights are chosen on gradients at one point, as if losses were quadratic. Counts whose means differ by orders of
magnitude are not, and what seems noise is others' bias: a likelihood ratio sees that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import (
    ClientSimilarity,
    Metric,
    client_gradient,
    client_similarity,
)
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.numerics.simplex_qp import mixture_weights
from coterie.objectives.mean_loss import encode_loss

MOST = 2_000_000  # pairs at most, where all clients are to collaborate with all
LEAST = 1e-3  # weights omega below this are left out: they cost a message, and change nothing


@dataclass(frozen=True)
class Choice:
    """Who collaborates, and what is predicted of it."""

    pairs: Collaborators  # only weights that are not zero; a main client that better stays alone has none
    alpha: Floats  # (M,) weight of the collaborators; 0 for those who stay alone
    # (M,) by how much the expected squared error of the gradient falls: of as many times its rows, a client alone would
    # learn as much
    speedup: Floats
    gain: Floats  # (M,) expected fall of the main client's own mean loss, against staying alone
    noise: Floats  # (n,) variance of the gradient of every client of the federation: ``s_k / n_k``
    # ``between``: the variance of true gradients between clients; ``noise``: its median within
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """Who collaborates with whom, and how much it counts."""

    pairs: Collaborators
    alpha: Floats  # (M,) 0 for main clients without collaborators
    noise: Floats  # (M,) variances of main clients' mean gradients
    average: Floats  # (M,) and of what their collaborators say together
    speedup: Floats  # (M,) predicted; NaN where it was not


def weights(fed: Federation, metric: Metric, options: Options, corrected: bool) -> Weights:
    """Choose, or take, collaborators and their weights; a CoterieError where there is one client only.

    Bias correction takes the same collaborators, the most alike, and listens to the quiet ones more: its alpha and tau
    are dictated by variances alone (section 5.2).
    """
    n = len(fed.clients)
    if n < 2:
        raise CoterieError("There are no collaborators: there is one client only, so fit it alone.")
    main = np.arange(n) if options.main is None else np.asarray(options.main, dtype=np.int64)
    asked = _asked(fed, main, options)
    alike = options.within == "cluster"
    choice = choose(fed, metric, main, asked, options.collaborators, same_cluster=alike, keep=asked is not None)
    pairs, alpha, speedup = choice.pairs, choice.alpha, choice.speedup
    if asked is not None:
        pairs = asked
    elif corrected:
        pairs = replace(pairs, tau=theory.best_tau(choice.noise[pairs.pair_client], pairs.starts))
    square = pairs.tau**2 * choice.noise[pairs.pair_client]
    average = np.bincount(pairs.pair_main, square, minlength=len(main)).astype(np.float64)
    noise, helped = choice.noise[main], np.diff(pairs.starts) > 0
    if corrected:
        alpha = theory.best_alpha(noise, average)
    if not isinstance(options.alpha, str):
        alpha, speedup = np.full(len(main), float(options.alpha)), np.full(len(main), np.nan)
    return Weights(pairs, np.where(helped, alpha, 0.0), noise, average, speedup)


def _asked(fed: Federation, main: Ints, options: Options) -> Collaborators | None:
    """Collaborators whose weights are given; None where they are to be chosen."""
    n = len(fed.clients)
    if isinstance(options.tau, str) and options.tau == "auto":
        return None
    if isinstance(options.tau, str):
        if len(main) * n > MOST:
            raise CoterieError(f"Equal weights of all are {len(main) * n:,} pairs: let tau be chosen, or name them.")
        places = fed.clients.clusters if options.within == "cluster" else np.zeros(n, dtype=np.int64)
        pair_main, pair_client = np.nonzero(places[main][:, None] == places)
        pair_main, pair_client = pair_main[pair_client != main[pair_main]], pair_client[pair_client != main[pair_main]]
        return Collaborators.equally(main, pair_main, pair_client)
    everybody = Collaborators.of_all(options.tau, options.normalise)
    place = np.full(n, -1)
    place[main] = np.arange(len(main))
    kept = np.flatnonzero(place[everybody.pair_main] >= 0)
    if not len(kept):
        raise CoterieError("tau gives these main clients no collaborators: name one at least.")
    kept = kept[np.argsort(place[everybody.pair_main[kept]], kind="stable")]
    return Collaborators(main, place[everybody.pair_main[kept]], everybody.pair_client[kept], everybody.tau[kept])


def choose(
    fed: Federation,
    metric: Metric,
    main: Ints | None = None,
    candidates: Collaborators | None = None,
    count: int = 10,
    *,
    same_cluster: bool = False,
    keep: bool = False,
) -> Choice:
    """Choose collaborators and weights of many main clients at once (all by default), by what clients' gradients say.

    A few exchanges, in which d + 5 numbers leave every client, and sums; then ``O(n log n)`` work. All must answer, and
    their losses must be of rows. The metric is one in which all rows together have L = mu = 1. Chosen are ``count`` at
    most, of the ``candidates`` for the same main clients, of the same cluster, or of everybody; ``keep`` takes the
    candidates' tau as they are, and chooses alpha only. A main client of binomial or Poisson outcomes stays alone where
    its own rows contradict what it would have with others.
    """
    n = len(fed.clients)
    main = np.arange(n) if main is None else np.asarray(main, dtype=np.int64)
    if n < 2:
        raise CoterieError("There are no collaborators: there is one client only, so fit it alone.")
    groups = fed.clients.clusters if fed.clients.k > 1 else None
    like = client_similarity(fed, metric, groups)
    estimates, keep = (like.estimate, like.variance), keep and candidates is not None
    if candidates is None:
        places = fed.clients.clusters if same_cluster else np.zeros(n, dtype=np.int64)
        pairs = Collaborators.equally(main, *nearest_clients(*estimates, like.posterior, main, places, count))
    else:
        pairs, both = candidates, (candidates.pair_main, candidates.pair_client)
        if not keep:
            kept = nearest_pairs(*estimates, like.posterior[main], *both, count)
            pairs = Collaborators.equally(main, *(each[kept] for each in both))
    own, tau, error = weights_by_qp(fed, metric, like, pairs, pairs.tau if keep else None)
    choice = _tidy(like, pairs, own, tau, error)
    if metric.prior > 0.0 and choice.alpha.any():
        rejected = rejected_by_likelihood_ratio(fed, metric, choice.pairs, choice.alpha)
        choice = _tidy(like, pairs, np.where(rejected, 1.0, own), tau, error)
    return choice


def _tidy(like: ClientSimilarity, pairs: Collaborators, own: Floats, tau: Floats, error: Floats) -> Choice:
    """Without weights that are nearly zero, and without main clients that others would harm."""
    main, pair_main, alone = pairs.main, pairs.pair_main, like.noise[pairs.main]
    alpha = np.where(own < 1.0 - LEAST, 1.0 - own, 0.0)
    kept = (alpha[pair_main] * tau > LEAST) & (alpha[pair_main] > 0.0)
    tau = np.where(kept, tau, 0.0)
    sums = np.bincount(pair_main, tau, minlength=len(main))
    alpha = np.where(sums > 0.0, alpha, 0.0)
    error = np.where(alpha > 0.0, np.minimum(error, alone), alone)
    speedup = alone / np.maximum(error, np.finfo(np.float64).tiny)
    chosen = Collaborators(main, pair_main[kept], pairs.pair_client[kept], tau[kept] / sums[pair_main[kept]])
    about = {"between": float(np.trace(like.between)), "noise": float(np.median(like.noise))}
    return Choice(chosen, alpha, speedup, 0.5 * (alone - error) / like.curvature[main], like.noise, about)


def nearest_clients(
    g: Floats, noise: Floats, around: Floats, main: Ints, places: Ints, count: int
) -> tuple[Ints, Ints]:
    """The ``count`` clients with the least ``|g_k - around_i|^2 + noise_k``, for every main client, in its own place.

    That is a distance, once the noise is made a coordinate: a k-d tree finds them. g and ``around`` are (n, d), places
    (n,). Pairs come sorted by main client.
    """
    from scipy.spatial import cKDTree

    pair_main, pair_client = [], []
    points = np.column_stack([g, np.sqrt(noise)])
    for place in np.unique(places[main]):
        members, mains = np.flatnonzero(places == place), np.flatnonzero(places[main] == place)
        k = min(count + 1, len(members))
        points_asked = np.column_stack([around[main[mains]], np.zeros(len(mains))])
        nearest = members[np.asarray(cKDTree(points[members]).query(points_asked, k)[1]).reshape(len(mains), k)]
        other = nearest != main[mains][:, None]
        other &= np.cumsum(other, axis=1) <= count
        pair_main.append(np.repeat(mains, other.sum(axis=1)))
        pair_client.append(nearest[other])
    pairs, others = np.concatenate(pair_main), np.concatenate(pair_client)
    order = np.argsort(pairs, kind="stable")
    return pairs[order], others[order]


def nearest_pairs(g: Floats, noise: Floats, around: Floats, pair_main: Ints, pair_client: Ints, count: int) -> Ints:
    """Positions, sorted, of the ``count`` nearest of every main client among given pairs (P,), by the same measure."""
    distance = np.sum((g[pair_client] - around[pair_main]) ** 2, axis=1) + noise[pair_client]
    order = np.lexsort((distance, pair_main))
    first = np.searchsorted(pair_main[order], pair_main[order])
    return np.sort(order[np.arange(len(order)) - first < count])


FAR = 9.0  # squared length of a gradient, in variances of it, that is not by chance: three standard deviations


def weights_by_qp(
    fed: Federation, metric: Metric, like: ClientSimilarity, pairs: Collaborators, tau: Floats | None
) -> tuple[Floats, Floats, Floats]:
    """The program over a main client and its candidates: own weights (M,), tau (P,), expected squared errors (M,).

    Gradients are heard where the main client's true gradient is expected to vanish: there they are bias and noise. A
    client pulls by its gradient, and holds by its curvature h, so that with ``w_k = omega_k h_k / sum omega h`` the
    model is off by ``sum w_k g_k / h_k``: the program is over these. Of a pull a share is not known, as curvature
    differs between directions: it is added to the noise. Where the main client's own gradient is larger than noise can
    be, what is expected of it is wrong, and it stays alone.
    """
    main, pair_main, pair_client = pairs.main, pairs.pair_main, pairs.pair_client
    M, h0, h = len(main), like.curvature[main], like.curvature[pair_client]
    theta = PerRow(metric.theta(-like.posterior[main])[pairs.request_main])
    gradients = require_all_replies(fed.ask(client_gradient, to=pairs.request_client, theta=theta, R=metric.R))["g"]
    own, others = gradients[:M] / h0[:, None], gradients[M:] / h[:, None]
    square = np.sum(own**2, axis=1)
    own_blur = like.curvature_spread[main] * square
    blur = like.curvature_spread[pair_client] * np.sum(others**2, axis=1)
    pull = None if tau is None else tau * h / np.bincount(pair_main, tau * h, minlength=M)[pair_main]
    own_weight, pull = mixture_weights(
        own, like.variance[main] + own_blur, others, like.variance[pair_client] + blur, pair_main, pull
    )
    own_weight = np.where(square > FAR * like.variance[main], 1.0, own_weight)
    share = (1.0 - own_weight)[pair_main] * pull
    bias = own_weight[:, None] * own
    bias += np.stack([np.bincount(pair_main, share * others[:, j], minlength=M) for j in range(own.shape[1])], axis=1)
    error = np.sum(bias**2, axis=1) + own_weight**2 * own_blur + np.bincount(pair_main, share**2 * blur, minlength=M)
    total = np.bincount(pair_main, share / h, minlength=M)
    own_weight = own_weight / h0 / (own_weight / h0 + total)
    if tau is None:
        tau = np.divide(share / h, total[pair_main], out=np.zeros(len(pair_main)), where=total[pair_main] > 0.0)
    return own_weight, tau, h0**2 * (error + like.posterior_variance[main])


SURE = 6.0  # by how many standard deviations of a chi-squared variable a likelihood ratio must be above its mean


@work
def negative_log_likelihood(site: Site, theta: Floats) -> dict[str, Any]:
    """Negative log-likelihoods of a client's rows, less a constant."""
    return {"loss": encode_loss(site.objective.value(theta))}


def rejected_by_likelihood_ratio(fed: Federation, metric: Metric, pairs: Collaborators, alpha: Floats) -> Bools:
    """Where twice the own log-likelihood falls by more than ``d + SURE sqrt(2 d)`` against being alone, (M,)."""
    d, M = len(metric.at), len(pairs.main)
    alone = optimum(fed, pairs, np.zeros(M), metric).theta
    together = optimum(fed, pairs, alpha, metric).theta
    both = np.concatenate([alone, together])
    loss = require_all_replies(fed.ask(negative_log_likelihood, to=np.tile(pairs.main, 2), theta=PerRow(both)))["loss"]
    return np.asarray(2.0 * (loss[M:] - loss[:M]) > d + SURE * np.sqrt(2.0 * d))
