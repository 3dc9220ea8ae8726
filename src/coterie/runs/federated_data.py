"""The rows that a configuration names, partitioned among clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from coterie.data import partition as deals
from coterie.data.array_input import arrays, as_array, as_labels, as_numbers, is_table
from coterie.data.columns import at_rows
from coterie.data.images import fashion, rotated
from coterie.data.labels import encode, label_ids
from coterie.data.net_inputs import as_inputs, hashed, is_plain, several
from coterie.data.partition import ClientRows, Partition, PartitionedRows, partition_rows, shuffled
from coterie.data.readers import Columns, read
from coterie.data.rows_by_client import ROWS, collated
from coterie.data.splits import TEST, VALIDATION, RowSplits
from coterie.errors import CoterieError, nearest, plural
from coterie.federation import Array
from coterie.files import local
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.row_kernels import owned_rows
from coterie.runs import rows_and_models_in_memory as in_memory
from coterie.runs.config import Config, called
from coterie.runs.config_keys import DEALT, Data
from coterie.runs.rows_and_models_in_memory import SPLIT, Held, need_named

Table = dict[str, Array]
PACKAGED = ("digits", "fashion-mnist")
_COUNTED = 100_000
"""Clients times classes of which rows are counted for a picture, at most."""
NAMES = ("X", "y", "client", "group")


@dataclass(frozen=True)
class Federated:
    """Rows of m clients that are sorted by their group."""

    train: ClientRows
    test: ClientRows  # held-out rows of the same clients
    labels: tuple[str, ...]  # what clients are called
    ids: npt.NDArray[np.uint64]  # (m,): their numbers before they were sorted, which key their random numbers
    group: Ints  # (m,): the group of each, from 0
    known: bool  # whether there are groups
    classes: int  # 0 where outcomes are no classes
    groups: tuple[str, ...] = ()  # what groups are called
    inputs: tuple[str, ...] = ()  # columns of X, of a table
    class_names: tuple[str, ...] = ()  # of outcomes that were text, in the order of their codes
    held: RowSplits = field(
        default_factory=RowSplits
    )  # of the training rows, in the order of ``train.y``: what choices are made by
    said: dict[str, Any] = field(default_factory=dict)  # keys of [data] that the rows decide

    @classmethod
    def of(cls, partitioned: PartitionedRows, known: bool, groups: tuple[str, ...] = ()) -> Federated:
        """Clients sorted by their group; no row moves. Groups are called by their numbers where they have no names."""
        order = np.argsort(partitioned.group, kind="stable")
        names = partitioned.names or tuple(str(i + 1) for i in range(len(order)))
        sides = partitioned.train, partitioned.test
        train, test = (replace(p, starts=p.starts[order], stops=p.stops[order]) for p in sides)
        labels = tuple(names[i] for i in order)
        group, ids = partitioned.group[order], _keys(partitioned.names, len(order))[order]
        groups = groups or tuple(str(g + 1) for g in range(int(group.max(initial=-1)) + 1))
        return cls(train, test, labels, ids, group, known, partitioned.classes, groups)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_counts(self) -> Ints | None:
        """Rows of every class at every client (m, K), held-out ones included; None where outcomes are no classes."""
        if not self.classes or not len(self.train.y) or len(self) * self.classes > _COUNTED:
            return None
        out = np.zeros((len(self), self.classes), dtype=np.int64)
        for part in (self.train, self.test):
            owner, at = owned_rows(part.starts, part.stops)
            np.add.at(out, (owner, np.maximum(part.y[at], 0)), 1)
        return out

    @cached_property
    def fingerprint(self) -> str:
        """Twelve letters that tell these rows from others."""
        digest = blake2b(digest_size=6)
        for part in (self.train, self.test):
            for array in (part.X, part.y, part.starts, part.stops):
                for found in hashed(array):
                    digest.update(found)
            if part.weights is not None:
                digest.update(part.weights.data)
        return digest.hexdigest()

    def inside(self, fraction: float, seed: int) -> Federated:
        """The training rows alone, a share of each client's held out; what was held out before is not seen."""
        owner, at = owned_rows(self.train.starts, self.train.stops)
        names = self.labels if self.ids.max(initial=0) >= len(self) else ()  # without which ids are numbers
        order = shuffled(seed, len(owner), "validation")
        partition = partition_rows(owner, len(self), order, seed, fraction, names=names)
        partition = self.held.take(at).partition(partition, self.ids, fraction, seed, VALIDATION)
        rows = at[partition.row]
        partitioned = partition.take_sorted(self.train.X[rows], self.train.y[rows], self.classes)
        train, test = _weighted(partitioned, None if self.train.weights is None else self.train.weights[rows])
        return replace(self, train=train, test=test, held=RowSplits())


def federated(config: Config, seed: int) -> Federated:
    """Rows of the configuration, partitioned by a seed (or by ``data.seed``, where it is given)."""
    data = config.data
    seed = seed if data["seed"] is None else data["seed"]
    table, inputs = source(config)
    if data["rows"] and data["rows"] < len(table["y"]):
        kept = np.sort(shuffled(seed, len(table["y"]), "rows")[: data["rows"]])
        table = {name: values[kept] for name, values in table.items()}
    data, class_names = data | _said(data, table), tuple[str, ...]()
    if table["y"].dtype.kind == "U":
        if config.model["path"] != "softmax" and config.model["loss"] != "cross_entropy":
            raise CoterieError("y is text, and only cross_entropy is a loss of classes: code y as numbers, or take it.")
        coded = encode(table["y"])
        table, class_names = table | {"y": coded.codes}, tuple(map(str, coded.labels))
    held = _held(data, table)
    if data["partition"] == "rotated":
        angles = data["angles"]
        partitioned = rotated(table["X"], table["y"], data["clients"], angles, seed, data["test"])
        found = _channels(Federated.of(partitioned, len(angles) > 1), data["source"])
        return replace(found, class_names=class_names)
    partition = _partition(data, table, seed)
    ids = _keys(partition.names, len(partition.group))
    partition = held.partition(partition, ids, data["test"], seed, TEST)
    if data["group"] not in (*table, "group"):
        raise CoterieError(f"The data have no array '{data['group']}' of groups. There are {', '.join(table)}.")
    names: tuple[str, ...] = ()
    if known := data["group"] in table:
        group, names = _groups(partition, table[data["group"]])
        partition = replace(partition, group=group)
    # Not Partition.take: a client with rows that are not finite is left out and named when it trains.
    X = table["X"][partition.row]
    if data["partition"] == "feature-noise":
        if not is_plain(X):
            raise CoterieError("Partition 'feature-noise' adds noise to one array of numbers, and X has several.")
        X = deals.noisy(X, partition.client, partition.row, data["clients"], data["sigma"], seed)
    partitioned = partition.take_sorted(X, table["y"][partition.row])
    weights = _weights(table, data["weights"])
    train, test = _weighted(partitioned, None if weights is None else weights[partition.row])
    partitioned = replace(partitioned, train=train, test=test)
    found = _channels(Federated.of(partitioned, known, names), data["source"])
    held = held.take(partition.row[: partition.trained])
    said = {key: data[key] for key in ("partition", "given_split")}
    return replace(found, inputs=inputs, held=held, said=said, class_names=class_names)


def _keys(names: Sequence[str], m: int) -> npt.NDArray[np.uint64]:
    """What random numbers of clients are keyed by: their names, or else their numbers."""
    return label_ids(np.array(names, dtype=object)) if names else np.arange(m, dtype=np.uint64)


def _said(data: dict[str, Any], table: Table) -> dict[str, Any]:
    """The keys of [data] that rows decide: their clients are heeded, and so are the sides that they are on."""
    kind, given = data["partition"], data["given_split"]
    if given is None and SPLIT in table and not (data["order_by"] or data["split_by"]):
        given = SPLIT
    if "client" in table and (kind in DEALT or (kind == "auto" and data["clients"] != Data.clients)):
        raise CoterieError(
            f"The rows have clients, and {f'partition {kind!r}' if kind in DEALT else 'clients (of partition iid)'} "
            "would deal them to others: let partition be 'given', or give the rows without an array 'client'."
        )
    if kind == "auto":
        kind = "given" if data["column"] or "client" in table else "iid"
    return {"partition": kind, "given_split": given}


def _weights(table: Table, name: str | None) -> Floats | None:
    """What rows weigh relative to their mean (n,), where they have weights."""
    if name is None:
        return None
    if name not in table:
        raise CoterieError(f"The data have no array '{name}' of weights.{nearest(name, table)}")
    w = as_numbers(table[name], f"'{name}'").astype(np.float64)
    bad = ~(np.isfinite(w) & (w >= 0.0)) if w.ndim == 1 else np.ones(1, dtype=bool)
    if bad.any():
        raise CoterieError(f"'{name}' must weigh each row by a finite number from 0: see {at_rows(bad)}.")
    if not w.any():
        raise CoterieError(f"'{name}' must weigh one row at least by a number above 0: leave it out.")
    return np.asarray(w / w.mean())


def _weighted(partitioned: PartitionedRows, weights: Floats | None) -> list[ClientRows]:
    """Training rows and held-out rows with their weights, which lie in the partition's order."""
    parts, cut = [partitioned.train, partitioned.test], len(partitioned.train.y)
    if weights is None:
        return parts
    return [replace(part, weights=w) for part, w in zip(parts, (weights[:cut], weights[cut:]), strict=True)]


def _held(data: dict[str, Any], table: Table) -> RowSplits:
    """What says which rows are held out."""
    names = [data[name] for name in ("given_split", "order_by", "split_by")]
    for name in filter(None, names):
        if name not in table:
            hint = nearest(name, table) or f" There are {', '.join(table)}."
            raise CoterieError(f"The data have no array '{name}' to split rows by.{hint}")
    given, order, groups = (None if name is None else table[name] for name in names)
    held = RowSplits.of(given, order, groups, tuple(map(str, names)))
    back = held.given is not None and bool((held.given == VALIDATION).any())
    if back and data["validation"] != Data.validation:
        raise CoterieError(f"validation changes nothing: '{names[0]}' says which rows choices are made by.")
    if data["partition"] == "rotated" and any(names):
        raise CoterieError(f"Partition 'rotated' holds rows out by chance: leave '{next(filter(None, names))}' out.")
    return held


def _channels(data: Federated, name: str) -> Federated:
    """Grey images (n, h, w) of the package with their one channel (n, 1, h, w)."""
    if name not in PACKAGED:
        return data
    train, test = (replace(part, X=part.X[:, None]) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


_DEALS: dict[str, tuple[Callable[..., Partition], tuple[str, ...]]] = {
    "iid": (deals.iid, ()),
    "dirichlet": (deals.dirichlet, ("alpha", "least")),
    "extended-dirichlet": (deals.extended_dirichlet, ("alpha", "each", "least")),
    "quantity": (deals.quantity, ("alpha", "least")),
    "pathological": (deals.pathological, ("each",)),
    "shards": (deals.shards, ("shards",)),
    "feature-noise": (deals.iid, ()),
}
"""How rows are dealt, and the keys of [data] that say more of it, by the name of a partition."""


def _partition(data: dict[str, Any], table: Table, seed: int) -> Partition:
    """Who gets which row."""
    kind, m, share, y = data["partition"], data["clients"], data["test"], table["y"]
    if kind in _DEALS:
        deal, keys = _DEALS[kind]
        rows = len(y) if deal in (deals.iid, deals.quantity) else y
        return deal(rows, m, *(data[key] for key in keys), seed, share)
    name = data["column"] or "client"
    if name not in table:
        hint = nearest(name, table) or f" There are {', '.join(table)}."
        raise CoterieError(f"The data have no array '{name}' that says whose row it is.{hint}")
    if table[name].ndim > 1:
        raise CoterieError(f"The array '{name}' has the shape {table[name].shape}: give one client for each row.")
    return deals.by_column(table[name], seed, share)


def _groups(partition: Partition, label: Array) -> tuple[Ints, tuple[str, ...]]:
    """The group of each client, from 0, of whose rows all must say the same; and what groups are called."""
    names, codes = np.unique(label, return_inverse=True)
    group = np.zeros(len(partition.group), dtype=np.int64)
    group[partition.client] = codes[partition.row]
    differ = np.flatnonzero(group[partition.client] != codes[partition.row])
    if len(differ):
        if not partition.names:
            raise CoterieError(
                "Rows are dealt to clients whatever their group, so that a client has several: let an array of the "
                "data say whose row it is (partition 'given', or client), or give no groups."
            )
        who = partition.names[partition.client[differ[0]]]
        raise CoterieError(f"Rows of client {who} are of more than one group: give all rows of a client the same one.")
    present, group = np.unique(group, return_inverse=True)
    return group.astype(np.int64), tuple(str(name) for name in names[present])


def source(config: Config) -> tuple[Table, tuple[str, ...]]:
    """Arrays by name, all with a row for each row of the data: X (n, ...), y (n, ...), and what else it has.

    Of a table also the names of the columns of X.
    """
    name, model, data = config.data["source"], config.model, config.data
    rows = name.value if isinstance(name, Held) else name
    keys = ("group", "weights", "given_split", "order_by", "split_by")
    beside = list(dict.fromkeys(filter(None, [data["column"] or "client", SPLIT, *(data[key] for key in keys)])))
    named = {role: data[key] for role, key in {"client": "column", **dict(zip(keys, keys, strict=True))}.items()}
    named = {role: column for role, column in named.items() if column not in (None, "group")}
    if is_table(rows):
        path = config.folder / local(rows) if isinstance(rows, str) else rows
        return arrays(path, model["target"], model["inputs"], beside, named)
    place = config.folder / local(rows) if isinstance(rows, str) and ":" not in rows else None
    if place is not None and (place.is_dir() or place.suffix == ".json"):
        found = read(place, Columns(model["target"], model["inputs"], beside, named), data["args"])
        return _checked(f"The data source '{name}'", found), ()
    if model["target"] is not None:
        raise CoterieError(
            "target is for rows that are a table, and these are arrays, whose outcomes are y: leave it out."
        )
    return _source(config), ()


def _source(config: Config) -> Table:
    """The arrays of anything but a table."""
    name, args = config.data["source"], config.data["args"]
    if config.data["collate"] is not None and (isinstance(name, Held) or ":" not in name):
        raise CoterieError("collate of [data] changes nothing but of Datasets that a function gives as the source.")
    if isinstance(name, Held):
        return _checked(ROWS, name.value)
    need_named(name, "The rows", "give them to coterie.fit, or name a .npz file as data.source")
    if args and (name == "digits" or name.endswith(".npz")):
        raise CoterieError(f"The data source '{name}' takes no args.")
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        found: Any = {"X": (digits.images / 16.0).astype(np.float32), "y": digits.target}
    elif name == "fashion-mnist":
        images = called(fashion, "The data source 'fashion-mnist'", args)
        pixels = np.concatenate([images.images, images.test_images]).astype(np.float32) / 255.0
        found = {"X": pixels, "y": np.concatenate([images.labels, images.test_labels])}
    elif name.endswith(".npz"):
        found = _npz(config.folder / local(name))
    elif ":" in name:
        found = called(config.load(name, "The data source"), f"The data source '{name}'", args)
        if config.data["collate"] is not None:
            what = f"collate of [data] ('{config.data['collate']}')"
            found = collated(found, config.load(config.data["collate"], what), what)
        elif isinstance(found, dict) and not {"X", "y"} <= found.keys():
            found = in_memory.rows(found).value
    else:
        hint = nearest(name, PACKAGED) or f" There are {', '.join(PACKAGED)}, files, folders, package.module:function."
        raise CoterieError(f"There are no data called '{name}'.{hint}")
    return _checked(f"The data source '{name}'", found)


def _npz(path: Path) -> Table:
    """The arrays in a file; nothing in it can run."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise CoterieError(f"'{path}' holds one array without a name: write X and y with numpy.savez.")
            return {name: found[name] for name in found.files}
    except CoterieError:
        raise
    except OSError as e:
        raise CoterieError(f"'{path}' cannot be read: {e.strerror or e}.") from e
    except (BadZipFile, EOFError) as e:
        raise CoterieError(f"'{path}' is empty or cut off: write it again.") from e
    except ValueError as e:
        raise CoterieError(f"'{path}' cannot be read: it holds something else than plain arrays.") from e


def _checked(subject: str, found: Any) -> Table:
    """What a source gave as arrays of equal length: a mapping, or (X, y, client, group), of which two are needed."""
    if isinstance(found, tuple | list):
        found = dict(zip(NAMES, found, strict=False))
    if not isinstance(found, dict) or not {"X", "y"} <= found.keys():
        raise CoterieError(f"{subject} must give X and y: a tuple (X, y), or arrays by name.")
    table: Table = {}
    for key, values in ((str(key), values) for key, values in found.items()):
        what = f"{key} of {subject[0].lower()}{subject[1:]}"
        labels = as_labels(values, what) if key == "y" and not several(values) else None
        numbers = as_inputs if key in ("X", "y") else as_array
        table[key] = numbers(values, what) if labels is None else labels
    n = len(table["X"]) if table["X"].ndim else 0
    for key, values in table.items():
        if values.ndim == 0 or len(values) != n:
            raise CoterieError(
                f"{subject} gives {plural(n, 'row')} of X, and {key} of shape {values.shape}: give one each."
            )
    if not n:
        raise CoterieError(f"{subject} has no rows.")
    return table
