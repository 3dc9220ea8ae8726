"""Study (b): mail, spam or not, of 30 clients whose hidden groups mislabel it in other ways."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.datasets import fetch
from coterie.numerics.arrays import Floats, Ints
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_003.labels import noisy_labels, rotated_channels, tilted_channels
from papers.paper_003.ours import Ours, on_table, remembered
from papers.paper_003.rivals import alone, by_rounds, exact, grid, ifca, in_groups, one_model
from papers.paper_003.study import Data, Gridded, Method, Scores, Study, forest, groups_table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK, CLIENTS = 5, 1, 30
CHANNELS = {
    "rotated": ("one group calls spam what the other calls mail, 10% of labels wrong", rotated_channels(2, 0.1)),
    "tilted": ("one group misses 40% of its spam, the other of its mail", tilted_channels(2, 0.4)),
}
NETWORKS: dict[str, dict[str, Any]] = {"models": {"space": "model"}, "mail": {"space": "data"}}
TOLD = "(told the groups)"
NOTES = (
    "4,601 rows of 57 columns in standard units; each of 30 clients has 76 or 77 rows to learn from and as many to "
    "test on, labelled by its group's rule. Methods do not know the groups, but for those that are told.",
)


def run(settings: Settings) -> Outcome:
    """Both kinds of noise."""
    seeds = list(settings.runs(SEEDS, QUICK))
    scores = {name: study(name).run(seeds, settings.tell) for name in CHANNELS}
    settled = {"seeds": seeds, "clients": CLIENTS, "noise": {name: words for name, (words, _) in CHANNELS.items()}}
    numbers = {name: s.numbers() for name, s in scores.items()}
    return Outcome(
        tuple(t for name, s in scores.items() for t in tables(name, s)), partial(draw, scores), settled, numbers, NOTES
    )


def tables(name: str, scores: Scores) -> tuple[Table, ...]:
    """Log loss, accuracy, and the groups found."""
    about = f"{name.capitalize()} noise ({CHANNELS[name][0]})"
    return (
        scores.table(f"{about}: log loss, mean of {len(scores.loss)} seeds", ("local", "pooled")),
        scores.table(f"{about}: accuracy", ("local", "pooled"), "accuracy"),
        groups_table(f"{about}: clients that merged", scores, [f"network of {n}" for n in NETWORKS]),
    )


def rows(channels: Floats, seed: int) -> tuple[Data, Data, Ints]:
    """Rows to learn from and to test on, clients sorted by hidden group; and the groups."""
    table = fetch("spambase")
    X = table.drop(columns=["spam", "client"]).to_numpy(dtype=np.float64)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    partitioned = noisy_labels(X, table["spam"].to_numpy(dtype=np.int64), CLIENTS, channels, seed)
    parts = []
    for part in (partitioned.train, partitioned.test):
        client = np.repeat(np.arange(CLIENTS), part.stops - part.starts)
        parts.append(Data(Clients.from_arrays(part.X, part.y, client, partitioned.group[client]), "binomial"))
    return parts[0], parts[1], np.sort(partitioned.group)


def study(name: str) -> Study:
    """The rows with one kind of noise."""
    channels = CHANNELS[name][1]
    return Study(lambda seed: rows(channels, seed)[:2], lambda seed: methods(rows(channels, seed)[2]))


def methods(known: Ints) -> dict[str, Method]:
    """By name; ``known`` groups are for those that are told, and to judge by."""
    walks = {name: remembered(on_table(net)) for name, net in NETWORKS.items()}
    ours: dict[str, Method] = {f"network of {name}": Ours(walk, known=known) for name, walk in walks.items()}
    return {
        "local": Gridded(alone, grid(eta=(1.0, 5.0), steps=(5, 15, 50, 150, 500))),
        "pooled": exact("pooled"),
        "hierarchical": exact("single-cluster", covariance="isotropic"),
        **by_rounds(),
        "IFCA": ifca((2, 3, 5), 2),
        **ours,
        "refit on merged clients": Ours(walks["models"], partial(in_groups, base=one_model()), known),
        f"a model for each group {TOLD}": exact("clusterwise"),
        f"hierarchical {TOLD}": exact("hierarchical", covariance="isotropic"),
        f"IFCA {TOLD.replace('the groups', 'how many groups')}": ifca((2,), 6),
    }


def draw(scores: dict[str, Scores]) -> Figure:
    """Log losses of both kinds of noise."""
    figure, axes = panels(len(scores), width=6.0, height=4.2)
    colours = {"network": BLUE, "refit": BLUE, "hierarchical": GREEN, "local": ORANGE, "a model": GREY}
    for ax, (name, s) in zip(axes, scores.items(), strict=True):
        forest(ax, s, colours)
        ax.set_title(f"Spambase, {name} noise")
    return figure
