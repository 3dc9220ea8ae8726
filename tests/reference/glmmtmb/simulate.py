"""Makes ``simulated.csv``: 40 groups of 8 rows with random intercepts and slopes, an outcome for every family.

``python simulate.py > simulated.csv``, then ``Rscript fit.R`` makes the JSON files (R 4.2, glmmTMB 1.1.5).
"""

import sys

import numpy as np
import pandas as pd

rng = np.random.default_rng(20)
g = np.repeat(np.arange(40), 8)
x = np.round(rng.normal(size=len(g)), 3)
eta = 0.4 + 0.5 * x + 0.7 * rng.normal(size=40)[g] + 0.4 * rng.normal(size=40)[g] * x
trials = rng.integers(1, 9, len(g))
frame = pd.DataFrame({"g": g, "x": x, "trials": trials, "successes": rng.binomial(trials, 1.0 / (1.0 + np.exp(-eta)))})
frame["count"] = rng.poisson(np.exp(eta) * rng.gamma(1.5, 1.0 / 1.5, len(g)))
frame["amount"] = np.round(np.exp(eta) * rng.gamma(2.5, 1.0 / 2.5, len(g)), 4)
frame["heavy"] = np.round(eta + 0.6 * rng.standard_t(3, len(g)), 4)
frame.to_csv(sys.stdout, index=False)
