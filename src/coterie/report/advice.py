"""Advice as tables to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report import words
from coterie.report.tables import Table

if TYPE_CHECKING:
    from coterie.results.advice import Advice


def advice_table(advice: Advice, limit: int = 8) -> Table:
    """Clients by predicted speed-up: all of them where they are few, else the ends.

    Parameters
    ----------
    advice : Advice
    limit : int, default 8
        Clients of either end.

    Returns
    -------
    Table
    """
    import pandas as pd

    frame = advice.clients.sort_values("speedup", ascending=False, kind="stable")
    total, name = len(frame), str(frame.index.name)
    many, note = words.several(name), "speed-up: as if a client had so many times its rows."
    if total > 2 * limit:
        frame = pd.concat([frame.head(limit), frame.tail(limit)])
        note = (
            f"The {limit} {many} with the largest predicted speed-up and the {limit} with the smallest, of {total:,}; "
        )
        note += "as if each had so many times its rows."
    columns: list[tuple[str, list[str]]] = [(words.one(name), [words.short(v) for v in frame.index])]
    columns += [("rows", [f"{v:,}" for v in frame["rows"]]), ("from", [f"{v:,}" for v in frame["collaborators"]])]
    columns += [("their weight", [words.percent(v) for v in frame["alpha"]])]
    columns += [("speed-up", [words.fixed(v, 2) for v in frame["speedup"]])]
    if "gain" in frame:
        columns += _measured(frame)
        note += f" Mean held-out {advice.loss}; gains over being alone, with 95% intervals over splits."
    note = note[:1].upper() + note[1:]
    rows = tuple(zip(*(cells for _, cells in columns), strict=True))
    return Table("With whom to collaborate", tuple(title for title, _ in columns), rows, note=note)


def _measured(frame: Any) -> list[tuple[str, list[str]]]:
    losses = frame[["loss_alone", "loss_together", "loss_pooled"]].to_numpy(dtype=np.float64)
    places = words.decimals([float(np.nanmedian(losses))] if np.isfinite(losses).any() else [], 4)
    titles = ("alone", "together", "pooled")
    columns = [(title, [words.fixed(v, places) for v in losses[:, j]]) for j, title in enumerate(titles)]
    gains = []
    for gain, low, high in frame[["gain", "gain_low", "gain_high"]].itertuples(index=False, name=None):
        cell = words.fixed(gain, places)
        if np.isfinite(low) and np.isfinite(high):
            cell += f" ({words.fixed(low, places)} to {words.fixed(high, places)})"
        gains.append(cell)
    predicted = [words.fixed(v, places) for v in frame["predicted_gain"]]
    return [("predicted gain", predicted), ("measured gain", gains), *columns]


def collaborators_table(advice: Advice, client: Any) -> Table:
    """A client's own weight and those of its collaborators; a CoterieError for an unknown one."""
    frame, noun = advice.of(client), words.one(str(advice.clients.index.name))
    own = 1.0 - float(frame["weight"].sum())
    rows = [(f"{words.short(client)} itself", words.fixed(own, 3))]
    rows += [(words.short(c), words.fixed(w, 3)) for c, w in zip(frame["collaborator"], frame["weight"], strict=True)]
    note = "Weights of mean losses: they add up to 1."
    return Table(f"With whom {words.short(client)} should collaborate", (noun, "weight"), tuple(rows), note=note)
