"""Proposition 5.4: James and Stein's estimators against the best linear unbiased one, exact and simulated.

``y_i ~ N(theta_i, I_d)``, ``theta_i ~ N(mu, I_d)``, n clients. With the tie gamma = 1 the method's minimiser is the
BLUE ``(y_i + mean(y)) / 2`` of risk ``d (n + 1) / (2 n)``. As theta_i less its posterior mean ``(y_i + mu) / 2`` is
independent of all y, whatever takes mu's place adds a quarter of its own risk, which is that of a shrunk normal mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D, N = 20, 10
LENGTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
CLIENTS, NODES = (2, 5, 10, 50), 200
DIMENSIONS = (2, 3, 5, 10, 20, 50, 200)
TITLES = {
    "blue": "ours at gamma = 1: BLUE",
    "paper": "A.12: others' mean shrunk",
    "root": "root shrunk",
    "positive": "root shrunk, positive part",
    "alone": "own y shrunk, no collaboration",
    "oracle": "root times its best constant",
}
COLOURS = {"blue": GREY, "paper": ORANGE, "root": GREEN, "positive": BLUE, "alone": RED, "oracle": PURPLE}
NOTES = (
    "Gamma = 1 is the method's best strength: the BLUE is unique, and its risk does not depend on mu.",
    "A.12 has its two weights swapped; here they are (n + 1) / (2n) for y_1 and (n - 1) / (2n) for the others' mean. "
    "'Root shrunk' is the method james-stein of this package with known variances: one factor for the mean of all y.",
    "Exact: E[1 / chi^2] of a noncentral chi-square as a Poisson mixture, and integrals of its density for the "
    "positive part. The proposition asks for d > 3; d = 3 is enough, and at d = 2 nothing changes.",
)


def inverse_mean(d: int, noncentrality: float) -> float:
    """``E[1 / chi^2_d(noncentrality)]``: a Poisson mixture of ``1 / (d - 2 + 2 K)``; infinite below d = 3."""
    from scipy.stats import poisson

    if d < 3:
        return float("inf")
    half = 0.5 * noncentrality
    k = np.arange(int(half + 12.0 * half**0.5) + 60)
    return float(np.sum(poisson.pmf(k, half) / (d - 2 + 2 * k)))


def shrunk_risk(d: int, length: float, s2: float, positive: bool = False) -> float:
    """Risk of James and Stein's estimate of mu, ``|mu| = length``, from one draw of N(mu, s2 I_d).

    Below d = 3 there is no factor, and the risk is that of the draw.
    """
    if d < 3:
        return s2 * d
    noncentrality = length**2 / s2
    plain = d - (d - 2) ** 2 * inverse_mean(d, noncentrality)
    return s2 * (plain - (_cut_off(d, noncentrality) if positive else 0.0))


def _cut_off(d: int, noncentrality: float) -> float:
    """What cutting a negative factor off at 0 saves (Stein's identity, over the draws where it is negative).

    With X ~ N(xi, I), F = 1 - (d - 2) / |X|^2 and ``xi' X`` given ``|X|^2 = q`` of mean ``noncentrality`` times the
    ratio of the densities of ``chi^2_{d+2}`` and ``chi^2_d`` at q: ``|F X - xi|^2 - |xi|^2 = F^2 q - 2 F xi' X``.
    """
    from scipy.stats import chi2, ncx2

    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    half = 0.5 * (d - 2.0) ** 0.5  # over |X|, in which the integrand is smooth
    size = half * (nodes + 1.0)
    q = size**2
    near, far = (ncx2.pdf(q, k, noncentrality) if noncentrality > 0.0 else chi2.pdf(q, k) for k in (d, d + 2))
    F = 1.0 - (d - 2.0) / q
    return float(np.sum(half * weights * 2.0 * size * (F**2 * q * near - 2.0 * F * noncentrality * far)))


def risks(d: int, length: float, n: int) -> dict[str, float]:
    """Exact risks of every estimator of one client's theta."""
    s2, others = 2.0 / n, 2.0 / (n - 1)
    a, b = (n + 1) / (2 * n), (n - 1) / (2 * n)
    mean = s2 * d * length**2 / (length**2 + s2 * d)
    return {
        "blue": d * (n + 1) / (2 * n),
        "paper": (a**2 + b**2) * d + b**2 * shrunk_risk(d, length, others),
        "root": 0.5 * d + 0.25 * shrunk_risk(d, length, s2),
        "positive": 0.5 * d + 0.25 * shrunk_risk(d, length, s2, positive=True),
        "alone": alone_risk(d, length),
        "oracle": 0.5 * d + 0.25 * mean,
    }


def alone_risk(d: int, length: float) -> float:
    """Risk of the client's own y, shrunk: Stein's identity holds for every theta_i, so for its mean over them."""
    return d - 0.5 * (d - 2) ** 2 * inverse_mean(d, 0.5 * length**2) if d > 2 else float(d)


def crossover(d: int, n: int) -> float:
    """The |mu| up to which a client that shrinks its own y beats the BLUE from all clients; NaN if none.

    At mu = 0 its risk is ``d / 2 + 1`` against ``d / 2 + d / (2 n)``: so it does for d > 2 n. For large d it is about
    ``d (1 + c) / (2 + c)`` with ``c = |mu|^2 / d``, which is the BLUE's at ``c = 2 / (n - 1)``.
    """
    from scipy.optimize import brentq

    def ahead(length: float) -> float:
        return 0.5 * d * (n + 1) / n - alone_risk(d, length)

    return float(brentq(ahead, 0.0, 3.0 * d**0.5)) if ahead(0.0) > 1e-12 else float("nan")


@dataclass(frozen=True)
class Simulated:
    """Means and standard errors of losses by estimator, at some |mu| of one d and n."""

    mean: dict[str, float]
    error: dict[str, float]


def simulate(d: int, length: float, n: int, runs: int, seed: int) -> Simulated:
    """Losses of client 1 of every run; mu points in the direction of the first axis."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, d, n, round(1000 * length)]))
    mu = np.zeros(d)
    mu[0] = length
    theta = mu + rng.normal(size=(runs, d))
    y = theta + rng.normal(size=(runs, d))
    rest = mu + (2.0 / (n - 1)) ** 0.5 * rng.normal(size=(runs, d))  # the mean of the others' y
    w = (y + (n - 1) * rest) / n
    best = length**2 / (length**2 + 2.0 * d / n)
    estimates = {
        "blue": 0.5 * (y + w),
        "paper": ((n + 1) * y + (n - 1) * _factor(rest, 2.0 / (n - 1)) * rest) / (2 * n),
        "root": 0.5 * (y + _factor(w, 2.0 / n) * w),
        "positive": 0.5 * (y + np.maximum(_factor(w, 2.0 / n), 0.0) * w),
        "alone": _factor(y, 1.0) * y,
        "oracle": 0.5 * (y + best * w),
    }
    losses = {name: np.sum((e - theta) ** 2, axis=1) for name, e in estimates.items()}
    return Simulated(
        {name: float(v.mean()) for name, v in losses.items()},
        {name: float(v.std(ddof=1) / runs**0.5) for name, v in losses.items()},
    )


def _factor(w: Floats, s2: float) -> Floats:
    return np.asarray(1.0 - max(w.shape[1] - 2, 0) * s2 / np.sum(w**2, axis=1, keepdims=True))


def run(settings: Settings) -> Outcome:
    """Over |mu| at one d, and over d at mu = 0."""
    runs = 2_000 if settings.quick else 40_000
    tell: Callable[[str], None] = settings.tell
    tell("simulating")
    by_length = [(risks(D, r, N), simulate(D, r, N, runs, 0)) for r in LENGTHS]
    by_d = [(risks(d, 0.0, N), simulate(d, 0.0, N, runs, 1)) for d in DIMENSIONS]
    worst = max(abs(s.mean[n] - e[n]) / s.error[n] for e, s in (*by_length, *by_d) for n in TITLES)
    numbers = {
        "by_length": [numbers_of(*pair) | {"length": r} for r, pair in zip(LENGTHS, by_length, strict=True)],
        "by_d": [numbers_of(*pair) | {"d": d} for d, pair in zip(DIMENSIONS, by_d, strict=True)],
        "most_standard_errors": worst,
        "crossover": {f"n={n}": [crossover(d, n) for d in DIMENSIONS] for n in CLIENTS},
    }
    of = len(TITLES) * (len(LENGTHS) + len(DIMENSIONS))
    notes = (*NOTES, f"Of {of} simulated risks the furthest is {worst:.1f} standard errors from its exact value.")
    tables = (
        table(f"Risk of a client by |mu|, d = {D}, n = {N}", "|mu|", [f"{r:g}" for r in LENGTHS], by_length),
        table(f"Risk of a client by d at mu = 0, n = {N}", "d", [f"{d}" for d in DIMENSIONS], by_d),
        against_alone(),
    )
    return Outcome(tables, draw, {"d": D, "n": N, "runs": runs}, numbers, notes)


def numbers_of(exact: dict[str, float], seen: Simulated) -> dict[str, Any]:
    """Exact and simulated risks, to be written."""
    return {"exact": exact, "simulated": seen.mean, "standard_error": seen.error}


def table(title: str, head: str, places: list[str], found: list[tuple[dict[str, float], Simulated]]) -> Table:
    """Exact above simulated (standard error), an estimator a row."""
    rows: list[tuple[str, ...]] = []
    for name, words in TITLES.items():
        rows.append((words, "exact", *(f"{exact[name]:.3f}" for exact, _ in found)))
        rows.append((words, "simulated", *(f"{s.mean[name]:.3f} ({s.error[name]:.3f})" for _, s in found)))
    return Table(title, ("estimator", head, *places), tuple(rows), texts=2)


def against_alone() -> Table:
    """Where a client that shrinks its own y is ahead of the BLUE."""
    rows = []
    for n in CLIENTS:
        each = [crossover(d, n) / d**0.5 for d in DIMENSIONS]
        limit = (2.0 / (n - 1)) ** 0.5
        rows.append((f"{n}", *("never" if np.isnan(r) else f"{r:.3f}" for r in each), f"{limit:.3f}"))
    return Table(
        "The |mu| / sqrt(d) below which a client that shrinks its own y, without collaboration, beats the BLUE",
        ("clients n", *(f"d = {d}" for d in DIMENSIONS), "limit"),
        tuple(rows),
        note="Never for d <= 2 n. The limit for large d is sqrt(2 / (n - 1)).",
    )


def draw() -> Figure:
    """Risks over |mu| and, relative to the BLUE's, over d."""
    figure, (left, right) = panels(2, width=4.8, height=3.8)
    lengths = np.linspace(0.0, 12.0, 49)
    along = [risks(D, float(r), N) for r in lengths]
    dims = np.unique(np.geomspace(1, 300, 40).astype(int))
    over = [risks(int(d), 0.0, N) for d in dims]
    for name, title in TITLES.items():
        left.plot(lengths, [r[name] for r in along], color=COLOURS[name], label=title)
        right.plot(dims, [r[name] / r["blue"] for r in over], color=COLOURS[name])
    left.set_xlabel("$|\\mu|$")
    left.set_ylabel("risk of a client")
    left.set_ylim(0.98 * 0.5 * D, 0.6 * D)
    left.set_title(f"d = {D}, n = {N}")
    right.axhline(N / (N + 1), color=GREY, ls=":")
    right.set_xscale("log")
    right.set_ylim(0.85, 1.2)
    right.set_xlabel("d")
    right.set_ylabel("risk over the BLUE's, $\\mu = 0$")
    right.set_title(f"n = {N}; dotted: n / (n + 1), Bayes with $\\mu$ known")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
