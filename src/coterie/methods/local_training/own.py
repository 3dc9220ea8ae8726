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
    theta[:, ~own], theta[:, own] = shared, _parts(site, own, link)
    return theta


def parted(site: Site, theta: Floats, good: Any, link: Link) -> Floats:
    """The shared part (m, d1) of models (m, d); the own ones are kept where models are ``good`` (m,)."""
    own = stays(site, link)
    if not own.any():
        return theta
    site.state["own"] = np.where(np.asarray(good)[:, None], theta[:, own], _parts(site, own, link))
    return theta[:, ~own]


def _parts(site: Site, own: Bools, link: Link) -> Floats:
    """Every client's own part (m, d2): the first one where it never made any."""
    if site.state.written("own").all():
        return np.asarray(site.state["own"])
    default = first(site.objective, link.get("seed", 0))[own]
    return np.asarray(site.state.get("own", np.broadcast_to(default, (len(site), len(default)))))
