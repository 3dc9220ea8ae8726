"""Parts of a model that stay with a client: put in where a shared model comes, taken out where one is sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Site
from coterie.numerics.kernels import Bools, Floats
from coterie.objectives.parts import first, where

Link = dict[str, Any]
"""How models travel, told to clients: patterns of ``personal`` parameters and the ``seed`` of their first values,
codecs ``up`` and ``down`` and the number of the ``message``; what is not there is not done."""


def stays(site: Site, link: Link) -> Bools:
    """Which parameters (d,) never leave a client."""
    return where(site.objective, link.get("personal", ()))


def joined(site: Site, shared: Floats, link: Link) -> Floats:
    """Models (m, d) of a shared part, (d1,) or (m, d1), and every client's own."""
    own = stays(site, link)
    if not own.any():
        return np.broadcast_to(shared, (len(site), len(own)))
    theta = np.empty((len(site), len(own)), dtype=shared.dtype)
    for part, values in (
        (~own, np.broadcast_to(shared, (len(site), shared.shape[-1]))),
        (own, _parts(site, own, link)),
    ):
        at = 0
        for run in runs(part):
            to = at + run.stop - run.start
            theta[:, run], at = values[:, at:to], to
    return theta


def parted(site: Site, theta: Floats, good: Any, link: Link) -> Floats:
    """The shared part (m, d1) of models (m, d); the own ones are kept where models are ``good`` (m,)."""
    own = stays(site, link)
    if not own.any():
        return theta
    site.state["own"] = np.where(np.asarray(good)[:, None], cut(theta, own), _parts(site, own, link))
    return cut(theta, ~own)


def runs(part: Bools) -> list[slice]:
    """Neighbours that are in a part (d,), which are copied at once: layers are few, numbers many."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], part, [False]]).astype(np.int8)))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def cut(theta: Floats, part: Bools) -> Floats:
    """The columns of theta (m, d) that are in a part (d,)."""
    pieces = [theta[:, run] for run in runs(part)]
    return np.concatenate(pieces, axis=1) if pieces else theta[:, :0]


def _parts(site: Site, own: Bools, link: Link) -> Floats:
    """Every client's own part (m, d2): the first one where it never made any."""
    if site.state.written("own").all():
        return np.asarray(site.state["own"])
    default = first(site.objective, link.get("seed", 0))[own]
    return np.asarray(site.state.get("own", np.broadcast_to(default, (len(site), len(default)))))
