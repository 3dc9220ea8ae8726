"""What clients do in a round: steps on their own rows, and a look at what came of them before it is sent.

A result that is not finite is never sent. Where a client's gradient is not finite at zero either, its data are to
blame (BROKEN), else its steps were too long (FAR); the verdict is kept in its state, so that a coordinator can ask for
names when sums say that there are any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Site, work
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, Ints
from coterie.objectives.mean_loss import gradient, sizes, walk
from coterie.objectives.steps import Draws

Reply = dict[str, Any]

GOOD, FAR, BROKEN = 0, 1, 2
LARGEST = 1e100
"""Parameters that are farther away have diverged."""


def each(site: Site, w: Floats) -> Floats:
    """One model (d,) for every client (m, d)."""
    return np.broadcast_to(w, (len(site), len(w)))


def weight(site: Site) -> Floats:
    """How much clients count where rows do (m,): the weight of their rows, times their own."""
    return site.weights * sizes(site.objective)


def epochs(site: Site, E: int, B: int) -> Ints:
    """Steps of B rows that look at as many rows as a client has, E times (m,); all rows at once are one step."""
    n = getattr(site.objective, "counts", None)
    rows = np.ones(len(site), dtype=np.int64) if n is None or not B else np.maximum(-(-n // B), 1)
    return np.asarray(E * rows, dtype=np.int64)


def train(
    site: Site,
    start: Floats,
    eta: float,
    steps: Ints,
    done: Ints,
    batch: int,
    stream: str = "rows",
    anchor: Floats | None = None,
    pull: float = 0.0,
    fresh: bool = True,
) -> Floats:
    """Take ``steps`` (m,) steps from ``start`` (m, d) on ``f_i(theta) + pull |theta - anchor|^2 / 2``.

    ``done`` (m,) steps came before them, which keys the rows that they draw.
    """
    draws = Draws(keyed.starts(site.seed, stream, site.ids), done.astype(np.int64), batch)
    site.count(gradients=int(steps.sum()))
    size = np.full(len(site), float(eta))
    return walk(site.objective, start, start if anchor is None else anchor, size, pull, steps, draws, fresh)


def finite(*models: Floats) -> Any:
    """Whether all of a client's models are where they may be (m,)."""
    return np.all([(np.abs(model) < LARGEST).all(axis=1) for model in models], axis=0)


def sent(site: Site, theta: Floats, weight: Floats, good: Any) -> Reply:
    """What clients send of theta (m, d), to be added up: nothing where it is not ``good`` (m,), but a verdict."""
    verdict = np.zeros(len(site), dtype=np.int64)
    bad = np.flatnonzero(~good)
    if len(bad):
        here = site.objective.take(bad)
        nothing = Draws(np.zeros(len(bad), dtype=np.uint64), np.zeros(len(bad), dtype=np.int64))
        g = gradient(here, np.zeros((len(bad), theta.shape[1])), nothing)
        verdict[bad] = np.where(finite(g), FAR, BROKEN)
    site.state["verdict"] = verdict
    w = np.where(good, weight, 0.0)
    x = w[:, None] * np.where(good[:, None], theta, 0.0)
    return {"x": x, "w": w, "far": 1.0 * (verdict == FAR), "broken": 1.0 * (verdict == BROKEN)}


@work
def verdicts(site: Site) -> Reply:
    """What clients found of themselves in the last round."""
    return {"verdict": site.state.get("verdict", np.zeros(len(site), dtype=np.int64))}


@work
def personal(site: Site, w: Floats) -> Reply:
    """A client's own model (m, d); the shared one where it never made any."""
    return {"theta": site.state.get("theta", each(site, w))}
