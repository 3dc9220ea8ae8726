"""Which layers clients have: asked once, of all, and agreed on in every group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Ragged, Site, work
from coterie.methods.local_training.client_work import Reply
from coterie.methods.local_training.personal_layers import Transport
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.objectives import parts
from coterie.objectives.mixed import kinds
from coterie.relations.group_layout import GroupLayout


@dataclass(frozen=True)
class Agreed:
    """What clients said of their layers.

    Attributes
    ----------
    layout : GroupLayout
    x : (dim,)
        The first augmented model: x_s as group 0 begins, each group's own layers as it does.
    whole : Ragged
        Each group's whole first model, with what stays with clients.
    travels : Ragged
        Which of its parameters leave a client (bool).
    """

    layout: GroupLayout
    x: Floats
    whole: Ragged
    travels: Ragged

    def start(self, w: npt.ArrayLike | None) -> Floats:
        """The first model, or the one that is given; a CoterieError where it does not fit."""
        x = self.x if w is None else np.array(w, dtype=self.x.dtype)
        if x.shape != self.x.shape or not np.isfinite(x).all():
            raise CoterieError(f"The first model must be {len(self.x)} finite numbers: x_s, then each group's own.")
        return x


def layers(objective: Any, travels: Bools) -> str:
    """Names and sizes of all layers of an objective, whether they leave a client, and their type, as JSON."""
    names = parts.names(objective)
    first = np.cumsum([0, *names.values()])[:-1]
    about = [[name, size, bool(travels[at])] for (name, size), at in zip(names.items(), first, strict=True)]
    return json.dumps({"layers": about, "dtype": np.dtype(parts.precision(objective)).name})


@work
def fingerprints(site: Site, transport: Transport) -> Reply:
    """What tells the layers of clients apart."""
    out = np.zeros(len(site), dtype=np.uint64)
    for rows, part in kinds(site.objective):
        text = layers(part, ~parts.where(part, transport.get("personal", ())))
        out[rows] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return {"print": out}


@work
def begin(site: Site, transport: Transport, seed: int) -> Reply:
    """Clients' layers, which parameters travel, and the first values of all."""
    texts, starts, masks = [b""] * len(site), [np.zeros(0)] * len(site), [np.zeros(0, dtype=bool)] * len(site)
    for rows, part in kinds(site.objective):
        travels = ~parts.where(part, transport.get("personal", ()))
        text, start = layers(part, travels).encode(), parts.first(part, seed).astype(np.float64)
        for r in rows:
            texts[r], starts[r], masks[r] = text, start, travels
    return {"layers": Ragged.of(texts), "start": Ragged.of(starts), "travels": Ragged.of(masks)}


def agreed(fed: Federation, group: Ints, shared: Sequence[str], transport: Transport, seed: int) -> Agreed:
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
    said = fed.ask(begin, to=rows[lead], transport=transport, seed=seed)
    if not said or len(said.missing):
        raise CoterieError("A group did not say how it starts: start again when its clients answer.")
    texts = [json.loads(bytes(said["layers"][g])) for g in range(k)]
    layout = GroupLayout.of([{name: n for name, n, travels in text["layers"] if travels} for text in texts], shared)
    x = np.zeros(layout.dim, dtype=np.result_type(*[np.dtype(text["dtype"]) for text in texts], np.float32))
    for g in reversed(range(k)):
        x[layout.of_group(g)] = said["start"][g][said["travels"][g]]
    return Agreed(layout, x, said["start"], said["travels"])
