"""The main job in one call: from a grouped table to the best model for every client, with evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients, mean_weight
from coterie.data.columns import at_rows
from coterie.data.prepare_table import prepare
from coterie.data.sort_keys import sort_keys
from coterie.data.table import Table, as_name, as_names
from coterie.errors import CoterieError
from coterie.evidence.splits import need_groups
from coterie.options import declared
from coterie.results.fitting import Fitting
from coterie.results.options import Options
from coterie.results.result import FitResult
from coterie.runs.labelled_networks import by_position
from coterie.runs.labelled_options import LeftOut, aligned

if TYPE_CHECKING:
    import pandas as pd


def fit(
    df: Any,
    formula: str,
    client: str,
    cluster: str | Sequence[str] | None = (),
    *,
    family: str = "gaussian",
    shared: str | Sequence[str] | None = (),
    covariance: str = "auto",
    method: str = "auto",
    splits: int = 5,
    test_fraction: float = 0.25,
    order_by: str | None = None,
    split_by: str | None = None,
    seed: int = 0,
    reml: bool = True,
    cluster_variance: str = "common",
    residual: str = "common",
    gamma: Any = None,
    lam: Any = None,
    alpha: Any = None,
    rounds: int | Mapping[str, Any] | None = None,
    network: Mapping[str, Any] | None = None,
    offset: str | None = None,
    weights: str | None = None,
    missing: str = "error",
) -> FitResult:
    """Fit the best model for every client, and show that it is the best.

    Parameters
    ----------
    df : DataFrame
        pandas or polars; one row for each observation.
    formula : str
        ``outcome ~ columns``, as in R.
    client : str
        The column that says whose row it is. Labels that differ only in white space around them, or in the Unicode
        form of accents, are one.
    cluster : str or sequence of str, optional
        Columns of known clusters of clients, fine to coarse.
    family : str, default "gaussian"
        What an outcome is: "gaussian" for numbers; the others are in ``coterie.families.FAMILIES``.
    shared : str or sequence of str, optional
        Terms with one coefficient for all clients. Columns that do not vary within any client are always shared.
    covariance : {"auto", "isotropic", "two", "diagonal", "full"}, default "auto"
        How clients vary around their cluster (and clusters around theirs): one variance, one for intercepts and one
        for slopes, one for each term, or with correlations; the first two in standard units of the columns. "auto"
        chooses by marginal likelihood with a penalty.
    method : str, default "auto"
        "hierarchical", "local", "pooled", "own-intercept", "clusterwise", "single-cluster", "given-strengths",
        "james-stein", "async-l2gd", "async-al2sgd", "similarity-network", "weighted-averaging", "bias-correction", or
        one that trains, such as "fedavg", "ditto" or "ifca" (:data:`coterie.methods.registry.FITTED` has all). "auto"
        takes the one with the lowest held-out loss; where that ignores the clusters, one with them that may be as good.
    splits : int, default 5
        Repeated splits inside each client for the evidence; 0 compares nothing, and "auto" is then "hierarchical" (or
        "given-strengths").
    test_fraction : float, default 0.25
    order_by : str, optional
        Test on each client's latest rows by this column instead (one split). Dates and numbers in text are read; see
        :func:`coterie.data.sort_keys.sort_keys`.
    split_by : str, optional
        Keep rows with the same value of this column (a person's) on one side of a split.
    seed : int, default 0
    reml : bool, default True
        Restricted likelihood, for a Gaussian outcome.
    cluster_variance : {"common", "own"}, default "common"
        "own" gives each finest cluster its own client variances.
    residual : {"common", "by-client"}, default "common"
        One residual variance, or one for each client (Gaussian).
    gamma, lam, alpha : float, sequence of float (a grid), or mapping from labels (of lam from levels, too), optional
        Strengths that are given instead of learned: of the ties of clients to their cluster (gamma) and of clusters to
        their parent (lam, or alpha in the paper's other form); solved exactly, as the method "given-strengths". The
        best of a grid is chosen by held-out rows, inside the training rows of every split. The methods over rounds
        learn what is not given.
    rounds : int or mapping, optional
        How many, or options of a method over rounds: ``{"rounds": 50, "eta": 0.1}`` of "ditto" and others that train,
        ``{"steps": 20000, "coordinator": "peers"}`` for known clusters; see
        :class:`coterie.methods.local_training.fit.Rounds`,
        :class:`coterie.methods.clustered_l2gd.options.Options` and, for main clients and their collaborators,
        :class:`coterie.methods.collaboration.options.Options`; on a network
        :class:`coterie.methods.networks.options.Run`. Theory, or the smoothness of the losses, chooses what is
        left out.
    network : mapping, optional
        Which clients are alike, for the method "similarity-network", which is then compared with the others:
        ``{"space": "model", "k": 5}``, ``{"edges": pairs of labels}`` or ``{"covariates": ["size", "sector"]}``; see
        :class:`coterie.methods.networks.options.Asked` and
        :class:`coterie.methods.networks.similarity.Similarity`.
    offset, weights : str, optional
        Columns added to the linear predictor, and of row weights: precisions relative to their mean, not counts.
    missing : {"error", "drop"}, default "error"
        What to do with rows that have missing or infinite values in columns that are used.

    Returns
    -------
    FitResult

    Raises
    ------
    CoterieError
        One sentence for whatever is wrong with the table or the options.

    Examples
    --------
    >>> result = coterie.fit(df, "mAch ~ cses", client="school", cluster="sector")  # doctest: +SKIP
    >>> result.comparison  # doctest: +SKIP
    """
    arguments = dict(locals()) | {"rounds": {} if rounds is None else rounds}
    start = perf_counter()
    table = Table.of(df)
    client, cluster = as_name("client", client), as_names("cluster", cluster)
    arguments["shared"] = as_names("shared", shared)
    for what, name in (("order_by", order_by), ("split_by", split_by)):
        as_names(what, name)
    options = Options(**{name: arguments[name] for name in declared(Options)})
    clients, design = prepare(table, formula, client, cluster, family, offset, weights, missing)  # type: ignore[arg-type]
    order, groups = _column(table, order_by, clients), _column(table, split_by, clients)
    if order is not None and options.splits:
        order, notes = _ordered(clients, order, str(order_by))
        clients = replace(clients, notes=(*clients.notes, *notes))
    if split_by is not None and options.splits:
        need_groups(clients, groups, split_by)
    left_out = LeftOut.of(clients, {name: table[name].series for name in cluster})
    ties = aligned(clients, {"gamma": gamma, "lam": lam, "alpha": alpha}, left_out)
    network = None if options.network is None else by_position(clients, options.network, table.frame)
    options = replace(options, network=network, strengths=ties, order=order, groups=groups)
    settings = {"formula": formula, "client": client, "cluster": list(cluster), "offset": offset}
    settings |= {"weights": weights, "order_by": order_by, "split_by": split_by, "missing": missing}
    if (given := table.frame.attrs.get("coterie", {}).get("na_values")) is not None:
        settings["na_values"] = given
    mean = 1.0 if weights is None else mean_weight(table[weights].floats[clients.order])
    fitting = Fitting(clients, design, formula, options, settings, offset, weights, mean)
    used = [*design.parsed.outcome_columns, *design.columns, client, *cluster]
    used += [name for name in (offset, weights, order_by, split_by) if name is not None]
    return fitting.result(start, table.fingerprint(used))


def compare(
    df: Any, formula: str, client: str, cluster: str | Sequence[str] | None = (), **options: Any
) -> pd.DataFrame:
    """Only the comparison of :func:`fit`, with the same arguments: a row for each method."""
    if options.get("splits", 5) == 0:
        raise CoterieError("A comparison needs at least one split.")
    return fit(df, formula, client, cluster, **options).comparison


def _ordered(clients: Clients, values: Any, name: str) -> tuple[Any, list[str]]:
    """What rows are sorted by (n,), and what to say of it."""
    order, note = sort_keys(values, name)
    notes = [] if note is None else [note]
    least, most = (f.reduceat(order, clients.starts) for f in (np.minimum, np.maximum))
    if still := int(((least == most) & (clients.counts > 1)).sum()):
        notes.append(
            f"All rows of {still:,} of {len(clients):,} clients ({clients.name}) have the same '{name}': those held "
            "out are the last in the table."
        )
    return order, notes


def _column(table: Table, name: str | None, clients: Clients) -> Any:
    """A column to split rows by, sorted like the clients' rows."""
    if name is None:
        return None
    table.need([name], "split")
    column = table[name]
    missing = np.zeros(len(table), dtype=bool)
    missing[clients.order] = column.missing[clients.order]
    if missing.any():
        texts = f", where {column.read_as_missing}" if column.read_as_missing else ""
        raise CoterieError(
            f"Column '{name}' has missing values in {at_rows(missing)}{texts}: these cannot be split by it."
        )
    return column.series.iloc[clients.order]
