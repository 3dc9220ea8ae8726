"""One shard of a folder of Parquet files: what an actor reads, and how it becomes a site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import Design
from coterie.data.formula import Parsed, column_kinds
from coterie.data.identifiability import Facts, triangle
from coterie.data.labels import Coded, encode, find_labels, label_ids
from coterie.data.prepare_table import prepare, read_roles, sound_rows, weighing_rows
from coterie.data.table import Table
from coterie.data.table_files import readable, write_table
from coterie.engines.ray.cluster import Parts
from coterie.errors import CoterieError, NoRows
from coterie.families import family_named
from coterie.federation import Array, Ints
from coterie.objectives.glm import GLM

if TYPE_CHECKING:
    import pandas as pd

Ids = np.ndarray[Any, np.dtype[np.uint64]]
_UNEVEN = 1.5


@dataclass(frozen=True)
class Asked:
    """What is to be read: the arguments of :meth:`coterie.engines.ray.Ray.parquet`."""

    path: str
    formula: str
    client: str
    levels: tuple[str, ...]
    family: str
    offset: str | None
    weights: str | None
    missing: str
    shared: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Who reads what: the columns that are read, and the row groups of each site, in the order of the folder."""

    asked: Asked
    parsed: Parsed
    columns: tuple[str, ...]
    schema: Any
    shares: list[list[Any]]

    @classmethod
    def of(cls, asked: Asked, sites: int) -> Plan:
        """Share out the row groups of a folder, as neighbours, by their numbers of rows."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        where = Path(asked.path)
        if "://" not in asked.path and not where.exists():
            raise CoterieError(f"There is no folder '{asked.path}'.")
        with readable(where):
            data = ds.dataset(asked.path, format="parquet", partitioning="hive")
            groups = [g for f in data.get_fragments() for g in f.split_by_row_group()]
            rows = np.array([g.row_groups[0].num_rows for g in groups], dtype=np.int64)
        if not rows.sum():
            raise NoRows(f"There are no rows in Parquet files in '{asked.path}'.")
        extra = {"offset": asked.offset, "weights": asked.weights}
        given = {role: name for role, name in extra.items() if name is not None}
        empty = pa.Table.from_batches([], data.schema).to_pandas()
        parsed = read_roles(Table(empty), asked.formula, asked.client, asked.levels, given, None)
        used = [*parsed.outcome_columns, *parsed.columns, asked.client, *asked.levels, *given.values()]
        middle = np.cumsum(rows) - rows / 2
        owner = np.minimum((middle * sites / rows.sum()).astype(np.int64), sites - 1)
        shares = [[g for g, s in zip(groups, owner, strict=True) if s == site] for site in range(sites)]
        return cls(asked, parsed, tuple(dict.fromkeys(used)), data.schema, shares)

    @property
    def uneven(self) -> bool:
        """Some site would have far more rows than others, so that all clients are dealt out instead."""
        rows = [sum(int(g.row_groups[0].num_rows) for g in share) for share in self.shares]
        return max(rows) * len(rows) > _UNEVEN * sum(rows)

    def read(self, site: int) -> pd.DataFrame:
        """The rows of one share."""
        import pyarrow as pa

        schema = pa.schema([self.schema.field(c) for c in self.columns], metadata=self.schema.metadata)
        with readable(Path(self.asked.path)):
            tables = [g.to_table(schema=self.schema, columns=list(self.columns)) for g in self.shares[site]]
            table = pa.concat_tables([t.cast(schema) for t in tables]) if tables else schema.empty_table()
            frame: pd.DataFrame = table.to_pandas()
        return frame


@dataclass(frozen=True)
class Built:
    """What a shard says of itself.

    ``levels`` are its clusters, fine to coarse, with labels and parents; ``sizes`` (k,) the clients of each of its
    finest ones.
    """

    facts: Facts
    levels: list[tuple[str, Array, Ints]]
    sizes: Ints
    notes: tuple[str, ...]


class Shard:
    """The rows that one actor has, from reading them to a site."""

    def __init__(self, plan: Plan, site: int) -> None:
        self.plan, self.site = plan, site
        self.frame = plan.read(site)
        self.moved = False
        self.clients: Clients | None = None
        self.order = np.empty(0, np.int64)
        self.parts: Parts | None = None

    # -- before the design is known

    def ids(self) -> Ids:
        """Hashes of the clients that have rows here."""
        return label_ids(self._client().labels)

    def _client(self) -> Coded:
        return encode(self.frame[self.plan.asked.client])

    def give(self, torn: Ids | None) -> list[pd.DataFrame]:
        """The rows of clients that are ``torn`` (None: all), for each site; the others stay here."""
        owner = owners(self._client(), torn, self.site, len(self.plan.shares))
        return [self.frame[owner == s] for s in range(len(self.plan.shares))]

    def take(self, *frames: pd.DataFrame) -> None:
        """Have these rows, in the order of the sites that gave them, instead."""
        import pandas as pd

        self.frame = pd.concat(frames, ignore_index=True)
        self.moved = True

    def digest(self) -> dict[str, tuple[str, Any]]:
        """What a design learns from the rows here: levels of categories, and some numbers (all for stateful terms)."""
        asked, parsed, table = self.plan.asked, self.plan.parsed, Table.of(self.frame)
        if not len(table):
            return {}
        kinds = column_kinds(table, parsed)
        rows = None
        if parsed.stateful or "category" in kinds.values():
            labels = {name: table[name].labels for name in (asked.client, *asked.levels)}
            extra = {"offset": asked.offset, "weights": asked.weights}
            given = {role: name for role, name in extra.items() if name is not None}
            try:
                rows, _ = sound_rows(table, kinds, labels, given, asked.missing)
                if asked.weights is not None:
                    rows, _ = weighing_rows(table, asked.weights, rows)
            except NoRows:
                return {}
        found: dict[str, tuple[str, Any]] = {}
        for name, kind in kinds.items():
            series = table[name].series if rows is None else table[name].series.iloc[rows]
            if kind == "category":
                found[name] = kind, series.drop_duplicates()
            else:
                found[name] = kind, series if parsed.stateful else series.iloc[:8]
        return found

    # -- once it is

    def build(self, design: Design) -> Built | None:
        """Make the columns, and say what others must know of them; None where no row is left."""
        self.clients = prepared(self.plan.asked, design, self.frame, self._name())
        self.frame = self.frame.iloc[:0]
        c = self.clients
        if c is None:
            return None
        levels = [(level.name, level.labels, level.parent) for level in c.levels]
        return Built(Facts.of(c), levels, np.bincount(c.clusters), c.notes)

    def triangle(self, scale: Array) -> Array:
        """R of the scaled columns here."""
        return np.empty((0, len(scale))) if self.clients is None else triangle(self.clients.X, scale)

    def settle(self, level: int, labels: Array, weight: float) -> None:
        """Number the clusters by ``labels``, the sorted ones of a level over all shards; clients go in that order.

        Weights of rows are divided by ``weight``, their mean over all shards.
        """
        c = self.clients
        if c is None:
            no, none = np.empty(0), np.empty(0, np.int64)
            nobody = GLM(np.empty((0, 1)), no, no, no, none, none, family_named(self.plan.asked.family))
            self.parts = nobody, none, no, np.empty(0, np.uint64)
            return
        numbers = np.zeros(len(c), np.int64)
        if len(labels):
            here = c.clusters
            for finer in c.levels[:level]:
                here = finer.parent[here]
            numbers = find_labels(labels, c.levels[level].labels)[here]
        self.order = np.argsort(numbers, kind="stable")
        objective = GLM(c.X, c.y, c.offset, c.weights / weight, c.starts, c.stops, family_named(self.plan.asked.family))
        ids = c.ids[self.order]
        self.parts = objective.take(self.order), numbers[self.order], np.ones(len(c)), ids

    def write(self, folder: Path, theta: Array | None, cov: Array | None) -> None:
        """Write a row for each client here: labels, number of rows, coefficients, and standard errors if known."""
        import pandas as pd

        c = self.clients
        if c is None:
            return
        if theta is None:
            raise CoterieError("There are no coefficients to write: fit a method first.")
        inverse = np.argsort(self.order)
        columns: dict[str, Any] = {c.name: c.labels}
        here = c.clusters
        for level in c.levels:
            columns[level.name] = level.labels[here]
            here = level.parent[here]
        columns["rows"] = c.counts
        columns |= {name: theta[inverse, j] for j, name in enumerate(c.terms)}
        if cov is not None:
            at_diagonal = np.cumsum(np.arange(1, len(c.terms) + 1)) - 1
            sd = np.sqrt(np.maximum(cov[:, at_diagonal][inverse], 0.0))
            columns |= {f"std_error {name}": sd[:, j] for j, name in enumerate(c.terms)}
        folder.mkdir(parents=True, exist_ok=True)
        write_table(pd.DataFrame(columns), folder / f"site-{self.site}.parquet")

    def _name(self) -> str:
        if self.moved:
            return f"site {self.site} (counted after clients were brought together)"
        files = [Path(g.path).name for g in self.plan.shares[self.site]]
        first, last = (files[0], files[-1]) if files else ("", "")
        return f"site {self.site} ({first if first == last else f'{first} to {last}'})"


def prepared(asked: Asked, design: Design, frame: pd.DataFrame, name: str) -> Clients | None:
    """The clients of a shard's rows; None where no row is left."""
    try:
        return prepare(
            frame,
            asked.formula,
            asked.client,
            asked.levels,
            asked.family,
            asked.offset,
            asked.weights,
            asked.missing,  # type: ignore[arg-type]
            design,
            part=True,
        )[0]
    except NoRows:
        return None
    except CoterieError as problem:
        raise CoterieError(f"In the rows of {name}: {problem}") from problem


def owners(client: Coded, torn: Ids | None, site: int, sites: int) -> Ints:
    """The site of each row: its own, but for clients that are torn (None: all), which are dealt out by their hash."""
    ids = label_ids(client.labels)
    dealt = (ids % np.uint64(sites)).astype(np.int64)
    owner = dealt if torn is None else np.where(np.isin(ids, torn), dealt, site)
    return np.append(owner, site)[client.codes]  # rows without a label stay


def again(plan: Plan, design: Design, common: tuple[int, Array, float], site: int, torn: Ids | None) -> Shard:
    """A shard made anew from the files, as it was made at first; ``common`` is what it is settled by."""
    import pandas as pd

    shard = Shard(plan, site)
    if torn is None or len(torn):
        sites = len(plan.shares)
        frames = [shard.frame if s == site else plan.read(s) for s in range(sites)]
        owned = [owners(encode(f[plan.asked.client]), torn, s, sites) == site for s, f in enumerate(frames)]
        shard.frame = pd.concat([f[mine] for f, mine in zip(frames, owned, strict=True)], ignore_index=True)
    shard.build(design)
    shard.settle(*common)
    return shard
