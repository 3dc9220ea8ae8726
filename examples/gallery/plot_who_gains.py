"""
Who gains, and who does not
===========================

Each point is a community of Guatemala. Those with few children gain most over a model of their own; with many rows the
gain goes to zero, and some lose a little.
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

children = fetch("guimmun")
result = coterie.fit(children, "immun ~ kid2p", client="comm", family="binomial", method="hierarchical", splits=3)

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for axis, other in zip(axes, ("local", "pooled"), strict=True):
    result.plot.gains(over=other, ax=axis)
    axis.set_xlabel("children of the community (rows, logarithmic)")
axes[1].set_ylabel("")
plt.show()
