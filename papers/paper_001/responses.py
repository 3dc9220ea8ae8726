"""Section 6.2: cross-entropy and accuracy of every client on rows held out, for the models that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import INTERCEPT
from coterie.data.prepare_table import prepare
from coterie.data.splits import split_rows
from coterie.engines.local_engines import InProcess
from coterie.families import BINOMIAL
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.strengths import learn, path
from coterie.numerics.arrays import Floats
from coterie.objectives.row_kernels import totals
from coterie.relations.clusters import ClusterTree
from coterie.report.tables import Table
from coterie.report.words import number
from coterie.runs.run_table_method import client_losses, objective, run

if TYPE_CHECKING:
    import pandas as pd

CAP = 100.0
"""The paper's cross-entropy of a client where it overflows."""
HELD_OUT = 0.2
GRID = 10.0 ** np.linspace(-2.0, 2.0, 33)

PRINTED_LOSS = {
    "local": (0.413, 0.932, 0.173, 0.247, 0.313, 6.0, None),
    "single": (0.211, 0.176, 0.058, 0.201, 0.273, 2.76, 202),
    "grid": (0.215, 0.179, 0.069, 0.209, 0.283, 2.668, 183),
}
"""Table 2 as printed, and clients of cross-entropy over 1 from the text."""
PRINTED_ACCURACY = {
    "local": (0.940, 0.070, 0.919, 0.947, 1.0, 0.972),
    "single": (0.942, 0.067, 0.921, 0.948, 1.0, 0.986),
    "grid": (0.942, 0.066, 0.921, 0.948, 1.0, 1.0),
}
"""Table 3 as printed."""

MODELS = {
    "local": "every client alone",
    "single": "one model",
    "grid": "ours, grid's best",
    "strengths": "ours, strengths learned",
    "isotropic": "ours, one variance learned",
    "learned": "ours, variances learned",
}


@dataclass(frozen=True)
class Data:
    """A table of responses, split within clients.

    Attributes
    ----------
    train, test : Clients
        The same clients with the rows to learn from, and the rows held out.
    problem : GroupedProblem
    """

    train: Clients
    test: Clients
    problem: GroupedProblem

    @classmethod
    def of(cls, table: pd.DataFrame, formula: str, client: str, cluster: str, seed: int) -> Data:
        """Hold out a fifth of each client's rows; clients without a row to spare are left out of the test."""
        clients, _ = prepare(table, formula, client, (cluster,), "binomial")
        test = split_rows(clients, HELD_OUT, seed)
        intercept = clients.terms.index(INTERCEPT) if INTERCEPT in clients.terms else None
        problem = GroupedProblem(ClusterTree.of(clients), BINOMIAL, np.arange(len(clients.terms)), intercept)
        return cls(clients.subset(~test), clients.subset(test), problem)

    def scores(self, theta: Floats) -> tuple[Floats, Floats]:
        """Mean cross-entropy and accuracy of every tested client."""
        some = self.test.counts > 0
        rows = self.test.counts[some]
        with np.errstate(over="ignore", invalid="ignore"):
            loss = client_losses(self.test, "binomial", theta)[some] / rows
        eta = np.einsum("ij,ij->i", self.test.X, theta[self.test.codes]) + self.test.offset
        right = totals(((eta > 0.0) == (self.test.y > 0.5)).astype(np.float64), self.test.starts, self.test.stops)[some]
        return np.minimum(np.nan_to_num(loss, nan=CAP, posinf=CAP), CAP), right / rows


@dataclass(frozen=True)
class Scores:
    """What was measured with one model: cross-entropy and accuracy of clients, seconds of the fit, and its settings."""

    loss: Floats
    accuracy: Floats
    seconds: float
    info: dict[str, Any]


def score(data: Data, name: str) -> Scores:
    """Fit one of the models that need no grid, and test it."""
    fits: dict[str, tuple[str, dict[str, Any]]] = {
        "local": ("local", {}),
        "single": ("pooled", {}),
        "strengths": ("given-strengths", {}),
        "isotropic": ("hierarchical", {"covariance": "isotropic"}),
        "learned": ("hierarchical", {}),
    }
    start, (method, options) = perf_counter(), fits[name]
    if name == "strengths":
        gamma, lam = learn(federation(data.train), data.problem)
        options = {"gamma": gamma, "lam": lam}
    fitted, _ = run(method, data.train, data.problem, options)
    seconds = perf_counter() - start
    return Scores(*data.scores(fitted.client), seconds, {**options, **fitted.info})


def federation(train: Clients) -> InProcess:
    """All clients in this process."""
    return InProcess(objective(train, "binomial"), train.clusters, ids=train.ids)


def over_grid(data: Data, grid: Floats, tell: Callable[[str], None]) -> tuple[Scores, Floats]:
    """The paper's search: the strengths with the lowest average of the clients' held-out cross-entropies.

    Returns
    -------
    Scores
        Of the best; ``info`` holds its gamma and lam.
    (gammas, lams)
        The average at every point.
    """
    start = perf_counter()
    train, fed = data.train, federation(data.train)
    loss = np.full((len(grid), len(grid)), np.inf)
    best, info = np.zeros((len(train), train.X.shape[1])), {"gamma": np.nan, "lam": np.nan}
    for done, point in enumerate(path(fed, data.problem, list(grid), list(grid))):
        tell(f"grid: {done} of {loss.size} points")
        theta = point.clients()
        loss[point.at] = data.scores(theta)[0].mean()
        if loss[point.at] <= loss.min():
            best, info = theta, {"gamma": float(grid[point.at[0]]), "lam": float(grid[point.at[1]])}
    seconds = perf_counter() - start
    scores = data.scores(best)
    return Scores(*scores, seconds, info), loss


def pooled(parts: Iterable[Scores]) -> Scores:
    """The clients of all runs together."""
    parts = list(parts)
    loss, accuracy = (np.concatenate([getattr(p, name) for p in parts]) for name in ("loss", "accuracy"))
    return Scores(loss, accuracy, float(np.mean([p.seconds for p in parts])), parts[0].info)


def loss_table(scores: dict[str, Scores], title: str, printed: bool = True) -> Table:
    """Table 2: the distribution over clients of their cross-entropies."""
    rows = []
    for name, s in scores.items():
        if printed and name in PRINTED_LOSS:
            mean, sd, *quartiles, most, over = PRINTED_LOSS[name]
            cells = [f"{mean:.3f} ({sd:.3f})", *(f"{v:.3f}" for v in (*quartiles, most)), f"{over or '–'}"]
            rows.append((MODELS[name], "paper", *cells, "–"))
        spread = np.quantile(s.loss, [0.25, 0.5, 0.75, 1.0])
        cells = [f"{s.loss.mean():.4f} ({s.loss.std():.3f})", *(f"{v:.3f}" for v in spread)]
        rows.append((MODELS[name], "here", *cells, f"{int((s.loss > 1.0).sum()):,}", f"{s.seconds:.1f}"))
    columns = ("model", "", "average (SD)", "25%", "50%", "75%", "max", "over 1", "seconds")
    return Table(title, columns, tuple(rows), texts=2, note=strengths_sentence(scores))


def strengths_sentence(scores: dict[str, Scores]) -> str:
    """Which strengths the grid and the likelihood chose, in the units of the table."""
    if "grid" not in scores:
        return ""
    each = [
        f"{how}: gamma = {number(scores[name].info['gamma'])}, lambda = {number(scores[name].info['lam'])}"
        for name, how in (("grid", "Grid's best"), ("strengths", "learned"))
    ]
    return f"{'; '.join(each)}."


def accuracy_table(scores: dict[str, Scores], title: str, printed: bool = True) -> Table:
    """Table 3: the distribution of accuracies, and shares of clients that are no worse off."""
    rows = []
    for name, s in scores.items():
        if printed and name in PRINTED_ACCURACY:
            mean, sd, *rest = PRINTED_ACCURACY[name]
            rows.append((MODELS[name], "paper", f"{mean:.3f} ({sd:.3f})", *(f"{v:.3f}" for v in rest), "–"))
        quartiles = np.quantile(s.accuracy, [0.25, 0.5, 0.75])
        against = scores["grid" if "grid" in scores else "isotropic"].accuracy
        shares = np.mean(s.accuracy >= against), np.mean(against >= s.accuracy)
        cells = [f"{s.accuracy.mean():.4f} ({s.accuracy.std():.3f})", *(f"{v:.3f}" for v in (*quartiles, *shares))]
        rows.append((MODELS[name], "here", *cells))
    columns = ("model", "", "average (SD)", "25%", "50%", "75%", "no worse than ours", "ours no worse")
    return Table(title, columns, tuple(rows), texts=2)
