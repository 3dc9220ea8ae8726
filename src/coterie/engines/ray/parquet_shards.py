"""A folder of Parquet files as sites: each actor reads a shard, and all shards agree on design, clusters and columns.

Actors read and agree; the driver tells them when, and holds no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.columns import Column
from coterie.data.design import INTERCEPT, Design
from coterie.data.formula import Parsed, column_kinds
from coterie.data.identifiability import Facts, collinear_over, constant_within, shared_terms, triangle
from coterie.data.labels import Coded, encode, find_labels, label_ids
from coterie.data.prepare_table import informative_tree, prepare, read_roles, sound_rows, weighing_rows
from coterie.data.table import Table
from coterie.data.table_files import readable, write_table
from coterie.engines.ray.actors import ActorSlots, Parts, get, library
from coterie.errors import CoterieError, NoRows, listed
from coterie.families import family_named
from coterie.federation import Array, Ints
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree
from coterie.remote import Url

Ids = np.ndarray[Any, np.dtype[np.uint64]]
Digest = Mapping[str, tuple[str, "pd.Series[Any]"]]
Common = tuple[int, Array, float]  # the finest level that is kept, its sorted labels, and the mean weight of a row


@dataclass(frozen=True)
class Asked:
    """What is to be read: the arguments of :meth:`coterie.engines.ray.Ray.parquet`."""

    path: Path
    formula: str
    client: str
    levels: tuple[str, ...]
    family: str
    offset: str | None
    weights: str | None
    missing: Literal["error", "drop"]
    shared: tuple[str, ...]

    @property
    def roles(self) -> dict[str, str]:
        """The columns of offset and weights that there are."""
        extra = {"offset": self.offset, "weights": self.weights}
        return {role: name for role, name in extra.items() if name is not None}


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

        with readable(asked.path):
            if not asked.path.exists():
                raise CoterieError(f"There is no folder '{asked.path}'.")
            system, at = asked.path.opened() if isinstance(asked.path, Url) else (None, asked.path)
            data = ds.dataset(at, filesystem=system, format="parquet", partitioning="hive")
            groups = [g for f in data.get_fragments() for g in f.split_by_row_group()]
            rows = np.array([g.row_groups[0].num_rows for g in groups], dtype=np.int64)
        if not rows.sum():
            raise NoRows(f"There are no rows in Parquet files in '{asked.path}'.")
        empty = pa.Table.from_batches([], data.schema).to_pandas()
        parsed = read_roles(Table(empty), asked.formula, asked.client, asked.levels, asked.roles, None)
        used = [*parsed.outcome_columns, *parsed.columns, asked.client, *asked.levels, *asked.roles.values()]
        middle = np.cumsum(rows) - rows / 2
        owner = np.minimum((middle * sites / rows.sum()).astype(np.int64), sites - 1)
        shares = [[g for g, s in zip(groups, owner, strict=True) if s == site] for site in range(sites)]
        return cls(asked, parsed, tuple(dict.fromkeys(used)), data.schema, shares)

    @property
    def uneven(self) -> bool:
        """Some site would have far more rows than others, so that all clients are dealt out instead."""
        rows = [sum(int(g.row_groups[0].num_rows) for g in share) for share in self.shares]
        return max(rows) * len(rows) > 1.5 * sum(rows)

    def read(self, site: int) -> pd.DataFrame:
        """The rows of one share."""
        import pyarrow as pa

        schema = pa.schema([self.schema.field(c) for c in self.columns], metadata=self.schema.metadata)
        with readable(self.asked.path):
            tables = [g.to_table(schema=self.schema, columns=list(self.columns)) for g in self.shares[site]]
            table = pa.concat_tables([t.cast(schema) for t in tables]) if tables else schema.empty_table()
            return table.to_pandas()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Built:
    """What a shard says of itself: facts, clusters from fine to coarse, clients of each finest one (k,), and notes."""

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

    def ids(self) -> Ids:
        """Hashes of the clients that have rows here."""
        return label_ids(encode(self.frame[self.plan.asked.client]).labels)

    def give(self, torn: Ids | None) -> list[pd.DataFrame]:
        """The rows of clients that are ``torn`` (None: all), for each site; the others stay here."""
        owner = owners(self.plan, self.frame, torn, self.site)
        return [self.frame[owner == s] for s in range(len(self.plan.shares))]

    def take(self, *frames: pd.DataFrame) -> None:
        """Have these rows, in the order of the sites that gave them, instead."""
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
            try:
                rows, _ = sound_rows(table, kinds, labels, asked.roles, asked.missing)
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

    def build(self, design: Design) -> Built | None:
        """Make the columns, and say what others must know of them; None where no row is left."""
        asked, frame, self.frame = self.plan.asked, self.frame, self.frame.iloc[:0]
        roles = asked.formula, asked.client, asked.levels, asked.family, asked.offset, asked.weights
        try:
            c, _ = prepare(frame, *roles, asked.missing, design, part=True)
        except NoRows:
            return None
        except CoterieError as problem:
            raise CoterieError(f"In the rows of {self._name()}: {problem}") from problem
        self.clients = c
        levels = [(level.name, level.labels, level.parent) for level in c.levels]
        return Built(Facts.of(c), levels, np.bincount(c.clusters), c.notes)

    def triangle(self, scale: Array) -> Array:
        """R of the scaled columns here."""
        return np.empty((0, len(scale))) if self.clients is None else triangle(self.clients.X, scale)

    def settle(self, level: int, labels: Array, weight: float) -> None:
        """Number the clusters by :data:`Common` labels, and put the clients in that order; weights become relative."""
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

    def described(self) -> tuple[Array, Ints]:
        """Labels and numbers of rows of the clients here, in their order."""
        c = self.clients
        return (np.empty(0), np.empty(0, np.int64)) if c is None else (c.labels[self.order], c.counts[self.order])

    def write(self, folder: Path, theta: Array | None, cov: Array | None) -> None:
        """Write a row for each client here: labels, number of rows, coefficients, and standard errors if known."""
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


def owners(plan: Plan, frame: pd.DataFrame, torn: Ids | None, site: int) -> Ints:
    """The site of each row: its own, but for clients that are torn (None: all), which are dealt out by their hash."""
    client = encode(frame[plan.asked.client])
    ids = label_ids(client.labels)
    dealt = (ids % np.uint64(len(plan.shares))).astype(np.int64)
    owner = dealt if torn is None else np.where(np.isin(ids, torn), dealt, site)
    return np.append(owner, site)[client.codes]  # rows without a label stay


def again(site: int, torn: Ids | None, common: Common, plan: Plan, design: Design) -> Shard:
    """A shard made anew from the files, as it was made at first; ``common`` is what it is settled by."""
    shard = Shard(plan, site)
    if torn is None or len(torn):
        frames = [shard.frame if s == site else plan.read(s) for s in range(len(plan.shares))]
        owned = [f[owners(plan, f, torn, s) == site] for s, f in enumerate(frames)]
        shard.frame = pd.concat(owned, ignore_index=True)
    shard.build(design)
    shard.settle(*common)
    return shard


@dataclass(frozen=True)
class Agreed:
    """What all shards together are: the problem, the names of the columns, and notes on how the table was read.

    ``levels`` are the cluster columns that tell something, fine to coarse, with their sorted labels.
    """

    problem: GroupedProblem
    terms: tuple[str, ...]
    levels: tuple[tuple[str, Array], ...]
    notes: tuple[str, ...]
    common: Common


def design_of(plan: Plan, *digests: Digest) -> Design:
    """The design of the whole table, from what each shard has seen: levels of categories are united."""
    seen = [d for d in digests if d]
    if not seen:
        raise NoRows(f"No row can be used in '{plan.asked.path}'.")
    values: dict[str, Any] = {}
    for name in seen[0]:
        kinds = {d[name][0] for d in seen}
        if len(kinds) > 1:
            raise CoterieError(
                f"Column '{name}' holds numbers in some of the files and text in others: make it one kind, or write "
                f"C({name}) in the formula."
            )
        columns = [d[name][1] for d in seen]
        if kinds == {"category"}:
            values[name] = Column(_united(columns)).levels[1]
        else:
            values[name] = np.concatenate([Column(c).floats for c in columns])
    n = max(map(len, values.values()))
    table: dict[str, Any] = {}
    for name, v in values.items():
        category = isinstance(v, tuple)
        table[name] = pd.Categorical(np.resize(np.array(v, object), n), categories=v) if category else np.resize(v, n)
    design = Design.fit(pd.DataFrame(table), plan.parsed.formula)
    design.need_variety()
    return design


def _united(columns: Sequence[pd.Series[Any]]) -> pd.Series[Any]:
    if all(isinstance(c.dtype, pd.CategoricalDtype) for c in columns):
        return pd.Series(pd.api.types.union_categoricals(list(columns)))
    return pd.concat(list(columns), ignore_index=True)


def scale_of(design: Design, *built: Built | None) -> Array | None:
    """The scale in which a closer look at the columns is needed; None where X'X says enough."""
    asked: list[Array] = []

    def look(scale: Array) -> Sequence[Array]:
        asked.append(scale)
        return [np.eye(len(scale))]

    collinear_over(design.terms, Facts.joined([b.facts for b in built if b is not None]), look)
    return asked[0] if asked else None


def agree(plan: Plan, design: Design, triangles: Sequence[Array], *built: Built | None) -> Agreed:
    """The problem that the shards pose together, as :func:`coterie.fit` would pose it for the whole table.

    A CoterieError says what only all rows together can tell: one client, a constant outcome, columns that repeat
    others, clusters that do not nest.
    """
    asked, parts = plan.asked, [b for b in built if b is not None]
    facts = Facts.joined([b.facts for b in parts])
    if facts.clients == 1:
        raise CoterieError(f"There is only one client in '{asked.client}'. Name the column that tells clients apart.")
    if facts.low[-1] == facts.high[-1]:
        raise CoterieError(f"The outcome '{design.outcome}' is constant, so there is nothing to explain.")
    trouble = collinear_over(design.terms, facts, lambda scale: triangles)
    if trouble is not None:
        raise CoterieError(trouble)
    tree, notes = informative_tree(asked.client, asked.levels, _paths(asked, parts))
    personal = np.flatnonzero(~(shared_terms(design.terms, asked.shared) | constant_within(design.terms, facts)))
    intercept = design.terms.index(INTERCEPT) if INTERCEPT in design.terms else None
    above, family = ClusterTree(tuple(level.parent for level in tree.levels)), family_named(asked.family)
    problem = GroupedProblem(above, family, personal, intercept, facts.most <= 1)
    told: dict[str, list[str]] = {}
    for site, b in enumerate(built):
        for note in () if b is None else b.notes:
            told.setdefault(note, []).append(f"site {site}")
    here = [n if len(sites) == len(parts) else f"In the rows of {listed(sites)}: {n}" for n, sites in told.items()]
    said = dict.fromkeys([*here, *notes])
    levels = tuple((level.name, level.labels) for level in tree.levels)
    finest = (asked.levels.index(levels[0][0]), levels[0][1]) if levels else (0, np.empty(0, np.int64))
    return Agreed(problem, design.terms, levels, tuple(said), (*finest, facts.weight / facts.rows))


def _paths(asked: Asked, parts: Sequence[Built]) -> dict[str, Coded]:
    """Labels of a few clients (two where a cluster has more) in every cluster of every shard, by column."""
    columns: dict[str, list[Array]] = {name: [] for name in asked.levels}
    few = [np.repeat(np.arange(len(b.sizes)), np.minimum(b.sizes, 2)) for b in parts]
    for b, here in zip(parts, few, strict=True):
        at = here
        for name, labels, parent in b.levels:
            columns[name].append(np.asarray(labels)[at])
            at = parent[at]
    everyone = np.arange(sum(map(len, few)))
    found = {name: encode(np.concatenate(labels)) for name, labels in columns.items()}
    return {asked.client: Coded(everyone, everyone)} | found


def load(slots: ActorSlots, asked: Asked) -> tuple[list[Any], tuple[Any, ...], Agreed]:
    """Let every actor read its shard: what makes each site anew of some data, references to these, what is agreed.

    Clients whose rows lie in two shards are found by the hashes of their labels, and their rows move from actor to
    actor; so do all clients where the files cannot be shared out evenly.
    """
    n, first = len(slots), slots.actors[0]
    plan = first.run.remote(Plan.of, asked, n)
    get([actor.read.remote(Shard, plan, s) for s, actor in enumerate(slots.actors)])
    torn = None
    if not get(first.run.remote(attrgetter("uneven"), plan)):
        together = np.sort(np.concatenate(get(slots.do("ids", [()] * n))))
        torn = np.unique(together[1:][together[1:] == together[:-1]])  # those at two sites
    if torn is None or len(torn):
        given = slots.do("give", [(torn,)] * n, returns=n)
        get(slots.do("take", [[given[g][s] for g in range(n)] for s in range(n)]))
    design = first.run.remote(design_of, plan, *slots.do("digest", [()] * n))
    built = slots.do("build", [(design,)] * n)
    scale = get(first.run.remote(scale_of, design, *built))
    triangles = [] if scale is None else get(slots.do("triangle", [(scale,)] * n))
    agreed = get(first.run.remote(agree, plan, design, triangles, *built))
    get(slots.do("settle", [agreed.common] * n))
    makes = [partial(again, s, torn, agreed.common) for s in range(n)]
    return makes, tuple(library().put(get(one)) for one in (plan, design)), agreed  # a node may die with what it made
