"""A call of :func:`coterie.fit` for a table as a configuration: every declared option in its section, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie import files
from coterie.errors import CoterieError
from coterie.options import declared, need_names
from coterie.results.fit_options import Columns, Options
from coterie.runs.in_memory import need_named

_OF_GROUPS = {
    **{"The table": "data", "The model": "model", "Over rounds": "method", "Given strengths": "strengths"},
    **{"Similarity network": "network", "The evidence": "evidence"},
}
_DECLARED = {name: one for cls in (Columns, Options) for name, one in declared(cls).items()}
HOMES = {name: _OF_GROUPS[one.option.group] for name, one in _DECLARED.items()}
HOMES |= {"source": "data", "na_values": "data", "formula": "model", "method": "method"}
"""The section of every argument. What [method] has beside its name are options over rounds; [network] is one."""
SECTIONS = tuple(dict.fromkeys(("data", *HOMES.values(), "engine")))


def written(source: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a call, with what is not at its default."""
    out: dict[str, Any] = {name: {} for name in SECTIONS}
    out["data"]["source"] = source
    for name, home in HOMES.items():
        value = arguments.get(name)
        if value is None or (name in _DECLARED and name != "method" and _same(value, _DECLARED[name].default)):
            continue
        if name in ("rounds", "network"):
            out[home] |= files.plain(value)
        else:
            out[home]["name" if name == "method" else name] = files.plain(value)
    engine = arguments.get("engine", "auto")
    out["engine"] = files.plain(engine) if isinstance(engine, Mapping) else {} if engine == "auto" else {"kind": engine}
    return {name: table for name, table in out.items() if table}


def is_of_table(tables: Mapping[str, Any]) -> bool:
    """Whether a configuration has a formula."""
    return isinstance(tables.get("model"), Mapping) and "formula" in tables["model"]


def arguments(tables: Mapping[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """The source and the arguments that sections say; a CoterieError names the first key that is wrong."""
    need_names("A configuration with a formula", tables, SECTIONS, "section")
    found: dict[str, Any] = {}
    for name, table in tables.items():
        known = [key for key, home in HOMES.items() if home == name and key not in ("rounds", "network", "method")]
        if name in ("network", "engine"):
            found[name] = dict(table)
            continue
        if name == "method" and isinstance(table, Mapping):
            found["method"] = table.get("name", "auto")
            found["rounds"] = {key: value for key, value in table.items() if key != "name"}
            continue
        need_names(f"[{name}]", table, known, "key")
        found |= table
    source = found.pop("source", None)
    if source is None:
        raise CoterieError("[data] does not say source: name the table's file.")
    need_named(str(source), "The table", "give it to coterie.fit beside the configuration, or name a file in [data]")
    return folder / files.local(source), found


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
