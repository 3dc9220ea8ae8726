"""The main job in one call: from rows and a model to the best model for every client, with evidence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from coterie.data.table import as_names
from coterie.deployment.federation_toml import is_federation, named_in
from coterie.engines.local_engines import actors_read
from coterie.errors import CoterieError, bound, checked_call, listed
from coterie.files import local
from coterie.options import shown
from coterie.report.progress import of_a_call
from coterie.results.call_as_config import (
    in_words_of_a_call,
    is_of_table,
    method_names,
    net_call_sections,
    net_sections_over_sites,
    table_call_arguments,
)
from coterie.results.training_result import TrainingResult, train
from coterie.runs import rows_and_models_in_memory as in_memory
from coterie.runs.config import Config, chosen_methods, document
from coterie.runs.config_keys import Torch
from coterie.status_line import AFTER, status

if TYPE_CHECKING:  # what is needed for tables alone is imported where they are read: nets need none of it
    import pandas as pd

    from coterie.results.fit_result import FitResult
    from coterie.results.table_fit import Fitting

NO_MODEL = "Say what a client's model is, after the rows: a formula, or coterie.Torch(...)."


@overload
def fit(
    rows: Any, model: str, client: str | None = ..., cluster: str | Sequence[str] | None = ..., **options: Any
) -> FitResult: ...
@overload
def fit(rows: Any, model: Torch, client: Any = ..., **options: Any) -> TrainingResult: ...
@overload
def fit(rows: Any, model: None = ..., **options: Any) -> FitResult | TrainingResult: ...
@checked_call  # type: ignore[misc]
def fit(
    rows: Any,
    model: str | Torch | None = None,
    client: Any = None,
    cluster: str | Sequence[str] | None = (),
    *,
    group: Any = None,
    main: Any = None,
    network: Mapping[str, Any] | None = None,
    shared: str | Sequence[str] | None = (),
    personal: str | Sequence[str] | None = (),
    method: str = "auto",
    rounds: int | Mapping[str, Any] | None = None,
    seed: int | Sequence[int] | None = None,
    test_fraction: float = 0.25,
    engine: str | Mapping[str, Any] = "auto",
    partition: str | Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    family: str = "gaussian",
    covariance: str = "auto",
    splits: int | None = None,
    order_by: Any = None,
    split_by: Any = None,
    given_split: Any = None,
    reml: bool = True,
    cluster_variance: str = "common",
    residual: str = "common",
    quadrature: int | None = None,
    gamma: Any = None,
    lam: Any = None,
    alpha: Any = None,
    offset: str | None = None,
    weights: Any = None,
    missing: str = "error",
) -> FitResult | TrainingResult:
    """Fit the best model for every client, and show that it is the best.

    Rows come first, then a client's model, how the clients are related, and by which method. With a formula rows are
    a table, and coefficients the result; with :class:`Torch` they are arrays, and nets the result.

    Parameters
    ----------
    rows : DataFrame, arrays, or path
        With a formula: a table of pandas or polars, one row for each observation, or its file. With Torch: arrays
        (X, y) or (X, y, client[, group]), a dict of them, a mapping from clients to their (X, y) or Dataset, a table,
        whose columns ``Torch(net, target="y", inputs=["x"])`` names, a .npz file, or data by name, such as "digits". A
        configuration (a .toml file, or what :meth:`FitResult.config` of a result
        gave) says all of it, and stands alone. Also the folder of a federation, whose sites run: their rows stay where
        they are, and without ``client`` every site is one. A net there is ``Torch(net, target="y")`` on the sites'
        tables, or ``Torch("module:function")`` of what makes a site's objective, and its owner allows.
    model : str or Torch
        ``outcome ~ columns``, as in R; or a net with its loss.
    client : str or array
        The column or array that says whose row it is. Labels that differ only in white space around them, or in the
        Unicode form of accents, are one. For Torch, a value for each row will do.
    cluster : str or sequence of str, optional
        With a formula: columns of known clusters of clients, fine to coarse.
    group : str, array or mapping, optional
        With Torch: known groups of clients, as an array, its name, or a group for each client.
    main : label or sequence of labels, optional
        The clients that others help, for weighted-averaging and bias-correction.
    network : mapping, optional
        Which clients are alike, for the method "similarity-network", which is then compared with the others:
        ``{"space": "model", "k": 5}``, ``{"edges": pairs of labels}`` or ``{"covariates": ["size", "sector"]}``; see
        :class:`coterie.methods.networks.options.Asked` and
        :class:`coterie.methods.networks.similarity.Similarity`.
    shared : str or sequence of str, optional
        Terms with one coefficient for all clients (columns that do not vary within any client are always shared), or
        layers of a net, by names or patterns such as "body*".
    personal : str or sequence of str, optional
        With Torch: layers that stay with a client, such as "head*".
    method : str, default "auto"
        A name of the table of methods (``coterie methods``). "auto" compares and takes the one that is best on
        held-out rows; of a table's, where that ignores the clusters, one with them that may be as good.
    rounds : int or mapping, optional
        How many, or options of a method over rounds: ``{"rounds": 50, "eta": 0.1}`` of "ditto" and others that train,
        ``{"steps": 20000, "coordinator": "peers"}`` for known clusters; see
        :class:`coterie.methods.local_training.fit.Rounds`,
        :class:`coterie.methods.clustered_l2gd.options.Options` and, for main clients and their collaborators,
        :class:`coterie.methods.collaboration.options.Options`; on a network
        :class:`coterie.methods.networks.options.Run`. Theory, the smoothness of the losses or, for nets, the method's
        default is what is left out.
    seed : int or sequence of int, optional
        By default 0, or that of the federation. With Torch several give evidence over all of them, and the models of
        the first.
    test_fraction : float, default 0.25
        Share of each client's rows that is held out. With Torch 0 is for a final fit on all rows, which has no scores.
    engine : {"auto", "inprocess", "loopback", "ray"} or mapping, default "auto"
        Where clients are: in this process as they are, as sites behind a wire, whose bytes the ledger then counts, or
        as Ray actors, processes of their own, which read a folder of Parquet themselves, and one file where ``splits``
        is 0; or keys of ``[engine]``, such as ``{"kind": "ray", "sites": 5}``. Of a
        federation, whose folder says that, the ``name`` of the run, by which one that was cut short goes on, and a
        ``timeout`` in seconds.
    partition : str or mapping, optional
        With Torch: how rows without clients are dealt to them, "iid" by default; or keys of ``[data]``, such as
        ``{"partition": "dirichlet", "clients": 10, "alpha": 0.3}``.
    privacy : mapping, optional
        With Torch: noise on sums, such as ``{"clip": 0.5, "epsilon": 8}``.
    family : str, default "gaussian"
        What an outcome is: "gaussian" for numbers; the others are in ``coterie.families.FAMILIES``. This and what
        follows goes with a formula.
    covariance : {"auto", "isotropic", "two", "diagonal", "full"}, default "auto"
        How clients vary around their cluster (and clusters around theirs): one variance, one for intercepts and one
        for slopes, one for each term, or with correlations; the first two in standard units of the columns. "auto"
        chooses by marginal likelihood with a penalty.
    splits : int, optional
        Repeated splits inside each client for the evidence, by default 5; 0 compares nothing, and "auto" is then
        "hierarchical" (or "given-strengths"). Over sites 0 is the default, since every split costs exchanges, and a
        method that is named is compared with `local` and `pooled`.
    order_by : str, or with Torch (n,) array, optional
        Test on each client's latest rows by this column instead (one split). Dates and numbers in text are read; see
        :func:`coterie.data.sort_keys.sort_keys`.
    split_by : str, or with Torch (n,) array, optional
        Keep rows with the same value of this column (a person's) on one side of a split.
    given_split : str, or with Torch (n,) array, optional
        The column with the side of every row, "train", "validation" or "test", or True for those that are held out;
        with a formula "validation" rows are trained on, too. With Torch by default "split", where rows have it.
    reml : bool, default True
        Restricted likelihood, for a Gaussian outcome.
    cluster_variance : {"common", "own"}, default "common"
        "own" gives each finest cluster its own client variances.
    residual : {"common", "by-client"}, default "common"
        One residual variance, or one for each client (Gaussian).
    quadrature : int, optional
        Points of adaptive Gauss-Hermite quadrature (lme4's ``nAGQ``), for classes and counts of clients that differ in
        one term; 1 is Laplace's approximation, which all others have. By default 25 where clients have few rows.
    gamma, lam, alpha : float, sequence of float (a grid), or mapping from labels (of lam from levels, too), optional
        Strengths that are given instead of learned: of the ties of clients to their cluster (gamma) and of clusters to
        their parent (lam, or alpha in the paper's other form); solved exactly, as the method "given-strengths". The
        best of a grid is chosen by held-out rows, inside the training rows of every split. The methods over rounds
        learn what is not given.
    offset, weights : str, optional
        Columns added to the linear predictor, and of row weights: precisions relative to their mean, not counts. With
        Torch weights may be an array (n,), and count in training and in scores.
    missing : {"error", "drop"}, default "error"
        What to do with rows that have missing or infinite values in columns that are used.

    Returns
    -------
    FitResult or TrainingResult
        They share ``comparison``, ``recommended``, ``method``, ``reason``, ``notes``, ``ledger``, ``theory``,
        ``client(label)``, ``predict``, ``report(path)``, ``save(path)`` and ``config()``.

    Raises
    ------
    CoterieError
        One sentence for whatever is wrong with the rows or the options.

    Examples
    --------
    >>> result = coterie.fit(df, "mAch ~ cses", client="school", cluster="sector")  # doctest: +SKIP
    >>> result.comparison  # doctest: +SKIP
    >>> nets = coterie.fit("digits", coterie.Torch("mlp"), personal=["head*"])  # doctest: +SKIP
    """
    return _fit(dict(locals()))


@checked_call
def compare(rows: Any, *arguments: Any, methods: str | Sequence[str] | None = None, **options: Any) -> pd.DataFrame:
    """Only the comparison of :func:`fit`, with the same arguments: a row for each method.

    ``methods`` are names of those to compare with `local` and `pooled`, which are always in ("all" for all that apply);
    by default those that fit what is known of the clients.
    """
    return compared(rows, *arguments, methods=["auto"] if methods is None else methods, **options).comparison


def compared(rows: Any, *arguments: Any, methods: str | Sequence[str], **options: Any) -> FitResult | TrainingResult:
    """What :func:`compare` makes its table of, with the report and the best method's models."""
    call = _whole("compare", rows, *arguments, **options)
    if call["splits"] == 0:
        raise CoterieError("A comparison needs at least one split.")
    if call["method"] != "auto":
        raise CoterieError("A comparison has methods, a list of names: say so instead of method.")
    return _fit(call, method_names(methods))


def _whole(called: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """All arguments of a call of :func:`fit`, by name, with the defaults of those that are left out."""
    given = bound(fit, arguments, options, called)
    given.apply_defaults()
    return given.arguments


_BELONGS = {
    **dict.fromkeys(("cluster", "family", "covariance", "splits", "reml"), "a formula"),
    **dict.fromkeys(("cluster_variance", "residual", "quadrature", "gamma", "lam", "alpha"), "a formula"),
    **dict.fromkeys(("group", "personal", "partition", "privacy"), "coterie.Torch"),
    **dict.fromkeys(("offset", "missing"), "a formula"),
}
"""Options that say nothing of the other kind of model."""
_INSTEAD = {"cluster": "say group for a net", "group": "say cluster for a table", "personal": "say which are shared"}


def _fit(arguments: dict[str, Any], methods: Sequence[str] | None = None) -> FitResult | TrainingResult:
    """A call of :func:`fit`; with ``methods`` it is one of :func:`compare`."""
    if isinstance(arguments["method"], (list, tuple)):
        raise CoterieError("A fit has one method, a name: compare() takes several, as methods=[...].")
    rows, model = arguments["rows"], arguments["model"]
    given = given_in(fit, {k: v for k, v in arguments.items() if k not in ("rows", "model")})
    if model is None and not (isinstance(rows, Mapping) or str(rows).endswith(".toml")):
        raise CoterieError(NO_MODEL)
    if model is None or isinstance(model, Mapping) or str(model).endswith(".toml"):
        if given:
            raise CoterieError(f"A configuration says all of a call: write {listed(given)} into its sections.")
        return _configured(rows if model is None else model, None if model is None else rows, methods)
    if not isinstance(model, (str, Torch)):
        raise CoterieError(f"A client's model is a formula, or coterie.Torch(net), not {shown(model)}.")
    kind = "coterie.Torch" if isinstance(model, Torch) else "a formula"
    federated = is_federation(rows)
    for name, whose in _BELONGS.items():
        if name in given and whose != kind:
            raise CoterieError(f"{name} goes with {whose}, not with {kind}: {_INSTEAD.get(name, 'leave it out')}.")
    if federated:
        return _over_sites(rows, model, given, methods)
    if isinstance(model, Torch):
        with in_words_of_a_call():
            return train(Config.of(net_call_sections(rows, model, given)), methods, of_a_call())
    return _fitted(rows, arguments | {"methods": tuple(methods or ())})


def _over_sites(
    folder: Any, model: str | Torch, given: dict[str, Any], methods: Sequence[str] | None
) -> FitResult | TrainingResult:
    """A formula, or nets, on rows that stay at the sites of a federation."""
    from coterie.deployment import calls_over_sites
    from coterie.deployment.coordinator.run_toml import comparing, program_of_call

    if isinstance(model, Torch):
        with in_words_of_a_call():
            return _nets_over_sites(folder, net_sections_over_sites(folder, model, given), given, methods)
    for name in ("cluster", "shared"):
        given |= {name: list(as_names(name, given[name]))} if name in given else {}
    if methods is not None:
        given |= comparing(methods) | given
    with status("Waiting for the sites ...", AFTER):
        result = calls_over_sites.fit(folder, program_of_call(model, given), given)
    if methods is not None and result.comparison.empty:
        raise CoterieError(result.notes[-1])
    return result


def _nets_over_sites(
    folder: Any, sections: Mapping[str, Any], given: Mapping[str, Any], methods: Sequence[str] | None
) -> FitResult | TrainingResult:
    """Nets, by the sections of their configuration, on rows that stay at sites."""
    from coterie.deployment import calls_over_sites
    from coterie.deployment.coordinator.run_toml import program_of_nets

    with status("Waiting for the sites ...", AFTER):
        return calls_over_sites.fit(folder, program_of_nets(sections, methods), given)


def _configured(source: Any, rows: Any, methods: Sequence[str] | None) -> FitResult | TrainingResult:
    """What a configuration asks for: a file, or its sections; ``rows`` stand for those that it names."""
    named = isinstance(source, Mapping)
    tables, folder = (dict(source), Path()) if named else (document(source), local(source).absolute().parent)
    if is_of_table(tables):
        found, arguments = table_call_arguments(tables if rows is None else with_source(tables, "rows"), folder)
        methods = chosen_methods(methods, arguments.pop("methods", ()))
        more = {"na_values": arguments.pop("na_values", None), "methods": tuple(methods or ())}
        rows, formula = found if rows is None else rows, arguments.pop("formula")
        if is_federation(rows):
            return _over_sites(rows, formula, arguments, methods)
        return _fitted(rows, _whole("fit", rows, formula, **arguments) | more)
    where = named_in(tables, folder) if rows is None else rows
    if is_federation(where):
        return _nets_over_sites(where, with_source(tables, str(where)), {}, methods)
    if rows is not None:
        tables = with_source(tables, in_memory.rows(rows))
    return train(Config.of(tables, folder), methods, of_a_call())


def _fitted(rows: Any, arguments: dict[str, Any]) -> FitResult:
    """A table's result; a person sees what is going on where that takes long."""
    if actors_read(rows, arguments["engine"], arguments["splits"], arguments["methods"]):
        from coterie.deployment import calls_over_actors

        with status("Actors read and fit ...", AFTER):
            return calls_over_actors.fit(rows, arguments)
    from coterie.results.table_fit import fitting

    with status("Comparing the methods ...", AFTER):
        return fitting(rows, arguments).result()


def with_source(tables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The same configuration of other rows."""
    return {**tables, "data": {**tables.get("data", {}), "source": source}}


def given_in(call: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some arguments of a call that are not at their defaults."""
    plain = inspect.signature(call).parameters
    return {name: value for name, value in arguments.items() if not _alike(value, plain[name].default)}


def _alike(value: Any, default: Any) -> bool:
    """Whether an argument is at its default, or as empty as that."""
    if value is None or type(value) is not type(default):
        return value is None and not default
    return bool(value == default)


def prepared(rows: Any, **options: Any) -> Fitting:
    """What :func:`fit` would fit, with its arguments: the clients and options, checked, before any work."""
    from coterie.results.table_fit import fitting

    return fitting(rows, _whole("fit", rows, options.pop("formula"), **options))


def check_call(formula: str, methods: Sequence[str] | None, **options: Any) -> None:
    """A CoterieError for what :func:`fit`, or :func:`compare`, refuses of a table that it need not read for it."""
    from coterie.results.table_fit import asked_options

    asked_options(_whole("fit", None, formula, **options) | {"methods": tuple(methods or ())})
