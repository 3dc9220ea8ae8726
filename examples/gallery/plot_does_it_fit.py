"""
Does the model fit?
===================

Quantile residuals of two fits against what they should be: on the line the model says how outcomes scatter.
Examination scores stay on it; a few reaction times lie farther out, at both ends, than a normal outcome has them.
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

exam = coterie.fit(fetch("exam"), "normexam ~ standLRT", client="school", splits=0)
reaction = coterie.fit(fetch("sleepstudy"), "Reaction ~ Days", client="Subject", splits=0)

figure, axes = plt.subplots(1, 2, figsize=(8, 4), sharex=True, sharey=True)
for axis, result, title in zip(axes, (exam, reaction), ("exam", "sleepstudy"), strict=True):
    result.plot.residuals(ax=axis).set_title(title, loc="left")
figure.tight_layout()
plt.show()
