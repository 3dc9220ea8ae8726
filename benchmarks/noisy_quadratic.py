"""1,000 runs of 100,000 steps of the one-dimensional noisy quadratic (paper 004, section 6), bias correction.

The reference is the same recursion over arrays of runs in NumPy, with its generator, for a hundredth of the steps.
"""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Row, median_seconds
from papers.paper_004 import exact
from papers.paper_004.noisy_quadratic import Curve, average, simulate

RUNS, STEPS, GOAL = 1_000, 100_000, 20.0


def numpy_loop(curve: Curve, steps: int) -> np.ndarray:
    """Losses of all runs after some steps."""
    rng = np.random.default_rng(0)
    a0, a1, x0, x1 = (float(v.item()) for v in (curve.A0, curve.A1, curve.x0, curve.x1))
    x, c = np.full(RUNS, curve.start.item()), np.zeros(RUNS)
    for _ in range(steps):
        g0 = a0 * (x - x0) + curve.sigma * rng.standard_normal(RUNS)
        g1 = a1 * (x - x1) + curve.sigma / curve.N**0.5 * rng.standard_normal(RUNS)
        x = x - curve.eta * ((1.0 - curve.alpha) * g0 + curve.alpha * (g1 - c))
        c = (1.0 - curve.beta) * c + curve.beta * (g1 - g0)
    return 0.5 * a0 * (x - x0) ** 2


def run() -> list[Row]:
    curve = Curve(1.0, 2.0, 0.0, 2.0, 10.0, 10, 5e-4, 10 / 11, 1e-4, 1.0)
    numpy = 100.0 * median_seconds(lambda: numpy_loop(curve, STEPS // 100), 3)
    seconds = median_seconds(lambda: simulate([curve], [STEPS], RUNS), 3)
    mean, error = average(simulate([curve], [STEPS], RUNS))
    apart = abs(mean.item() - exact.loss(curve, [STEPS])[0]) / error.item()
    return [
        Row(
            f"noisy quadratic, {RUNS:,} runs x {STEPS:,} steps, d = 1",
            f"{seconds:.2f} s",
            f"NumPy over arrays of runs {numpy:.1f} s",
            f"{numpy / seconds:.0f} times, mean loss {apart:.1f} SE from the exact expectation",
            f"{GOAL:.0f} s",
            seconds < GOAL and apart < 3.0,
        )
    ]
