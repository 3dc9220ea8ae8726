"""Tables of methods that were trained: the comparison, settings, groups and their gradients."""

from __future__ import annotations

import numpy as np
import pandas as pd

from coterie.errors import plural
from coterie.evidence.training_comparison import TrainingComparison
from coterie.methods.groups.group_gradients import ROWS, Growth
from coterie.relations.clusters import adjusted_rand_index
from coterie.report import words
from coterie.report.tables import Table, but_for, with_interval
from coterie.report.training_answer_and_notes import headline, intervals, meanings, named, percent, score_format

GROUPS = 24
"""A table has so many groups at most."""


def comparison_table(result: TrainingComparison) -> Table:
    """All methods, best first: scores with intervals, paired differences to the best, what was sent.

    Accuracies and their differences are in percent.
    """
    frame, score = result.table, result.score
    names = [str(name) for name in frame.index]
    shown = score_format(result)
    if not result.known:
        return Table.of("What was trained", [("method", names), *_costs(frame)], note=headline(result))
    tail = "10th percentile" if result.rule.sign > 0 else "90th percentile"
    columns = [("method", names)]
    for column in (score, *(["to_best"] if len(names) > 1 else []), *result.others):
        title = f"{named(column)}{', %' if percent(column) else ''} (95% interval)"
        cells = with_interval(frame, column, score_format(result, score if column == "to_best" else column))
        if column == "to_best":
            title, cells = f"against {result.best} (95% interval)", but_for(result.best, frame, cells)
        columns.append((title, cells))
    for key, title in (("clients", "over clients"), ("worst", "worst client"), (tail[:4], tail)):
        columns.append((title, [shown(v) for v in frame[f"{score}_{key}"]]))
    for key, title in (("variance", "variance"), ("jain", "Jain's index")) if result.config.model["metrics"] else ():
        columns.append((title, [words.number(v, 3) for v in frame[f"{score}_{key}"]]))
    columns += _costs(frame)
    return Table.of(
        f"Held-out {named(score)} of every client's model",
        columns,
        marked=names.index(result.best) if len(names) > 1 else None,
        note=" ".join([intervals(result), *meanings(result), f"Configuration {result.fingerprint}."]),
    )


def _costs(frame: pd.DataFrame) -> list[tuple[str, list[str]]]:
    sent = [words.amount(v) if np.isfinite(v) else "all rows" for v in frame["bytes"]]
    return [("sent", sent), ("seconds", [words.number(v, 2) for v in frame["seconds"]])]


def settings_table(result: TrainingComparison) -> Table:
    """Hyper-parameters of each method."""
    rows = []
    for name in map(str, result.table.index):
        among = result.tried.get(name)
        rows.append((name, result.table["chosen"][name], str(among) if among else "–"))
    note = "Where there were several settings, each seed took the one that was best on training rows that were held out"
    note = f"{note} for this choice alone; test rows chose nothing." if result.tried else ""
    return Table("Hyper-parameters", ("method", "hyper-parameters", "chosen among"), tuple(rows), texts=2, note=note)


def confusion_table(result: TrainingComparison, name: str) -> Table:
    """Found groups of a method against the known ones, of the first seed; and how well they agree in every seed."""
    pairs = [(r.group, k) for r, k in zip(result.runs[name], result.groups, strict=True)]
    found, known = pairs[0]
    if known is None:
        sizes = np.unique(found, return_counts=True)
        rows = tuple((f"group {g + 1}", f"{n:,}") for g, n in zip(*sizes, strict=True))
        note = f"No groups are known.{' All clients are in one group: one model serves all.' * (len(rows) == 1)}"
        return Table(f"Groups that {name} found", ("found", "clients"), rows, note=note)
    table = np.zeros((int(found.max()) + 1, int(known.max()) + 1), dtype=np.int64)
    np.add.at(table, (found, known), 1)
    some = np.flatnonzero(table.sum(axis=1))
    counted = tuple((f"group {g + 1}", *(f"{v:,}" for v in table[g])) for g in some)
    rand = ", ".join(f"{adjusted_rand_index(f, k):.2f}" for f, k in pairs if k is not None)
    columns = ("found", *(f"known {k + 1}" for k in range(table.shape[1])))
    note = f"Clients, of the first seed. Adjusted Rand index of every seed: {rand}; 1 is all right, 0 is chance."
    return Table(f"Groups that {name} found, and known ones", columns, counted, note=note)


def growth_table(name: str, found: Growth) -> Table:
    """Stationarity, noise and the constant of the growth condition of every group, of the first seed."""
    order = np.sort(np.argsort(-found.constant, kind="stable")[:GROUPS])
    columns = [("group", [f"group {g + 1}" for g in order])]
    for title, values in (
        ("squared gradient at first", found.gradient[0]),
        ("in the end", found.gradient[-1]),
        ("noise in the end", found.noise[-1]),
        ("M in the end", found.now[-1]),
        ("largest M", found.constant),
    ):
        columns.append((title, [words.number(float(values[g]), 3) for g in order]))
    note = "Of the first seed. Squared gradients are of the groups' own mean losses; noise is the variance of their"
    note += " stochastic gradients, 0 where steps take all rows. Growth condition: in the shared layers, a group's"
    note += " gradient is off the sum's by at most M times the sum's gradient, both squared; while M stays bounded, a"
    note += f" stationary point of the sum is one of every group. A look reads {ROWS:,} rows of a client at most."
    many = len(found.constant) - len(order)
    note += f" {plural(many, 'group')} with a smaller M are left out." if many > 0 else ""
    return Table.of(f"Groups' own gradients: {name}", columns, note=note)


def growths(result: TrainingComparison) -> dict[str, Growth]:
    """What was looked at of the groups' own gradients, of the first seed, by method."""
    seen = {name: Growth.of(runs[0].curve) for name, runs in result.runs.items()}
    return {name: found for name, found in seen.items() if found is not None}
