"""Lyu, Hanzely, Kolar (2022), sections 3 and 4: what Async-L2GD and Async-AL2SGD+ are run with, and their rates.

``C1``, ``C2`` (k,) are those of ``ClusterTies``, ``L`` is one smoothness of all f_i or each cluster's own (k,). Own
ones are valid and sharper: Lemma A.1 bounds ``|grad F_j|^2`` by ``2 L_j D_{F_j}`` for each cluster by itself.

Theorem 3.5 is Theorem 3.1 of Gower et al. (2019), "SGD: general analysis and improved rates", whose Theorem 3.2 gives
the decreasing step. ``mu`` may be mu_F: strong convexity is used of F only.

Theorem 4.3 is Theorem 4.1 of Hanzely, Kovalev, Richtarik (2020b), of L-Katyusha. With D the Bregman divergence of F,
its proof needs
``E |g - grad F(theta)|^2 <= 2 L D(x, theta)`` (Lemma 4.2), F smooth with L_F and strongly convex with mu,
``a_1 + a_2 <= 1``, ``b_1 = 1 - b_2 mu`` and, for ``S = a_1 b_2 + b_1 L_F eta^2``, both ``S <= 2 b_1 eta`` and
``L S <= b_1 a_2``. Then ``|z - optimum|^2 + c (1 - s) (F(y) - F*) + c s / rho (F(x) - F*)``, ``c = 2 b_1 b_2 / a_1``,
shrinks in mean by ``1 - min(b_2 mu, (a_1 + a_2 - s) / (1 - s), rho (1 - a_2 / s))`` at every step, for any s: expand
``|z+ - optimum|^2``, add c times the descent ``F(y+) <= F(theta) - eta <grad F, g> + L_F eta^2 |g|^2 / 2``, and what is
left of ``|grad F|^2`` and of the variance is not positive by the two conditions. The theorem's values leave room in
them; ``sharp`` uses it, with a rate some five times as high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd.cluster_rounds import Levels
from coterie.numerics.arrays import Floats, over
from coterie.relations.clusters import ClusterTies

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
    ties: ClusterTies, L: npt.ArrayLike, p0: float | None, p: npt.ArrayLike | None, common: bool
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
    ties: ClusterTies,
    L: npt.ArrayLike,
    p0: float | None = None,
    p: npt.ArrayLike | None = None,
    common: bool = False,
    nested: Levels | None = None,
    shared: float = 0.0,
) -> tuple[float, Floats, tuple[Floats, ...], str, float]:
    """Probabilities p0, p (k,) and those of the levels between, why, and the expected smoothness that they give.

    What is not given is chosen: own p_j, or ``common`` ones. ``nested`` has the probabilities of all levels, where
    there are several or something is ``shared``: its smoothness.
    """
    about = f"; smoothness {shared:.4g} in what is shared, which rounds of the network step on" if shared else ""
    if nested is not None:
        return *nested.chosen, NESTED + about, nested.smoothness(np.asarray(L), shared)
    p0, p, why = probabilities(ties, L, p0, p, common)
    if shared:
        return p0, p, (), why + about, Levels.of(ties, p0, p).smoothness(np.asarray(L), shared)
    return p0, p, (), why, smoothness(p0, p, ties.C1, ties.C2, L)


def choose(ties: ClusterTies, L: npt.ArrayLike, eta: float | None = None, **asked: Any) -> Choice:
    """Choose what is not ``asked`` for (:func:`rounds_of`): own p_j, tau_j, and the step size ``1 / (2 L)``.

    A given eta may be any number above 0: above ``1 / L`` nothing is promised, and ``why`` says so.
    """
    p0, p, q, why, ell = rounds_of(ties, L, **asked)
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


FLAT = 1e-6  # where F is flat in some direction no theorem applies: mu is then taken as this fraction of calligraphic L


@dataclass(frozen=True)
class Katyusha:
    """Parameters of Algorithm 2: from 0, ``E |y^t - optimum|^2 <= factor (1 - rate)^t |optimum|^2``."""

    eta: float
    a1: float
    a2: float
    b1: float
    b2: float
    rho: float
    rate: float
    factor: float

    def iterations(self, accuracy: float) -> float:
        """Steps after which the mean squared distance is promised to be ``accuracy`` times that of the start."""
        return float(np.ceil(np.log(self.factor / accuracy) / -np.log1p(-self.rate)))


def theorem(ell: float, L_F: float, mu: float, rho: float) -> Katyusha:
    """Theorem 4.3, for calligraphic L = ``ell``; a CoterieError where mu = 0."""
    _need_curvature(mu)
    most = max(L_F, ell)
    eta, a2 = 0.25 / most, 0.5 * ell / most
    a1 = min(0.5, float(np.sqrt(eta * mu * max(0.5, a2 / rho))))
    return _rated(eta, a1, a2, 1.0 / max(2.0 * mu, 4.0 * a1 / eta), rho, mu, L_F)


def sharp(ell: float, L_F: float, mu: float, rho: float) -> Katyusha:
    """The largest steps that the theorem's proof admits (see above), in place of those it prints.

    The conditions give ``a_1 b_2 <= b_1 M`` with ``M = a_2 / ell (1 - L_F a_2 / (4 ell))`` at ``eta = a_2 / (2 ell)``.
    Equal contraction q of all three terms is a cubic in q, and a_2 maximises it where q is small against rho.
    """
    from scipy.optimize import brentq

    _need_curvature(mu)
    e, r = 0.25 * L_F / ell, 1.0 / rho - 1.0
    a2 = min(0.5, ell / L_F, 1.0 / (e + float(np.sqrt(e * e + e * r))))
    eta, M = 0.5 * a2 / ell, mu * a2 / ell * (1.0 - e * a2)
    R = rho + a2 * (1.0 - rho)

    def excess(q: float) -> float:
        return ((q + M - R) * q - M * (1.0 + rho)) * q + M * rho

    q = brentq(excess, 0.0, rho * (1.0 - 1e-9), xtol=1e-300, rtol=1e-12)
    a1 = min(q + (a2 * q * (1.0 - rho) / (rho - q) if rho < 1.0 else 0.0), 1.0 - a2)
    return _rated(eta, a1, a2, M / mu / (a1 + M), rho, mu, L_F)


def _need_curvature(mu: float) -> None:
    if not mu > 0.0:
        raise CoterieError(
            "The objective is flat in some direction (mu_F = 0), so Theorem 4.3 gives no parameters: tie every client "
            "(gamma > 0), or give a mu."
        )


def _rated(eta: float, a1: float, a2: float, b2: float, rho: float, mu: float, L_F: float) -> Katyusha:
    """Add b_1, and the best s, rate and factor of the proof."""
    b1 = 1.0 - b2 * mu
    B, C = a1 + a2 - rho * (1.0 + a2), 4.0 * (1.0 - rho) * rho * a2
    root = float(np.sqrt(B * B + C))
    s = (B + root) / (2.0 * (1.0 - rho)) if B > 0.0 and rho < 1.0 else 2.0 * rho * a2 / (root - B)
    s = min(s, 0.99)  # any s will do, and F(y) should have a share in what shrinks
    rate = min(b2 * mu, (a1 + a2 - s) / (1.0 - s), rho * (1.0 - a2 / s))
    c = 2.0 * b1 * b2 / a1
    start = 1.0 + 0.5 * L_F * c * (1.0 - s + s / rho)
    return Katyusha(eta, a1, a2, b1, b2, rho, rate, start / (0.5 * mu * c * (1.0 - s)))


def expected_communications(k: Katyusha, p0: float, p: Floats, accuracy: float) -> dict[str, float]:
    """Communications that ``accuracy`` is predicted to need, the busiest cluster's; momentum lets none be free."""
    T = k.iterations(accuracy)
    busiest = (1.0 - p0) * float(np.max(p, initial=0.0))
    return {"iterations": T, "global": p0 * T, "cluster": busiest * T, "refresh": k.rho * T}


def refresh(
    ell: float, L_F: float, mu: float, p0: float, p: Floats, accuracy: float = 1e-4, paper: bool = False
) -> float:
    """The rho that minimises predicted communications, refreshes included; Corollary 4.4 leaves it open.

    Iterations fall like ``rho^-1/2`` and communications are ``iterations (rounds per step + rho)``, so the best rho is
    near the rounds per step: as many refreshes as rounds. 1 where nobody communicates, for fewest iterations.
    """
    from scipy.optimize import minimize_scalar

    parameters = theorem if paper else sharp
    if not p0 > 0.0 and not np.any(p > 0.0):
        return 1.0

    def cost(x: float) -> float:
        sent = expected_communications(parameters(ell, L_F, mu, float(np.exp(x))), p0, p, accuracy)
        return float(np.log(sent["global"] + sent["cluster"] + sent["refresh"]))

    return float(np.exp(minimize_scalar(cost, bounds=(np.log(1e-6), 0.0), method="bounded").x))


@dataclass(frozen=True, kw_only=True)
class AcceleratedChoice(Choice):
    """Parameters of Algorithm 2, and ``why``; ``smoothness`` is Lemma 4.2's calligraphic L."""

    steps: Katyusha
    mu: float


def choose_accelerated(
    ties: ClusterTies,
    L: npt.ArrayLike,
    L_F: float,
    mu: float,
    rho: float | None = None,
    paper: bool = False,
    **asked: Any,
) -> AcceleratedChoice:
    """Choose what is not ``asked`` for (:func:`rounds_of`): own p_j, rho, and steps, sharp or the ``paper``'s.

    L (k,) is the expected smoothness of the clusters' row estimates (L~, or ``batch_smoothness``), L_F that of F:
    ``max_i (L_i + gamma_i)``.
    """
    p0, p, q, why, ell = rounds_of(ties, L, **asked)
    step_size(ell)
    if mu <= 0.0:
        mu = FLAT * max(ell, L_F)
        why += f"; F is flat in some direction, so mu = {mu:.3g} is assumed and nothing is promised"
    if rho is None:
        rho = refresh(ell, L_F, mu, p0, p + sum(q), paper=paper)
        why += "; rho for fewest communications"
    steps = (theorem if paper else sharp)(ell, L_F, mu, rho)
    why += f"; calligraphic L = {ell:.4g} (Lemma 4.2), L_F = {L_F:.4g}, mu = {mu:.3g}; "
    why += "steps of Theorem 4.3" if paper else "steps as large as Theorem 4.3's proof admits"
    return AcceleratedChoice(p0, p, fractions(p0, p), steps.eta, ell, why, q, steps=steps, mu=mu)
