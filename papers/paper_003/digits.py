"""Study (c): handwritten digits that four hidden groups of clients hold at other angles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.images import rotated_digits
from coterie.methods.networks.similarity import NEIGHBOURS
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import adjusted_rand_index
from coterie.relations.network import Network
from papers.outcome import Outcome, Settings
from papers.paper_003.ours import STEP, Ours, local_models, over_steps, remembered
from papers.paper_003.rivals import alone, by_rounds, grid, ifca, in_groups, one_model
from papers.paper_003.study import Data, Gridded, Method, Scores, Study, forest, groups_table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK, CLIENTS, CLASSES = 5, 1, 40, 10
ROUNDS: dict[str, Any] = {"steps": (STEP,), "rounds": (40, 80, 160)}
NETWORKS = ("local models", "mean images", "chance")
OURS = tuple(f"network of {name}" for name in NETWORKS)
TOLD = "(told the groups)"
NOTES = (
    "Each of 40 clients has 22 or 23 of scikit-learn's digits (8 x 8) to learn from and as many to test on, at its "
    "group's angle: 0, 90, 180 or 270 degrees. Softmax with a ridge of 1e-3, and one step size, in all methods.",
    f"Networks tie each client to its {NEIGHBOURS} nearest others, and are made connected; the one of chance ties each "
    f"to {NEIGHBOURS} drawn at random.",
)


def run(settings: Settings) -> Outcome:
    """All methods, and what graphs know of the groups."""
    seeds = list(settings.runs(SEEDS, QUICK))
    scores = study().run(seeds, settings.tell)
    graphs = {name: [alone_says(name, seed) for seed in seeds] for name in NETWORKS}
    settled = {"seeds": seeds, "clients": CLIENTS, "neighbours": NEIGHBOURS}
    tables = (
        scores.table(f"Rotated digits: accuracy, mean of {len(seeds)} seeds", ("local", "pooled", "Ditto"), "accuracy"),
        scores.table("Rotated digits: log loss", ("local", "pooled", "Ditto")),
        groups_table("Adjusted Rand index with the hidden groups", scores, OURS, graphs_columns(graphs)),
    )
    return Outcome(tables, partial(draw, scores), settled, scores.numbers() | {"graphs": graphs}, NOTES)


def rows(seed: int) -> tuple[Data, Data, Ints]:
    """Rows to learn from and to test on, and hidden groups."""
    partitioned = rotated_digits(CLIENTS, seed=seed)
    parts = []
    for part in (partitioned.train, partitioned.test):
        client = np.repeat(np.arange(CLIENTS), part.stops - part.starts)
        parts.append(Data(Clients.from_arrays(part.X, part.y, client), "softmax", CLASSES))
    return parts[0], parts[1], partitioned.group


def points(name: str, data: Data, models: Floats) -> Floats:
    """What a network compares: local models, or every client's mean image."""
    if name == "local models":
        return models
    c = data.clients
    return np.stack([c.X[a:b, 1:].mean(axis=0) for a, b in zip(c.starts, c.stops, strict=True)])


def network(name: str, data: Data, models: Floats, connected: bool = True) -> Network:
    """One of the networks."""
    if name == "chance":
        return Network.random(CLIENTS, NEIGHBOURS, int(data.clients.y[:CLIENTS].sum()))
    return Network.nearest(points(name, data, models), NEIGHBOURS, connected=connected)


def alone_says(name: str, seed: int) -> dict[str, float]:
    """Agreement of the graph alone: components before it is made connected, and spectral clustering after."""
    data, _, known = rows(seed)
    models = local_models(data)
    loose = network(name, data, models, connected=False)
    return {
        "inside": network(name, data, models).against(known)["inside"],
        "components": adjusted_rand_index(loose.components, known),
        "spectral": network(name, data, models).against(known)["spectral"],
    }


def graphs_columns(graphs: dict[str, list[dict[str, float]]]) -> dict[str, list[str]]:
    """Means over seeds, for the table of groups."""
    heads = {"inside": "ties inside groups", "components": "graph: components", "spectral": "graph: spectral"}
    return {
        head: [f"{np.mean([one[key] for one in graphs[name]]):.3f}" for name in NETWORKS] for key, head in heads.items()
    }


def study() -> Study:
    """The rows and methods."""
    return Study(lambda seed: rows(seed)[:2], lambda seed: methods(rows(seed)[2]))


def methods(known: Ints) -> dict[str, Method]:
    """By name."""
    walks = [remembered(over_steps(partial(network, name))) for name in NETWORKS]
    ours: dict[str, Method] = {of: Ours(walk, known=known) for of, walk in zip(OURS, walks, strict=True)}
    return {
        "local": Gridded(alone, grid(eta=(STEP,), steps=(12, 25, 50, 100, 200, 400))),
        "pooled": one_model(**ROUNDS),
        **by_rounds(**ROUNDS),
        "IFCA": ifca((2, 3, 4, 6), 1, **ROUNDS),
        **ours,
        "refit on merged clients": Ours(walks[0], partial(in_groups, base=one_model(**ROUNDS)), known),
        f"a model for each group {TOLD}": in_groups(known, one_model(**ROUNDS)),
        f"IFCA {TOLD.replace('the groups', 'how many groups')}": ifca((4,), 4, **ROUNDS),
    }


def draw(scores: Scores) -> Figure:
    """Accuracies, and agreement with the groups along lambda."""
    figure, (left, right) = panels(2, width=5.6, height=4.2)
    colours = {"network of chance": GREY, "network": BLUE, "refit": BLUE, "local": ORANGE, "a model": GREEN}
    forest(left, scores, colours, "accuracy")
    left.set_title("Rotated digits, 40 clients")
    for of, colour in zip(OURS, (BLUE, PURPLE, GREY), strict=True):
        for k, c in enumerate(scores.of(of)):
            lam = np.asarray(c.about["lam"])
            right.plot(lam / lam[0], c.about["rand"], color=colour, alpha=0.6, label=of if k == 0 else None)
    right.set_xscale("log")
    right.set_xlabel("λ, relative to where all are one")
    right.set_ylabel("adjusted Rand index of merged clients")
    right.set_title("Merged clients and hidden groups")
    right.legend()
    return figure
