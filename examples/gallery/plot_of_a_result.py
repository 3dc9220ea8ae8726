"""
Pictures of a result in a notebook
==================================

`result.plot` draws what the report shows, of the same numbers: which method is ahead, who gains, each school's slope
with its interval, and whether the model fits. Each picture is an Axes of matplotlib, which can be changed further.
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

result = coterie.fit(fetch("exam"), "normexam ~ standLRT", client="school")

figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
result.plot.methods(ax=axes[0, 0])
result.plot.gains(ax=axes[0, 1])
result.plot.clients("standLRT", ax=axes[1, 0])
result.plot.residuals(ax=axes[1, 1])
plt.show()

# %%
# A net's result has `methods`, `curves`, `clients`, `gains` and `groups`:

split = {"partition": "rotated", "clients": 16, "rows": 800}
rounds = {"rounds": 15, "eta": 0.5}
nets = coterie.fit("digits", coterie.Torch("softmax"), partition=split, method="found-groups", rounds=rounds)
figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
nets.plot.curves(ax=axes[0])
nets.plot.groups(ax=axes[1])
plt.show()
