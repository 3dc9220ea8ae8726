"""From a folder of Parquet files to shards: actors read and agree, the driver tells them when and holds no row."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from coterie.engines.ray.cluster import ActorSlots, get
from coterie.engines.ray.shard_schema import Agreed, agree, design_of, finest, scale_of
from coterie.engines.ray.shards import Asked, Plan, Shard, again

Loaded = tuple[list[Any], tuple[Any, ...], Agreed]


def load(slots: ActorSlots, asked: Asked) -> Loaded:
    """Let every actor read its shard.

    Clients whose rows lie in two shards are found by the hashes of their labels, and their rows move from actor to
    actor; so do all clients where the files cannot be shared out evenly.

    Returns
    -------
    makes : list of callables
        What makes each site anew, given ``data``.
    data : references
    agreed : Agreed
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
