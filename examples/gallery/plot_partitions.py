"""
What Dirichlet partitions look like
===================================

Each bar is a client, each colour a digit. With alpha 100 all clients have about the same classes, with 0.1
nearly each has one or two: the smaller alpha, the less one model suits all.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from coterie.data.partition import dirichlet

labels = load_digits().target
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
for axis, alpha in zip(axes, (100.0, 1.0, 0.1), strict=True):
    dealt = dirichlet(labels, clients=12, alpha=alpha, least=5, seed=0, test_fraction=0.0).take(labels, labels)
    part = dealt.train
    counts = np.stack([np.bincount(part.y[a:b], minlength=10) for a, b in zip(part.starts, part.stops, strict=True)])
    below = np.cumsum(counts, axis=1) - counts
    for kind in range(10):
        axis.bar(range(12), counts[:, kind], bottom=below[:, kind], color=plt.cm.tab10(kind), label=kind)
    axis.set_xticks(range(0, 12, 2))
    axis.set_title(f"alpha = {alpha:g}")
    axis.set_xlabel("client")
axes[0].set_ylabel("images")
axes[2].legend(title="digit", loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
figure.suptitle("1,797 digits over 12 clients")
figure.tight_layout()
plt.show()
