"""A call of :func:`coterie.fit` with a table: its options are checked, its rows are read, and clients made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

from coterie import files
from coterie.data.clients import mean_weight
from coterie.data.formula import check_syntax
from coterie.data.prepare_table import prepare
from coterie.data.splits import given_test, split_keys
from coterie.data.table import Table, as_name, as_names
from coterie.data.table_files import read_table
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.relations.given_by_label import LeftOut, aligned, by_position
from coterie.results.call_as_config import in_words_of_a_call, over_rounds, table_call_sections
from coterie.results.fit_options import Options
from coterie.results.table_fit import Fitting
from coterie.runs import in_memory
from coterie.runs.config_keys import engine_of


def asked_options(arguments: dict[str, Any]) -> Options:
    """What is asked for of a table, checked before it is read; in ``arguments`` names and rounds are put in order."""
    if arguments["client"] is None:
        raise CoterieError("A formula needs client: name the column that says whose row it is.")
    for name in ("splits", "seed"):
        if arguments[name] is None:
            arguments[name] = declared(Options)[name].default
    with in_words_of_a_call():
        engine = engine_of(arguments["engine"])
    arguments |= {"rounds": over_rounds(arguments), "shared": as_names("shared", arguments["shared"])}
    arguments |= {
        "client": as_name("client", arguments["client"]),
        "cluster": as_names("cluster", arguments["cluster"]),
    }
    for name in ("order_by", "split_by", "given_split"):
        as_names(name, arguments[name])
    check_syntax(arguments["model"])
    asked = {name: arguments[name] for name in declared(Options)}
    return Options(**asked, methods=arguments.get("methods", ()), engine=engine)


def fitting(df: Any, arguments: dict[str, Any]) -> Fitting:
    """A fit of a table, once its rows are read and its options are checked."""
    start, options = perf_counter(), asked_options(arguments)
    names = ("model", "client", "cluster", "offset", "weights", "order_by", "split_by", "given_split", "missing")
    formula, client, cluster, offset, weights, order_by, split_by, given_split, missing = (
        arguments[name] for name in names
    )
    table = Table.of(_read(df, arguments) if isinstance(df, (str, Path)) else df)
    clients, design = prepare(table, formula, client, cluster, options.family, offset, weights, missing)
    order, groups, notes = split_keys(table, clients, order_by, split_by)
    given = given_test(table, clients, given_split)
    clients = replace(clients, notes=(*clients.notes, *notes))
    left_out = LeftOut.of(clients, {name: table[name].series for name in cluster})
    ties = aligned(clients, {name: arguments[name] for name in ("gamma", "lam", "alpha")}, left_out)
    network = None if options.network is None else by_position(clients, options.network, table.frame)
    options = replace(options, network=network, strengths=ties, order=order, groups=groups, given=given)
    settings = {"formula": formula, "client": client, "cluster": list(cluster), "offset": offset}
    settings |= {"weights": weights, "order_by": order_by, "split_by": split_by, "missing": missing}
    settings |= {} if given_split is None else {"given_split": given_split}
    same = [*design.parsed.outcome_columns, client, *(name for name in (offset, weights) if name is not None)]
    settings["outcome"] = table.fingerprint(same)
    about = table.frame.attrs.get("coterie", {})
    if about.get("na_values") is not None:
        settings["na_values"] = about["na_values"]
    mean = 1.0 if weights is None else mean_weight(table[weights].floats[clients.order])
    used = [*design.parsed.outcome_columns, *design.columns, client, *cluster]
    used += [name for name in (offset, weights, order_by, split_by, given_split) if name is not None]
    fingerprint = table.fingerprint(used)
    source = about.get("source") or f"{in_memory.MARK}table {fingerprint}"
    rounds = {"rounds": options.each} if options.methods and options.each is not None else options.rounds
    said = {**arguments, **about, "rounds": rounds, "formula": formula, "client": client, "cluster": cluster}
    facts = {"design": design, "formula": formula, "offset": offset, "weights": weights, "mean_weight": mean}
    facts |= {"data_fingerprint": fingerprint, "call": table_call_sections(source, said)}
    return Fitting(clients, options, settings, facts, start)


def _read(path: str | Path, arguments: dict[str, Any]) -> pd.DataFrame:
    """A table's file, whose labels stay text."""
    labels = [arguments["client"], *as_names("cluster", arguments["cluster"]), arguments["split_by"]]
    frame = read_table(path, [name for name in labels if name is not None], arguments.pop("na_values", None))
    frame.attrs.setdefault("coterie", {})["source"] = str(files.place(path))  # without keys in a URL
    return frame
