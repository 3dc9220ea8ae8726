"""Section VII, which the paper leaves empty: methods on the same rows of the same clients, over paired seeds.

Every hyper-parameter of every method is chosen by the loss on rows that are held out of the training rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from coterie.data.clients import Clients
from coterie.data.splits import split_rows
from coterie.engines.local_engines import InProcess
from coterie.families import family_named
from coterie.numerics.arrays import Floats
from coterie.objectives.constants import extreme_eigenvalues, hessians
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import sizes
from coterie.objectives.softmax import Softmax
from coterie.report.tables import Table
from coterie.report.words import fixed, number
from coterie.runs.run_table_method import client_losses, objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Setting = dict[str, Any]
HELD_OUT = 0.25
"""Share of a client's training rows that hyper-parameters are chosen by."""
RIDGE = 1e-3
"""Of softmax, in every method."""


@dataclass(frozen=True)
class Data:
    """Rows of clients, and what is lost on them.

    Attributes
    ----------
    clients : Clients
    family : {"gaussian", "binomial", "softmax"}
    classes : int
        Of softmax.
    """

    clients: Clients
    family: str
    classes: int = 0

    @cached_property
    def objective(self) -> Any:
        """What is minimised."""
        return self._softmax(RIDGE) if self.family == "softmax" else objective(self.clients, self.family)

    def _softmax(self, ridge: float) -> Softmax:
        c = self.clients
        return Softmax(c.X, c.y.astype(np.int64), c.weights, c.starts, c.stops, self.classes, ridge)

    def fed(self, seed: int = 0) -> InProcess:
        """The clients in this process."""
        return InProcess(self.objective, self.clients.clusters, ids=self.clients.ids, seed=seed)

    @property
    def curvature(self) -> float:
        """What no client's mean loss bends more than."""
        if isinstance(self.objective, GLM):
            d = self.clients.X.shape[1]
            top = extreme_eigenvalues(hessians(self.objective, np.zeros((len(self.clients), d)), most=True))[1]
            return float((top / np.maximum(sizes(self.objective), 1e-300)).max())
        return float(self.objective.smoothness().max())

    def losses(self, theta: Floats) -> Floats:
        """Each client's summed losses (m,): squared errors, or minus logarithms of probabilities."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.family == "softmax":
                return self._softmax(0.0).value(theta)
            return client_losses(self.clients, self.family, theta)

    def loss(self, theta: Floats) -> float:
        """The mean over rows; infinite for a model that diverged."""
        return float(np.nan_to_num(self.losses(theta).sum() / len(self.clients.y), nan=np.inf, posinf=np.inf))

    def accuracy(self, theta: Floats) -> float:
        """Share of rows that are classified rightly; NaN where there are no classes."""
        c = self.clients
        if self.family == "softmax":
            right = self._softmax(0.0).predict(theta) == c.y
        elif not family_named(self.family).two_classes:
            return float("nan")
        else:
            right = (np.einsum("ij,ij->i", c.X, theta[c.codes]) > 0.0) == (c.y > 0.5)
        return float(right.sum() / len(c.y))

    def split(self, seed: int, repeat: int = 0, fraction: float = HELD_OUT) -> tuple[Data, Data]:
        """Some rows of every client to learn from, the others to look at."""
        held = split_rows(self.clients, fraction, seed, repeat)
        return tuple(replace(self, clients=self.clients.subset(rows)) for rows in (~held, held))  # type: ignore[return-value]


Fits = Callable[[Data, Sequence[Setting]], Sequence[Floats]]
"""``fits(data, settings)``: every client's model (m, d) with each of the settings, in their order."""


@dataclass(frozen=True)
class Chosen:
    """What a method made of training rows: its setting, every client's model (m, d), and more to tell."""

    setting: Setting
    theta: Floats
    about: Mapping[str, Any] = field(default_factory=dict)


class Method(Protocol):
    """One row of the comparison: sees training rows only, and holds some of them out to choose by."""

    def choose(self, data: Data, inner: int, seed: int) -> Chosen:
        """Fit with what ``inner`` splits of the training rows choose."""


@dataclass(frozen=True)
class Gridded:
    """A method with a list of settings.

    Attributes
    ----------
    fits : callable
    settings : sequence of dict
        One alone needs no choice.
    """

    fits: Fits
    settings: Sequence[Setting] = ({},)

    def choose(self, data: Data, inner: int, seed: int) -> Chosen:
        """The setting with the lowest loss on held-out rows, then all training rows with it."""
        best = self.settings[0]
        if len(self.settings) > 1:
            losses = np.zeros(len(self.settings))
            for repeat in range(inner):
                train, held = data.split(seed + 1, repeat)
                losses += [held.loss(theta) for theta in self.fits(train, self.settings)]
            best = self.settings[int(np.argmin(losses))]
        return Chosen(best, self.fits(data, [best])[0])


@dataclass(frozen=True)
class Study:
    """What is compared on what.

    Attributes
    ----------
    draw : callable
        ``draw(seed)`` gives the rows to learn from and those to test on.
    methods : callable
        ``methods(seed)``: by name; the methods may know the seed's hidden groups, if their name says so.
    inner : int
        Splits of the training rows that hyper-parameters are chosen by.
    """

    draw: Callable[[int], tuple[Data, Data]]
    methods: Callable[[int], Mapping[str, Method]]
    inner: int = 1

    def run(self, seeds: Sequence[int], tell: Callable[[str], None]) -> Scores:
        """Every method with every seed; seeds side by side."""

        def one(seed: int) -> list[tuple[float, float, Chosen]]:
            train, test = self.draw(seed)
            out = []
            for name, method in self.methods(seed).items():
                tell(f"seed {seed}, {name}")
                found = method.choose(train, self.inner, seed)
                out.append((test.loss(found.theta), test.accuracy(found.theta), found))
            return out

        with one_thread_each(), ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(one, seeds))
        loss, accuracy = (np.array([[cell[k] for cell in run] for run in runs]) for k in (0, 1))
        return Scores(tuple(self.methods(seeds[0])), loss, accuracy, [[cell[2] for cell in run] for run in runs])


def one_thread_each() -> Any:
    """Seeds run side by side: threads of a matrix product would only wait for each other."""
    import scipy.linalg  # noqa: F401 - what is not loaded cannot be told
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    return threadpool_limits(1)


@dataclass(frozen=True)
class Scores:
    """Losses and accuracies (seeds, methods) on test rows, and what was chosen."""

    names: tuple[str, ...]
    loss: Floats
    accuracy: Floats
    chosen: list[list[Chosen]]

    def of(self, name: str) -> list[Chosen]:
        """What a method chose, seed by seed."""
        k = self.names.index(name)
        return [run[k] for run in self.chosen]

    def numbers(self) -> dict[str, Any]:
        """All of it, by method."""
        return {
            name: {
                "loss": self.loss[:, k],
                "accuracy": self.accuracy[:, k],
                "chosen": [c.setting for c in self.of(name)],
                "about": [c.about for c in self.of(name)],
            }
            for k, name in enumerate(self.names)
        }

    def table(self, title: str, against: Sequence[str], by: str = "loss", note: str = "") -> Table:
        """Means over seeds, and paired gains over some methods with 95% intervals over seeds."""
        values, sign = (self.accuracy, -1.0) if by == "accuracy" else (self.loss, 1.0)
        rows = []
        for k, name in enumerate(self.names):
            cells = [fixed(float(values[:, k].mean()), 4 if values.mean() < 10.0 else 3)]
            for other in against:
                gain = sign * (values[:, self.names.index(other)] - values[:, k])
                cells.append("–" if other == name else interval(gain))
            rows.append((name, *cells, chosen_words([c.setting for c in self.of(name)])))
        columns = ("method", by, *(f"gain over {name} (95%)" for name in against), "chosen")
        return Table(title, columns, tuple(rows), texts=1, note=note)


def interval(gain: Floats) -> str:
    """A mean and its 95% interval by Student's t."""
    mean, half = float(gain.mean()), spread(gain)
    places = 4 if abs(mean) < 1.0 else 3
    return fixed(mean, places) + (f" ({fixed(mean - half, places)} to {fixed(mean + half, places)})" if half else "")


def spread(values: Floats) -> float:
    """Half the width of the 95% interval of a mean; 0 where there is one value."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def chosen_words(settings: Sequence[Setting]) -> str:
    """The range of every number that was chosen."""
    words = []
    for key in settings[0]:
        values = sorted(s[key] for s in settings)
        low, high = number(values[0], 2), number(values[-1], 2)
        words.append(f"{key} {low}" + (f" to {high}" if high != low else ""))
    return ", ".join(words) or "–"


def forest(ax: Axes, scores: Scores, colours: Mapping[str, str], by: str = "loss") -> None:
    """Every method's mean with its interval, and the seeds as dots."""
    values = scores.accuracy if by == "accuracy" else scores.loss
    for at, name in enumerate(scores.names):
        v = values[:, at]
        colour = next((c for start, c in colours.items() if name.startswith(start)), "#7A7A7A")
        ax.plot(v, np.full(len(v), -at), ".", ms=3, color=colour, alpha=0.5)
        ax.errorbar(v.mean(), -at, xerr=spread(v), fmt="o", color=colour, capsize=2)
    ax.set_yticks(-np.arange(len(scores.names)), scores.names)
    ax.set_xlabel(f"{by} on test rows")


def groups_table(
    title: str, scores: Scores, names: Sequence[str], more: Mapping[str, Sequence[str]] | None = None
) -> Table:
    """How well merged clients agree with hidden groups along the path: means over seeds, and the least."""
    rows = []
    for at, name in enumerate(names):
        about = [c.about for c in scores.of(name)]
        best, wide = np.array([max(a["rand"]) for a in about]), np.array([a["range"] for a in about])
        here = [a["rand"][int(np.argmin(a["held_out"]))] for a in about]
        cells = [cell[at] for cell in (more or {}).values()]
        cells += [f"{best.mean():.3f} ({best.min():.3f})", f"{np.median(wide):.3g} ({wide.min():.3g})"]
        rows.append((name, *cells, f"{np.mean(here):.3f}", " ".join(str(c.setting["groups"]) for c in scores.of(name))))
    heads = ("best index (least)", "λ ratio at 0.95 (least)", "index at chosen λ", "groups there")
    note = "λ ratio: between how many times apart all λ of the grid have an index of 0.95 or more."
    return Table(title, ("merged clients", *(more or {}), *heads), tuple(rows), note=note)
