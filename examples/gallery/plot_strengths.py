"""
How strong should the ties be?
==============================

Held-out loss for strengths on a grid, from every school alone (left) to one model for all (right). The learned one
(line) needs no grid: it is found from the rows by likelihood, and is about where the curve is lowest.
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie
from coterie.data.datasets import fetch

pupils = fetch("exam").query("school <= 40")
formula, asked = "normexam ~ standLRT", {"client": "school", "splits": 3, "shared": ["standLRT"]}
strengths = np.geomspace(0.1, 1000.0, 9)
losses = []
for gamma in strengths:
    table = coterie.compare(pupils, formula, methods=["given-strengths"], gamma=gamma, **asked)
    losses.append(table["loss_rows"]["given-strengths"])

learned = coterie.fit(pupils, formula, method="hierarchical", **asked)
spread = learned.variance_components.set_index("level")["cov"]

plt.plot(strengths, losses, marker="o", label="given strengths")
plt.axhline(learned.comparison["loss_rows"]["hierarchical"], color="tab:orange", label="learned: its loss")
plt.axvline(spread["residual"] / spread["client"], color="tab:orange", linestyle=":", label="learned: its strength")
plt.xscale("log")
plt.xlabel("strength gamma (rows that the common intercept counts as)")
plt.ylabel("held-out squared error")
plt.legend()
plt.show()
