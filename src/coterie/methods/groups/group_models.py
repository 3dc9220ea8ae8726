"""Models of known groups: which layers each has, how they reach clients, and what sums of replies make of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, PerCluster, PerRow, Ragged, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, ModelTransport, Reply
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives import parameters
from coterie.objectives.mean_loss import sizes
from coterie.objectives.mixed import Padded, kinds
from coterie.relations.parameter_layout import GroupLayout


@dataclass(frozen=True)
class AgreedLayers:
    """What clients said of their layers."""

    layout: GroupLayout
    x: Floats  # (dim,) the first augmented model: x_s as group 0 begins, each group's own layers as it does
    whole: Ragged  # each group's whole first model, with what stays with clients
    travels: Ragged  # which of its parameters leave a client (bool)

    def start(self, w: npt.ArrayLike | None) -> Floats:
        """The first model, or the one that is given; a CoterieError where it does not fit."""
        x = self.x if w is None else np.array(w, dtype=self.x.dtype)
        if x.shape != self.x.shape or not np.isfinite(x).all():
            raise CoterieError(f"The first model must be {len(self.x)} finite numbers: x_s, then each group's own.")
        return x


def layers(objective: Any, travels: Bools) -> str:
    """Names and sizes of all layers of an objective, whether they leave a client, their type and base, as JSON."""
    names = parameters.layer_sizes(objective)
    first = np.cumsum([0, *names.values()])[:-1]
    about = [[name, size, bool(travels[at])] for (name, size), at in zip(names.items(), first, strict=True)]
    dtype, base = np.dtype(parameters.precision(objective)).name, parameters.base_digest(objective)
    return json.dumps({"layers": about, "dtype": dtype} | ({"base": base} if base else {}))


@work
def fingerprints(site: Site, transport: ModelTransport) -> Reply:
    """What tells the layers of clients apart."""
    out = np.zeros(len(site), dtype=np.uint64)
    for rows, part in kinds(site.objective):
        text = layers(part, ~parameters.parameter_mask(part, transport.get("personal", ())))
        out[rows] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return {"print": out}


@work
def begin(site: Site, transport: ModelTransport, seed: int) -> Reply:
    """Clients' layers, which parameters travel, and the first values of all."""
    texts, starts, masks = [b""] * len(site), [np.zeros(0)] * len(site), [np.zeros(0, dtype=bool)] * len(site)
    for rows, part in kinds(site.objective):
        travels = ~parameters.parameter_mask(part, transport.get("personal", ()))
        text, start = layers(part, travels).encode(), parameters.initial_parameters(part, seed).astype(np.float64)
        for r in rows:
            texts[r], starts[r], masks[r] = text, start, travels
    return {"layers": Ragged.of(texts), "start": Ragged.of(starts), "travels": Ragged.of(masks)}


def agree_on_layers(
    fed: Federation, group: Ints, shared: Sequence[str], transport: ModelTransport, seed: int
) -> AgreedLayers:
    """Ask the clients of every group (m,) what layers they have.

    A CoterieError where a group has no client or none that answers, where clients of a group differ, and where what is
    to be shared does not fit.
    """
    k = int(group.max(initial=-1)) + 1
    replies = fed.ask(fingerprints, transport=transport)
    rows = replies.rows
    for missing, why in (
        (np.setdiff1d(np.arange(k), group), "has no clients: number the groups from 0 without a gap"),
        (np.setdiff1d(np.arange(k), group[rows]), "did not say what layers it has: start again when a client answers"),
    ):
        if len(missing):
            raise CoterieError(f"Group {missing[0]} {why}.")
    prints, (_, lead, of) = replies["print"], np.unique(group[rows], return_index=True, return_inverse=True)
    other = np.flatnonzero(prints != prints[lead][of])
    if len(other):
        one, two = rows[lead][of[other[0]]], rows[other[0]]
        raise CoterieError(
            f"Clients {one} and {two} are of group {group[two]} and have different layers: give each architecture "
            "groups of its own."
        )
    first_values = fed.ask(begin, to=rows[lead], transport=transport, seed=seed)
    if not first_values or len(first_values.missing):
        raise CoterieError("A group did not say how it starts: start again when its clients answer.")
    texts = [json.loads(bytes(first_values["layers"][g])) for g in range(k)]
    layout = GroupLayout.of([{name: n for name, n, travels in text["layers"] if travels} for text in texts], shared)
    x = np.zeros(layout.dim, dtype=np.result_type(*[np.dtype(text["dtype"]) for text in texts], np.float32))
    for g in reversed(range(k)):
        x[layout.of_group(g)] = first_values["start"][g][first_values["travels"][g]]
    return AgreedLayers(layout, x, first_values["start"], first_values["travels"])


def client_weights(site: Site, weigh: str) -> Floats:
    """How much clients count (m,): alike or by rows, times their own weight; not at all without rows."""
    rows = sizes(site.objective)
    return np.asarray(site.weights * (rows if weigh == "rows" else rows > 0.0))


def round_of_groups(site: Site, clusters: bool, w: Any, **sent: Any) -> LocalRound:
    """A round that begins at w, a row for each of the site's ``clusters`` or for each client."""
    return LocalRound(site, w=w[site.clusters] if clusters else w, **sent)


@work
def client_models(site: Site, clusters: bool, **sent: Any) -> Reply:
    """Every client's model (m, d), its own layers put in."""
    return {"theta": round_of_groups(site, clusters, **sent).start}


def group_of_clients(fed: Federation, group: Any) -> Ints:
    """Group (m,) of every client: the one that is given, or its cluster."""
    if group is None:
        return fed.clients.clusters
    given = np.asarray(group)
    if given.shape != (len(fed.clients),) or given.dtype.kind not in "iu" or given.min(initial=0) < 0:
        raise CoterieError(f"group must be a whole number from 0 for each of {len(fed.clients)} clients.")
    return given.astype(np.int64)


def address(fed: Federation, group: Ints, models: list[Floats], to: Ints, coded: bool = False) -> dict[str, Any]:
    """Arguments of ``total`` that send the clients ``to`` their groups' models, and add up by group."""
    if np.array_equal(group, fed.clients.clusters) and not coded:
        return {"by": "cluster", "groups": len(models), "w": PerCluster(models), "clusters": True}
    rows = np.zeros((len(models), max(map(len, models))), dtype=np.result_type(*models))
    for row, model in zip(rows, models, strict=True):  # shorter ones end with zeros
        row[: len(model)] = model
    return {"by": group[to], "groups": len(models), "w": PerRow(rows[group[to]]), "clusters": False}


def padded(site: Site, width: int) -> Site:
    """A site whose clients' models are rows of one length; with none, as it is."""
    if not width:
        return site
    view = copy(site)
    view.objective = Padded(site.objective, width)
    return view


def group_means(sums: Sums, models: list[Floats]) -> tuple[Floats, list[Floats]]:
    """Shares (k,) of the weights, and how far every group's mean is from its model; nothing for groups unheard."""
    k = len(models)
    weight = np.array([float(w) for w in sums["w"]]) if sums else np.zeros(k)
    moves = [
        sums["x"][g][: len(model)] / model.dtype.type(weight[g]) - model if weight[g] > 0.0 else np.zeros_like(model)
        for g, model in enumerate(models)
    ]
    total = weight.sum()
    return weight / total if total > 0.0 else weight, moves


def all_models(
    fed: Federation, group: Ints, models: list[Floats], state: dict[str, Any], transport: ModelTransport
) -> Any:
    """Every client's model (m, d), or Ragged where sizes differ; layers of their own are heard from clients."""
    if "whole" not in state:
        theta = [models[g] for g in group]
    else:
        wholes = [np.array(state["whole"][g], dtype=models[g].dtype) for g in range(len(models))]
        for g, whole in enumerate(wholes):
            whole[state["travels"][g]] = models[g]
        theta = [wholes[g] for g in group]
        to = address(fed, group, models, np.arange(len(group)))
        replies = fed.ask(client_models, w=to["w"], clusters=to["clusters"], transport=transport)
        for row, client in enumerate(replies.rows if replies else ()):
            theta[client] = replies["theta"][row]
    return np.stack(theta) if len({len(one) for one in theta}) == 1 else Ragged.of(theta)
