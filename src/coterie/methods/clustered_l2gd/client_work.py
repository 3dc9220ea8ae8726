"""What clients do before, during, and between stretches of, a run of Algorithm 1 or 2 of Lyu, Hanzely, Kolar (2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.families import GAUSSIAN
from coterie.federation import Clusters, Federation, Site, Work, require_all_replies, work
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints, kernel
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, descend, full_gradient
from coterie.objectives.parameters import parameter_mask
from coterie.objectives.quadratic import closed_form_steps, closed_form_steps_one, eigenbasis, quadratic_ranks
from coterie.objectives.row_kernels import Data, add_gradient

Reply = dict[str, Any]
State = dict[str, Any]
SNAPSHOT = "before the stretch"  # where clients return to after a divergence


@work
def describe_clients(site: Site) -> Reply:
    """Each client's number of parameters, the rank of its quadratic (0: no closed form), and whether it is a GLM."""
    m, objective = len(site), site.objective
    rank, rows = quadratic_ranks(objective), isinstance(objective, GLM)
    return {"dim": np.full(m, objective.dim), "rank": rank, "rows": np.full(m, rows)}


@work
def parts_of_models(site: Site, **named: Any) -> Reply:
    """Which parameters (m, d) are tied to other clients', and which all clients share."""
    tied, shared = parts(site, **named)
    return {"tied": np.tile(tied, (len(site), 1)), "shared": np.tile(shared, (len(site), 1))}


@work
def start(site: Site, gamma: Floats, rank: int, w: Any = 0.0) -> Reply:
    """theta_i = w (d,), zero by default; where steps are to be taken in closed form, the client's eigenbasis."""
    site.state["theta"], site.state["gamma"] = np.full((len(site), site.objective.dim), w), gamma
    if rank:
        for name, value in eigenbasis(site.objective, rank).items():
            site.state[name] = value
    return {}


@work
def gradients_of_shared(site: Site, **named: Any) -> Reply:
    """The gradient in what all clients share, where all are at x, to be averaged."""
    one = parts(site, **named)[1]
    site.state["own"] = full_gradient(site.objective, site.state["x"])[:, one]
    return {"f": site.state["own"], "n": np.ones(len(site))}


def address(fed: Federation, mask: Bools, free: Ints | None) -> Any:
    """The clients of clusters ``mask`` (k,), or those of them that are ``free``, as an engine is told."""
    if free is None:
        return None if mask.all() else Clusters(mask)
    return free[mask[fed.clients.clusters[free]]]


def first_gradient(fed: Federation, how: dict[str, Any], free: Ints | None) -> Floats:
    """Their mean over the clients that take part (d2,)."""
    sums = require_all_replies(fed.total(gradients_of_shared, to=free, **how))
    return np.asarray(sums["f"] / sums["n"])


def parts(site: Site, personal: Sequence[str] | None = None, untied: Sequence[str] | None = None) -> tuple[Any, Any]:
    """Which parameters (d,) are tied to other clients', and which are one for all clients; (None, None): all are tied.

    ``personal`` names those that each client has of its own, by default all, and ``untied`` those of them that nothing
    ties, as what the objective keeps with each client.
    """
    if personal is None and untied is None:
        return None, None
    alone = parameter_mask(site.objective, untied or ())
    mine = np.ones_like(alone) if personal is None else parameter_mask(site.objective, personal)
    return mine & ~alone, ~(mine | alone)


def widened(u: Floats, on: Bools | None) -> Floats:
    """Values of tied parameters (..., d1) among all (..., d), the others 0."""
    if on is None:
        return u
    out = np.zeros((*u.shape[:-1], len(on)), dtype=u.dtype)
    out[..., on] = u
    return out


def local_steps(
    site: Site, theta: Floats, step: Floats, steps: Ints, first: Ints, batch: int, shared: Bools | None = None
) -> Floats:
    """Line 15 of Algorithm 1 from theta (m, d), ``steps`` (m,) times by ``step`` (m,): the parameters after it.

    What is ``shared`` (d,) stays.
    """
    if "values" in site.state:
        return closed_form_steps(theta, site.state["values"], site.state["vectors"], site.state["goal"], step, steps)
    draws = Draws(keyed_random.starts(site.seed, "rows", site.ids), first, batch)
    return descend(site.objective, theta, step, steps, draws, None if shared is None or not shared.any() else ~shared)


Losses = tuple[tuple[Floats, Floats, Floats], Data, tuple[npt.NDArray[np.uint64], int, int]]
"""The clients' losses compiled: eigenbases of quadratics, or rows, and which of them are drawn."""


def compiled_losses(site: Site, first: int, batch: int) -> Losses:
    """The losses of the site's clients for :func:`compiled_steps`; steps are counted from ``first`` on."""
    none: Any = (np.empty((0, 0)), np.empty((0, 0, 0)), np.empty(0), np.empty(0, dtype=np.int64))
    basis = (none[0], none[1], none[0])
    if "values" in site.state:
        basis = (site.state["values"], site.state["vectors"], site.state["goal"])
    no_rows = GAUSSIAN.kind, none[0], *none[2:3] * 3, *none[3:] * 2
    rows = site.objective.compiled if isinstance(site.objective, GLM) else no_rows
    return basis, rows, (keyed_random.starts(site.seed, "rows", site.ids), first, batch)


@kernel
def compiled_steps(
    losses: Losses, theta: Floats, lo: int, hi: int, step: float, first: int, last: int, on: Floats, scratch: Floats
) -> None:
    """Line 15 of Algorithm 1 at steps first, ..., last - 1 for clients lo, ..., hi - 1; scratch (3 r + d + 1,).

    Where ``on`` (d,) is 0, all clients share a parameter, which stays; empty, they share none.
    """
    (values, vectors, goal), data, (keys, origin, batch) = losses
    if last <= first:
        return
    if values.shape[0] > 0:
        for i in range(lo, hi):
            closed_form_steps_one(theta[i], values[i], vectors[i], goal[i], step, last - first, scratch)
        return
    g, z = scratch[: theta.shape[1]], scratch[theta.shape[1] : theta.shape[1] + 1]
    for i in range(lo, hi):
        for s in range(first, last):
            g[:] = 0.0
            add_gradient(data, 0.0, i, theta[i], 1.0, keys[i], origin + s, batch, z, g)
            for j in range(g.shape[0]):
                if on.shape[0] == 0 or on[j] > 0.0:
                    theta[i, j] -= step * g[j]


@kernel
def compiled_shared_step(losses: Losses, theta: Floats, step: float, on: Floats, scratch: Floats) -> None:
    """What all clients share, where ``on`` (d,) is 0, moves by ``step`` along the mean of their gradients."""
    _, data, (keys, _, _) = losses
    g, z = scratch[: theta.shape[1]], scratch[theta.shape[1] : theta.shape[1] + 1]
    g[:] = 0.0
    for i in range(theta.shape[0]):
        add_gradient(data, 0.0, i, theta[i], 1.0, keys[i], 0, 0, z, g)
    for j in range(on.shape[0]):
        if on[j] == 0.0:
            theta[:, j] = theta[0, j] - step / theta.shape[0] * g[j]


@work
def diverged(site: Site) -> Reply:
    """Whether a client's parameters are still finite (0) or not (1)."""
    theta: Floats = site.state["theta"]
    return {"diverged": 1.0 - np.isfinite(theta).all(axis=1)}


@dataclass(frozen=True)
class Monitor:
    """What clients tell where a run stops: finite numbers, and as "diverged" whether parameters are not finite."""

    work: Work = diverged
    message: dict[str, Any] = field(default_factory=dict)


def observe(fed: Federation, monitor: Monitor, last: int, *averages: Floats) -> State:
    """What is known when step ``last`` ends a stretch: the monitor's sums, and whether parameters or averages diverged.

    Where they did, all clients are back at the snapshot before it, and were observed there.
    """
    sums, sound = fed.total(monitor.work, **monitor.message), all(np.isfinite(mean).all() for mean in averages)
    if sound and (not sums or float(sums["diverged"]) == 0.0):
        return {"status": "running", "observed": dict(sums)}
    fed.restore(SNAPSHOT)
    return {"status": f"diverged by step {last}", "observed": dict(fed.total(monitor.work, **monitor.message))}
