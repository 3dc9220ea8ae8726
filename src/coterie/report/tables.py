"""One table, several renderings: text for a terminal, HTML for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from rich.box import Box

from coterie.report import words

if TYPE_CHECKING:
    import pandas as pd

    from coterie.results.result import FitResult


@dataclass(frozen=True)
class Table:
    """Cells ready to be read.

    Attributes
    ----------
    title : str
    columns : tuple of str
    rows : tuple of tuples of str
    texts : int, default 1
        So many first columns hold text; the others hold numbers and are aligned to the right.
    marked : int or None
        Row that is singled out.
    note : str
        What a reader must know to read it: units, what was cut.
    mark : str, default "best"
        What the row that is singled out is.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    marked: int | None = None
    note: str = ""
    mark: str = "best"


class Compared(Protocol):
    """What a comparison table is made of."""

    @property
    def comparison(self) -> pd.DataFrame:
        """A row for each method."""

    @property
    def recommended(self) -> str:
        """The best method."""

    @property
    def loss(self) -> str:
        """Name of the loss."""


def comparison_table(result: Compared) -> Table:
    """All methods, best first: held-out losses, paired gains with intervals, share of clients better off.

    Parameters
    ----------
    result : FitResult, or anything with `comparison`, `recommended` and `loss`

    Returns
    -------
    Table
    """
    frame = result.comparison
    if frame.empty:
        return Table("Comparison", ("method",), (), note="No methods were compared.")
    frame = frame.sort_values("loss_rows", kind="stable")
    methods = [str(m) for m in frame.index]
    columns: list[tuple[str, list[str]]] = [("method", methods)]
    places = words.decimals([*frame["loss_rows"], *frame["loss_clients"]])
    for name, title in (("loss_rows", "loss over rows"), ("loss_clients", "loss over clients")):
        columns.append((title, [words.fixed(v, places) for v in frame[name]]))
    for other in ("local", "pooled"):
        columns.append((f"gain over {other} (95% interval)", _gains(frame, other)))
    for other in ("local", "pooled"):
        shares = frame[f"better_than_{other}"]
        cells = [words.percent(v) if m != other else "–" for m, v in zip(methods, shares, strict=True)]
        columns.append((f"better than {other}", cells))
    if "seconds" in frame:
        columns.append(("seconds", [words.number(v, 2) for v in frame["seconds"]]))
    return Table(
        title=f"Held-out {result.loss} and paired gains",
        columns=tuple(title for title, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        marked=methods.index(result.recommended) if result.recommended in methods else None,
        mark="best" if methods[0] == result.recommended else "recommended",
        note="Lower losses are better. Over clients, each client counts once, whatever its rows. "
        "Gains are paired by client, positive where a client is better off; one client can sway their mean.",
    )


def _gains(frame: pd.DataFrame, other: str) -> list[str]:
    names = (f"gain_over_{other}", f"gain_over_{other}_low", f"gain_over_{other}_high")
    values = frame[list(names)].to_numpy(dtype=np.float64)
    places = words.decimals(np.abs(values[:, 0]), 3)
    cells = []
    for method, (gain, low, high) in zip(frame.index, values, strict=True):
        cell = words.fixed(gain, places) if str(method) != other else "–"
        if cell != "–" and np.isfinite(low) and np.isfinite(high):
            cell += f" ({words.fixed(low, places)} to {words.fixed(high, places)})"
        cells.append(cell)
    return cells


def extremes_table(result: FitResult, limit: int = 8) -> Table:
    """The clients that gain and lose most over the baseline; all of them where they are few."""
    import pandas as pd

    other = words.baseline(result)
    frame: pd.DataFrame = result.client_gains
    gain = frame[f"gain_over_{other}"]
    frame = frame[gain.notna()].sort_values(f"gain_over_{other}", ascending=False, kind="stable")
    total, kept = len(frame), frame
    if total > 2 * limit:
        kept = pd.concat([frame.head(limit), frame.tail(limit)])
    many = words.several(result.model.client_name)
    cut = f"The {limit} {many} that gain most and the {limit} that gain least, of {total:,}."
    text = [words.one(result.model.client_name)]
    cells: list[list[str]] = [[words.short(v) for v in kept.index]]
    if result.model.levels and "cluster" in kept.columns:
        text.append(words.one(result.model.levels[0].name))
        cells.append([words.short(v) for v in kept["cluster"]])
    cells.append([f"{v:,}" for v in kept["rows"]])
    losses = ["loss_local", "loss_pooled", "loss_recommended"]
    seen = kept[losses].to_numpy(dtype=np.float64)
    places = words.decimals([float(np.median(seen))] if np.isfinite(seen).any() else [], 4)
    numbers = [*losses, "gain_over_local", "gain_over_pooled"]
    cells += [[words.fixed(v, places) for v in kept[name]] for name in numbers]
    titles = ("rows", "loss alone", "pooled", result.recommended, "gain over local", "gain over pooled")
    return Table(
        title="Who gains and who loses most",
        columns=(*text, *titles),
        rows=tuple(zip(*cells, strict=True)),
        texts=len(text),
        note=f"{cut if total > 2 * limit else f'All {total:,} {many}.'} Mean held-out {result.loss} of each.",
    )


def global_table(result: FitResult, limit: int = 60) -> Table:
    """Global coefficients with their standard errors."""
    frame = result.global_coefficients
    rows = [
        (words.short(t, 60), words.number(e, 4), words.number(s, 3))
        for t, e, s in frame.head(limit).itertuples(index=False, name=None)
    ]
    cut = f"The first {limit} of {len(frame):,} terms." if len(frame) > limit else ""
    return Table("Global coefficients", ("term", "estimate", "standard error"), tuple(rows), note=cut)


def cluster_table(result: FitResult, limit: int = 20, terms: int = 6) -> Table:
    """Coefficients of the clusters, the first ones where they are many."""
    frame = result.cluster_coefficients
    several = len(result.model.levels) > 1
    shown = frame.iloc[:limit, :terms]
    labels = [tuple(map(words.short, key)) if several else (words.short(key),) for key in shown.index]
    cells = [[words.fixed(v, words.decimals(shown[c])) for v in shown[c]] for c in shown.columns]
    rows = [(*label, *row) for label, row in zip(labels, zip(*cells, strict=True), strict=True)]
    cuts = [f"{limit} of {len(frame):,} clusters"] if len(frame) > limit else []
    cuts += [f"{terms} of {frame.shape[1]:,} terms"] if frame.shape[1] > terms else []
    names = ("level", "cluster") if several else (words.one(str(frame.index.name)),)
    note = f"The first {words.joined(cuts)}." if cuts else ""
    columns = (*names, *(words.short(c, 30) for c in shown.columns))
    return Table("Coefficients of the clusters", columns, tuple(rows), len(names), note=note)


def variance_table(result: FitResult, limit: int = 40) -> Table:
    """The variance components."""
    frame = result.variance_components
    own = "cluster" in frame
    pairs = bool((frame["term2"] != "").any())
    rows = []
    for entry in frame.head(limit).to_dict("records"):
        texts = [
            str(entry["level"]),
            *([words.short(entry["cluster"]) if entry["level"] == "client" else ""] if own else []),
            str(entry["term"]),
        ]
        texts += [str(entry["term2"])] if pairs else []
        rows.append((*texts, words.number(entry["sd"], 4), words.number(entry["cov"], 4)))
    columns = ("level", *(("cluster",) if own else ()), "term", *(("with",) if pairs else ()))
    notes = ["Of pairs: correlation and covariance."] if pairs else []
    notes += [f"The first {limit} of {len(frame):,} rows."] if len(frame) > limit else []
    spread = "standard deviation" if not pairs else "s.d. or correlation"
    last = (spread, "variance" if not pairs else "(co)variance")
    return Table("Variance components", (*columns, *last), tuple(rows), len(columns), note=" ".join(notes))


def render_text(table: Table, width: int = 100) -> str:
    """A table as plain text in characters that every terminal has, except for what the user's labels hold.

    Parameters
    ----------
    table : Table
    width : int, default 100
        Of the terminal, in characters. Where the table is wider, intervals go onto a line of their own, then the last
        columns are left out, and a line says which.

    Returns
    -------
    str
        With a ">" before the marked row, and the note below.
    """
    from io import StringIO

    from rich.console import Console
    from rich.table import Table as RichTable

    marks = [">" if i == table.marked else " " for i in range(len(table.rows))]
    rows = [
        [f"{mark} {first}", *(cell.translate(_ASCII) for cell in rest)]
        for mark, (first, *rest) in zip(marks, table.rows, strict=True)
    ]
    columns = [f"  {table.columns[0]}", *table.columns[1:]]
    if sum(_widths(columns, rows, 0)) > width:
        rows = [[first, *(cell.replace(" (", "\n(") for cell in rest)] for first, *rest in rows]
    keep = len(columns)
    while keep > 2 and sum(_widths(columns[:keep], rows, 0)) > width:
        keep -= 1
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, highlight=False, markup=False)
    grid = RichTable(box=_LINES, padding=0, pad_edge=False, show_edge=False)
    for j, size in enumerate(_widths(columns[:keep], rows, width)):
        grid.add_column(columns[j], justify="left" if j < table.texts else "right", width=size - 1)
    for row in rows:
        grid.add_row(*row[:keep])
    console.print(grid)
    if keep < len(columns):
        console.print(f"Not shown at this width: {', '.join(columns[keep:])}.")
    if table.note:
        console.print(table.note.translate(_ASCII))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


_ASCII = {ord("−"): "-", ord("–"): "-"}
_LINES = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def _widths(columns: list[str], rows: list[list[str]], width: int) -> list[int]:
    """Characters of each column, the gaps before and after included: no word and no line of a cell is broken.

    While there is room, headers stay on one line.
    """
    from rich.cells import cell_len

    sizes, wishes = [], []
    for j, column in enumerate(columns):
        cells = max((cell_len(line) for row in rows for line in row[j].split("\n")), default=0)
        indent = len(column) - len(column.lstrip())
        sizes.append(2 + max([cells, *(indent + cell_len(word) for word in column.split())]))
        wishes.append(2 + max(cells, cell_len(column)))
    for j, wish in enumerate(wishes):
        if sum(sizes) + wish - sizes[j] <= width:
            sizes[j] = wish
    return sizes


def render_html(table: Table) -> str:
    """A table as HTML, every cell escaped, in a box of its own that scrolls where the page is narrow."""
    from coterie.report.page import environment

    return environment().get_template("table.html").render(table=table)
