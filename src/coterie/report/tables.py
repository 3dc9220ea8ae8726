"""Tables to be read, in a terminal or on a page: of a fit, and of advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
from rich.box import Box

from coterie.errors import joined, plural
from coterie.report import words
from coterie.results.advice import Advice, client_position
from coterie.results.fit_result import FitResult
from coterie.results.inference import Summary


@dataclass(frozen=True)
class Table:
    """Cells ready to be read."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1  # so many first columns hold text; the others hold numbers and are aligned to the right
    marked: int | None = None  # the row that is singled out
    note: str = ""  # what a reader must know to read it: units, what was cut
    mark: str = "best"  # what the marked row is

    @classmethod
    def of(cls, title: str, columns: Iterable[tuple[str, Iterable[str]]], **more: Any) -> Table:
        """A table of columns, each a title and its cells."""
        titles, cells = zip(*columns, strict=True)
        return cls(title, titles, tuple(zip(*cells, strict=True)), **more)


def with_interval(frame: pd.DataFrame, column: str, shown: Callable[[float], str]) -> list[str]:
    """A column of a frame with the ends of its interval, where there is one: "0.12 (0.05 to 0.19)"."""
    ends = frame[[column, f"{column}_low", f"{column}_high"]].to_numpy(dtype=np.float64)
    return [
        f"{shown(value)} ({shown(low)} to {shown(high)})" if np.isfinite([value, low, high]).all() else shown(value)
        for value, low, high in ends
    ]


def but_for(method: str, frame: pd.DataFrame, cells: list[str]) -> list[str]:
    """Cells of a frame's methods, with a dash for the one that is compared with itself."""
    return ["–" if name == method else cell for name, cell in zip(frame.index, cells, strict=True)]


def comparison_table(result: FitResult) -> Table:
    """All methods, best first: held-out losses, paired gains with intervals, share of clients better off."""
    frame = result.comparison.sort_values("loss_rows", kind="stable")
    methods = [str(m) for m in frame.index]
    columns = [("method", methods)]
    places = words.decimals([*frame["loss_rows"], *frame["loss_clients"]])
    columns += [(f"loss over {who}", _fixed(frame[f"loss_{who}"], places)) for who in ("rows", "clients")]
    for other in ("local", "pooled"):
        cells = with_interval(frame, f"gain_over_{other}", _with(places))
        columns.append((f"gain over {other} (95% interval)", but_for(other, frame, cells)))
    for other in ("local", "pooled"):
        cells = [words.percent(v) for v in frame[f"better_than_{other}"]]
        columns.append((f"better than {other}", but_for(other, frame, cells)))
    columns.append(("seconds", [words.number(v, 2) for v in frame["seconds"]]))
    return Table.of(
        f"Held-out {result.loss} and paired gains",
        columns,
        marked=methods.index(result.recommended) if result.recommended in methods else None,
        mark="best" if methods[0] == result.recommended else "recommended",
        note="Lower losses are better. Over clients, each client counts once, whatever its rows. "
        "Gains are paired by client, positive where a client is better off; one client can sway their mean. "
        "Intervals are over clusters where there are three or more, else over clients.",
    )


def extremes_table(result: FitResult, limit: int = 8) -> Table:
    """The clients with the largest gains and losses on held-out rows; all of them where they are few."""
    gain = f"gain_over_{words.baseline(result)}"
    frame = result.client_gains
    frame = frame[frame[gain].notna()].sort_values(gain, ascending=False, kind="stable")
    many = words.several(result.model.client_name)
    note = f"All {words.counted(len(frame), result.model.client_name)}."
    if len(frame) > 2 * limit:
        note = f"The {limit} {many} that gain most and the {limit} that gain least, of {len(frame):,}."
    kept = _ends(frame, limit)
    columns = [(words.one(result.model.client_name), _labels(kept.index))]
    if result.model.levels and "cluster" in kept.columns:
        columns.append((words.one(result.model.levels[0].name), _labels(kept["cluster"])))
    texts = len(columns)
    columns.append(("rows", [f"{v:,}" for v in kept["rows"]]))
    titles = {"loss_local": "loss alone", "loss_pooled": "pooled", "loss_recommended": result.recommended}
    places = _of_losses(kept[list(titles)])
    titles |= {"gain_over_local": "gain over local", "gain_over_pooled": "gain over pooled"}
    columns += [(title, _fixed(kept[name], places)) for name, title in titles.items()]
    if (worse := f"worse_than_{words.baseline(result)}") in kept:
        columns.append(("beyond noise", ["loses" if loses else "–" for loses in kept[worse]]))
    note = f"{note} Mean held-out {result.loss} of each, noise included."
    return Table.of("The largest gains and losses on held-out rows", columns, texts=texts, note=note)


def cluster_table(result: FitResult, limit: int = 20, terms: int = 6) -> Table:
    """Coefficients of the clusters, the first ones where they are many."""
    frame = result.cluster_coefficients
    shown = frame.iloc[:limit, :terms]
    if len(result.model.levels) > 1:
        columns = [(name, _labels(shown.index.get_level_values(i))) for i, name in enumerate(("level", "cluster"))]
    else:
        columns = [(words.one(str(frame.index.name)), _labels(shown.index))]
    texts = len(columns)
    columns += [(words.short(c, 30), _fixed(shown[c], words.decimals(shown[c]))) for c in shown.columns]
    cuts = [f"{limit} of {plural(len(frame), 'cluster')}"] if len(frame) > limit else []
    cuts += [f"{terms} of {plural(frame.shape[1], 'term')}"] if frame.shape[1] > terms else []
    note = f"The first {joined(cuts)}." if cuts else ""
    return Table.of("Coefficients of the clusters", columns, texts=texts, note=note)


def coefficient_table(summary: Summary, limit: int = 60) -> Table:
    """Coefficients with their tests and intervals; those alone where a method has no standard errors."""
    frame = summary.coefficients.head(limit)
    columns = [("term", [words.short(t, 60) for t in frame.index]), ("estimate", _numbers(frame["estimate"], 4))]
    if frame["std_error"].notna().any():
        df = bool(np.isfinite(frame["df"]).any())
        columns.append(("standard error", _numbers(frame["std_error"])))
        columns += [("df", _numbers(frame["df"]))] if df else []
        columns.append(("t" if df else "z", _fixed(frame["t"], 2)))
        columns.append(("p", ["< 0.001" if v < 0.001 else words.fixed(v, 3) for v in frame["p"]]))
        columns.append((f"{100.0 * summary.level:g}% interval", _between(frame)))
    cut = (
        f"The first {limit} of {plural(len(summary.coefficients), 'term')}."
        if len(frame) < len(summary.coefficients)
        else ""
    )
    return Table.of("Global coefficients", columns, note=cut)


def variance_table(summary: Summary, limit: int = 40) -> Table:
    """Variances and correlations, with intervals where variances are known to be unsure."""
    frame = summary.variances.head(limit)
    names = {"level": "level", "cluster": "cluster", "term": "term", "term2": "with"}
    pairs = bool((frame["term2"] != "").any())
    columns = [
        (title, [words.short(v) if v != "" else "" for v in frame[name]])
        for name, title in names.items()
        if name in frame and (name != "term2" or pairs)
    ]
    texts = len(columns)
    columns.append(("s.d. or correlation" if pairs else "standard deviation", _numbers(frame["sd"], 4)))
    known = frame["lower"].notna().any()
    columns += [(f"{100.0 * summary.level:g}% interval", _between(frame))] if known else []
    columns.append(("(co)variance" if pairs else "variance", _numbers(frame["cov"], 4)))
    notes = ["Of pairs: correlation and covariance."] if pairs else []
    notes += ["Intervals of s.d. are chi-squared, by Satterthwaite."] if known else []
    cut = f"The first {limit} of {plural(len(summary.variances), 'row')}."
    notes += [cut] if len(frame) < len(summary.variances) else []
    return Table.of("Variance components", columns, texts=texts, note=" ".join(notes))


def summary_text(summary: Summary, width: int = 100) -> str:
    """A summary as plain text."""
    facts = "".join(f"{name}: {text}\n" for name, text in summary.facts.items())
    shown = [coefficient_table(summary)] + [variance_table(summary)] * (len(summary.variances) > 0)
    notes = "".join(f"Note: {note}\n" for note in summary.notes)
    return "\n".join([f"{summary.title}\n{facts}", *(render_text(table, width) for table in shown), notes]).rstrip("\n")


def _numbers(values: Iterable[float], digits: int = 3) -> list[str]:
    return [words.number(v, digits) for v in values]


def _between(frame: pd.DataFrame) -> list[str]:
    ends = zip(frame["lower"], frame["upper"], strict=True)
    return [f"{words.number(a, 4)} to {words.number(b, 4)}" if np.isfinite([a, b]).all() else "" for a, b in ends]


def advice_table(advice: Advice, limit: int = 8) -> Table:
    """Clients by predicted speed-up, or by what they gain: all where they are few, else so many of either end."""
    by = next((key for key in ("speedup", "gain") if key in advice.clients), None)
    every = advice.clients if by is None else advice.clients.sort_values(by, ascending=False, kind="stable")
    name, frame, note = str(every.index.name), _ends(every, limit), ""
    if len(frame) < len(every):
        what = "predicted speed-up" if by == "speedup" else "gain"
        note = f"The {limit} {words.several(name)} with the largest {what} and the {limit} with the smallest"
        note += f", of {len(every):,}. "
    columns = [(words.one(name), _labels(frame.index))]
    if "rows" in frame:
        columns.append(("rows", [f"{v:,}" for v in frame["rows"]]))
    if by == "speedup":
        note += "Speed-up: as if a client had so many times its rows."
        columns.append(("from", [f"{v:,}" for v in frame["collaborators"]]))
        columns.append(("their weight", [words.percent(v) for v in frame["alpha"]]))
        columns.append(("speed-up", _fixed(frame["speedup"], 2)))
    if "best" in frame:
        columns.append(("best by its rows", [str(v) for v in frame["best"]]))
    if "gain" in frame:
        together = advice.settings.get("method", "together")
        losses = {"loss_alone": "alone", "loss_together": together, "loss_pooled": "pooled"}
        places = _of_losses(frame[list(losses)])
        if "predicted_gain" in frame:
            columns.append(("predicted gain", _fixed(frame["predicted_gain"], places)))
        columns.append(("measured gain", with_interval(frame, "gain", _with(places))))
        columns += [(title, _fixed(frame[loss], places)) for loss, title in losses.items()]
        note += f" Mean held-out {advice.loss}; gains are over being alone"
        note += f", with 95% intervals over {advice.repeats}." if frame["gain_low"].notna().any() else "."
    title = "With whom to collaborate" if by == "speedup" else "Who gains by collaborating"
    return Table.of(title, columns, note=note.strip())


def collaborators_table(advice: Advice, client: Any) -> Table:
    """A client's own weight and those of its collaborators, or where none are chosen what is known of it.

    A CoterieError for an unknown client.
    """
    labels = advice.clients.index
    at, noun = client_position(labels, str(labels.name), client), words.one(str(labels.name))
    if "speedup" not in advice.clients:
        return advice_table(replace(advice, clients=advice.clients.iloc[[at]]))
    frame = advice.of(client)
    own = 1.0 - float(frame["weight"].sum())
    columns = [(noun, [f"{words.short(client)} itself", *_labels(frame["collaborator"])])]
    columns.append(("weight", _fixed([own, *frame["weight"]], 3)))
    note = "Weights of mean losses: they add up to 1."
    return Table.of(f"With whom {words.short(client)} should collaborate", columns, note=note)


def _ends(frame: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The first and last rows of a frame; all of it where they are not fewer."""
    return frame if len(frame) <= 2 * limit else frame.iloc[[*range(limit), *range(-limit, 0)]]


def _labels(values: Iterable[object]) -> list[str]:
    return [words.short(v) for v in values]


def _with(places: int) -> Callable[[float], str]:
    return lambda value: words.fixed(value, places)


def _fixed(values: Iterable[float], places: int) -> list[str]:
    return [words.fixed(v, places) for v in values]


def _of_losses(frame: pd.DataFrame) -> int:
    """Decimals for losses of clients, and for what is gained of them: those that suit the median."""
    losses = frame.to_numpy(dtype=np.float64)
    losses = losses[~np.isnan(losses)]
    return words.decimals([float(np.median(losses))], 4) if np.isfinite(losses).any() else 0


def render_text(table: Table, width: int = 100) -> str:
    """A table as plain text, ">" before the marked row and the note below.

    All characters are those that every terminal has, except for what the user's labels hold. Where the table is wider
    than the terminal, intervals go onto a line of their own, then the last columns are left out, and a line says which.
    """
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
    sizes = _widths(columns[:keep], rows, width)
    for j, size in enumerate(sizes):
        folds = 0 < j < table.texts and sum(sizes) > width  # names stay whole, and sentences give way
        grid.add_column(columns[j], justify="left" if j < table.texts else "right", width=None if folds else size - 1)
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
