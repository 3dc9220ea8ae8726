"""From a folder of Parquet files to shards that agree: one design, one tree of clusters, which columns are personal.

Actors read and agree; the driver tells them when, and holds no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.columns import Column
from coterie.data.design import INTERCEPT, Design
from coterie.data.identifiability import Facts, collinear_over, constant_within, shared_terms
from coterie.data.labels import Coded, encode
from coterie.data.prepare_table import informative_tree
from coterie.engines.ray.cluster import ActorSlots, get
from coterie.engines.ray.shards import Asked, Built, Plan, Shard, again
from coterie.errors import CoterieError, NoRows
from coterie.families import family_named
from coterie.federation import Array
from coterie.methods.estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree

if TYPE_CHECKING:
    import pandas as pd


Digest = Mapping[str, tuple[str, "pd.Series[Any]"]]


@dataclass(frozen=True)
class Agreed:
    """What all shards together are: the problem, the names of the columns, and notes on how the table was read.

    ``levels`` are the cluster columns that tell something, fine to coarse, with their sorted labels; ``rows`` are the
    rows that are used, ``weight`` is their mean weight.
    """

    problem: GroupedProblem
    terms: tuple[str, ...]
    levels: tuple[tuple[str, Array], ...]
    notes: tuple[str, ...]
    rows: int
    weight: float


def design_of(plan: Plan, *digests: Digest) -> Design:
    """The design of the whole table, from what each shard has seen: levels of categories are united."""
    import pandas as pd

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
    import pandas as pd

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
    _check(asked, design, facts)
    trouble = collinear_over(design.terms, facts, lambda scale: triangles)
    if trouble is not None:
        raise CoterieError(trouble)
    tree, notes = informative_tree(asked.client, asked.levels, _paths(asked, parts))
    must = constant_within(design.terms, facts)
    shared = shared_terms(design.terms, asked.shared)
    personal = np.flatnonzero(~(shared | must))
    intercept = design.terms.index(INTERCEPT) if INTERCEPT in design.terms else None
    above = ClusterTree(tuple(level.parent for level in tree.levels))
    problem = GroupedProblem(above, family_named(asked.family), personal, intercept, facts.most <= 1)
    said = dict.fromkeys([*(note for b in parts for note in b.notes), *notes])
    levels = tuple((level.name, level.labels) for level in tree.levels)
    return Agreed(problem, design.terms, levels, tuple(said), facts.rows, facts.weight / facts.rows)


def finest(asked: Asked, agreed: Agreed) -> tuple[int, Array]:
    """Which of the levels asked for is the finest that is kept, and its labels."""
    if not agreed.levels:
        return 0, np.empty(0, np.int64)
    return asked.levels.index(agreed.levels[0][0]), agreed.levels[0][1]


def _check(asked: Asked, design: Design, facts: Facts) -> None:
    if facts.clients == 1:
        raise CoterieError(
            f"There is only one client in column '{asked.client}'. Name the column that tells clients apart."
        )
    if facts.low[-1] == facts.high[-1]:
        raise CoterieError(f"The outcome '{design.outcome}' is constant, so there is nothing to explain.")


def _paths(asked: Asked, parts: Sequence[Built]) -> dict[str, Coded]:
    """Labels of a few clients (two where a cluster has more) in every cluster of every shard, by column."""
    columns: dict[str, list[Array]] = {name: [] for name in asked.levels}
    few = [np.repeat(np.arange(len(b.sizes)), np.minimum(b.sizes, 2)) for b in parts]
    for b, here in zip(parts, few, strict=True):
        at = here
        for name, labels, parent in b.levels:
            columns[name].append(np.asarray(labels)[at])
            at = parent[at]
    n = sum(map(len, few))
    everyone = np.arange(n)
    return {asked.client: Coded(everyone, everyone)} | {
        name: encode(np.concatenate(labels)) for name, labels in columns.items()
    }


Loaded = tuple[list[Any], tuple[Any, ...], Agreed]


def load(slots: ActorSlots, asked: Asked) -> Loaded:
    """Let every actor read its shard: what makes each site anew of some data, references to these, what is agreed.

    Clients whose rows lie in two shards are found by the hashes of their labels, and their rows move from actor to
    actor; so do all clients where the files cannot be shared out evenly.
    """
    n, first = len(slots), slots.actors[0]
    plan = first.run.remote(Plan.of, asked, n)
    get([actor.read.remote(Shard, plan, s) for s, actor in enumerate(slots.actors)])
    torn = None if get(first.run.remote(_uneven, plan)) else _twice(get(slots.do("ids", [()] * n)))
    if torn is None or len(torn):
        given = slots.do("give", [(torn,)] * n, returns=n)
        get(slots.do("take", [[given[g][s] for g in range(n)] for s in range(n)]))
    design = first.run.remote(design_of, plan, *slots.do("digest", [()] * n))
    built = slots.do("build", [(design,)] * n)
    scale = get(first.run.remote(scale_of, design, *built))
    triangles = [] if scale is None else get(slots.do("triangle", [(scale,)] * n))
    agreed = get(first.run.remote(agree, plan, design, triangles, *built))
    common = *finest(asked, agreed), agreed.weight
    get(slots.do("settle", [common] * n))
    makes = [partial(_again, s, torn, common) for s in range(n)]
    return makes, (plan, design), agreed


def _again(site: int, torn: Any, common: tuple[int, Any, float], plan: Plan, design: Any) -> Shard:
    return again(plan, design, common, site, torn)


def _uneven(plan: Plan) -> bool:
    return plan.uneven


def _twice(ids: list[Any]) -> Any:
    """The clients that are at two sites."""
    together = np.sort(np.concatenate(ids))
    return np.unique(together[1:][together[1:] == together[:-1]])
