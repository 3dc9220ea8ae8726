"""Segmentation: sites whose scanners show bright as dark, or whose readers mark the other organ."""

from __future__ import annotations

import numpy as np

from coterie.data.images import standardised
from coterie.numerics.keyed_random import uniform
from coterie.objectives.deep.losses import dice, dice_and_cross_entropy
from coterie.runs.config_keys import Torch
from examples.simulated_hospitals import Scanner, two_organs
from papers.outcome import Outcome, Settings
from papers.paper_003.hospitals import CHOICE, EACH, GROUPS, HELD_OUT, Sites, outcome, settled, trials

SIDE, TRAINING, ROUNDS = 24, 2, 24
OWN, BODY = ("decoder*", "head*"), ("encoder*",)
NET = Torch(
    "unet",
    dice_and_cross_entropy,
    args={"channels": [4, 8]},
    score=dice,
    greater_is_better=True,
    clip=1.0,
    batched=True,
)
CHOSEN = {
    "local": {"eta": 0.7},
    "pooled": {"eta": 0.7},
    "FedAvg": {"eta": 0.5},
    "FedPer": {"eta": 2.0},
    "Ditto": {"eta": 0.5, "lam": 0.03},
    "told the groups: all layers": {"eta": 2.0},
    "told the groups: heads": {"eta": 1.0},
    "network of data, all layers": {"eta": 1.0, "lam": 0.1},
    "network of data, heads": {"eta": 1.0, "lam": 0.1},
}
"""By ``003/steps``."""
NOTES = (
    "Groups, which nobody is told but the two methods that say so: bright organs are marked; the same, but scanners "
    "show bright as dark; dark organs are marked. Inside a group, scanners differ in contrast, blur, field and noise.",
    CHOICE,
)


def run(settings: Settings) -> Outcome:
    """All methods on the hospitals."""
    some = settled(trials(OWN, BODY), CHOSEN)
    return outcome("Segmentation", "Dice", sites, NET, some, ROUNDS, settings, NOTES)


def sites(seed: int) -> Sites:
    """Slices through bodies, and the organ that a site's readers mark."""
    m, images = GROUPS * EACH, TRAINING + HELD_OUT
    ids = np.arange(m * images, dtype=np.uint64)
    seen, bright, dark = two_organs(len(ids), SIDE, ids, seed)
    u = uniform(seed, "scanners", np.arange(m, dtype=np.uint64), 0, 4)
    X, y = np.empty(seen.shape, dtype=np.float32), bright.copy()
    for i in range(m):
        own, turned = slice(i * images, (i + 1) * images), -1.0 if i // EACH == 1 else 1.0
        scanner = Scanner(turned * (0.7 + 0.6 * u[i, 0]), 0.0, 0.6 * u[i, 1], 0.3 * u[i, 2], 0.08 + 0.12 * u[i, 3])
        X[own] = scanner.scan(seen[own], ids[own], seed)
        if i // EACH == 2:
            y[own] = dark[own]
    return Sites.of(standardised(X[:, None]), y[:, None], seed)
