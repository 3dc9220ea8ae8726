"""Figure 6: elements of an update of logistic regression, as they are, after total variation, and of 4 and 3 values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.codecs import by_name
from coterie.codecs.compression import coordinate_order
from coterie.codecs.total_variation import TotalVariation
from coterie.data.datasets import fetch
from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, GREEN, ORANGE, PURPLE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, ETA, RELATIVE, FLOAT32 = 10, 1.0, 1.0, "float32"
CODECS = {
    "gamma = 0": by_name(FLOAT32),
    "total variation": TotalVariation(k=None, relative=RELATIVE, debias=False),
    "and k-means, k = 4": TotalVariation(k=4, relative=RELATIVE),
    "and k-means, k = 3": TotalVariation(k=3, relative=RELATIVE),
}
ORDERS = {"natural": "as they come", "magnitude": "by the client's last gradient", "last-update": "by the last step"}
NOTES = (
    "The paper takes covtype (55 elements), which no package here has; spambase stands in: the 57 features, "
    "log(1 + x), standardised. The gradient is client 0's after ten steps of size 1 on all clients, from 0.",
    f"The paper's gamma is not printed; here it is {RELATIVE:g} times the gradient's root mean square. k-means gives "
    "means of the gradient over runs; total variation alone gives the prox, shrunk as eq. (7) has it.",
)


def run(settings: Settings) -> Outcome:
    """One gradient in four ways, and what orders of the elements change."""
    before, g, update = gradients()
    sent = {name: codec.encode(g, 0, 0) for name, codec in CODECS.items()}
    shown = {name: encoded.claimed[0] for name, encoded in sent.items()}
    size = {name: int(encoded.payload.offsets[-1]) for name, encoded in sent.items()}
    by_order = {}
    for kind, words in ORDERS.items():
        order = coordinate_order(kind, before, update)
        encoded = CODECS["and k-means, k = 4"].encode(g, 0, 0, order)
        q = encoded.claimed[0] if order is None else encoded.claimed[0][np.ravel(order)]
        by_order[words] = (
            1 + int(np.count_nonzero(np.diff(q))),
            apart(encoded.claimed, g),
            int(encoded.payload.offsets[-1]),
        )
    numbers = {"gradient": g[0], "elements": shown, "bytes": size, "by_order": by_order}
    settled = {"d": g.shape[1], "steps": STEPS, "eta": ETA, "relative": RELATIVE, "client": 0}
    tables = (table(g, shown, size), order_table(by_order))
    return Outcome(tables, partial(draw, shown), settled, numbers, NOTES)


def gradients() -> tuple[Floats, Floats, Floats]:
    """Client 0's gradient (1, d) before the last step and after it, and the step's direction (d,)."""
    mail = fetch("spambase")
    X = np.log1p(mail.drop(columns=["spam", "client"]).to_numpy(dtype=np.float64))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y, own = mail["spam"].to_numpy(dtype=np.float64), mail["client"].to_numpy() == 0

    def gradient(x: Floats, rows: slice | npt.NDArray[np.bool_]) -> Floats:
        A, b = X[rows], y[rows]
        return np.asarray(A.T @ (1.0 / (1.0 + np.exp(-A @ x)) - b) / len(b))

    x = before = step = np.zeros(X.shape[1])
    for _ in range(STEPS):
        before, step = gradient(x, own), gradient(x, slice(None))
        x = x - ETA * step
    return before[None], gradient(x, own)[None], step


def apart(q: Floats, g: Floats) -> float:
    """Relative error."""
    return float(np.linalg.norm(q - g) / np.linalg.norm(g))


def table(g: Floats, shown: dict[str, Floats], size: dict[str, int]) -> Table:
    """What is left of the gradient, and the bytes it takes."""
    rows = [
        (name, str(len(np.unique(q))), str(1 + np.count_nonzero(np.diff(q))), f"{apart(q, g[0]):.2f}", str(size[name]))
        for name, q in shown.items()
    ]
    return Table(
        title="One gradient of 57 elements",
        columns=("update", "values", "runs", "relative error", "bytes sent"),
        rows=tuple(rows),
        note="Bytes are those of whole messages, header and checksum included; gamma = 0 goes as float32.",
    )


def order_table(by_order: dict[str, tuple[int, float, int]]) -> Table:
    """Orders of elements that both ends know, k = 4."""
    return Table(
        title="The same with k = 4, by the order in which elements travel",
        columns=("order", "runs", "relative error", "bytes sent"),
        rows=tuple((words, str(runs), f"{error:.2f}", str(n)) for words, (runs, error, n) in by_order.items()),
    )


def draw(shown: dict[str, Floats]) -> Figure:
    """A panel for each."""
    figure, axes = panels(4, width=2.6, height=2.6)
    for ax, (name, q), colour in zip(axes, shown.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=True):
        ax.plot(np.arange(1, len(q) + 1), q, ".", color=colour)
        ax.set_title(name)
        ax.set_xlabel("element")
        ax.sharey(axes[0])
    axes[0].set_ylabel("value")
    return figure
