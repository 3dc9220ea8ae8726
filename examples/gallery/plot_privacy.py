"""
What privacy costs
==================

Accuracy against epsilon, the promise to each client (smaller is stronger). The sum of clients' clipped updates has
noise: with few clients a strong promise costs much accuracy, and a weak one little.
"""

import matplotlib.pyplot as plt

import coterie

epsilons, accuracy = [2, 8, 32, 128], []
asked = {"partition": {"partition": "iid", "clients": 60, "rows": 1500}, "method": "fedavg"}
for epsilon in epsilons:
    private = coterie.fit(
        "digits",
        coterie.Torch("softmax"),
        rounds={"rounds": 15, "eta": 0.5},
        privacy={"clip": 0.5, "epsilon": epsilon},
        **asked,
    )
    accuracy.append(100 * private.comparison["accuracy"]["fedavg"])
without = coterie.fit("digits", coterie.Torch("softmax"), rounds={"rounds": 15, "eta": 0.5}, **asked)

plt.plot(epsilons, accuracy, marker="o", label="with noise")
plt.axhline(100 * without.comparison["accuracy"]["fedavg"], color="gray", linestyle=":", label="without")
plt.xscale("log")
plt.xlabel("epsilon of a client")
plt.ylabel("held-out digits that are classified rightly (%)")
plt.title("60 clients with 25 digits each")
plt.legend()
plt.show()
