"""From a site's own files and the task of a run to what the site computes on."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie import files
from coterie.deployment import cache
from coterie.deployment.config import SCHEMA, Member
from coterie.deployment.schema import Schema, disagreements
from coterie.errors import CoterieError, NoRows
from coterie.federation import find_work

if TYPE_CHECKING:
    from coterie.data.design import Design

KINDS = ("table", "factory")
_TABLE: dict[str, Any] = {
    "formula": None, "family": "gaussian", "client": None, "cluster": (), "offset": None, "weights": None,
    "missing": "error", "schema": None, "hold": None,
}  # fmt: skip
PROBLEM = "problem.txt"
"""In a site's folder: what was last wrong with its table, with rows and values, which do not leave."""

_ROWS = ("X", "y", "offset", "weights", "starts", "stops")


@dataclass(frozen=True)
class Holding:
    """What one site computes on.

    Attributes
    ----------
    objective : Objective
        Of the site's m clients, sorted by cluster.
    labels : (m,) array
        The clients' labels: numbers, or text.
    clusters : (m,) int64
        0 to the number of clusters here less 1, sorted.
    ids : (m,) uint64
    levels : dict of str to (m,) array
        Labels of each client's clusters by column, fine to coarse.
    notes : tuple of str
        How the table was read, for the site's owner and the coordinator; no values of rows are in them.
    """

    objective: Any
    labels: np.ndarray[Any, Any]
    clusters: np.ndarray[Any, np.dtype[np.int64]]
    ids: np.ndarray[Any, np.dtype[np.uint64]]
    levels: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def prepare(folder: Path, member: Member, task: Mapping[str, Any], data: str = "") -> Holding:
    """What a site computes on for a task.

    Parameters
    ----------
    folder : path
        The site's.
    member : Member
        Its ``site.toml``.
    task : dict
        ``{"kind": "table", "formula", "family", "client", "cluster", "offset", "weights", "missing", "schema",
        "hold"}`` or ``{"kind": "factory", "name": "module:function", "options"}``. Without a client column the site is
        the client. The schema is what the coordinator holds; without it the site's own. ``hold`` names a split: see
        :func:`coterie.deployment.parted.parted`. A factory is called as ``function(path of
        the data, site=name, **options)`` and returns an objective, labels of its clients and, if there are any, of
        their clusters.
    data : str
        Fingerprint of the data file; prepared arrays are kept under it.

    Raises
    ------
    CoterieError
        For whatever is wrong with the task or the data; :class:`NoRows` where no row is left.
    """
    kind = task.get("kind")
    if kind not in KINDS:
        raise CoterieError(f"There is no task of kind {kind!r}: use one version of coterie at all sites.")
    if kind == "factory":
        return _made(folder, member, task)
    task = _TABLE | {k: v for k, v in task.items() if k != "kind"}
    if strange := task.keys() - _TABLE.keys():
        raise CoterieError(f"A task of a table has no '{min(strange)}': use one version of coterie at all sites.")
    if (hold := task.pop("hold")) is not None:
        from coterie.deployment.parted import parted

        found = prepare(folder, member, task | {"kind": kind}, data)
        return replace(found, objective=parted(found.objective, found.labels, found.ids, hold))
    own = Schema.read(folder / SCHEMA)
    agreed = own if task["schema"] is None else Schema.of(task["schema"], "The schema of the run")
    from coterie import __version__

    key = json.dumps([__version__, data, member.name, own.plain(), agreed.plain(), task], sort_keys=True)
    path = folder / "cache" / f"{blake2b(key.encode(), digest_size=16).hexdigest()}"
    if data and (found := cache.read(path)) is not None:
        return _holding(found)
    arrays = _arrays(folder, member, task, own, agreed)
    if data:
        cache.write(path, arrays)
    return _holding(arrays)


def nothing(task: Mapping[str, Any], note: str) -> Holding:
    """What a site holds that has no rows for a task: no clients."""
    from coterie.objectives.glm import GLM

    none, whole, text = np.empty(0), np.empty(0, np.int64), np.empty(0, "U1")
    objective = GLM(np.empty((0, 1)), none, none, none, whole, whole, "gaussian")
    return Holding(objective, text, whole, np.empty(0, np.uint64), dict.fromkeys(_clusters(task), text), (note,))


def _clusters(task: Mapping[str, Any]) -> list[str]:
    """The columns of clusters that a task names."""
    names = task.get("cluster") or ()
    return [names] if isinstance(names, str) else list(names)


def design_of(schema: Schema, task: Mapping[str, Any]) -> Design:
    """The design of a task's formula by a schema, the same at the coordinator and at every site."""
    names = [task.get("client"), task.get("offset"), task.get("weights"), *_clusters(task)]
    return schema.design(task["formula"], [n for n in names if n])


def _arrays(folder: Path, member: Member, task: Mapping[str, Any], own: Schema, agreed: Schema) -> dict[str, Any]:
    """Everything of a prepared table that a node needs, as plain values."""
    from coterie.data.reading import prepare as read_clients
    from coterie.data.table import read_table
    from coterie.deployment.own_rows import allowed

    client, cluster = task["client"], _clusters(task)
    named = [*([client] if client else []), *cluster]
    if loose := [n for n in named if n not in own.columns or own.columns[n].type != "label"]:
        raise CoterieError(
            f"Column {loose[0]!r} does not name clients or clusters here: the owner of the site says which do, with "
            f"'coterie federation schema --label'."
        )
    design = design_of(agreed, task)
    columns = [*design.parsed.outcome_columns, *design.columns]
    used = [*columns, *(n for n in (task["offset"], task["weights"]) if n)]
    if wrong := disagreements(agreed, own, [n for n in used if n in agreed.columns]):
        raise CoterieError(f"Its schema is not that of the run: {'; '.join(wrong)}.")
    table = read_table(member.table(folder), named)
    if not client:
        client = "site" if "site" not in table.columns else "(site)"
        table = table.assign(**{client: member.name})
    try:
        allowed(table, agreed, columns)
        clients, _ = read_clients(
            table, task["formula"], client, tuple(cluster), task["family"], task["offset"], task["weights"],
            task["missing"], design, part=True,
        )  # fmt: skip
    except CoterieError as problem:
        raise _unfit(folder, task, problem) from problem
    levels, at = {}, clients.clusters
    for level in clients.levels:
        levels[level.name] = _travel(level.labels)[at]
        at = level.parent[at]
    found: dict[str, Any] = {name: getattr(clients, name) for name in _ROWS}
    found |= {"family": task["family"], "labels": _travel(clients.labels), "ids": clients.ids, "levels": levels}
    return found | {"clusters": clients.clusters, "notes": list(map(_without_rows, clients.notes))}


def _unfit(folder: Path, task: Mapping[str, Any], problem: CoterieError) -> CoterieError:
    """What of a problem may leave the site; the whole of it is kept in a file for its owner.

    Which rows a formula or a range does not fit, and their values, would let a coordinator that asks for one formula
    after another read the table.
    """
    from coterie.deployment.own_rows import Withheld

    files.write(folder / PROBLEM, [f"{problem}\n".encode()], mode=0o600)
    if isinstance(problem, NoRows):
        return NoRows("No row of its table can be used.")
    if isinstance(problem, Withheld):
        return CoterieError(f"{problem.leaves} '{PROBLEM}' in the site's folder says in which rows.")
    hint = "" if task["missing"] == "drop" else " Rows with missing values are left out with --missing drop."
    return CoterieError(
        f"Its table does not fit the schema, formula or family of the run: '{PROBLEM}' in the site's folder says what "
        f"is wrong in which rows.{hint}"
    )


def _without_rows(note: str) -> str:
    """A note of how a table was read, without the places and values of rows."""
    return re.sub(r" \(data rows? [\d, .]+\)|: '.*(?= \(if ')", "", note, flags=re.DOTALL)


def _holding(a: Mapping[str, Any]) -> Holding:
    from coterie.objectives.glm import GLM

    objective = GLM(**{name: a[name] for name in (*_ROWS, "family")})
    return Holding(objective, a["labels"], a["clusters"], a["ids"], dict(a["levels"]), tuple(a["notes"]))


def _travel(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Labels as an array that can travel: numbers stay numbers, all else is text."""
    if labels.dtype.kind in "iufb":
        return labels
    from coterie.data.labels import label_text

    return np.array([label_text(v) for v in labels], dtype=str)


def _made(folder: Path, member: Member, task: Mapping[str, Any]) -> Holding:
    """An objective by a factory that the site's owner allows."""
    name, options = task.get("name"), task.get("options") or {}
    if not isinstance(name, str) or ":" not in name or name not in member.allow:
        raise CoterieError(
            f"The objective {name!r} is not allowed here: the owner of the site adds it to allow in site.toml."
        )
    make = imported(folder, name)
    path = (folder / member.data).resolve() if member.data else folder
    try:
        inspect.signature(make).bind(path, site=member.name, **options)
    except (TypeError, ValueError) as problem:
        raise CoterieError(
            f"{name!r} cannot be called with the path, site=... and the options of the run: {problem}."
        ) from problem
    made = make(path, site=member.name, **options)
    if isinstance(made, Holding):
        return made
    objective, labels, *rest = made
    if len(objective) == 0:
        raise NoRows(f"{name} made no clients.")
    from coterie.data.labels import encode, label_ids

    labels = np.asarray(labels)
    groups = encode(np.asarray(rest[0]) if rest else np.zeros(len(objective), dtype=np.int64))
    order = np.lexsort((encode(labels).codes, groups.codes))  # as the coordinator puts all sites' clients
    clusters = groups.codes[order]
    levels = {"cluster": _travel(groups.labels)[clusters]} if rest else {}
    return Holding(objective.take(order), _travel(labels[order]), clusters, label_ids(labels[order]), levels)


def works(request: Mapping[str, Any]) -> list[str]:
    """The works that a request names: its own and, of a sum with noise, those that are inside of it."""
    names, message = [str(request.get("work"))], request.get("message")
    while names[-1].startswith("coterie.engines.privacy.") and isinstance(message, Mapping) and "inner" in message:
        names.append(str(message["inner"]))
        message = message.get("message")
    return names


def learn(folder: Path, member: Member, names: Iterable[str]) -> None:
    """Make works known here: import their modules if the owner of the site allows it.

    A message can choose among the modules that ``allow`` in ``site.toml`` names, with or without a function of theirs.
    No other is imported. Works of coterie, and of what the owner's own code has imported, are known as they are.

    Raises
    ------
    CoterieError
        If a work is not known and its module is not allowed, cannot be imported, or has no such work.
    """
    mine = {entry.partition(":")[0] for entry in member.allow}
    for name in names:
        module = name.partition(":")[0]
        remedy = f"its owner puts '{module}' into the site's folder and adds it to allow in site.toml"
        if module in mine:
            imported(folder, module)
            remedy = f"'{module}' has none of this name, so give all sites the same one"
        try:
            find_work(name)
        except CoterieError as problem:
            remedy = "use one version of coterie at all sites" if module.split(".")[0] == "coterie" else remedy
            raise CoterieError(f"The work {name!r} is not known here: {remedy}.") from problem


def findable(folder: Path) -> None:
    """Let modules of this folder be found, after all others."""
    here = str(folder.resolve())
    if here not in sys.path:
        sys.path.append(here)


def imported(folder: Path, name: str) -> Any:
    """What "module:function" names (or a module, without a function), looked for in the site's folder too.

    Whatever a module raises while it is imported, and be it the wish to end the process, is a CoterieError.
    """
    module, _, attribute = name.partition(":")
    findable(folder)
    try:
        found = import_module(module)
        return getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError) as problem:
        remedy = f"install its module, or put it into '{folder}'"
        raise CoterieError(f"'{name}' cannot be imported ({problem}): {remedy}.") from problem
    except (Exception, SystemExit) as problem:
        raised = f"it raises {type(problem).__name__}: {problem}".rstrip(". :")
        raise CoterieError(f"'{name}' cannot be imported ({raised}): put its module right.") from problem
