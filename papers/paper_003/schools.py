"""Study (a): mathematics in 160 schools, tied by what is known of schools, by their students or by their models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.datasets import describe, fetch
from coterie.data.prepare_table import prepare
from coterie.relations.relations_by_label import by_position
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_003.ours import CLOSE, Ours, on_table, remembered
from papers.paper_003.rivals import by_rounds, exact, exactly_in_groups, ifca
from papers.paper_003.study import Data, Method, Scores, Study, forest
from papers.pictures import BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK, INNER, TEST = 10, 2, 3, 0.25
COVARIATES = ("Size", "Sector", "PRACAD", "DISCLIM", "HIMINTY", "MEANSES")
NOTES = (
    "Loss is the squared error of held-out students: a quarter of every school's, by ten seeds. Intervals are over "
    "seeds, whose splits share rows, so they say how sure the order is on these schools only.",
    "Schools' covariates (nlme: MathAchSchool): " + ", ".join(COVARIATES) + ". Clusters are the two sectors.",
)


def run(settings: Settings) -> Outcome:
    """All methods, tables and the figure."""
    seeds = list(settings.runs(SEEDS, QUICK))
    scores = study().run(seeds, settings.tell)
    settled = {"seeds": seeds, "test": TEST, "inner": INNER, "covariates": COVARIATES}
    return Outcome((table(scores),), partial(draw, scores), settled, scores.numbers(), NOTES)


def table(scores: Scores) -> Table:
    """Losses and gains."""
    return scores.table(
        f"Squared error of students in 160 schools, mean of {len(scores.loss)} seeds",
        ("local", "pooled", "hierarchical"),
    )


def study() -> Study:
    """Rows, methods and networks."""
    entry, schools = describe("hsb82"), fetch("mathachschool")
    clients, _ = prepare(fetch("hsb82"), entry.formula, entry.client, entry.cluster, "gaussian")
    known = schools.rename(columns={"School": "school"})[["school", *COVARIATES]]
    about = {"space": "covariates"} | by_position(
        clients, {"covariates": known.astype({"school": clients.labels.dtype})}
    )

    def rows(seed: int) -> tuple[Data, Data]:
        return Data(clients, "gaussian").split(seed, 0, TEST)

    return Study(rows, lambda seed: methods(about), INNER)


def methods(covariates: Mapping[str, Any]) -> dict[str, Method]:
    """By name."""
    networks: dict[str, Mapping[str, Any]] = {
        "covariates": covariates,
        "models": {"space": "model"},
        "students": {"space": "data"},
    }
    walks = {name: remembered(on_table(net, 20, 1e-4, CLOSE)) for name, net in networks.items()}
    ours: dict[str, Method] = {f"network of {name}": Ours(walk) for name, walk in walks.items()}
    rounds: dict[str, Any] = {"steps": (0.5, 1.0), "rounds": (10, 30, 100)}
    return {
        "local": exact("local"),
        "pooled": exact("pooled"),
        "a model for each sector": exact("clusterwise"),
        "hierarchical, no sectors": exact("single-cluster"),
        "hierarchical": exact("hierarchical"),
        **by_rounds(**rounds),
        "IFCA": ifca((2, 4, 8, 12), 1, **rounds),
        **ours,
        "refit on merged schools": Ours(walks["covariates"], exactly_in_groups),
    }


def draw(scores: Scores) -> Figure:
    """All methods but one model for all, which lies far away."""
    figure, (ax,) = panels(1, width=6.4, height=4.4)
    colours = {"network": BLUE, "refit": BLUE, "hierarchical": GREEN, "local": ORANGE}
    forest(ax, scores, colours)
    near = np.sort(scores.loss.mean(axis=0))
    ax.set_xlim(near[0] - 0.6, scores.loss[:, scores.names.index("local")].mean() + 1.5)
    ax.set_title("Squared error of students in 160 schools")
    return figure
