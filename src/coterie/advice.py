"""Which client should collaborate, with whom or by which method: of a table, of the sites of a federation, of nets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie import api, files
from coterie.data.table import as_names
from coterie.data.table_files import read_table
from coterie.deployment import federated_fit
from coterie.deployment.federation_toml import is_federation
from coterie.errors import CoterieError, listed
from coterie.evidence.comparison import BASELINES
from coterie.evidence.intervals import over_splits
from coterie.evidence.training_comparison import TrainingComparison
from coterie.options import declared
from coterie.results import table_advice
from coterie.results.advice import Advice
from coterie.results.fit_options import Options
from coterie.results.training_result import TrainingResult
from coterie.runs.config_keys import Torch

_OF_TABLES = ("family", "collaborators", "within", "prior", "splits", "order_by", "split_by", "offset", "weights")


def advise(
    rows: Any,
    model: str | Torch | None = None,
    client: Any = None,
    cluster: str | Sequence[str] | None = (),
    *,
    family: str = "gaussian",
    collaborators: int = 10,
    within: str = "all",
    prior: Any = "auto",
    splits: int | None = None,
    test_fraction: float = 0.25,
    seed: int | Sequence[int] = 0,
    order_by: str | None = None,
    split_by: str | None = None,
    offset: str | None = None,
    weights: str | None = None,
    missing: str = "error",
    engine: Any = "auto",
    **net: Any,
) -> Advice:
    """Say with whom every client should collaborate, what it is predicted to gain, and what held-out rows say of that.

    A client collaborates by weighted gradient averaging: its model minimises
    ``(1 - alpha) f_0 + alpha sum_k tau_k f_k``, f_k being mean losses. Weights are chosen by theory from gradients
    (:func:`coterie.methods.collaboration.choose_collaborators.choose`), in every split from its training rows only.
    Of a net, which has no optimum by which theory would choose, held-out rows say which method is best, and for whom.

    Parameters
    ----------
    rows : DataFrame, arrays or path
        What :func:`coterie.fit` takes: a table or its file, rows of nets, a configuration of one, or the folder of a
        federation, whose sites hold rows out themselves, and answer no more than their owners let leave.
    model : str or Torch
        ``outcome ~ columns``, as in R, all of whose coefficients are a client's own; or a net.
    client : str
        The column that says whose row it is. Over sites every site is one by default.
    cluster : str or sequence of str, optional
        Columns of known clusters, fine to coarse: clients are then expected to resemble those of their finest cluster.
    family : str, default "gaussian"
        A name of ``families.FAMILIES``.
    collaborators : int, default 10
        Collaborators of a client at most.
    within : {"all", "cluster"}, default "all"
        Where collaborators are looked for.
    prior : "auto", "none" or number, default "auto"
        How many rows of mean curvature pull every model to the pooled one, those of clients alone as those with
        collaborators, so that gains are not the prior's. auto takes none for a Gaussian outcome and one row at most for
        classes and counts, so that separated outcomes stay finite.
    splits : int, optional
        Repeated splits inside each client for what is measured, by default 5, over sites 1; 0 measures nothing.
    test_fraction : float, default 0.25
    seed : int or, for nets, sequence of int, default 0
        Of the splits; nets are trained for each seed, and three or more give intervals of every client.
    order_by, split_by : str, optional
        Test on each client's latest rows by a column (one split), or keep rows with the same value on one side; a
        federation's sites hold out rows by the seed alone.
    offset, weights : str, optional
        Columns added to the linear predictor, and of row weights.
    missing : {"error", "drop"}, default "error"
    engine : mapping, optional
        Of a federation the ``name`` of the run and a ``timeout``; of nets as for :func:`coterie.fit`.
    **net
        Of nets: ``group``, ``network``, ``personal``, ``rounds`` and all else that :func:`coterie.compare` takes.

    Returns
    -------
    Advice

    Raises
    ------
    CoterieError
        One sentence for whatever is wrong with the rows or the options.

    Examples
    --------
    >>> advice = coterie.advise(df, "mAch ~ cses", client="school")  # doctest: +SKIP
    >>> advice.clients.sort_values("speedup")  # doctest: +SKIP
    >>> coterie.advise("heart/", "disease ~ age", family="binomial").sentences  # doctest: +SKIP
    >>> coterie.advise("digits", coterie.Torch("mlp"), personal=["head*"], seed=[0, 1, 2]).sentences  # doctest: +SKIP
    """
    given = dict(locals())
    of_table = {name: given[name] for name in _OF_TABLES}
    if isinstance(model, Torch) or (model is None and str(rows).endswith(".toml")):
        plain = dict(zip(_OF_TABLES, ("gaussian", 10, "all", "auto", *[None] * 5), strict=True))
        if wrong := [name for name in _OF_TABLES if of_table[name] != plain[name]]:
            raise CoterieError(f"{listed(wrong)} {'is' if len(wrong) == 1 else 'are'} for a formula: leave that out.")
        asked = {"test_fraction": test_fraction, "seed": seed, "engine": engine, **net} if model is not None else net
        found = api.compared(rows, *([] if model is None else [model, client]), methods="auto", **asked)
        if not isinstance(found, TrainingResult):
            raise CoterieError("A configuration of a table gives no advice: give the table, and the formula.")
        return of_nets(found.evidence)
    if net:
        raise CoterieError(f"{listed(net)} {'is' if len(net) == 1 else 'are'} for coterie.Torch: leave that out.")
    if not isinstance(model, str):
        raise CoterieError("Say what a client's model is, after the rows: a formula, or coterie.Torch(...).")
    if is_federation(rows):
        told = of_table | {"client": client, "cluster": list(as_names("cluster", cluster)), "seed": seed}
        told |= {"test_fraction": test_fraction, "missing": missing, "engine": {} if engine == "auto" else engine}
        return federated_fit.advise(rows, model, told)
    if client is None:
        raise CoterieError("A formula needs client: name the column that says whose row it is.")
    levels = as_names("cluster", cluster)
    if engine != "auto":
        raise CoterieError("Advice on a table is worked out in this process: leave engine out.")
    if splits is None:
        splits = declared(Options)["splits"].default
    how: dict[str, Any] = {"splits": splits, "test_fraction": test_fraction, "seed": seed}
    how |= {"order_by": order_by, "split_by": split_by}
    table_advice.check_call(model, levels, family, prior, collaborators, within, missing, **how)
    if isinstance(rows, (str, Path)):
        if files.local(rows).is_dir():
            raise CoterieError(f"'{rows}' is a folder, and none of a federation: name a table in it.")
        rows = read_table(rows, [name for name in (client, *levels, split_by) if name is not None])
    options = of_table | how | {"missing": missing}
    return table_advice.advise(rows, model, client, levels, **options)


def of_nets(found: TrainingComparison) -> Advice:
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
