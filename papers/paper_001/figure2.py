"""Figure 2: the distribution of cross-entropies over clients, for ours, every client alone and one model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from papers.outcome import Outcome, Settings
from papers.paper_001.donor import NOTES, simulated
from papers.paper_001.responses import HELD_OUT, MODELS, Scores, loss_table, pooled, score
from papers.pictures import BLUE, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"isotropic": BLUE, "local": ORANGE, "single": GREY}
EDGES = np.linspace(0.0, 2.0, 41)


def run(settings: Settings) -> Outcome:
    """Ours with one learned variance a level, which takes seconds; ``001/donor`` has the grid."""
    seeds = settings.runs(1, quick=1)
    parts: dict[str, list[Scores]] = {name: [] for name in COLOURS}
    for seed in seeds:
        data = simulated(seed, settings.quick)
        for name, scores in parts.items():
            settings.tell(MODELS[name])
            scores.append(score(data, name))
    found = {name: pooled(scores) for name, scores in parts.items()}
    table = loss_table({name: found[name] for name in ("local", "single", "isotropic")}, "Cross-entropy of clients")
    numbers = {
        "edges": EDGES,
        "counts": {name: np.histogram(np.minimum(s.loss, EDGES[-1]), EDGES)[0] for name, s in found.items()},
        "clients_over_1": {name: int((s.loss > 1.0).sum()) for name, s in found.items()},
    }
    chosen = {"held_out": HELD_OUT, "seeds": list(seeds)}
    return Outcome((table,), partial(draw, found), chosen, numbers, NOTES[:1])


def draw(found: dict[str, Scores]) -> Figure:
    """Three histograms on one scale; what lies beyond is in the last bar."""
    figure, axes = panels(len(found), width=3.3, height=3.2)
    most = max(np.histogram(s.loss, EDGES)[0].max() for s in found.values())
    for ax, (name, s) in zip(axes, found.items(), strict=True):
        ax.hist(np.minimum(s.loss, EDGES[-1]), EDGES.tolist(), color=COLOURS[name], edgecolor="white", lw=0.4)
        ax.axvline(1.0, color="black", lw=0.8, ls=":")
        ax.text(1.04, most, f"{int((s.loss > 1.0).sum()):,} clients over 1", va="top")
        ax.set_yscale("log")
        ax.set_ylim(0.7, 2.5 * most)
        ax.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "0.5", "1", "1.5", "2 and more"])
        ax.set_title(MODELS[name])
        ax.set_xlabel("held-out cross-entropy of a client")
    axes[0].set_ylabel("clients")
    return figure
