"""Weights of a main client and its candidates, and the squared error that is expected of its gradient with them."""

from __future__ import annotations

import numpy as np

from coterie.federation import Federation, PerRow
from coterie.methods.collaboration.likeness import Likeness, gradient
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.mix import mix
from coterie.methods.complete import complete
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.simplex_qp import diagonal_simplex_qp

Solved = tuple[Floats, Floats, Floats]
"""Own weights (M,), tau (P,) and expected squared errors (M,) of the gradient."""


def exactly(
    fed: Federation, metric: Metric, like: Likeness, main: Ints, of: Ints, who: Ints, tau: Floats | None
) -> Solved:
    """The program over a main client and its candidates.

    Gradients are heard where the main client's true gradient is expected to vanish: there they are bias and noise. Of a
    bias a share is not known, as curvatures differ from 1: it is added to the noise.
    """
    M = len(main)
    theta = metric.theta(-like.posterior[main])[np.concatenate([np.arange(M), of])]
    heard = complete(fed.ask(gradient, to=np.concatenate([main, who]), theta=PerRow(theta), R=metric.R))["g"]
    own, others = heard[:M], heard[M:]
    own_blur, blur = like.other[main] * np.sum(own**2, axis=1), like.other[who] * np.sum(others**2, axis=1)
    own_noise, noise = like.noise[main] + own_blur, like.noise[who] + blur
    own_weight, tau = mix(own, own_noise, others, noise, of, tau)
    share = (1.0 - own_weight)[of] * tau
    off = own_weight[:, None] * own
    off += np.stack([np.bincount(of, share * others[:, j], minlength=M) for j in range(own.shape[1])], axis=1)
    error = np.sum(off**2, axis=1) + own_weight**2 * own_blur + np.bincount(of, share**2 * blur, minlength=M)
    return own_weight, tau, error + like.bend[main] ** 2 * like.unsure[main]


def by_theorem(like: Likeness, main: Ints, of: Ints, who: Ints, tau: Floats | None) -> Solved:
    """The same by Theorem 4.1 and C.2: zeta_k^2 as expected, and noise as if it were drawn anew."""
    M = len(main)
    apart = np.sum((like.posterior[who] - like.posterior[main][of]) ** 2, axis=1)
    zeta2 = like.bend[main][of] ** 2 * (apart + like.unsure[who] + like.unsure[main][of])
    if tau is None:
        tau = diagonal_simplex_qp(like.noise[who], zeta2, np.searchsorted(of, np.arange(M + 1)))
    R = np.bincount(of, tau**2 * like.noise[who] + tau * zeta2, minlength=M)
    helped, s0 = np.bincount(of, minlength=M) > 0, like.noise[main]
    own_weight = np.where(helped, R / np.maximum(s0 + R, np.finfo(np.float64).tiny), 1.0)
    return own_weight, tau, own_weight * s0
