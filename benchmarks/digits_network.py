"""Rotated digits: 40 clients in 4 hidden groups that merge along a network, and what that is worth to them."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Row
from papers.outcome import Settings
from papers.paper_003.digits import NETWORKS, OURS, alone_says, study
from papers.paper_003.study import interval

SEEDS = 5
CLIENTS_IN = "40 clients in 4 groups of rotated digits"


def run() -> list[Row]:
    """Agreement of merged clients with the groups, and paired gains in accuracy, over five seeds."""
    scores = study().run(list(Settings().runs(SEEDS)), lambda _: None)
    about = {of: [c.about for c in scores.of(of)] for of in OURS}
    wide = [a["range"] for a in about[OURS[0]]]
    rows = [
        Row(
            f"{CLIENTS_IN}, graph of local models, made connected",
            f"merged: index 0.95 over lambda x {min(wide):.3g} or more",
            f"graph alone: {_graph(NETWORKS[0])}",
            f"{np.mean([max(a['rand']) for a in about[OURS[0]]]):.3f} at best",
            "factor 2",
            bool(min(wide) >= 2.0),
        )
    ]
    for name, of, control in ((NETWORKS[1], OURS[1], False), (NETWORKS[2], OURS[2], True)):
        best = [max(a["rand"]) for a in about[of]]
        met = max(best) <= 0.2 if control else min(best) >= 0.9
        rows.append(
            Row(
                f"{CLIENTS_IN}, graph of {name}",
                f"merged: best index {min(best):.3f} or more",
                f"graph alone: {_graph(name)}",
                f"{np.mean(best):.3f}",
                "0.2 at most (control)" if control else "0.9",
                bool(met),
            )
        )
    ours = scores.accuracy[:, scores.names.index(OURS[0])]
    for other in ("local", "pooled", "Ditto"):
        gain = ours - scores.accuracy[:, scores.names.index(other)]
        theirs = scores.accuracy[:, scores.names.index(other)].mean()
        what = f"{CLIENTS_IN}, accuracy against {other}"
        rows.append(
            Row(what, f"{ours.mean():.3f}", f"{theirs:.3f}", f"+{interval(gain)}", "above 0", bool((gain > 0.0).all()))
        )
    return rows


def _graph(name: str) -> str:
    """Mean index of the graph alone."""
    each = [alone_says(name, seed) for seed in range(SEEDS)]
    components, spectral = (np.mean([one[key] for one in each]) for key in ("components", "spectral"))
    return f"components {components:.2f}, spectral {spectral:.2f}"
