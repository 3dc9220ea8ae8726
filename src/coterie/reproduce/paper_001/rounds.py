"""Section 6.1's minimiser by rounds: Async-L2GD, and the variant with one coin that the paper ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engines.inprocess import InProcess
from coterie.federation import Site, work
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.async_l2gd_rates import schedule
from coterie.methods.async_l2gd_theory import choose, fractions
from coterie.methods.curvature import ask_constants, mu_F
from coterie.methods.setup import Reply
from coterie.methods.ties import Ties
from coterie.numerics.kernels import Floats
from coterie.reproduce.paper_001.simulation import Simulation

STEPS, ETA = 50_000, 1e-4
P = 0.05
"""Probability of a communication between clusters, and within each: together nearly the paper's one of 0.1."""
ONE_COIN = 0.1
STOPS = 100
"""So often a decreasing step size is changed."""


@dataclass(frozen=True)
class Run:
    """What a run ends with.

    Attributes
    ----------
    theta : (m, d)
    between, within : float
        Communications between clusters, and within a cluster, a mean over clusters.
    """

    theta: Floats
    between: float
    within: float


@work
def reveal(site: Site) -> Reply:
    """Every client's parameters."""
    return {"theta": site.state["theta"]}


def ties(data: Simulation) -> Ties:
    """Theorem 5.1's strengths in the form (2.1)."""
    return Ties.of(data.clusters, int(data.clusters[-1]) + 1, 1.0, 1.0, None)


def smoothness(fed: InProcess, k: int) -> Floats:
    """The largest L of each cluster's clients, (k,)."""
    L = np.zeros(k)
    np.maximum.at(L, fed.clients.clusters, ask_constants(fed).L)
    return L


def papers(data: Simulation, seed: int, steps: int) -> Run:
    """Algorithm 1 with the paper's step size."""
    p = np.full(len(ties(data).alpha), P)
    return _run(data, seed, [steps], eta=ETA, p0=P, p=p, tau=fractions(P, p))


def one_coin(data: Simulation, seed: int, steps: int) -> Run:
    """The variant of section 6: a communication is between clusters, and pulls towards both averages."""
    k = len(ties(data).alpha)
    return _run(data, seed, [steps], eta=ETA, p0=ONE_COIN, p=np.zeros(k), tau=np.ones(k))


def automatic(data: Simulation, seed: int, steps: int) -> Run:
    """Algorithm 1 with probabilities from (3.3) and a decreasing step size, all from constants of the data."""
    tied, (fed, _) = ties(data), data.setting()
    chosen = choose(tied, smoothness(fed, len(tied.alpha)))
    mu = mu_F(fed, tied)
    stops = np.unique(np.linspace(0, steps, STOPS + 1).astype(np.int64))[1:].tolist()
    eta = lambda t: float(schedule(t, chosen.smoothness, mu))  # noqa: E731
    return _run(data, seed, stops, eta=eta, p0=chosen.p0, p=chosen.p, tau=chosen.tau)


def _run(data: Simulation, seed: int, stops: list[int], **options: Any) -> Run:
    fed, _ = data.setting()
    *_, last = AsyncL2GD(ties(data), seed=seed, **options).run(fed, stops)
    return Run(fed.ask(reveal)["theta"], float(last["between"]), float(np.mean(last["within"])))


ROUNDS = {
    "l2gd": ("ours, Async-L2GD, paper's step", papers),
    "one coin": ("ours, one coin as the paper ran", one_coin),
    "auto": ("ours, Async-L2GD, automatic", automatic),
}
