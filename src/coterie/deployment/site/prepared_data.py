"""From a site's own files and the task of a run to what the site computes on; prepared arrays are kept on disk."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np

from coterie.data.labels import encode, label_ids, travelling
from coterie.deployment.federation_toml import PROBLEM, SCHEMA
from coterie.deployment.schema import Schema, clusters_of
from coterie.deployment.site.disclosure import Behind, TooFew
from coterie.deployment.site.redaction_and_owner_log import tell_owner
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.errors import CoterieError, NoRows
from coterie.families import DEFAULT
from coterie.federation import find_work, work_name
from coterie.methods.local_training.whitening import ROOM, in_frame
from coterie.methods.tree.dispersion import in_family
from coterie.methods.tree.in_step import all_of, part
from coterie.objectives.glm import GLM
from coterie.user_code import import_object

KINDS = ("table", "factory")
_TABLE: dict[str, Any] = {
    "formula": None, "family": DEFAULT, "client": None, "cluster": (), "offset": None, "weights": None,
    "missing": "error", "schema": None, "hold": None, "mean_weight": None, "net": None,
    "classes": False,
}  # fmt: skip
_FORM = 6  # of prepared arrays in the cache
ROWS = ("X", "y", "offset", "weights", "starts", "stops")  # what an objective is made of


@dataclass(frozen=True)
class Prepared:
    """What one site computes on: an objective of its m clients, sorted by cluster, and who they are.

    Labels are numbers or text; clusters count from 0 and are sorted; ``levels`` are labels of each client's clusters by
    column, fine to coarse. ``notes`` say, without a value, how the table was read. Where rules of disclosure hold,
    ``counts`` are the rows of each client that may be told, ``parts`` the rows behind the objective, or those of
    :meth:`~coterie.deployment.site.holdout.Cut.told`, and ``width`` is the number of columns of the formula.
    """

    objective: Any
    labels: np.ndarray[Any, Any]
    clusters: np.ndarray[Any, np.dtype[np.int64]]
    ids: np.ndarray[Any, np.dtype[np.uint64]]
    levels: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    counts: np.ndarray[Any, np.dtype[np.int64]] | None = None
    parts: tuple[Behind, ...] = ()
    width: int = 0
    sides: tuple[Behind, ...] = ()
    """Of the site's own code, whose rows ``parts`` do not tell: those trained on, and those held out by the run."""
    at: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.empty(0, np.int64))
    """Places of the rows in the site's table."""


def prepare(folder: Path, member: Member, task: Mapping[str, Any], data: str = "") -> Prepared:
    """What a site computes on for a task.

    A CoterieError says what is wrong with it or with the data; it is a :class:`NoRows` where no row is left. A
    table's task (:data:`_TABLE`): without a client column the site is the client, without a schema it is the site's
    own; ``hold`` names a split (:class:`coterie.deployment.site.holdout.Cut`), ``mean_weight`` is that of
    all sites, by which weights are divided, ``net`` a model whose rows these are to be
    (:func:`coterie.deployment.site.nets.of_table`), and ``works`` how works that the method needs begin. Arrays of a
    table are kept under ``data``, the fingerprint of its file. A factory's task, ``{"kind": "factory", "name":
    "module:function", "options"}``, is called as ``function(path of the data, site=name, **options)`` and returns an
    objective, labels of its clients and, if any, of their clusters.
    """
    kind = task.get("kind")
    if kind not in KINDS:
        raise CoterieError(f"There is no task of kind {kind!r}: use one version of coterie at all sites.")
    if kind == "factory":
        from coterie.deployment.site.nets import held_out

        made, hold = _from_factory(folder, member, task), task.get("hold")
        if hold is None:
            return made
        rows = json.dumps([member.name, task["name"], _source(folder, task["name"])])  # an option may change nothing
        objective, sides = held_out(made.objective, made.ids, hold, rows)
        return replace(made, objective=objective, sides=sides)
    task = _TABLE | {k: v for k, v in task.items() if k != "kind"}
    if strange := task.keys() - {"works", *_TABLE}:
        raise CoterieError(f"A task of a table has no '{min(strange)}': use one version of coterie at all sites.")
    hold, mean, net, _ = task.pop("hold"), task.pop("mean_weight"), task.pop("net"), task.pop("works", None)
    if mean is not None and not (type(mean) is float and 1e-60 <= mean <= 1e60):
        raise CoterieError("The mean weight of a run is a number above 0: use one version of coterie at all sites.")
    found = _from_table(folder, member, task, data)
    if hold is not None:
        from coterie.deployment.site.holdout import Cut, split_holdout
        from coterie.deployment.site.table import split_keys, told_counts

        cut = Cut.of(hold)
        keys = split_keys(folder, member, task, cut.by, found.at) if cut.by else {}
        try:
            o, left, apart = split_holdout(found.objective, found.ids, cut, **keys)
        except CoterieError as problem:
            raise (TooFew(str(problem)) if cut.by and member.guarded else problem) from None
        parts = tuple(p.take(rows) for p in found.parts for rows in cut.told(left, apart))
        found = replace(found, objective=o, parts=parts)
        if (counts := found.counts) is not None:  # as by chance: how many rows a column sets aside tells what it holds
            counts = told_counts(cut.fewest(counts, found.ids), found.clusters, member.min_group)
            found = replace(found, counts=counts)
    if mean is not None:
        o = found.objective
        aside = {} if hold is None else {"held": replace(o.held, weights=o.held.weights / mean)}
        found = replace(found, objective=replace(o, weights=o.weights / mean, **aside))
    if net is not None:
        from coterie.deployment.site.nets import by_class, of_table

        net_of_rows = of_table(found.objective, net, folder, member.allow, member.guarded)
        found = replace(found, objective=net_of_rows, parts=tuple(by_class(part, net) for part in found.parts))
    return found


def _from_table(folder: Path, member: Member, task: Mapping[str, Any], data: str) -> Prepared:
    """What a table gives, from the cache if it is there."""
    from coterie import __version__

    own = Schema.read(folder / SCHEMA)
    agreed = own if task["schema"] is None else Schema.of(task["schema"], "the schema of the run")
    rules = [member.guarded, member.min_group, str(member.disclosure)]
    key = json.dumps([__version__, _FORM, data, member.name, rules, own.plain(), agreed.plain(), task], sort_keys=True)
    path = folder / "cache" / f"{blake2b(key.encode(), digest_size=16).hexdigest()}"
    a = read_cached(path, key) if data else None
    if a is None:
        from coterie.deployment.site.table import arrays, guarded_arrays  # which reads tables, as a cache does not

        a = (guarded_arrays if member.guarded else arrays)(folder, member, task, own, agreed)
        if data:
            write_cached(path, key, a)
    objective = GLM(**{name: a[name] for name in (*ROWS, "family")})
    found = Prepared(objective, a["labels"], a["clusters"], a["ids"], dict(a["levels"]), tuple(a["notes"]), at=a["at"])
    if "row_ids" not in a:
        return found
    part = Behind(a["row_ids"], np.asarray(a["stops"] - a["starts"]), a["labelled"], a["values"], a["cells"])
    return replace(found, counts=a["counts"], parts=(part,), width=a["width"])


def without_clients(task: Mapping[str, Any], note: str) -> Prepared:
    """What a site holds that has no rows for a task: no clients."""
    none, whole, text = np.empty(0), np.empty(0, np.int64), np.empty(0, "U1")
    objective = GLM(np.empty((0, 1)), none, none, none, whole, whole)
    return Prepared(objective, text, whole, np.empty(0, np.uint64), dict.fromkeys(clusters_of(task), text), (note,))


def _from_factory(folder: Path, member: Member, task: Mapping[str, Any]) -> Prepared:
    name, options = task.get("name"), task.get("options") or {}
    if not isinstance(name, str) or ":" not in name or name not in member.allow:
        raise CoterieError(f"Objective {name!r} is not allowed here: the site's owner adds it to allow in site.toml.")
    make = import_object(name, folder=folder)
    path = (folder / member.data).resolve() if member.data else folder
    try:
        inspect.signature(make).bind(path, site=member.name, **options)
    except (TypeError, ValueError) as problem:
        said = f"{name!r} cannot be called with the path, site=... and the options of the run"
        raise CoterieError(f"{said}: {problem}.") from problem
    try:
        made = make(path, site=member.name, **options)
    except OSError:
        raise
    except Exception as problem:
        if not member.guarded:
            raise
        tell_owner(folder, ["".join(format_exception(problem)).rstrip()])
        if isinstance(problem, NoRows):
            raise NoRows(f"{name} made no clients.") from problem
        raise CoterieError(f"{name!r} fails here: '{PROBLEM}' in the site's folder says why.") from problem
    if isinstance(made, Prepared):
        return made
    objective, labels, *rest = made
    if len(objective) == 0:
        raise NoRows(f"{name} made no clients.")
    labels = np.asarray(labels)
    groups = encode(np.asarray(rest[0]) if rest else np.zeros(len(objective), dtype=np.int64))
    order = np.lexsort((encode(labels).codes, groups.codes))  # as the coordinator puts all sites' clients
    clusters = groups.codes[order]
    levels = {"cluster": travelling(groups.labels)[clusters]} if rest else {}
    return Prepared(objective.take(order), travelling(labels[order]), clusters, label_ids(labels[order]), levels)


def _source(folder: Path, name: str) -> str:
    """The text of the module that makes an objective; "" where there is none to read."""
    try:
        return inspect.getsource(sys.modules[import_object(name, folder=folder).__module__])
    except (OSError, TypeError):
        return ""


def works(request: Mapping[str, Any]) -> list[str]:
    """The works that a request names: its own, and those inside of others, however deep."""
    return _named(str(request.get("work")), request.get("message"))


def _named(work: str, message: Any) -> list[str]:
    """A work, and those that it does: with noise, in a frame, in a family, or of calculations in step."""
    if not isinstance(message, Mapping):
        return [work]
    if work == work_name(all_of):
        call, names = str(message.get("call")), dict.fromkeys(str(message.get("names")).split())
        return [work, call, *(one for name in names for one in _named(call, part(message, name))[1:])]
    if "inner" not in message:
        return [work]
    if work == work_name(in_frame):
        return [work, *_named(f"{ROOM}{message['inner']}", {k: v for k, v in message.items() if k != "inner"})]
    if work == work_name(in_family):
        return [work, *_named(f"{ROOM}{message['inner']}", message.get("message"))]
    if work.startswith("coterie.engines.privacy."):
        return [work, *_named(str(message["inner"]), message.get("message"))]
    return [work]


def learn(folder: Path, member: Member, names: Iterable[str]) -> None:
    """Make works known here: import their modules if the owner of the site allows it; a CoterieError if they stay so.

    A message can choose among the modules that ``allow`` in ``site.toml`` names, with or without a function of theirs.
    No other is imported. Works of coterie, and of what the owner's own code has imported, are known as they are. Where
    the site guards its rows, none is answered whose replies hold them.
    """
    mine = {entry.partition(":")[0] for entry in member.allow}
    for name in names:
        module = name.partition(":")[0]
        remedy = f"its owner puts '{module}' into the site's folder and adds it to allow in site.toml"
        if module in mine:
            import_object(module, folder=folder)
            remedy = f"'{module}' has none of this name, so give all sites the same one"
        try:
            found = find_work(name)
        except CoterieError as problem:
            remedy = "use one version of coterie at all sites" if module.split(".")[0] == "coterie" else remedy
            raise CoterieError(f"The work {name!r} is not known here: {remedy}.") from problem
        if member.guarded and getattr(found, "holds_rows", False):
            raise CoterieError(f"The replies of {name} hold rows, which do not leave this site (min_group).")


KEPT = 8
"""Tasks whose arrays are kept: those that were used last. Any other's are made again when it is asked for."""


def read_cached(path: Path, key: str) -> Any:
    """What a file holds under ``key``; None where there is none, it is damaged, or it holds something else."""
    try:
        found = read_durable(path)
    except CoterieError:
        return None
    if not isinstance(found, list) or len(found) != 2 or found[0] != key:
        return None
    with suppress(OSError):
        os.utime(path)  # in use: not the next to go
    return found[1]


def write_cached(path: Path, key: str, arrays: Any) -> None:
    """Write a file, and remove those beside it that were not used for longest."""
    others = [other for other in path.parent.glob("*") if other != path]
    for old in sorted(others, key=lambda file: file.stat().st_mtime_ns)[: max(len(others) + 1 - KEPT, 0)]:
        old.unlink(missing_ok=True)
    write_durable(path, wire.pieces([key, arrays]))
