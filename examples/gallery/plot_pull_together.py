"""
How far schools are pulled together
===================================

Each school's slope from its own pupils (left) and from the hierarchical model (right). Schools with few pupils move
far, since their own slope says little; those with many stay. (One with 2 pupils begins below.)
"""

import matplotlib.pyplot as plt

import coterie
from coterie.data.datasets import fetch

pupils = fetch("exam")
result = coterie.fit(pupils, "normexam ~ standLRT", client="school", splits=0)
own = coterie.fit(pupils, "normexam ~ standLRT", client="school", method="local", splits=0).client_coefficients[
    "standLRT"
]
pulled = result.client_coefficients["standLRT"]
rows = pupils.groupby("school").size().reindex(pulled.index)

for school in pulled.index:
    few = rows[school] < 30
    plt.plot([0, 1], [own[school], pulled[school]], color="tab:red" if few else "tab:gray", alpha=0.9 if few else 0.4)
plt.axhline(result.global_coefficients.set_index("term")["estimate"]["standLRT"], color="black", linestyle=":")
plt.xticks([0, 1], ["own pupils alone", "hierarchical"])
plt.ylabel("slope of the examination on the reading test (s.d. per s.d.)")
plt.xlim(-0.2, 1.2)
plt.ylim(-0.5, 1.5)
plt.title("65 schools; red: fewer than 30 pupils")
plt.show()
