"""
Who should learn from whom
==========================

How much each driver (row) should listen to each other one (column). Drivers are sorted by their slope: help comes from
those who tire at about the same rate, so that the weights lie along the diagonal.
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

drivers = fetch("sleepstudy")
advice = coterie.advise(drivers, "Reaction ~ Days", client="Subject", splits=0)
slopes = coterie.fit(drivers, "Reaction ~ Days", client="Subject", splits=0).client_coefficients["Days"]
order = slopes.sort_values().index
table = advice.weights.pivot(index="client", columns="collaborator", values="weight")

plt.imshow(table.reindex(index=order, columns=order).fillna(0.0), cmap="Blues")
plt.colorbar(label="weight of the collaborator's rows")
plt.xticks(range(len(order)), order, rotation=90)
plt.yticks(range(len(order)), order)
plt.xlabel("collaborator, by slope (ms a day)")
plt.ylabel("driver")
plt.title("18 drivers without sleep")
plt.tight_layout()
plt.show()
