"""What a client does in a step: its gradient at a main client's model, in a sum with others' or by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Ragged, Site, work
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats
from coterie.objectives.mean_loss import path
from coterie.objectives.steps import Draws

Reply = dict[str, Any]


def met(site: Site, theta: Floats, t: int, local: int, batch: int, stream: str, **going: Any) -> Floats:
    """Mean gradients (m, d) on ``local`` steps from theta; ``going`` is how a step is made of them, if there is one.

    Whatever an objective gives that is not made of real numbers becomes NaN, so that it is found like any other.
    """
    m, d = theta.shape
    if site.objective.dim != d:
        return np.full((m, site.objective.dim), np.nan)
    draws = Draws(keyed.starts(site.seed, stream, site.ids), np.full(m, t * local, dtype=np.int64), batch)
    still = {"shift": np.zeros((m, d)), "P": np.zeros((d, d)), "eta": np.zeros(m)}
    site.count(m * local)
    g = np.asarray(path(site.objective, theta, steps=local, draws=draws, **(still | going)))
    g = g if g.dtype.kind in "fiu" else np.full(g.shape, np.nan)
    return g.reshape(m, g.size // max(m, 1))


@work
def add(site: Site, theta: Floats, w: Floats, **step: Any) -> Reply:
    """Line "Compute g_k(x_t)" of Algorithm 1, times the client's weight: what is added up."""
    return {"g": w[:, None] * met(site, theta, **step), "w": w}


@work
def send(site: Site, theta: Floats, **step: Any) -> Reply:
    """The same, client by client; rows of any length may come, so that a wrong one does not stop the others."""
    g = met(site, theta, **step)
    return {"g": Ragged(g.ravel(), np.arange(len(g) + 1) * g.shape[1])}
