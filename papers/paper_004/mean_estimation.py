"""Collaborative mean estimation (section 4): the library's own methods on samples of means, and their exact errors.

``f_k(x) = (x - mu_k)^2 / 2`` is heard through ``x - z_k`` for a sample z_k of mean mu_k and variance sigma_k^2. With
the step ``1 / (t + 1)`` weighted averaging has the plain average of its mixed samples ``(1 - alpha) z_0 + alpha sum_k
tau_k z_k``, so that after T steps ``E(x - mu_0)^2 = sigma~^2(alpha) / T + alpha^2 (sum_k tau_k mu_k - mu_0)^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.engines import InProcess
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.numerics.arrays import Floats
from coterie.objectives.quadratic import NoisyQuadratic
from papers.paper_004.simplex_qp import simplex_qp

MU0 = 1.0
"""The mean that is looked for; everybody starts at 0, which the first step of size 1 forgets."""

Schedule = Callable[[int], float]


def averaging(t: int) -> float:
    """The step ``1 / (t + 1)``: x_T is the average of T samples. As beta_t, c is that of all biases seen."""
    return 1.0 / (t + 1.0)


def decreasing(t: int) -> float:
    """C.2's step for mu = L = 1 and m = 0, ``(2 t + 1) / (t + 1)^2``: later samples count more."""
    return (2.0 * t + 1.0) / (t + 1.0) ** 2


@dataclass(frozen=True)
class Setting:
    """One main client, its collaborators, and how it listens to them.

    Attributes
    ----------
    gaps : (N,)
        ``mu_k - mu_0``.
    sigmas : (N,)
        Standard deviations of the collaborators' samples.
    alpha : float
        Weight of the collaborators.
    tau : (N,)
        Their shares of it.
    sigma : float, default 1
        Standard deviation sigma_0 of the main client's samples.
    beta : callable, optional
        beta_t of bias correction; without it, weighted averaging.
    first : {"sample", "zero"}, default "sample"
        Bias correction's c_0.
    step : callable, default averaging
        eta_t.
    """

    gaps: Floats
    sigmas: Floats
    alpha: float
    tau: Floats
    sigma: float = 1.0
    beta: Schedule | None = None
    first: Literal["sample", "zero"] = "sample"
    step: Schedule = averaging

    @classmethod
    def equal(cls, gap: float, N: int, alpha: float | None = None, sigma: float = 1.0) -> Setting:
        """N collaborators with the same mean and sigma_k = sigma_0; by default all samples count the same."""
        alpha = N / (N + 1.0) if alpha is None else alpha
        return cls(np.full(N, gap), np.full(N, sigma), alpha, np.full(N, 1.0 / N), sigma)

    @property
    def gap(self) -> float:
        """``sum_k tau_k mu_k - mu_0``."""
        return float(self.tau @ self.gaps)

    @property
    def average(self) -> float:
        """``sigma_a^2 = sum_k tau_k^2 sigma_k^2``."""
        return float(self.tau**2 @ self.sigmas**2)

    @property
    def variance(self) -> float:
        """``sigma~^2(alpha) = (1 - alpha)^2 sigma_0^2 + alpha^2 sigma_a^2``."""
        return (1.0 - self.alpha) ** 2 * self.sigma**2 + self.alpha**2 * self.average

    def error(self, T: npt.ArrayLike) -> Floats:
        """``sigma~^2(alpha) / T + alpha^2 gap^2``, the mean squared error of weighted averaging with ``averaging``."""
        return np.asarray(self.variance / np.asarray(T, dtype=np.float64) + (self.alpha * self.gap) ** 2)

    def best(self, T: float) -> Setting:
        """The weights with the smallest ``error(T)``: with ``w = (1 - alpha, alpha tau)`` it is ``w' Q w``.

        ``Q = diag(sigma_0^2, sigma_k^2) / T + gaps gaps'`` over the simplex. For one collaborator that is ``alpha =
        sigma_0^2 / (sigma_0^2 + sigma_1^2 + T (mu_1 - mu_0)^2)``, as in Grimberg et al. (2021).
        """
        gaps, sigmas = np.append(0.0, self.gaps), np.append(self.sigma, self.sigmas)
        w = simplex_qp(np.diag(sigmas**2) / T + np.outer(gaps, gaps))
        alpha = float(w[1:].sum())
        return replace(self, alpha=alpha, tau=w[1:] / alpha if alpha > 0.0 else self.tau)


def estimates(settings: Sequence[Setting], times: Sequence[int], runs: int, seed: int = 0) -> Floats:
    """What :class:`WeightedAveraging` or :class:`BiasCorrection` holds, less mu_0.

    Parameters
    ----------
    settings : sequence of Setting
        With as many collaborators each, and of the same schedules.
    times : sequence of int
        Steps T, rising from 1 or later.
    runs : int
        Independent problems for every setting, each with clients of its own; all run at once as main clients.
    seed : int, default 0

    Returns
    -------
    (settings, runs, times)
    """
    N, problems = len(settings[0].gaps), len(settings) * runs
    fed = _federation(settings, runs, seed)
    main = np.arange(problems) * (N + 1)
    who = (main[:, None] + np.arange(1, N + 1)).ravel()
    tau = np.repeat([s.tau for s in settings], runs, axis=0).ravel()
    pairs = Collaborators(main, np.repeat(np.arange(problems), N), who, tau)
    with_whom = {"pairs": pairs, "metric": Metric.plain(1)}
    method = _method(settings[0], with_whom, np.repeat([s.alpha for s in settings], runs))
    found = [state["x"][:, 0] - MU0 for state in method.run(fed, times)]
    return np.stack(found, axis=-1).reshape(len(settings), runs, len(times))


def _federation(settings: Sequence[Setting], runs: int, seed: int) -> InProcess:
    means = MU0 + np.repeat([np.append(0.0, s.gaps) for s in settings], runs, axis=0).ravel()
    sigmas = np.repeat([np.append(s.sigma, s.sigmas) for s in settings], runs, axis=0).ravel()
    return InProcess(NoisyQuadratic(np.ones((len(means), 1, 1)), means[:, None], sigmas), seed=seed)


def _method(like: Setting, with_whom: dict[str, Any], alpha: Floats) -> WeightedAveraging:
    if like.beta is None:
        return WeightedAveraging(**with_whom, alpha=alpha, eta=like.step)
    return BiasCorrection(**with_whom, alpha=alpha, eta=like.step, beta=like.beta, first=like.first)


def errors(setting: Setting, times: Sequence[int]) -> Floats:
    """Exact mean squared errors (s,) for any schedule: means and covariances of (x - mu_0, c), step by step.

    The observed bias ``b = z_0 - sum_k tau_k z_k`` does not depend on x, and with it
    ``x <- (1 - eta) x + eta (z_0 - alpha (b - c))`` and ``c <- (1 - beta) c + beta b``.
    """
    s, a = setting, setting.alpha
    x, c, gap = -MU0, 0.0, s.gap
    xx = xc = cc = 0.0
    v0, va = s.sigma**2, s.average
    out = []
    for t in range(max(times)):
        eta, beta = s.step(t), 0.0 if s.beta is None else s.beta(t)
        if t == 0 and s.beta is not None and s.first == "sample":
            x, c, xx, xc, cc = (1.0 - eta) * x, -gap, eta**2 * v0, eta * v0, v0 + va
        else:
            xx = (1 - eta) ** 2 * xx + 2 * (1 - eta) * eta * a * xc + (eta * a) ** 2 * cc + eta**2 * s.variance
            xc = (1 - beta) * ((1 - eta) * xc + eta * a * cc) + eta * beta * ((1 - a) * v0 - a * va)
            cc = (1 - beta) ** 2 * cc + beta**2 * (v0 + va)
            x, c = (1 - eta) * x + eta * a * (gap + c), (1 - beta) * c - beta * gap
        if t + 1 in times:
            out.append(xx + x**2)
    return np.array(out)


def measured(found: Floats) -> tuple[Floats, Floats]:
    """Mean of squares over runs and its standard error, (settings, s) each, of estimates (settings, runs, s)."""
    squares, runs = found**2, found.shape[1]
    spread = squares.std(axis=1, ddof=1) / runs**0.5 if runs > 1 else np.full_like(squares[:, 0], np.nan)
    return squares.mean(axis=1), spread
