"""Lung nodules: sites whose scanners show bright as dark, or whose readers draw wide boxes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.data.images import standardised
from coterie.data.partition import by_column
from coterie.numerics.keyed_random import uniform
from coterie.results.training_result import TrainingResult
from coterie.runs.config_keys import Torch
from coterie.runs.scores_over_clients import Rule
from coterie.runs.training import Trained
from examples.boxes import average_precision, from_grid, grid_loss, to_grid
from examples.simulated_hospitals import Hospital, Scanner, slices
from papers.outcome import Outcome, Settings
from papers.paper_003.hospitals import CHOICE, EACH, GROUPS, HELD_OUT, Sites, outcome, settled, trials

SIDE, CELLS, TRAINING, ROUNDS = 24, 6, 6, 30
OWN, BODY = ("head*",), ("body*",)
NET = Torch("nodule_detector", grid_loss, args={"channels": [4, 8, 8]}, clip=1.0, batched=True)
CHOSEN = {
    "local": {"eta": 0.35},
    "pooled": {"eta": 0.35},
    "FedAvg": {"eta": 0.25},
    "FedPer": {"eta": 1.0},
    "Ditto": {"eta": 1.0, "lam": 0.03},
    "told the groups: all layers": {"eta": 0.7},
    "told the groups: heads": {"eta": 1.0},
    "network of data, all layers": {"eta": 0.25, "lam": 0.1},
    "network of data, heads": {"eta": 1.0, "lam": 0.03},
}
"""By ``003/steps``."""
NOTES = (
    "Groups, which nobody is told but the two methods that say so: readers draw close boxes; the same, but scanners "
    "show bright as dark; readers leave two pixels around a nodule on each side. Inside a group, scanners differ in "
    "contrast, blur, field and noise, and hospitals in the size and number of nodules.",
    "Average precision is that of a site's held-out slices, at half of the area in common.",
    CHOICE,
)


def run(settings: Settings) -> Outcome:
    """All methods on the hospitals."""
    some = settled(trials(OWN, BODY), CHOSEN)
    return outcome("Lung nodules", "average precision", sites, NET, some, ROUNDS, settings, NOTES, precision)


def sites(seed: int) -> Sites:
    """Slices of lungs, and the cells of a grid that have nodules."""
    X, boxes = drawn(seed)
    return Sites.of(X, to_grid(boxes, SIDE, CELLS), seed)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Slices (n, 1, side, side) and boxes (n, 3, 5), site after site."""
    m, images = GROUPS * EACH, TRAINING + HELD_OUT
    ids = np.arange(m * images, dtype=np.uint64)
    u = uniform(seed, "hospitals", np.arange(m, dtype=np.uint64), 0, 6)
    X, y = np.empty((len(ids), SIDE, SIDE), dtype=np.float32), np.empty((len(ids), 3, 5))
    for i in range(m):
        own, turned = slice(i * images, (i + 1) * images), -1.0 if i // EACH == 1 else 1.0
        scanner = Scanner(turned * (0.7 + 0.6 * u[i, 0]), 0.0, 0.4 * u[i, 1], 0.3 * u[i, 2], 0.03 + 0.07 * u[i, 3])
        least, margin = 1.2 + 0.6 * u[i, 4], 2.0 if i // EACH == 2 else 0.0
        site = Hospital(scanner, (least, least + 1.0), (0.6, 0.9), 1.2 + 0.9 * u[i, 5], margin)
        truth, y[own] = slices(site, SIDE, ids[own], seed)
        X[own] = scanner.scan(truth, ids[own], seed)
    return standardised(X[:, None]), y


def precision(result: TrainingResult, sites: Sites, seed: int) -> Trained:
    """The run, judged by average precision on the rows that the front held out."""
    X, boxes = drawn(seed)
    test = by_column(sites.client, seed, sites.test_fraction).take(X, boxes)
    where = {name: (a, b) for name, a, b in zip(test.names, test.test.starts, test.test.stops, strict=True)}
    score = []
    for name in result.labels:
        a, b = where[name]
        score.append(average_precision(from_grid(result.predict(test.test.X[a:b], name), SIDE), test.test.y[a:b]))
    scores = replace(result.run.scores, score=np.array(score), rule=Rule("average precision"))
    return replace(result.run, scores=scores)
