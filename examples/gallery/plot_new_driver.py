"""
What is known of a driver nobody has seen
=========================================

For a driver who was seen the band is narrow, though it holds new measurements. For one never seen the middle is that of
all drivers, and the band is wider by as much as drivers differ: most after many days.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import coterie
from coterie.data.datasets import fetch

drivers = fetch("sleepstudy")
result = coterie.fit(drivers, "Reaction ~ Days", client="Subject", splits=0)
days = np.linspace(0, 9, 19)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.5), sharey=True)
for axis, driver, title in zip(axes, (308, 999), ("driver 308", "a driver never seen"), strict=True):
    said = result.predict(pd.DataFrame({"Subject": driver, "Days": days}), interval=0.9)
    axis.fill_between(days, said["lower"], said["upper"], alpha=0.25, label="90% of new measurements")
    axis.plot(days, said["prediction"])
    seen = drivers[drivers["Subject"] == driver]
    axis.scatter(seen["Days"], seen["Reaction"], color="black", s=14, label="measured")
    axis.set_title(title)
    axis.set_xlabel("days without sleep")
axes[0].set_ylabel("reaction time (ms)")
axes[0].legend(loc="upper left")
figure.tight_layout()
plt.show()
