"""Lyu, Hanzely, Kolar (2022), section 3: probabilities, fractions and step size of Async-L2GD.

``C1``, ``C2`` (k,) are those of ``Ties``, ``L`` is one smoothness of all f_i or each cluster's own (k,). Own ones are
valid and sharper: Lemma A.1 bounds ``|grad F_j|^2`` by ``2 L_j D_{F_j}`` for each cluster by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats
from coterie.relations.ties import Ties


def over(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """``a / b`` for numbers that are not negative, with 0 / 0 = 0: a term that is absent costs nothing."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    return np.asarray(np.divide(a, b, out=np.where(a > 0.0, np.inf, 0.0), where=b > 0.0))


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
    """Minimise (3.3) over p_0 and every cluster's own p_j; of its minimisers, the one with the smallest p_j.

    A value l of (3.3) is reached if ``p_0 >= 2 C_1 / l``, ``(1 - p_0) p_j >= C_2j / l - p_0 / 2`` and
    ``(1 - p_0) (1 - p_j) >= L_j / l``. Adding the last two, the least p_0 is best, so the least l is
    ``max_j (L_j + C_1 + max(C_1, C_2j))``. There p_0 is unique, and every p_j may lie in an interval,
    of which the lower end is taken: at the upper one the noise (3.4) is larger.

    Parameters
    ----------
    p0 : float, optional
        Keep this p_0, and minimise over the p_j.

    Returns
    -------
    p0 : float
    p : (k,)
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
            "With these probabilities some tie or some loss is never stepped on: a probability of 0 is for what is not "
            "tied, and one of 1 leaves no local steps. Leave p0 and p out to have them chosen."
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


def given(
    ties: Ties, L: npt.ArrayLike, p0: float | None, p: npt.ArrayLike | None, common: bool
) -> tuple[float, Floats, str]:
    """Choose the probabilities that are not given, and say how; a CoterieError where one cannot be a probability."""
    for name, value in (("p0", p0), ("p", p)):
        if value is not None and not np.all((np.asarray(value) >= 0.0) & (np.asarray(value) <= 1.0)):
            raise CoterieError(f"{name} must lie between 0 and 1: it is a probability.")
    if p is not None:
        if p0 is None:
            raise CoterieError("Give p0 together with p, or leave both out to have them chosen.")
        return p0, np.array(np.broadcast_to(np.asarray(p, dtype=np.float64), ties.C2.shape)), "p_0 and p as asked"
    if common and p0 is None:
        p0, one = common_probabilities(ties.C1, ties.C2, L)
        return p0, np.full(ties.C2.shape, one), "Corollary 3.6"
    how = "p_0 as asked, (3.3)" if p0 is not None else "(3.3)"
    return *own_probabilities(ties.C1, ties.C2, L, p0), f"{how} minimised over own p_j"


def choose(
    ties: Ties,
    L: npt.ArrayLike,
    p0: float | None = None,
    p: npt.ArrayLike | None = None,
    eta: float | None = None,
    common: bool = False,
) -> Choice:
    """Choose what is not given: own p_j (or ``common`` ones), tau_j, and the step size ``1 / (2 L)``.

    A given eta may be any number above 0: above ``1 / L`` nothing is promised, and ``why`` says so.
    """
    p0, p, why = given(ties, L, p0, p, common)
    ell = smoothness(p0, p, ties.C1, ties.C2, L)
    most = step_size(ell)
    if eta is not None and not 0.0 < eta < np.inf:
        raise CoterieError(f"eta must be a number above 0, not {eta:g}.")
    why += f"; L = {np.max(L):.4g}, C_1 = {np.max(ties.C1):.4g}, C_2 = {np.max(ties.C2):.4g} give (3.3) = {ell:.4g}"
    why += "; eta = 1 / (2 (3.3)) by Theorem 3.5" if eta is None else f"; eta as given, Theorem 3.5 has {most:.3g}"
    if eta is not None and eta * ell > 1.0:
        why += f", and above {over(1.0, ell):.3g} nothing is promised"
    return Choice(p0, p, fractions(p0, p), most if eta is None else eta, ell, why)
