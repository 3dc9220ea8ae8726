"""Weights of a main client and its candidates, and the squared error that is expected of its gradient with them."""

from __future__ import annotations

import numpy as np

from coterie.federation import Federation, PerRow
from coterie.methods.collaboration.choice.likeness import Likeness, gradient
from coterie.methods.collaboration.choice.mix import mix
from coterie.methods.collaboration.metric import Metric
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.simplex_qp import diagonal_simplex_qp

Solved = tuple[Floats, Floats, Floats]
"""Own weights (M,), tau (P,) and expected squared errors (M,) of the gradient."""

FAR = 9.0
"""Squared length of a gradient, in variances of it, that is not by chance: three standard deviations."""


def exactly(
    fed: Federation, metric: Metric, like: Likeness, main: Ints, of: Ints, who: Ints, tau: Floats | None
) -> Solved:
    """The program over a main client and its candidates.

    Gradients are heard where the main client's true gradient is expected to vanish: there they are bias and noise. A
    client pulls by its gradient, and holds by its curvature h, so that with ``w_k = omega_k h_k / sum omega h`` the
    model is off by ``sum w_k g_k / h_k``: the program is over these. Of a pull a share is not known, as curvature
    differs between directions: it is added to the noise. Where the main client's own gradient is larger than noise can
    be, what is expected of it is wrong, and it stays alone.
    """
    M, h0, h = len(main), like.bend[main], like.bend[who]
    theta = metric.theta(-like.posterior[main])[np.concatenate([np.arange(M), of])]
    heard = require_all_replies(fed.ask(gradient, to=np.concatenate([main, who]), theta=PerRow(theta), R=metric.R))["g"]
    own, others = heard[:M] / h0[:, None], heard[M:] / h[:, None]
    square = np.sum(own**2, axis=1)
    own_blur, blur = like.other[main] * square, like.other[who] * np.sum(others**2, axis=1)
    held = None if tau is None else tau * h / np.bincount(of, tau * h, minlength=M)[of]
    own_weight, held = mix(own, like.loose[main] + own_blur, others, like.loose[who] + blur, of, held)
    own_weight = np.where(square > FAR * like.loose[main], 1.0, own_weight)
    share = (1.0 - own_weight)[of] * held
    off = own_weight[:, None] * own
    off += np.stack([np.bincount(of, share * others[:, j], minlength=M) for j in range(own.shape[1])], axis=1)
    error = np.sum(off**2, axis=1) + own_weight**2 * own_blur + np.bincount(of, share**2 * blur, minlength=M)
    total = np.bincount(of, share / h, minlength=M)
    own_weight = own_weight / h0 / (own_weight / h0 + total)
    tau = np.divide(share / h, total[of], out=np.zeros(len(of)), where=total[of] > 0.0) if tau is None else tau
    return own_weight, tau, h0**2 * (error + like.unsure[main])


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
