"""How models of groups reach their clients, and what is made of the sums that come back."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerCluster, PerRow, Ragged, Sums
from coterie.methods.groups.at_home import mine
from coterie.methods.local_training.personal_layers import Transport
from coterie.numerics.kernels import Floats, Ints


def assigned(fed: Federation, group: Any) -> Ints:
    """Group (m,) of every client: the one that is given, or its cluster."""
    if group is None:
        return fed.clients.clusters
    given = np.asarray(group)
    if given.shape != (len(fed.clients),) or given.dtype.kind not in "iu" or given.min(initial=0) < 0:
        raise CoterieError(f"group must be a whole number from 0 for each of {len(fed.clients)} clients.")
    return given.astype(np.int64)


def addressed(fed: Federation, group: Ints, models: list[Floats], to: Ints, coded: bool = False) -> dict[str, Any]:
    """Arguments of ``total`` that send the clients ``to`` their groups' models, and add up by group."""
    if np.array_equal(group, fed.clients.clusters) and not coded:
        return {"by": "cluster", "groups": len(models), "w": PerCluster(models), "clusters": True}
    return {"by": group[to], "groups": len(models), "w": PerRow(np.stack(models)[group[to]]), "clusters": False}


def averaged(sums: Sums, models: list[Floats]) -> tuple[Floats, list[Floats]]:
    """Shares (k,) of the weights, and how far every group's mean is from its model; nothing for groups unheard."""
    k = len(models)
    weight = np.array([float(w) for w in sums["w"]]) if sums else np.zeros(k)
    moves = [
        sums["x"][g] / model.dtype.type(weight[g]) - model if weight[g] > 0.0 else np.zeros_like(model)
        for g, model in enumerate(models)
    ]
    total = weight.sum()
    return weight / total if total > 0.0 else weight, moves


def everyones(fed: Federation, group: Ints, models: list[Floats], state: dict[str, Any], transport: Transport) -> Any:
    """Every client's model (m, d), or Ragged where sizes differ; layers of their own are heard from clients."""
    if "whole" not in state:
        theta = [models[g] for g in group]
    else:
        wholes = [np.array(state["whole"][g], dtype=models[g].dtype) for g in range(len(models))]
        for g, whole in enumerate(wholes):
            whole[state["travels"][g]] = models[g]
        theta = [wholes[g] for g in group]
        to = addressed(fed, group, models, np.arange(len(group)))
        replies = fed.ask(mine, w=to["w"], clusters=to["clusters"], transport=transport)
        for row, client in enumerate(replies.rows if replies else ()):
            theta[client] = replies["theta"][row]
    return np.stack(theta) if len({len(one) for one in theta}) == 1 else Ragged.of(theta)
