"""Rows of the registry for the similarity network (paper 003): its algorithm over rounds, as it can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

State = dict[str, Any]


def ring(fed: Any) -> Network:
    """Clients in the order of their ids, each tied to the next two: the same ties in whatever order clients come."""
    order = np.argsort(fed.clients.ids)
    pairs = [(i, j) for step in (1, 2) for i, j in zip(order, np.roll(order, -step), strict=True) if i != j]
    pairs = np.unique(np.sort(np.array(pairs, dtype=np.int64).reshape(-1, 2), axis=1), axis=0)
    rank = np.argsort(order)
    return Network.of(len(order), pairs, 1.0 + rank[pairs].sum(axis=1) % 3)


def network_run(
    fed: Any,
    state: State | None = None,
    *,
    dim: Any,
    steps: int = 5,
    p: float = 2,
    phases: Any = None,
    **transport: Any,
) -> Iterator[State]:
    """Algorithm 6 on whatever the sites hold: the first parameter is shared, the last the sum of both."""
    n, d = len(fed.clients), dim(fed) if not state else state["Z"].shape[1] + 1
    layout = Layout.of([f"a{j}" for j in range(d)], shared=["a0"], both=[f"a{d - 1}"] if d > 1 else [])
    method = SimilarityNetwork(
        network=ring(fed),
        layout=layout,
        lam=0.02,
        eta=0.1,
        own=0.1 * n,
        p=p,
        phases=phases,
        gap=1e-12,
        transport=GradientExchange(**transport),
    )
    yield from method.run(fed, range(1, steps + 1), state or None)


def found(fed: Any, state: State) -> Mapping[str, Any]:
    return {"x": state["x"], "Z": state["Z"], "quarantined": state["quarantined"].max()}


SIMILARITY: dict[str, dict[str, Any]] = {
    "similarity-network": {},
    "similarity-network-rows": {"batch": 2, "p": 1},
    "similarity-network-part": {"participation": 0.6, "p": np.inf},
    "similarity-network-phases": {"phases": (1, 2)},
    "similarity-network-bytes": {"up": "float16", "feedback": "ef", "down": "float32"},
    "similarity-network-tv": {"up": "tv:2", "feedback": "ef", "order": "magnitude", "down": "tv:all"},
    "similarity-network-ef21": {
        "up": "float16",
        "feedback": "ef21",
        "order": "last-update",
        "participation": 0.6,
        "down": "float16",
    },
}
