"""The notes' sigma^2 by block against 2,000 repeats of the assembled stochastic gradient, and how it falls with n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.group_gradients import by_block, gathered, observe
from coterie.methods.groups.group_models import address
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.parameter_layout import GroupLayout
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_000 import theory
from papers.paper_000.robust import BODY, HEAD, made
from papers.pictures import BLUE, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPEATS, QUICK, AT_ONCE = 2_000, 400, 50
NORMAL = 2.5758
"""Of the 99% interval."""

BATCH, ROWS, LAYER = 4, 20, 5
CASES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "two groups of 4 and 12, body shared": ((4, 12), (BODY,)),
    "two groups of 4 and 12, head shared": ((4, 12), (HEAD,)),
    "five groups of 2 to 10, body shared": ((2, 4, 6, 8, 10), (BODY,)),
    "two groups of 4 and 12, nothing shared": ((4, 12), ()),
    "two groups of 4 and 12, all shared": ((4, 12), ("*",)),
}
COUNTS = (4, 16, 64, 256, 1024)
NOTES = (
    f"Robust linear regression, {ROWS} rows a client, {LAYER} parameters in each of two layers, batches of {BATCH} "
    "rows with replacement, at a random point. The formula has the exact variance of each client's gradient over its "
    "rows.",
    "Interval: 99%, from the squared distances of repeats to their mean; repeats are assembled from the same sums "
    "that a run looks at.",
)


@dataclass(frozen=True)
class Measured:
    """Variances by block, (1 + k,): x_s first, then each group's own layers.

    Attributes
    ----------
    sizes : (k,)
        Clients of each group.
    formula : (1 + k,)
    found, error : (1 + k,)
        Of the repeats, and its standard error.
    whole : (3,)
        Formula, found and error of all blocks together.
    """

    sizes: Ints
    formula: Floats
    found: Floats
    error: Floats
    whole: Floats

    def inside(self) -> tuple[int, int]:
        """How many formulas of blocks, and of the whole, are inside the interval, and how many there are."""
        every = zip((self.formula, self.found, self.error), self.whole, strict=True)
        formula, found, error = (np.append(a, b) for a, b in every)
        there = formula > 0.0
        return int(np.sum((np.abs(formula - found) <= NORMAL * error) & there)), int(there.sum())

    def numbers(self) -> dict[str, Any]:
        """All of it."""
        return {**vars(self), "inside": self.inside()}


def run(settings: Settings) -> Outcome:
    """Every case, then the same two groups with more and more clients."""
    repeats = QUICK if settings.quick else REPEATS
    cases = {}
    for seed, (name, (sizes, shared)) in enumerate(CASES.items()):
        settings.tell(name)
        cases[name] = measure(sizes, shared, repeats, seed)
    settings.tell(f"{COUNTS[0]} to {COUNTS[-1]} clients")
    growing = [measure((n // 4, n - n // 4), (BODY,), repeats, seed=7) for n in COUNTS]
    numbers = {
        "cases": {name: found.numbers() for name, found in cases.items()},
        "growing": [found.numbers() for found in growing],
    }
    settled = {"repeats": repeats, "batch": BATCH, "rows": ROWS, "layer": LAYER, "clients": COUNTS}
    tables = by_case(cases, repeats), by_clients(growing)
    return Outcome(tables, partial(draw, growing), settled, numbers, NOTES)


def measure(sizes: Sequence[int], shared: tuple[str, ...], repeats: int, seed: int) -> Measured:
    """Repeat the assembled stochastic gradient at one point."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    objective = made(group, LAYER, LAYER, ROWS, apart=0.5, seed=seed)
    fed = InProcess(objective, group, seed=seed)
    method = GroupSGD(eta=1.0, shared=shared, B=BATCH)
    state = method.init(fed)
    layout = GroupLayout(**state["layout"])
    x = 0.5 * np.random.default_rng(seed).normal(size=layout.dim)
    to = address(fed, group, layout.models(x), np.arange(len(group)))
    over: dict[str, Any] = {"uncompressed": method.transport, "weigh": "clients", "B": BATCH, "R": AT_ONCE}
    draws = []
    for t in range(repeats // AT_ONCE):
        sums = fed.total(observe, **to, **over, t=t, rows=0)
        draws.append(gathered(layout, sums["drawn"], np.full(layout.k, 1.0 / len(group))))
    rows = objective.row_gradients(np.stack(layout.models(x))[group])
    each = rows.var(axis=1) / BATCH
    blocks = [by_block_of_client(layout, g, v) for g, v in zip(group.tolist(), each, strict=True)]
    s, own = (np.bincount(group, part) / np.asarray(sizes) for part in np.transpose(blocks))
    formula = theory.variance(s, own, sizes)
    apart = (np.concatenate(draws) - np.concatenate(draws).mean(axis=0)) ** 2 * (repeats / (repeats - 1.0))
    by = np.array([by_block(layout, row) for row in apart])
    mean, error = by.mean(axis=0), by.std(axis=0, ddof=1) / np.sqrt(repeats)
    total = by.sum(axis=1)
    whole = np.array([formula.sum(), total.mean(), total.std(ddof=1) / np.sqrt(repeats)])
    return Measured(np.asarray(sizes), formula, mean, error, whole)


def by_block_of_client(layout: GroupLayout, g: int, variances: Floats) -> tuple[float, float]:
    """Sums of a client's variances (d_g,) over x_s and over its group's own layers."""
    shared = float(variances[layout.of_group(g) < layout.shared].sum())
    return shared, float(variances.sum()) - shared


def by_case(cases: dict[str, Measured], repeats: int) -> Table:
    """Formula and estimate of the whole sigma^2, and how many blocks agree."""
    rows = []
    for name, m in cases.items():
        formula, found, error = m.whole
        low, high = found - NORMAL * error, found + NORMAL * error
        inside = "{} of {}".format(*m.inside())
        rows.append((name, f"{formula:.5f}", f"{found:.5f}", f"{low:.5f} to {high:.5f}", inside))
    return Table(
        title=f"sigma^2 of the assembled stochastic gradient, {repeats:,} repeats",
        columns=("case", "formula", "repeats", "99% interval", "inside"),
        rows=tuple(rows),
        note="inside: formulas of blocks (x_s, each group's own layers, the whole) that the interval holds.",
    )


def by_clients(growing: Sequence[Measured]) -> Table:
    """How sigma^2 falls with n."""
    rows = []
    for m in growing:
        n, (formula, found, error) = m.sizes.sum(), m.whole
        own = m.formula[1:].sum()
        blocks = f"{m.formula[0]:.6f}", f"{own:.6f}", f"{formula:.6f}"
        rows.append((f"{n:,}", *blocks, f"{found:.6f} ({error:.1g})", f"{n * formula:.3f}"))
    return Table(
        title="sigma^2 and the number of clients n, a quarter of them in the first group",
        columns=("n", "shared block", "groups' own", "formula", "repeats (SE)", "n x formula"),
        rows=tuple(rows),
        note="n x formula does not change but for the clients' own rows: sigma^2 falls like 1 / n.",
    )


def draw(growing: Sequence[Measured]) -> Figure:
    """Variances of blocks against n, with a line of slope -1."""
    figure, (ax,) = panels(1)
    n = np.array([m.sizes.sum() for m in growing], dtype=np.float64)
    for label, colour, pick in (
        ("shared block", BLUE, slice(0, 1)),
        ("groups' own layers", ORANGE, slice(1, None)),
    ):
        ax.plot(n, [m.formula[pick].sum() for m in growing], color=colour, label=f"{label}, formula")
        ax.plot(n, [m.found[pick].sum() for m in growing], "o", color=colour, label=f"{label}, repeats")
    ax.plot(n, growing[0].whole[0] * n[0] / n, color=GREY, ls=":", label="1 / n")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("clients n")
    ax.set_ylabel("variance")
    ax.set_title("Variance of the assembled gradient")
    ax.legend()
    return figure
