"""A call of :func:`coterie.fit` as the sections of a configuration, and back: of a table, and of nets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

from coterie import files
from coterie.data.array_input import is_table
from coterie.errors import CoterieError, listed
from coterie.methods.registry import FITTED
from coterie.options import declared, need_names, shown
from coterie.results.fit_options import Columns, Options
from coterie.runs import rows_and_models_in_memory as in_memory
from coterie.runs.config import COMPARE, methods_to_compare
from coterie.runs.config_keys import DEALT, SECTIONS, Run, Torch
from coterie.runs.rows_and_models_in_memory import SPLIT, need_named

_OF_GROUPS = {
    **{"The table": "data", "The model": "model", "Over rounds": "method", "Given strengths": "strengths"},
    **{"Similarity network": "network", "The evidence": "evidence"},
}
_DECLARED = {name: one for cls in (Columns, Options) for name, one in declared(cls).items()}
HOMES = {name: _OF_GROUPS[one.option.group] for name, one in _DECLARED.items()}
HOMES |= {"source": "data", "na_values": "data", "formula": "model", "method": "method"}
"""The section of every argument. [method] has a name or methods to compare, and options over rounds."""
_TABLE_SECTIONS = tuple(dict.fromkeys(("data", *HOMES.values(), "engine")))


def table_call_sections(source: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a call, with what is not at its default."""
    out: dict[str, Any] = {name: {} for name in _TABLE_SECTIONS}
    out["data"]["source"] = source
    for name, home in HOMES.items():
        value = arguments.get(name)
        default = _DECLARED[name].default if name in _DECLARED and name != "method" else None
        if value is None or (type(value) is type(default) and value == default):
            continue
        if name in ("rounds", "network"):
            out[home] |= files.plain(value)
        else:
            out[home]["name" if name == "method" else name] = files.plain(value)
    if (methods := list(arguments.get("methods") or ())) not in ([], ["auto"]):
        out["method"][COMPARE] = methods
    engine = arguments.get("engine", "auto")
    out["engine"] = files.plain(engine) if isinstance(engine, Mapping) else {} if engine == "auto" else {"kind": engine}
    return {name: table for name, table in out.items() if table}


def is_of_table(tables: Mapping[str, Any]) -> bool:
    """Whether a configuration has a formula."""
    return isinstance(tables.get("model"), Mapping) and "formula" in tables["model"]


def table_call_arguments(tables: Mapping[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """The source and the arguments that sections say; a CoterieError names the first key that is wrong."""
    need_names("A configuration with a formula", tables, _TABLE_SECTIONS, "section")
    found: dict[str, Any] = {}
    for name, table in tables.items():
        known = [key for key, home in HOMES.items() if home == name and key not in ("rounds", "network", "method")]
        if name in ("network", "engine"):
            found[name] = dict(table)
            continue
        if name == "method" and isinstance(table, Mapping):
            found["method"] = table.get("name", "auto")
            found["rounds"] = {key: value for key, value in table.items() if key not in ("name", COMPARE)}
            found["methods"] = methods_to_compare(table)
            if found["methods"] and [*found["rounds"]] == ["rounds"]:
                found["rounds"] = found["rounds"]["rounds"]  # of each, whatever its own word for them
            continue
        need_names(f"[{name}]", table, known, "key")
        found |= table
    source = found.pop("source", None)
    if source is None:
        raise CoterieError("[data] does not say source: name the table's file.")
    need_named(str(source), "The table", "give it to coterie.fit beside the configuration, or name a file in [data]")
    return files.place(source, folder), found


_SPLIT_BY = ("given_split", "order_by", "split_by")
_SEEDS = f"seeds of [run] must be {declared(Run)['seeds'].option.what}"
_SEED = "seed must be a whole number from 0, or several different ones"


def net_call_sections(rows: Any, net: Torch, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a configuration; ``given`` are the arguments that are not at their defaults, by their names."""
    rounds, steps = _rounds(given.get("rounds"))
    seed, engine = given.get("seed", 0), given.get("engine", {})
    method = {"name": given.get("method", "auto"), **steps}
    if (main := given.get("main")) is not None:
        if "main" in steps:
            raise CoterieError("main is an argument, and an option in rounds: say it once.")
        method["main"] = [_text(label) for label in main] if _several(main) else _text(main)
    found = {
        "data": _data(rows, given),
        "model": vars(net),
        "layout": {name: given[name] for name in ("shared", "personal") if given.get(name)},
        "engine": {"kind": engine} if isinstance(engine, str) else engine,
        "method": method,
        "run": {**rounds, "seeds": [seed] if isinstance(seed, Integral) else list(seed) if _several(seed) else seed},
    }
    found |= {name: given[name] for name in ("privacy", "network") if given.get(name) is not None}
    if isinstance(network := found.get("network"), Mapping) and isinstance(network.get("edges"), (list, tuple)):
        edges = [[*map(_text, e[:2]), *e[2:]] if isinstance(e, (list, tuple)) else e for e in network["edges"]]
        found["network"] = {**network, "edges": edges}
    return found


def net_sections_over_sites(folder: Any, net: Torch, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a call whose rows lie at the sites of a federation, whose seed is the default."""
    found = net_call_sections(str(folder), net, {k: v for k, v in given.items() if k != "engine"})
    found["run"] |= {} if "seed" in given else {"seeds": None}
    return found


def _data(rows: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section of rows: where they are, and whose."""
    whose = {name: given.get(name) for name in ("client", "group", "weights", *_SPLIT_BY)}
    client, partition = whose["client"], given.get("partition")
    if not isinstance(partition, (str, Mapping, type(None))):
        raise CoterieError(
            f"partition must be a name, such as 'iid', or a mapping such as {{'partition': 'iid', 'clients': 10}}, not "
            f"{shown(partition)}."
        )
    dealt = {"partition": partition} if isinstance(partition, str) else dict(partition or {})
    if "test_fraction" in given or whose["given_split"] is None:
        dealt["test"] = given.get("test_fraction", 0.25)
    held = None if isinstance(rows, (str, Path)) else in_memory.rows(rows, **whose)
    by_name = held is None or is_table(rows)
    of_client = client is not None if held is None or by_name else "client" in held.value
    if dealt.get("partition") in DEALT and of_client:
        raise CoterieError(
            f"The rows have clients, and partition {dealt['partition']!r} would deal them to others: leave partition "
            "out, or give the rows without clients."
        )
    if not by_name:
        said = {key: key for key in ("weights", "order_by", "split_by") if whose[key] is not None}
        said |= {} if whose["given_split"] is None else {"given_split": SPLIT}
        return {"source": held, **({"partition": "given"} if of_client else {}), **said, **dealt}
    keys = {"column" if name == "client" else name: value for name, value in whose.items() if value is not None}
    for key, value in keys.items():
        name = "client" if key == "column" else key
        if not isinstance(value, str):
            raise CoterieError(f"Of rows that are given by name, {name} must be the name of an array.")
        if dealt.get(key, value) != value:
            raise CoterieError(f"{name} and {key} of partition name two columns: say it once, as {name}.")
    return {"source": held or str(rows), **({"partition": "by_column"} if of_client else {}), **keys, **dealt}


def _rounds(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How many rounds there are, and what else is said of runs; and hyper-parameters."""
    if given is None or not isinstance(given, Mapping):
        return ({} if given is None else {"rounds": given}), {}
    if "seeds" in given:
        raise CoterieError("seeds is the argument seed of a call: give it there.")
    runs = {name: value for name, value in given.items() if name in declared(Run)}
    return runs, {name: value for name, value in given.items() if name not in runs}


def _text(label: Any) -> Any:
    """A client's label as clients of nets are called, whose labels may have been whole numbers."""
    return str(label) if isinstance(label, Integral) and not isinstance(label, bool) else label


def _several(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes))


@contextmanager
def in_words_of_a_call() -> Iterator[None]:
    """Around a net's configuration that was made of a call: errors name arguments instead of sections and keys."""
    try:
        yield
    except CoterieError as problem:
        text = str(problem).replace(_SEEDS, _SEED).replace("method.name", "method")
        problem.args = (re.sub(rf"(?:(\w+) of )?\[({'|'.join(SECTIONS)}|network)\]", _argument, text),)
        raise


def _argument(said: re.Match[str]) -> str:
    """What a call gives instead of a section, or of a key of one, as both are declared."""
    key, name = said.groups()
    cls = SECTIONS.get(name)
    if cls is not None and key in declared(cls) and (argument := declared(cls)[key].option.argument):
        return argument
    return f"{key} of " * bool(key) + (name if cls is None else cls.argument)


def method_names(given: Any) -> tuple[str, ...]:
    """Names of the methods to compare, of which one may stand alone."""
    names = (given,) if isinstance(given, str) else tuple(given) if _several(given) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise CoterieError(
            f"methods must be names such as ['fedavg', 'ditto'], or 'module:Class' of your own, not {shown(given)}."
        )
    return names


def over_rounds(arguments: Mapping[str, Any]) -> Any:
    """Options of a table's method over rounds, the main clients among them; a number is how many rounds there are."""
    given, main = arguments["rounds"], arguments["main"]
    if isinstance(given, Integral) and not isinstance(given, bool):
        given = int(given)
    elif given is not None and not isinstance(given, Mapping):
        raise CoterieError(f"rounds must be a whole number, or options such as {{'eta': 0.1}}, not {shown(given)}.")
    if main is None:
        return {} if given is None else given
    taking = [name for name, method in FITTED.items() if method.relation == "main client"]
    if not {"all", *taking} & {*map(str, arguments.get("methods") or [arguments["method"]])}:
        raise CoterieError(f"main goes with the methods {listed(taking)}: name one, or leave main out.")
    rounds = {} if given is None else dict(given) if isinstance(given, Mapping) else {"steps": given}
    return rounds | {"main": main}
