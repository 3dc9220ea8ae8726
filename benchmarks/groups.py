"""Rotated digits in four groups: what layers of groups are worth, and how well groups are found that nobody told."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Row
from coterie.numerics.arrays import Floats
from papers.outcome import Settings
from papers.paper_000.digits import FIRSTS, FOUND, HEADS, MODELS, RESTARTED, SEEDS, study, success
from papers.paper_003.study import interval, spread

WHAT = "40 clients in 4 groups of rotated digits, 64-32-10"
GOALS = {"pooled": 0.02, "Ditto": 0.02, "local": 0.15, "FedPer": 0.15}


def run() -> list[Row]:
    """Paired gains in accuracy over five seeds, and clients whose group was found."""
    scores = study().run(list(Settings().runs(SEEDS)), lambda _: None)

    def of(name: str) -> Floats:
        return scores.accuracy[:, scores.names.index(name)]

    best = max((HEADS, FIRSTS, MODELS), key=lambda name: float(of(name).mean()))
    rows = []
    for name in (HEADS, FIRSTS, MODELS):
        for other, goal in GOALS.items():
            gain = of(name) - of(other)
            met = bool(gain.mean() >= goal and gain.mean() > spread(gain)) if name == best else None
            theirs = f"{of(other).mean():.3f}"
            rows.append(
                Row(
                    f"{WHAT}: {name}, against {other}",
                    f"{of(name).mean():.3f}",
                    theirs,
                    f"+{interval(gain)}",
                    f"{goal:g}",
                    met,
                )
            )
    for name in (FOUND, RESTARTED):
        about = [c.about for c in scores.of(name)]
        right = [a["right"] for a in about]
        less = float((of(MODELS) - of(name)).mean())
        rate = f", a restart succeeds in {np.mean(success(about)):.0%}" if "each" in about[0] else ""
        rows.append(
            Row(
                f"{WHAT}: {name}{rate}",
                f"{min(right)} of 40 right or more, {of(name).mean():.3f}",
                f"{of(MODELS).mean():.3f} where known",
                f"{less:+.4f} behind",
                "38 right, 0.01 behind",
                bool(min(right) >= 38 and less <= 0.01),
            )
        )
    return rows
