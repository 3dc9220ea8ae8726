"""Section 7: weighted averaging and bias correction of a net, for a main client with few rows and N related clients.

Digits of scikit-learn (8 x 8) under a network 64-32-10, by ``coterie.fit`` as any user would. The main client has 30
rows to learn from, and so has each collaborator, whose digits are turned by an angle: the relatedness. Or they are as
the main client's, but with labels that are wrong, or from half of the classes. What counts is the main client's
accuracy on 500 rows that nobody has seen, and with how many own rows training alone would have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.api import fit
from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from coterie.runs.config_keys import Torch
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS, HELD_OUT, UNSEEN = 40, 0.25, 500
"""Rows of a client, the share of them that ``coterie.fit`` holds out, and the main client's rows for the accuracy."""
ROUNDS, ETA, BATCH, BETA = 60, 0.5, 10, 0.1
ANGLES, SIZES, N, USUAL = (0.0, 20.0, 45.0, 90.0), (1, 3, 9, 27), 9, 20.0
NOISE, SHIFT, WRONG = "noise", "shift", 0.3
"""Collaborators whose labels are drawn anew with that probability, and those who have five of the ten digits each."""
HALF = "half"
METHODS = {"weighted-averaging": "WGA", HALF: "WGA, alpha = 1/2", "bias-correction": "BC", "fedavg": "FedAvg"}
COLOURS = {"weighted-averaging": BLUE, HALF: PURPLE, "bias-correction": GREEN, "fedavg": ORANGE}
NOTES = (
    f"All take {ROUNDS} rounds of one step from {BATCH} rows of each client, eta = {ETA}; alpha = N / (N + 1) but "
    f"where it is said, tau = 1/N, beta = {BETA}, c_0 = b_0. Alone: the same steps on own rows. No "
    "setting was tuned for any of them.",
    "In brackets are 95% intervals over seeds; gains are paired by seed. A seed draws the rows, the first model and "
    "all batches.",
    "No theorem of the paper holds for a net; coterie.fit says so in the notes of each result.",
)

Cell = tuple[str, int, float | str]
"""A method, the number of collaborators (own rows in multiples of ``ROWS`` for "local"), and their angle or kind."""


def cells(quick: bool) -> list[Cell]:
    """All that is run for each seed."""
    if quick:
        return [("local", 1, 0.0), *((method, 3, USUAL) for method in METHODS)]
    alone = [("local", 1, 0.0), *(("local", n + 1, 0.0) for n in SIZES)]
    related = [(method, N, angle) for angle in (*ANGLES, NOISE, SHIFT) for method in METHODS]
    more = [(method, n, angle) for n in SIZES if n != N for angle in (0.0, USUAL) for method in METHODS]
    kept = [("weighted-averaging", 0.0), ("weighted-averaging", USUAL), ("bias-correction", USUAL)]
    return alone + related + [cell for cell in more if (cell[0], cell[2]) in kept]


def clients(seed: int, collaborators: int, angle: float | str, rows: int) -> tuple[dict[str, Any], Floats, Any]:
    """Rows by client, "main" first, and the main client's unseen X and y; more collaborators leave the others' rows."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images, labels = (digits.images[order] / 16.0).astype(np.float32), digits.target[order]
    held = {"main": (_flat(images[UNSEEN : UNSEEN + rows]), labels[UNSEEN : UNSEEN + rows])}
    others = np.arange(UNSEEN + ROWS, len(labels))
    for i in range(collaborators):
        at = others[i * ROWS : (i + 1) * ROWS]
        if angle == SHIFT:
            at = others[labels[others] // 5 == i % 2][i // 2 * ROWS : (i // 2 + 1) * ROWS]
        said, rng = labels[at].copy(), np.random.default_rng([seed, i])
        if angle == NOISE:
            said = np.where(rng.random(ROWS) < WRONG, rng.integers(0, 10, ROWS), said)
        degrees = 0.0 if isinstance(angle, str) else angle
        turned = rotate(images[at], degrees, axes=(2, 1), reshape=False, order=1) if degrees else images[at]
        held[f"helper {i + 1}"] = (_flat(turned), said)
    return held, _flat(images[:UNSEEN]), labels[:UNSEEN]


def _flat(images: Floats) -> Floats:
    return images.reshape(len(images), -1)


def accuracy(cell: Cell, seed: int) -> float:
    """Of the main client's net after training."""
    method, n, angle = cell
    alone = method == "local"
    rows, X, y = clients(seed, 0 if alone else n, angle, n * ROWS if alone else ROWS)
    rounds: dict[str, Any] = {"rounds": ROUNDS, "eta": ETA, "B": BATCH}
    more: dict[str, Any] = {}
    if method in ("local", "fedavg"):
        rounds["E"] = 1
    else:
        rounds["alpha"], more["main"] = 0.5 if method == HALF else n / (n + 1), "main"
    if method == "bias-correction":
        rounds["beta"] = BETA
    net = Torch("mlp", args={"sizes": [X.shape[1], 32, 10]})
    named = "weighted-averaging" if method == HALF else method
    fitted = fit(rows, net, method=named, rounds=rounds, seed=seed, test_fraction=HELD_OUT, **more)
    predicted = np.asarray(fitted.predict(X, "main"))
    return float(np.mean((predicted.argmax(axis=1) if predicted.ndim > 1 else predicted) == y))


@dataclass(frozen=True)
class Found:
    """Accuracies (seeds,) of every cell."""

    by: dict[Cell, Floats]

    def gain(self, cell: Cell) -> Floats:
        """Over training alone on the same rows."""
        return self.by[cell] - self.by["local", 1, 0.0]

    def rows(self, cell: Cell) -> str:
        """With how many times its rows training alone is as accurate in the mean; log-linear between those run."""
        known = sorted((n, values.mean()) for (method, n, _), values in self.by.items() if method == "local")
        times, level = np.array(known).T
        level = np.maximum.accumulate(level)
        mean = self.by[cell].mean()
        if mean <= level[0]:
            return "1 or less"
        if mean > level[-1]:
            return f"over {times[-1]:g}"
        return f"{np.exp(np.interp(mean, level, np.log(times))):.1f}"


def run(settings: Settings) -> Outcome:
    """Train all, seed by seed."""
    seeds = settings.runs(5, 1)
    by: dict[Cell, list[float]] = {cell: [] for cell in cells(settings.quick)}
    for seed in seeds:
        for cell, values in by.items():
            settings.tell(f"seed {seed}: {cell[0]}, {cell[1]}, {kind(cell[2])}")
            values.append(accuracy(cell, seed))
    found = Found({cell: np.array(values) for cell, values in by.items()})
    numbers = {f"{method}, {n}, {kind(angle)}": values for (method, n, angle), values in found.by.items()}
    chosen = {"rounds": ROUNDS, "eta": ETA, "batch": BATCH, "beta": BETA, "rows": ROWS, "seeds": list(seeds)}
    return Outcome((related(found), speed_up(found)), partial(draw, found), chosen, numbers, NOTES)


def kind(angle: float | str) -> str:
    """How collaborators differ, in a table."""
    return angle if isinstance(angle, str) else f"{angle:g}"


def interval(values: Iterable[float]) -> str:
    """A mean in percent with the half width of its 95% interval."""
    from scipy.stats import t

    v = 100.0 * np.array(list(values))
    if len(v) < 2:
        return f"{v.mean():.1f}"
    return f"{v.mean():.1f} (± {t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / len(v) ** 0.5:.1f})"


def related(found: Found) -> Table:
    """Accuracies and gains over training alone, by angle."""
    rows = [("alone", "–", "–", interval(found.by["local", 1, 0.0]), "–", "1")]
    for (method, n, angle), values in found.by.items():
        if method != "local" and n in (N, 3) and (n == N or ("local", 4, 0.0) not in found.by):
            gain = interval(found.gain((method, n, angle)))
            times = found.rows((method, n, angle))
            rows.append((METHODS[method], f"{n}", kind(angle), interval(values), gain, times))
    columns = ("method", "N", "angle", "accuracy in %", "over alone", "own rows, times")
    title = "Accuracy of the main client, by how its collaborators' digits are turned"
    return Table(title, columns, tuple(rows), note="Own rows, times: with which training alone is as accurate.")


def speed_up(found: Found) -> Table:
    """Over N: accuracies, and own rows that alone would need."""
    rows = []
    for (method, n, angle), values in found.by.items():
        if method == "local":
            rows.append(("alone, more own rows", f"{n - 1}", "–", interval(values), f"{n}"))
        elif angle in (0.0, USUAL) and method not in ("fedavg", HALF):
            rows.append((METHODS[method], f"{n}", kind(angle), interval(values), found.rows((method, n, angle))))
    rows.sort(key=lambda row: (row[0], row[2], int(row[1])))
    columns = ("method", "N", "angle", "accuracy in %", "own rows, times")
    return Table("Linear speed-up would be N + 1 times the rows", columns, tuple(rows))


def draw(found: Found) -> Figure:
    """Gains over the angle and over N."""
    figure, (left, right) = panels(2, width=4.6, height=3.6)
    for method, colour in COLOURS.items():
        some = [cell for cell in found.by if cell[0] == method and not isinstance(cell[2], str)]
        along = [cell for cell in some if cell[1] == N], [cell for cell in some if cell[2] == USUAL]
        for ax, at, those in zip((left, right), (2, 1), along, strict=True):
            those = sorted(those, key=lambda cell: cell[1:])
            gains = [100.0 * found.gain(cell) for cell in those]
            mean, spread = [float(g.mean()) for g in gains], [float(g.std()) for g in gains]
            places = [float(cell[at]) for cell in those]
            ax.errorbar(places, mean, yerr=spread, marker="o", color=colour, capsize=3, label=METHODS[method])
    for ax in (left, right):
        ax.axhline(0.0, color=GREY, ls="--")
    left.set_xlabel("angle of the collaborators' digits")
    left.set_ylabel("accuracy over training alone, points (± SD)")
    left.set_title(f"N = {N}")
    right.set_xscale("log", base=3)
    right.set_xlabel("collaborators N")
    right.set_title(f"angle {USUAL:g}")
    right.legend()
    return figure
