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
gains = result.client_gains

plt.scatter(gains["rows"], gains["gain_over_local"], s=12, label="over a model of its own")
plt.scatter(gains["rows"], gains["gain_over_pooled"], s=12, label="over one model for all")
plt.axhline(0, color="black", linewidth=0.8)
plt.xscale("log")
plt.xlabel("children of the community (rows)")
plt.ylabel("held-out log loss that is saved, a row")
plt.title("161 communities, immunisation of children")
plt.legend()
plt.show()
