"""Which client should collaborate, with whom or by which method: of a table, of the sites of a federation, of nets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import api, files
from coterie.data.table import as_names
from coterie.data.table_files import read_table
from coterie.deployment import calls_over_sites
from coterie.deployment.federation_toml import is_federation
from coterie.errors import CoterieError, checked_call, listed
from coterie.options import declared, need_names
from coterie.results.advice import Advice
from coterie.results.call_as_config import is_of_table
from coterie.results.fit_options import Options
from coterie.results.make_advice import advise_on_nets, advise_on_table, check_call
from coterie.runs.config import document
from coterie.runs.config_keys import Torch


@checked_call
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
    seed: int | Sequence[int] | None = None,
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
    seed : int or, for nets, sequence of int, optional
        Of the splits, by default 0, or that of the federation; nets are trained for each seed, and three or more give
        intervals of every client.
    order_by, split_by : str, optional
        Test on each client's latest rows by a column (one split), or keep rows with the same value on one side.
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
    arguments = dict(locals())
    for name in ("rows", "model", "net"):
        del arguments[name]
    if isinstance(model, Torch) or (model is None and (isinstance(rows, Mapping) or str(rows).endswith(".toml"))):
        given = api.given_in(advise, arguments)
        sections = None if model is not None or given else rows if isinstance(rows, Mapping) else document(rows)
        if sections and is_of_table(sections):
            raise CoterieError("A configuration of a table gives no advice: give the table, and the formula.")
        need_none([name for name in ("collaborators", "within", "prior") if name in given], "a formula")
        found: Any = api.compared(rows, model, methods="auto", **given, **net)
        return advise_on_nets(found.evidence)
    need_names("advise()", net, dict.fromkeys([*arguments, *inspect.signature(api.fit).parameters]), "argument")
    need_none([*net], "coterie.Torch")
    if not isinstance(model, str):
        raise CoterieError(api.NO_MODEL)
    levels = as_names("cluster", cluster)
    if is_federation(rows):
        told = arguments | {"cluster": list(levels), "engine": {} if engine == "auto" else engine}
        return calls_over_sites.advise(rows, model, told)
    if client is None:
        raise CoterieError("A formula needs client: name the column that says whose row it is.")
    if engine != "auto":
        raise CoterieError("Advice on a table is worked out in this process: leave engine out.")
    how: dict[str, Any] = {"test_fraction": test_fraction, "order_by": order_by, "split_by": split_by}
    how["seed"], how["splits"] = seed or 0, declared(Options)["splits"].default if splits is None else splits
    asked, held_out = check_call(model, levels, family, prior, collaborators, within, missing, **how)
    if isinstance(rows, (str, Path)):
        if files.place(rows).is_dir():
            raise CoterieError(f"'{rows}' is a folder, and none of a federation: name a table in it.")
        rows = read_table(rows, [name for name in (client, *levels, split_by) if name is not None])
    return advise_on_table(rows, model, client, levels, offset, weights, missing, asked, held_out)


def need_none(given: list[str], kind: str) -> None:
    """Raise for what is ``given`` and goes with the other kind of model."""
    if given:
        raise CoterieError(f"{listed(given)} {'is' if len(given) == 1 else 'are'} for {kind}: leave that out.")
