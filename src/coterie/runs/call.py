"""A call of :func:`coterie.fit` for a net as a configuration: its sections, with what is in memory held as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.options import declared, shown
from coterie.runs import in_memory
from coterie.runs.config_keys import Run, Torch


def sections(rows: Any, net: Torch, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a configuration; ``given`` are the arguments that are not at their defaults, by their names."""
    rounds, steps = _rounds(given.get("rounds"))
    seed, engine = given.get("seed", 0), given.get("engine", {})
    method = {"name": given.get("method", "auto"), **steps}
    if (main := given.get("main")) is not None:
        method["main"] = main
    found = {
        "data": _data(rows, given),
        "model": vars(net),
        "layout": {name: given[name] for name in ("shared", "personal") if given.get(name)},
        "engine": {"kind": engine} if isinstance(engine, str) else engine,
        "method": method,
        "run": {**rounds, "seeds": [seed] if isinstance(seed, int) else seed},
    }
    return found | {name: given[name] for name in ("privacy", "network") if given.get(name) is not None}


def _data(rows: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section of rows: where they are, and whose."""
    client, group, partition = (given.get(name) for name in ("client", "group", "partition"))
    if not isinstance(partition, (str, Mapping, type(None))):
        raise CoterieError(f"partition must be a name, such as iid, or keys of [data], not {shown(partition)}.")
    dealt = {"partition": partition} if isinstance(partition, str) else dict(partition or {})
    dealt["test"] = given.get("test_fraction", 0.25)
    if isinstance(rows, (str, Path)):
        for name, value in (("client", client), ("group", group)):
            if value is not None and not isinstance(value, str):
                raise CoterieError(f"Of rows that are given by name, {name} must be the name of an array.")
        of_client = {} if client is None else {"partition": "by_column", "column": client}
        return {"source": str(rows), **of_client, **({} if group is None else {"group": group}), **dealt}
    held = in_memory.rows(rows, client, group)
    return {"source": held, **({"partition": "given"} if "client" in held.value else {}), **dealt}


def _rounds(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How many rounds there are, and what else is said of runs; and hyper-parameters."""
    if given is None or not isinstance(given, Mapping):
        return ({} if given is None else {"rounds": given}), {}
    runs = {name: value for name, value in given.items() if name in declared(Run)}
    return runs, {name: value for name, value in given.items() if name not in runs}
