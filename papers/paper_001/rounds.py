"""Section 6.1's minimiser by rounds: Async-L2GD, and the variant with one coin that the paper ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.methods.clustered_l2gd import fit as rounds
from coterie.numerics.arrays import Floats
from papers.paper_001.simulation import Simulation

STEPS, ETA = 50_000, 1e-4
P = 0.05
"""Probability of a communication between clusters, and within each: together nearly the paper's one of 0.1."""
ONE_COIN = 0.1


@dataclass(frozen=True)
class Run:
    """What a run ends with.

    Attributes
    ----------
    theta : (m, d)
    gap : float
        ``|theta - exact| / |exact|``, all clients stacked; the start is 0.
    steps : int
    between, within : float
        Communications between clusters, and within a cluster, a mean over clusters.
    """

    theta: Floats
    gap: float
    steps: int
    between: float
    within: float


def papers(data: Simulation, seed: int, steps: int) -> Run:
    """Algorithm 1 with the paper's step size."""
    return run(data, {"eta": ETA, "p0": P, "p": P, "steps": steps, "seed": seed})


def one_coin(data: Simulation, seed: int, steps: int) -> Run:
    """The variant of section 6: a communication is between clusters, and pulls towards both averages."""
    return run(data, {"one_coin": True, "eta": ETA, "p0": ONE_COIN, "steps": steps, "seed": seed})


def automatic(data: Simulation, seed: int, steps: int) -> Run:
    """Algorithm 1 with probabilities from (3.3) and a step size that decreases, all from constants of the data."""
    return run(data, {"steps": steps, "seed": seed})


def run(data: Simulation, options: dict[str, Any], **others: Any) -> Run:
    """A run at Theorem 5.1's strengths."""
    fitted = rounds.fit(*data.setting(), 1.0, 1.0, rounds=options, **others)
    about = fitted.info["rounds"]
    sent = about["communications"]
    return Run(fitted.client, about["gap"], about["steps"], float(sent["between"]), float(sent["within"]))


ROUNDS = {
    "l2gd": ("ours, Async-L2GD, paper's step", papers),
    "one coin": ("ours, one coin as the paper ran", one_coin),
    "auto": ("ours, Async-L2GD, automatic", automatic),
}
