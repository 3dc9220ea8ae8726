"""How sure a difference is: intervals over clients, and gains in words."""

from __future__ import annotations

import math

import numpy as np

from coterie.numerics.kernels import Floats


def median_ratio(best: Floats, other: Floats) -> float:
    """The median client's loss as a share of its loss under another method; NaN where no client has both.

    Unlike a mean, it does not rest on the few clients whose own model is hardly identified.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(best == other, 1.0, np.maximum(best, 0.0) / np.maximum(other, 0.0))
    ratio = ratio[~np.isnan(ratio)]
    return float(np.median(ratio)) if len(ratio) else float("nan")


def less(best: float, other: float, loss: str) -> str:
    """``"3.2% less squared error"``; in absolute terms where a ratio says nothing."""
    if not (math.isfinite(best) and math.isfinite(other)):
        return f"{'more' if best > other else 'lower'} {loss}"
    if other > 0 and best >= 0:
        drop = 100.0 * (other - best) / other
        if abs(drop) < 0.05:
            return f"no more {loss}"
        size = f"{abs(drop):.1f}" if abs(drop) < 9.95 else f"{abs(drop):,.0f}"
        return f"{size}% {'less' if drop > 0 else 'more'} {loss}"
    return f"{abs(other - best):.3g} {'less' if best <= other else 'more'} {loss}"


def bootstrap(values: Floats, rng: np.random.Generator, draws: int = 1000) -> tuple[float, float]:
    """95% interval of the mean over clients, by resampling clients.

    Above 20,000 clients the normal interval, which resampling then reproduces.
    """
    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    if n > 20_000:
        half = 1.96 * values.std(ddof=1) / np.sqrt(n)
        return float(values.mean() - half), float(values.mean() + half)
    means = np.array([values[rng.integers(0, n, n)].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
