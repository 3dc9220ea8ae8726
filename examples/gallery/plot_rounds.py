"""
How fast rounds reach the optimum
=================================

Distance from the exact optimum against communications. Async-L2GD falls quickly and then stays in a ball, as its
theorem says; the accelerated method pays more for its first steps and goes on falling.
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

pupils = fetch("exam")
for method, color in (("async-l2gd", "tab:gray"), ("async-al2sgd", "tab:blue")):
    gaps, paid = [], []
    for steps in (30, 100, 300, 1000, 3000):
        run = coterie.fit(
            pupils,
            "normexam ~ standLRT",
            client="school",
            cluster="schgend",
            method=method,
            gamma=20.0,
            lam=20.0,
            rounds={"steps": steps},
            splits=0,
        ).settings["rounds"]
        gaps.append(run["gap"])
        paid.append(sum(v for v in run["communications"].values() if isinstance(v, (int, float))))
    plt.plot(paid, gaps, marker="o", color=color, label=method)
plt.xscale("log")
plt.yscale("log")
plt.xlabel("communications")
plt.ylabel("distance from the optimum (share of that at the start)")
plt.title("65 schools of three kinds, normal outcomes")
plt.legend()
plt.show()
