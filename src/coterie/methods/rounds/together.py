"""Algorithm 1 of Lyu, Hanzely, Kolar (2022) compiled, where all clients are at one site: nothing has to travel.

A client's local steps are put off until its next communication, so that its block is in cache for the whole run and a
run on a quadratic costs as much as one step. The coins are those of the run over exchanges, and so are the numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.federation import PerCluster, Site, work
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints, frozen, kernel
from coterie.objectives.glm import GLM, Data
from coterie.objectives.spectrum import leap_one
from coterie.objectives.steps import descend_one

TOGETHER = 4096
"""So many clients at most; more are quicker over exchanges, in threads."""

Basis = tuple[Floats, Floats, Floats]
Draw = tuple[npt.NDArray[np.uint64], int, int]


@kernel
def _catch_up(
    basis: Basis, data: Data, theta: Floats, lo: int, hi: int, step: float, steps: int, draws: Draw, g: Floats
) -> None:
    """The local steps that clients lo, ..., hi - 1 owe (line 15); g (3 r + d,) is scratch."""
    values, vectors, goal = basis
    if values.shape[0] > 0:
        for i in range(lo, hi):
            leap_one(theta[i], values[i], vectors[i], goal[i], step, steps, g)
        return
    family, X, y, offset, weights, starts, stops = data
    keys, first, size = draws
    g = g[: theta.shape[1]]
    for i in range(lo, hi):
        row, n = starts[i], stops[i] - starts[i]
        descend_one(family, X, y, offset, weights, row, n, theta[i], step, steps, keys[i], first, size, g)


@kernel
def _average(theta: Floats, gamma: Floats, lo: int, hi: int, mean: Floats) -> float:
    """mean (d,) = the average of clients lo, ..., hi - 1 (2.2), 0 without strength; the strength."""
    mean[:] = 0.0
    total = 0.0
    for i in range(lo, hi):
        total += gamma[i]
        for a in range(mean.shape[0]):
            mean[a] += gamma[i] * theta[i, a]
    if total > 0.0:
        for a in range(mean.shape[0]):
            mean[a] /= total
    return total


@kernel
def _pull(theta: Floats, gamma: Floats, lo: int, hi: int, c: float, u: Floats) -> None:
    """``theta_i += gamma_i (u - c theta_i)`` for clients lo, ..., hi - 1 (lines 7 and 13)."""
    for i in range(lo, hi):
        keep, take = 1.0 - gamma[i] * c, gamma[i]
        for a in range(u.shape[0]):
            theta[i, a] = keep * theta[i, a] + take * u[a]


@kernel
def _iterate(
    theta: Floats,
    gamma: Floats,
    bounds: Ints,
    chosen: tuple[float, float, Floats, Floats, Floats],
    coins: tuple[Bools, Bools],
    basis: Basis,
    data: Data,
    draws: Draw,
) -> None:
    """Lines 2 to 19, in place; cluster j has the clients bounds[j], ..., bounds[j + 1] - 1."""
    eta, p0, p, alpha, tau = chosen
    globally, locally = coins
    keys, t0, size = draws
    n, k = locally.shape
    d = theta.shape[1]
    mean, network, strength, since = np.zeros((k, d)), np.empty(d), np.zeros(k), np.zeros(k, dtype=np.int64)
    scratch, u = np.empty(3 * basis[0].shape[1] + d), np.empty(d)
    for t in range(n + 1):
        ends = t == n
        for j in range(k):
            if not (ends or globally[t] or locally[t, j]):
                continue
            step = eta / ((1.0 - p0) * (1.0 - p[j]))
            lo, hi = bounds[j], bounds[j + 1]
            if t > since[j]:
                _catch_up(basis, data, theta, lo, hi, step, t - since[j], (keys, t0 + since[j], size), scratch)
            since[j] = t + 1
            if ends:
                continue
            strength[j] = _average(theta, gamma, lo, hi, mean[j])
            if not globally[t]:
                c = eta * (1.0 - tau[j]) * (1.0 - alpha[j]) / ((1.0 - p0) * p[j])
                for a in range(d):
                    u[a] = c * mean[j, a]
                _pull(theta, gamma, lo, hi, c, u)
        if ends or not globally[t]:
            continue
        network[:] = 0.0
        total = 0.0
        for j in range(k):
            total += alpha[j] * strength[j]
            for a in range(d):
                network[a] += alpha[j] * strength[j] * mean[j, a]
        for j in range(k):
            tied = alpha[j] if total > 0.0 else 0.0
            own = tau[j] * (1.0 - alpha[j])
            for a in range(d):
                u[a] = eta / p0 * (own * mean[j, a] + (tied * network[a] / total if total > 0.0 else 0.0))
            _pull(theta, gamma, bounds[j], bounds[j + 1], eta / p0 * (tied + own), u)


@work
def iterate(site: Site, first: int, batch: int, eta: float, p0: float, globally: Bools, **own: Any) -> dict[str, Any]:
    """Steps ``first``, ... of all clients, by coins (n,) and (k, n); this work must see all of them at once."""
    theta, objective, locally = np.array(site.state["theta"]), site.objective, np.ascontiguousarray(own["locally"].T)
    bounds = np.searchsorted(site.clusters, np.arange(locally.shape[1] + 1))
    none: Any = (np.empty((0, 0)), np.empty((0, 0, 0)), np.empty(0), np.empty(0, dtype=np.int64))
    basis = (none[0], none[1], none[0])
    if "values" in site.state:
        basis = (site.state["values"], site.state["vectors"], site.state["goal"])
    rows = objective.compiled if isinstance(objective, GLM) else (0, none[0], *none[2:3] * 3, *none[3:] * 2)
    chosen = (eta, p0, own["p"], own["alpha"], own["tau"])
    draws = (keyed.starts(site.seed, "rows", site.ids), first, batch)
    _iterate(theta, *frozen(site.state["gamma"], bounds, chosen, (globally, locally), basis, rows, draws))
    site.state["theta"] = theta
    site.count(int(np.sum(~(locally | globally[:, None]), axis=0) @ np.diff(bounds)))
    return {}


def iterate_all(fed: Any, method: Any, first: int, eta: float, p: Floats, globally: Bools, locally: Bools) -> None:
    """Steps from ``first`` on of the method (an ``AsyncL2GD``) by coins (n,) and (n, k), without exchanges."""
    own = {"p": p, "alpha": method.ties.alpha, "tau": method.tau, "locally": locally.T}
    message = {name: PerCluster(value) for name, value in own.items()}
    fed.together(iterate, eta=eta, p0=method.p0, globally=globally, first=first, batch=method.batch, **message)
