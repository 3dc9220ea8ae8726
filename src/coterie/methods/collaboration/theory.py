"""What theory needs of main clients and their collaborators (L, mu, delta), and the weights and steps that follow.

"Linear speedup in personalized collaborative learning" (2022), Theorems 4.1, 5.2 and C.4. Numbers are one for each main
client, (M,) or scalars: ``noise0`` is sigma_0^2, ``average`` is ``sigma_a^2 = sum_k tau_k^2 sigma_k^2``, delta that of
A3 between f_0 and ``sum_k tau_k f_k``, or an upper bound of it: steps from a delta that was estimated too low may
diverge. Bounds that these numbers minimise, such as ``sharp_bound``, are in ``papers/paper_004``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.numerics.arrays import Floats, Ints, over
from coterie.numerics.simplex_qp import diagonal_simplex_qp
from coterie.objectives.constants import hessians
from coterie.objectives.mean_loss import sizes

Value = float | Floats  # a number, or one for each main client


def variance(alpha: Value, noise0: Value, average: Value) -> Floats:
    """``sigma~^2(alpha) = (1 - alpha)^2 sigma_0^2 + alpha^2 sum tau_k^2 sigma_k^2``; ``average`` is that sum."""
    alpha = np.asarray(alpha, dtype=np.float64)
    return np.asarray((1.0 - alpha) ** 2 * noise0 + alpha**2 * average)


def best_tau(noise: Value, starts: Ints) -> Floats:
    """C.4: tau (P,) minimises ``sum_k tau_k^2 sigma_k^2``: ``1 / sigma_k^2``, normalised; the noise-free share all."""
    return diagonal_simplex_qp(noise, 0.0, starts)


def best_alpha(noise0: Value, average: Value, oracle: Value = 0.0) -> Floats:
    """The alpha that minimises ``sigma^2(alpha)``: ``sigma_0^2 / (sigma_0^2 + sigma_a^2 + oracle)``, 0 if sigma_0 = 0.

    ``oracle`` is the variance of the bias oracle's noise, ``v^2 / N`` in Theorem 5.1. With ``sigma_a^2 = sigma_0^2 /
    N`` this is ``N / (N + 1 + v^2 / sigma_0^2)``, and ``N / (N + 1)`` for the moving average (Theorem 5.2).
    """
    noise0 = np.asarray(noise0, dtype=np.float64)
    return over(noise0, noise0 + np.asarray(average) + np.asarray(oracle))


def least_beta(eta: Value, delta: Value, alpha: Value) -> Floats:
    """The least that ``sharp_bound`` takes at ``eta <= 1 / (2 L)``: ``beta^2 = 4 (1 + beta) (alpha delta eta)^2``.

    Above 1 where eta is too large for any beta. A beta much smaller than ``alpha delta eta`` may let x run away before
    c has followed: with Hessians a and a - delta that is so for ``beta < eta (alpha delta - a)``.
    """
    y = (2.0 * np.asarray(alpha) * np.asarray(delta) * np.asarray(eta)) ** 2
    return np.asarray(0.5 * (y + np.sqrt(y * (y + 4.0))))


def largest_step(L: Value, alpha: Value, delta: Value) -> Floats:
    """``min(1 / (2 L), 1 / (sqrt(8) alpha delta))``: below it some beta up to 1 satisfies ``sharp_bound``.

    Theorem 5.2 prints ``min(1 / L, 1 / (6 alpha^2 delta^2))``, which depends on units and is not enough; C.4's proof
    needs ``alpha delta eta <= beta / sqrt(120)``, so eta and beta cannot be chosen apart.
    """
    slopes = np.sqrt(8.0) * np.asarray(alpha, dtype=np.float64) * np.asarray(delta)
    return np.asarray(np.minimum(over(0.5, L), over(1.0, slopes)))


def best_beta(
    eta: Value,
    delta: Value,
    alpha: Value,
    noise0: Value,
    average: Value,
    T: Value = 10_000.0,
    E0: Value | None = None,
    constant: float = 10.0,
) -> Floats:
    """The beta in (0, 1] that minimises the bound's part that depends on it.

    ``beta S + constant (delta eta)^2 sigma^2(alpha) / (2 beta^2) + E_0 / (beta T)``, ``S = sigma_0^2 + sigma_a^2``. For
    endless T that is C.4's ``min(1, (10 delta^2 sigma^2(alpha) / S)^(1/3) eta^(2/3))``, of the mu-PL and the
    non-convex case alike. Never below ``least_beta``.

    ``T`` (default 10,000): steps. Where nothing curves otherwise (delta = 0) it alone keeps beta above 0: ``sqrt(E_0 /
    (S T))``. ``E0``: of ``first_error``; by default S, that of one sample. ``constant`` (default 10): C.4's;
    ``sharp_bound`` has 2.
    """
    S = np.asarray(noise0, dtype=np.float64) + np.asarray(average)
    curved = constant * (np.asarray(delta) * np.asarray(eta)) ** 2 * variance(alpha, noise0, average)
    curved, lag = over(curved, S), over(S if E0 is None else E0, S * np.asarray(T, dtype=np.float64))
    # beta^3 = lag beta + curved: the bracket's upper end is above its one positive root
    beta = np.maximum(np.sqrt(2.0 * lag), np.cbrt(2.0 * curved))
    for _ in range(60):  # Newton's steps on a convex function, from above
        slope = 3.0 * beta**2 - lag
        beta = beta - over(np.maximum(beta**3 - lag * beta - curved, 0.0), np.where(slope > 0.0, slope, 1.0))
    beta = np.where(S > 0.0, beta, 1.0)
    return np.asarray(np.clip(np.maximum(beta, least_beta(eta, delta, alpha)), np.finfo(np.float64).tiny, 1.0))


def delta_of(own: npt.ArrayLike, others: npt.ArrayLike) -> Floats:
    """delta_k (N,) from Hessians, own (d, d) and others (N, d, d): exact where they are those of the losses."""
    return np.asarray(np.abs(np.linalg.eigvalsh(np.asarray(others) - np.asarray(own))).max(axis=-1))


def delta_at_most(own: Floats, others: Floats, own_most: Floats, others_most: Floats) -> Floats:
    """What delta_k (N,) is at most where Hessians lie between 0 and these; itself where they do not change."""
    exact = np.all(np.isclose(own, own_most) & np.isclose(others, others_most), axis=(-2, -1))
    largest = np.maximum(np.linalg.eigvalsh(own_most)[..., -1], np.linalg.eigvalsh(others_most)[..., -1])
    return np.asarray(np.where(exact, delta_of(own, others), largest))


@work
def packed_hessians(site: Site, at: Floats, w: Floats) -> dict[str, Any]:
    """Packed Hessian of the mean loss at one point, and what it is at most in the region of ``Constants``, times w."""
    weight = sizes(site.objective)
    theta, share = np.tile(at, (len(site), 1)), (w / np.where(weight > 0.0, weight, 1.0))[:, None]
    return {"A": share * hessians(site.objective, theta), "most": share * hessians(site.objective, theta, most=True)}


@dataclass(frozen=True)
class Curvature:
    """Hessians (M, d, d) of ``f_0`` and ``sum_k tau_k f_k`` at a metric's origin, in its units; and at most."""

    own: Floats
    average: Floats
    own_most: Floats
    average_most: Floats

    def smoothness(self, alpha: Floats) -> Floats:
        """L (M,) of ``(1 - alpha) f_0 + alpha sum_k tau_k f_k``, and of ``f_0`` where that is larger."""
        alpha = alpha[:, None, None]
        mixed = np.linalg.eigvalsh((1.0 - alpha) * self.own_most + alpha * self.average_most)[:, -1]
        return np.asarray(np.maximum(mixed, np.linalg.eigvalsh(self.own_most)[:, -1]))

    @property
    def delta(self) -> Floats:
        """``|H_average - H_0|`` (M,) at the origin: what BC has to do with, which corrects the average's bias."""
        return delta_of(self.own, self.average)

    @property
    def delta_at_most(self) -> Floats:
        """What delta is at most (M,): losses that are not quadratic curve otherwise elsewhere."""
        return delta_at_most(self.own, self.average, self.own_most, self.average_most)


def curvature(fed: Federation, pairs: Collaborators, metric: Metric) -> Curvature:
    """Ask for it: one exchange of sums."""
    M, w = len(pairs.main), PerRow(np.concatenate([np.ones(len(pairs.main)), pairs.tau]))
    to, by = pairs.request_client, pairs.request_group
    s = require_all_replies(fed.total(packed_hessians, to=to, by=by, groups=2 * M, at=metric.at, w=w))
    own, most = (metric.hessian(s[name]) for name in ("A", "most"))
    return Curvature(own[:M], own[M:], most[:M], most[M:])
