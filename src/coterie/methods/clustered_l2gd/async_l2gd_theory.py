"""Lyu, Hanzely, Kolar (2022), section 3: what Async-L2GD is run with, and what Theorem 3.5 promises for it.

``C1``, ``C2`` (k,) are those of ``Ties``, ``L`` is one smoothness of all f_i or each cluster's own (k,). Own ones are
valid and sharper: Lemma A.1 bounds ``|grad F_j|^2`` by ``2 L_j D_{F_j}`` for each cluster by itself.

Theorem 3.5 is Theorem 3.1 of Gower et al. (2019), "SGD: general analysis and improved rates", whose Theorem 3.2 gives
the decreasing step. ``mu`` may be mu_F: strong convexity is used of F only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd.nested_levels import Levels
from coterie.numerics.arrays import Floats, over
from coterie.relations.clusters import Ties

NESTED = "(3.3) with a term for every level of clusters, and what is shared, minimised over own probabilities"


def fractions(p0: float, p: Floats) -> Floats:
    """Proposition 3.3: tau (k,), the share of a cluster's tie that global rounds take; 1 where p_j = 0."""
    return np.where(p > 0.0, over(p0, p0 + 2.0 * (1.0 - p0) * p), 1.0)


def smoothness(p0: float, p: Floats, C1: npt.ArrayLike, C2: npt.ArrayLike, L: npt.ArrayLike) -> float:
    """Calligraphic L of (3.3); infinite where a tie or a loss is never stepped on."""
    pulls = over(2.0 * np.max(C1), p0), over(2.0 * np.asarray(C2), p0 + 2.0 * (1.0 - p0) * p)
    return float(max(np.max(term) for term in (*pulls, over(L, (1.0 - p0) * (1.0 - p)))))


def common_probabilities(C1: npt.ArrayLike, C2: npt.ArrayLike, L: npt.ArrayLike) -> tuple[float, float]:
    """Corollary 3.6: p_0, and one p_j for all clusters; 0 where nothing is tied."""
    c1, c2, smooth = float(np.max(C1)), float(np.max(C2)), float(np.max(L))
    if c2 > c1:
        return 2.0 * c1 / (c1 + c2 + smooth), (c2 - c1) / (c2 - c1 + smooth)
    return float(over(2.0 * c1, 2.0 * c1 + smooth)), 0.0


def own_probabilities(
    C1: npt.ArrayLike, C2: npt.ArrayLike, L: npt.ArrayLike, p0: float | None = None
) -> tuple[float, Floats]:
    """Minimise (3.3) over p_0, if it is not given, and every cluster's own p_j; the minimiser with the smallest p_j.

    A value l of (3.3) is reached if ``p_0 >= 2 C_1 / l``, ``(1 - p_0) p_j >= C_2j / l - p_0 / 2`` and
    ``(1 - p_0) (1 - p_j) >= L_j / l``. Adding the last two, the least p_0 is best, so the least l is
    ``max_j (L_j + C_1 + max(C_1, C_2j))``. There p_0 is unique, and every p_j may lie in an interval,
    of which the lower end is taken: at the upper one the noise (3.4) is larger.
    """
    c1, C2, L = float(np.max(C1)), np.asarray(C2, dtype=np.float64), np.asarray(L, dtype=np.float64)
    if p0 is None:
        least = float(np.max(L + c1 + np.maximum(c1, C2)))
        p0 = float(over(2.0 * c1, least))
    else:
        least = float(max(over(2.0 * c1, p0), np.max(over(L, 1.0 - p0)), np.max((L + C2) / (1.0 - 0.5 * p0))))
    return p0, np.clip(over(np.maximum(over(2.0 * C2, least) - p0, 0.0), 2.0 * (1.0 - p0)), 0.0, 1.0)


def step_size(calligraphic: float) -> float:
    """Theorem 3.5: ``1 / (2 L)``; a CoterieError where (3.3) is infinite."""
    if not np.isfinite(calligraphic):
        raise CoterieError(
            "With these probabilities some tie or some loss is never stepped on: a probability of 0 is for what is "
            "neither tied nor shared, and one of 1 leaves no local steps. Leave p0 and p out to have them chosen."
        )
    return 0.5 / calligraphic if calligraphic > 0.0 else 0.0


@dataclass(frozen=True)
class Choice:
    """Parameters of Algorithm 1, and ``why``: which theorem, which constants; ``smoothness`` is (3.3)."""

    p0: float
    p: Floats
    tau: Floats
    eta: float
    smoothness: float
    why: str
    q: tuple[Floats, ...] = ()  # of levels between the clusters and the network


def probabilities(
    ties: Ties, L: npt.ArrayLike, p0: float | None, p: npt.ArrayLike | None, common: bool
) -> tuple[float, Floats, str]:
    """Choose the probabilities that are not given, and say how."""
    if p is not None:
        if p0 is None:
            raise CoterieError("Give p0 together with p, or leave both out to have them chosen.")
        return p0, np.array(np.broadcast_to(np.asarray(p, dtype=np.float64), ties.C2.shape)), "p_0 and p as asked"
    if common and p0 is None:
        p0, one = common_probabilities(ties.C1, ties.C2, L)
        return p0, np.full(ties.C2.shape, one), "Corollary 3.6"
    how = "p_0 as asked, (3.3)" if p0 is not None else "(3.3)"
    return *own_probabilities(ties.C1, ties.C2, L, p0), f"{how} minimised over own p_j"


def rounds_of(
    ties: Ties,
    L: npt.ArrayLike,
    p0: float | None,
    p: npt.ArrayLike | None,
    common: bool,
    nested: Levels | None,
    shared: float,
) -> tuple[float, Floats, tuple[Floats, ...], str, float]:
    """Probabilities p0, p (k,) and those of the levels between, why, and the expected smoothness that they give."""
    about = f"; smoothness {shared:.4g} in what is shared, which rounds of the network step on" if shared else ""
    if nested is not None:
        return *nested.chosen, NESTED + about, nested.smoothness(np.asarray(L), shared)
    p0, p, why = probabilities(ties, L, p0, p, common)
    if shared:
        return p0, p, (), why + about, Levels.of(ties, p0, p).smoothness(np.asarray(L), shared)
    return p0, p, (), why, smoothness(p0, p, ties.C1, ties.C2, L)


def choose(
    ties: Ties,
    L: npt.ArrayLike,
    p0: float | None = None,
    p: npt.ArrayLike | None = None,
    eta: float | None = None,
    common: bool = False,
    nested: Levels | None = None,
    shared: float = 0.0,
) -> Choice:
    """Choose what is not given: own p_j (or ``common`` ones), tau_j, and the step size ``1 / (2 L)``.

    ``nested`` has the probabilities of all levels, where there are several or something is ``shared``: its smoothness.

    A given eta may be any number above 0: above ``1 / L`` nothing is promised, and ``why`` says so.
    """
    p0, p, q, why, ell = rounds_of(ties, L, p0, p, common, nested, shared)
    most = step_size(ell)
    why += f"; L = {np.max(L):.4g}, C_1 = {np.max(ties.C1):.4g}, C_2 = {np.max(ties.C2):.4g} give (3.3) = {ell:.4g}"
    why += "; eta = 1 / (2 (3.3)) by Theorem 3.5" if eta is None else f"; eta as given, Theorem 3.5 has {most:.3g}"
    if eta is not None and eta * ell > 1.0:
        why += f", and above {over(1.0, ell):.3g} nothing is promised"
    return Choice(p0, p, fractions(p0, p), most if eta is None else eta, ell, why, q)


def noise(p0: float, p: Floats, phi: Floats, psi: Floats, loss: Floats, exact: bool = False) -> float:
    """(3.4): the noise sigma^2 of the estimator (3.2) at the optimum.

    ``phi``, ``psi``, ``loss`` (k,): the clusters' shares of ``|grad phi|^2``, then ``(1 - alpha_j)^2 |grad psi_j|^2``
    and ``|grad F_j|^2``; for batches of rows the last is ``batch_noise``. ``exact``: ``E |G|^2`` itself: at the optimum
    the three gradients add up to zero, so their products are known too, and the factor 2 of (3.4) is not needed. Not
    for batches.
    """
    local = over(loss, (1.0 - p0) * (1.0 - p))
    if not exact:
        return float(np.sum(_where_drawn(2.0 * phi, p0) + _where_drawn(2.0 * psi, p0 + 2.0 * (1.0 - p0) * p) + local))
    tau = fractions(p0, p)
    globally = _where_drawn(np.maximum(phi + tau**2 * psi + tau * (loss - phi - psi), 0.0), p0)
    return float(np.sum(globally + over((1.0 - tau) ** 2 * psi, (1.0 - p0) * p) + local))


def _where_drawn(square: Floats, probability: npt.ArrayLike) -> Floats:
    """``square / probability``; 0 where nothing is drawn: nothing is tied there, and what is left is rounding."""
    return np.asarray(np.where(np.asarray(probability) > 0.0, over(square, probability), 0.0))


def batch_smoothness(L: Floats, L_row: Floats, batch: int) -> Floats:
    """Expected smoothness of ``batch`` rows drawn with replacement: ``L~ / B + (1 - 1 / B) L``; L for 0, all rows.

    ``E |(n / B) sum_b d_b|^2 = n sum_l |d_l|^2 / B + (1 - 1 / B) |sum_l d_l|^2``, d_l differences of rows' gradients.
    """
    return L_row / batch + (1.0 - 1.0 / batch) * L if batch else L


def batch_noise(loss: Floats, rows: Floats, batch: int) -> Floats:
    """``E |g|^2`` at the optimum likewise, from ``|grad f|^2`` and ``n sum_l |grad f_l|^2``."""
    return rows / batch + (1.0 - 1.0 / batch) * loss if batch else loss


def bound(
    t: npt.ArrayLike, eta: float, mu: float, sigma2: float, start: float, smoothness: float | None = None
) -> Floats:
    """Theorem 3.5: what ``E |theta^t - optimum|^2`` does not exceed, for every t.

    ``start``: ``|theta^0 - optimum|^2``. ``smoothness``: (3.3), for a sharper bound that holds up to ``eta = 1 / L``:
    with Young's inequality at its best weight in place of Corollary A.2's, the ball is ``eta sigma^2 / (mu (1 - eta
    L))``.
    """
    shrink = np.log1p(-min(eta * mu, 1.0 - 1e-16))
    return np.asarray(np.exp(np.asarray(t) * shrink) * start + ball(eta, mu, sigma2, smoothness), dtype=np.float64)


def ball(eta: float, mu: float, sigma2: float, smoothness: float | None = None) -> float:
    """The noise ball of ``bound``: ``2 eta sigma^2 / mu``; infinite where mu is 0 and there is noise."""
    room = 0.5 if smoothness is None else max(1.0 - eta * smoothness, 0.0)
    return float(over(eta * sigma2, mu * room))


def schedule(t: npt.ArrayLike, smoothness: float, mu: float) -> Floats:
    """Gower et al., Theorem 3.2: ``1 / (2 L)`` for ``4 ceil(L / mu)`` steps, then ``(2 t + 1) / ((t + 1)^2 mu)``."""
    t = np.asarray(t, dtype=np.float64)
    return np.where(t <= 4.0 * _conditioning(smoothness, mu), 0.5 / smoothness, (2.0 * t + 1.0) / ((t + 1.0) ** 2 * mu))


def scheduled_bound(t: npt.ArrayLike, smoothness: float, mu: float, sigma2: float, start: float) -> Floats:
    """What ``schedule`` guarantees: Theorem 3.5's bound, then ``8 sigma^2 / (mu^2 t) + 16 K^2 start / (e t)^2``."""
    t, K = np.asarray(t, dtype=np.float64), _conditioning(smoothness, mu)
    late = np.maximum(t, 1.0)
    after = 8.0 * sigma2 / (mu**2 * late) + 16.0 * (K / (np.e * late)) ** 2 * start
    return np.where(t < 4.0 * K, bound(t, 0.5 / smoothness, mu, sigma2, start), after)


def _conditioning(smoothness: float, mu: float) -> float:
    if not mu > 0.0:
        raise CoterieError("A decreasing step needs strong convexity, and here mu_F = 0: use a constant step eta.")
    return float(np.ceil(smoothness / mu))
