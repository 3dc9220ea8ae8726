"""
Groups appear as ties get stronger
==================================

Each line is a driver. From left to right the ties to the most similar drivers get stronger, and slopes do not only come
near each other: they become equal, so that groups appear which nobody named.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import coterie
from coterie.data.datasets import fetch

drivers = fetch("sleepstudy")
strengths = np.geomspace(0.003, 1.0, 12)
slopes = {}
for lam in strengths:
    ties = {"space": "model", "k": 3, "lam": float(lam)}
    tied = coterie.fit(drivers, "Reaction ~ Days", "Subject", method="similarity-network", network=ties, splits=0)
    slopes[lam] = tied.client_coefficients["Days"]

plt.plot(strengths, pd.DataFrame(slopes).T, color="tab:blue", alpha=0.7)
plt.xscale("log")
plt.xlabel("strength of the ties (lambda)")
plt.ylabel("slope of the reaction time (ms a day)")
plt.title("18 drivers, each tied to its 3 nearest")
plt.show()
