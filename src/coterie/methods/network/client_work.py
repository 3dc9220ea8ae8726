"""What a client does in a step: its stochastic gradient (Algorithm 1), as bytes where codecs are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.codecs import by_name
from coterie.codecs.feedback import FEEDBACKS, blend, coordinate_order
from coterie.federation import Site, work
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient, sizes

Reply = dict[str, Any]
LARGEST = 1e150
"""Numbers from here on are in no gradient: their squares overflow."""


@work
def shape(site: Site) -> Reply:
    """Each client's number of parameters and the weight of its rows."""
    return {"dim": np.full(len(site), site.objective.dim), "weight": sizes(site.objective)}


@work
def send(site: Site, theta: Any, d: int, t: int, batch: int, up: str, down: str, feedback: str, order: str) -> Reply:
    """The gradient at the model that arrived; ``sound`` says whether there is one (0 is sent where there is none).

    Where there is none, ``broken`` says whose fault that is: the rows', which give none at zero either, or the model's.
    """
    theta = received(site, theta, d, down)
    by = ordered(site, theta, order)
    draws = Draws(keyed.starts(site.seed, "rows", site.ids), np.full(len(site), t, dtype=np.int64), batch)
    site.count(len(site))
    g = at(site.objective, theta, draws)
    sound: Bools = np.all(np.abs(g) < LARGEST, axis=1)
    broken = ~sound
    if broken.any():
        broken &= ~np.all(np.abs(at(site.objective, np.zeros(theta.shape), draws)) < LARGEST, axis=1)
    return {"sound": sound, "broken": broken} | packed(site, np.where(sound[:, None], g, 0.0), t, up, feedback, by)


def at(objective: Any, theta: Floats, draws: Draws) -> Floats:
    """Mean gradients (m, d) over the rows drawn, whatever numbers they have."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(gradient(objective, theta, draws), dtype=np.float64)


def received(site: Site, theta: Any, d: int, down: str) -> Floats:
    """The model (m, d): what arrived, or what the client held and the difference that arrived."""
    if down == "none":
        return np.asarray(theta)
    held: Floats = site.state.get("held", np.zeros((len(site), d))) + by_name(down).decode(theta, d)
    site.state["held"] = held
    return held


def ordered(site: Site, theta: Floats, order: str) -> Ints | None:
    """The order in which coordinates travel, from what the server knows too."""
    if order == "natural":
        return None
    zero = np.zeros(theta.shape)
    said, at = site.state.get("said", zero), site.state.get("at", zero)
    if order == "last-update":
        site.state["at"] = theta
    return coordinate_order(order, said, theta - at)


def packed(site: Site, g: Floats, t: int, up: str, feedback: str, order: Ints | None) -> Reply:
    """The gradient as it travels; what a codec loses is remembered as ``feedback`` says."""
    if up == "none":
        return {"g": g}
    keys = keyed.starts(site.seed, "codec", site.ids)
    sent = FEEDBACKS[feedback](site.state.get("memory", np.zeros(g.shape)), g, by_name(up), keys, t, order)
    site.state["memory"] = sent.memory
    if order is not None:
        own = site.state.get("said", np.zeros(g.shape))
        site.state["said"] = blend(own, sent.estimate, feedback)
    return {"payload": sent.payload}
