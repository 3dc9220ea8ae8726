"""Digits that four groups of clients hold at other angles: layers shared by all and by groups, known or found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.images import rotated_digits
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedper import FedPer
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.evaluation import correctly_grouped
from coterie.methods.groups.find import Groups, by_restarts, by_updates
from coterie.methods.ifca import IFCA
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.parameters import initial_parameters
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_003.rivals import grid, over_rounds
from papers.paper_003.study import Chosen, Data, Fits, Gridded, Method, Scores, Setting, Study, forest
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK, CLIENTS, CLASSES = 5, 1, 40, 10
STEPS = 5
"""Full-gradient steps of a round, in all methods."""
ROUNDS = (25, 50, 100)
ETAS = (0.3, 1.0)
BODY, HEAD = ("dense1*",), ("head*",)
RESTARTS, KS = 20, (2, 3, 4, 5, 6)
MODELS, FOUND, RESTARTED = "a model for each group", "groups by updates", "groups by IFCA's restarts"
HEADS, FIRSTS = "shared body, heads of groups", "first layers of groups, shared head"
AGAINST = ("local", "pooled", "FedPer", "Ditto")
NOTES = (
    "40 clients with 22 or 23 of scikit-learn's digits (8 x 8) each to learn from and as many to test on, turned by 0, "
    "90, 180 or 270 degrees; a network 64-32-10; seeds are paired.",
    f"All methods take {STEPS} full-gradient steps a round at home. The step size (of {ETAS}) and the rounds (of "
    f"{ROUNDS}) are chosen by loss on a quarter of the training rows, and all training rows are used then.",
    "Groups that are found: from all training rows, in the first models' seed; then a model for each.",
)


@dataclass(frozen=True)
class Images(Data):
    """Digits under a small network.

    Attributes
    ----------
    seed : int
        Of the first model.
    """

    seed: int = 0

    @cached_property
    def objective(self) -> Any:
        """What is minimised."""
        from coterie.objectives.deep import Deep
        from coterie.objectives.deep.nets import mlp

        c = self.clients
        return Deep.of(partial(mlp, (c.X.shape[1], 32, CLASSES)), c.X, c.y.astype(np.int64), c.starts, c.stops)

    def losses(self, theta: Floats) -> Floats:
        """Each client's summed losses (m,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.objective.value(theta))

    def accuracy(self, theta: Floats) -> float:
        """Share of rows that are classified rightly."""
        return float(np.mean(self.objective.predict(theta) == self.clients.y))

    @property
    def start(self) -> Floats:
        """The first model (d,)."""
        return initial_parameters(self.objective, self.seed)


def rows(seed: int, clients: int = CLIENTS) -> tuple[Images, Images, Ints]:
    """Rows to learn from and to test on, and hidden groups."""
    partitioned = rotated_digits(clients, seed=seed)
    parts = []
    for part in (partitioned.train, partitioned.test):
        client = np.repeat(np.arange(clients), part.stops - part.starts)
        parts.append(Images(Clients.from_arrays(part.X[:, 1:], part.y, client), "softmax", CLASSES, seed))
    return parts[0], parts[1], partitioned.group


Find = Callable[[Images], Groups]
"""Groups out of training rows."""


def by_silhouette(data: Images) -> Groups:
    """Clusters of normalised updates after 50 local steps from the first model; their number by silhouette."""
    return by_updates(data.fed(), data.start, eta=0.5, steps=50, k=KS, seed=data.seed)


def by_first_models(data: Images, rounds: int = 20, restarts: int = RESTARTS) -> Groups:
    """IFCA from client models, the least training loss of some restarts; as many groups as silhouettes say."""
    method = IFCA(k=by_silhouette(data).k, eta=0.5, tau=STEPS, seed=data.seed)
    return by_restarts(data.fed(), method, data.start, rounds=rounds, restarts=restarts)


@dataclass(frozen=True)
class InFound:
    """A model for each group that is found.

    Attributes
    ----------
    find : callable
    known : (m,)
        Hidden groups, only to say how many clients are right.
    """

    find: Find
    known: Ints

    def choose(self, data: Any, inner: int, seed: int) -> Chosen:
        """Groups first, then the settings of their models."""
        found = self.find(data)
        made = group_models(found.labels).choose(data, inner, seed)
        about: dict[str, Any] = {
            "k": found.k,
            "right": correctly_grouped(found.labels, self.known),
            "score": dict(found.score),
        }
        if "labels" in found.about:
            about["each"] = [correctly_grouped(one, self.known) for one in found.about["labels"]]
        return replace(made, about=about)


def gridded(make: Callable[[Any, Setting], Any], **more: Any) -> Gridded:
    """A method whose step size and rounds are chosen, and more settings where it has any."""
    return Gridded(over_rounds(make), grid(**more, eta=ETAS, rounds=ROUNDS))


def group_models(group: Ints, shared: tuple[str, ...] = ()) -> Gridded:
    """Group SGD: some layers shared by all, the others by a group."""
    how: dict[str, Any] = {"group": group, "shared": shared, "own": "averaged", "weigh": "rows", "tau": STEPS}
    return gridded(lambda data, s: GroupSGD(eta=s["eta"], seed=data.seed, **how))


def at_home(method: type[FedAvg], **options: Any) -> Gridded:
    """FedAvg and those that are like it."""
    return gridded(lambda data, s: method(eta=s["eta"], E=STEPS, seed=data.seed, **options))


def _ditto(data: Images, s: Setting) -> Ditto:
    return Ditto(eta=s["eta"], E=STEPS, s=STEPS, lam=s["lam"], seed=data.seed)


def _cfl(data: Images, s: Setting) -> CFL:
    return CFL(eta=s["eta"], E=STEPS, eps1=s["eps1"], eps2=2.0 * s["eps1"], seed=data.seed)


def all_rows(base: Gridded) -> Gridded:
    """A method of one client that has the rows of all."""

    def fits(data: Any, settings: Any) -> list[Floats]:
        c = data.clients
        whole = replace(data, clients=Clients.from_arrays(c.X, c.y, np.zeros(len(c.y), dtype=np.int64)))
        return [np.tile(theta, (len(c), 1)) for theta in base.fits(whole, settings)]

    together: Fits = fits
    return Gridded(together, base.settings)


def methods(known: Ints) -> Mapping[str, Method]:
    """By name."""
    return {
        "local": at_home(FedAvg, personal=("*",)),
        "pooled": all_rows(at_home(FedAvg)),
        "FedAvg": at_home(FedAvg),
        "FedPer": at_home(FedPer, personal=HEAD),
        "Ditto": gridded(_ditto, lam=(0.1, 1.0)),
        "CFL": gridded(_cfl, eps1=(0.3, 0.6)),
        HEADS: group_models(known, BODY),
        FIRSTS: group_models(known, HEAD),
        MODELS: group_models(known),
        FOUND: InFound(by_silhouette, known),
        RESTARTED: InFound(by_first_models, known),
    }


def study(clients: int = CLIENTS) -> Study:
    """The rows and methods."""
    return Study(lambda seed: rows(seed, clients)[:2], lambda seed: methods(rows(seed, clients)[2]))


def run(settings: Settings) -> Outcome:
    """All methods over paired seeds, and how well groups are found."""
    seeds = list(settings.runs(SEEDS, QUICK))
    scores = study().run(seeds, settings.tell)
    title = f"Rotated digits, network 64-32-10: accuracy, mean of {len(seeds)} seeds"
    tables = (scores.table(title, (*AGAINST, MODELS), "accuracy"), found_table(scores))
    settled = {"seeds": seeds, "clients": CLIENTS, "steps": STEPS, "rounds": ROUNDS, "eta": ETAS, "restarts": RESTARTS}
    return Outcome(tables, partial(draw, scores), settled, scores.numbers(), NOTES)


def found_table(scores: Scores) -> Table:
    """How well groups that nobody told are found, seed by seed."""
    cells = []
    for name in (FOUND, RESTARTED):
        about = [c.about for c in scores.of(name)]
        rate = "–"
        if "each" in about[0]:
            rate = f"{np.mean(success(about)):.2f}"
        k, good = (" ".join(str(a[key]) for a in about) for key in ("k", "right"))
        cells.append((name, k, good, rate))
    columns = ("found by", "groups", "clients that are right", "share of restarts with 38 of 40 right or more")
    return Table("Groups that are not known, by seed", columns, tuple(cells), texts=4)


def success(about: Any) -> list[bool]:
    """Of all restarts of all seeds, which had 95% of clients right."""
    return [r >= 0.95 * CLIENTS for a in about for r in a["each"]]


def draw(scores: Scores) -> Figure:
    """Accuracies of all methods; dots are seeds."""
    figure, (ax,) = panels(1, width=6.4, height=4.2)
    colours = {"groups by": BLUE, "a model": GREEN, "shared body": PURPLE, "first layers": PURPLE, "local": GREY}
    forest(ax, scores, colours | {"pooled": ORANGE}, "accuracy")
    ax.set_title("Rotated digits, 40 clients in 4 groups")
    return figure
