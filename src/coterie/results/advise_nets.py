"""Advice on nets: which method held-out rows say is best, and for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import CoterieError, listed
from coterie.evidence.comparison import BASELINES
from coterie.evidence.intervals import over_splits
from coterie.evidence.training_comparison import TrainingComparison
from coterie.results.advice import Advice


def advise(found: TrainingComparison) -> Advice:
    """What a comparison of trained methods advises: the best beside `local` and `pooled`, and whom it helps."""
    sign, name = found.rule.sign, found.score
    if not {*BASELINES} <= {*found.methods}:
        raise CoterieError("Heads of other shapes have no `local` and `pooled` to compare with: see coterie.compare.")
    runs = found.runs["local"]
    labels = list(dict.fromkeys(label for run in runs for label in run.labels))

    def losses(method: str) -> pd.DataFrame:
        """Of every client (seeds, clients), so that less is better."""
        values = found.clients(method)
        rows = [dict(zip(run.labels, row, strict=True)) for run, row in zip(runs, values, strict=True)]
        return pd.DataFrame([{k: 1.0 - v if sign > 0 else v for k, v in one.items()} for one in rows], columns=labels)

    others = [method for method in found.methods if method not in BASELINES]
    best = max(others, key=lambda m: np.nan_to_num(sign * found.values(m).mean(), nan=-np.inf))
    each = {method: losses(method) for method in found.methods}
    gain = each["local"] - each[best]
    low, high = over_splits(gain.to_numpy(), found.config.data["test"] / (1.0 - found.config.data["test"]))
    by = pd.DataFrame({method: one.mean() for method, one in each.items()})
    some = by.dropna()
    frame: dict[str, Any] = {
        "best": some.idxmin(axis=1).reindex(by.index),
        "loss_alone": by["local"],
        "loss_together": by[best],
    }
    frame |= {"loss_pooled": by["pooled"], "gain": gain.mean(), "gain_low": low, "gain_high": high}
    clients = pd.DataFrame(frame, index=pd.Index(labels, name="client"))
    table = found.table
    evidence = pd.DataFrame({"loss_rows": 1.0 - table[name] if sign > 0 else table[name]})
    evidence = evidence.rename(index={best: "together"}).join(table.rename(index={best: "together"}))
    tally = clients["best"].value_counts()
    counts = listed(f"{method} for {n:,}" for method, n in tally.items())
    notes = [
        f"Over all held-out rows {found.best} does best of {len(found.methods)} methods.",
        f"By its own held-out rows alone the best method of a client is {counts}; so few rows tell little, and what "
        "the method does on average is the better guide.",
        "A net has no one optimum, by whose curvature theory would say with whom to collaborate and what that is "
        "worth: name main clients, and weighted-averaging is compared, too.",
    ]
    settings = {"method": best, "seed": found.config.run["seeds"][0], "recommended": found.best, "notes": notes}
    return Advice(
        clients, pd.DataFrame(columns=["client", "collaborator", "tau", "weight"]), evidence,
        f"1 - {name}" if sign > 0 else name, settings,
    )  # fmt: skip
