"""Rounds in which some clients train at home and a server averages what they send: who, how often, and when to stop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Sums
from coterie.methods.local_training.at_home import BROKEN, FAR, verdicts
from coterie.methods.local_training.options import need
from coterie.methods.rounds.at_home import shape
from coterie.methods.stepwise import Stepwise
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, Ints

State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Stepwise):
    """Hyper-parameters that all of these methods have.

    Attributes
    ----------
    eta : float or callable
        Step size at home, or ``eta(t)`` of round t.
    B : int, default 0
        Rows of a step, drawn with replacement; 0 takes all.
    C : float, default 1
        Share of the clients that take part in a round, one at least.
    seed : int, default 0
        Of who takes part; rows are drawn by the engine's.
    """

    eta: float | Callable[[int], float]
    B: int = 0
    C: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.eta):
            need("eta", self.eta, 0.0, above=True)
        need("B", self.B, 0, whole=True)
        need("C", self.C, 0.0, 1.0, above=True)
        need("seed", self.seed, 0, whole=True)

    def rate(self, t: int) -> float:
        """The step size of round t."""
        value = self.eta(t) if callable(self.eta) else self.eta
        need("eta", value, 0.0)
        return float(value)

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round, at the shared model w (d,), by default zero."""
        d = dimension(fed)
        w = np.zeros(d) if w is None else np.array(w, dtype=np.float64)
        if w.shape[-1:] != (d,) or not np.isfinite(w).all():
            raise CoterieError(f"The first model must be {d} finite numbers, as many as clients have parameters.")
        return {"t": 0, "status": "running", "w": w, "quarantined": np.zeros(len(fed.clients), dtype=np.int64)}

    @abstractmethod
    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """One round with the clients ``to``: what they sent, added up, and what changes in the state."""

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named
    def step(self, fed: Federation, state: State) -> State:
        """One round. Clients whose data give no gradient are ``quarantined`` in it (its number, from 1), and left out.

        A divergence ends the run of all: ``gone`` are the clients that diverged; the state is the one before it.
        """
        t, free = state["t"], np.flatnonzero(state["quarantined"] == 0)
        if not len(free):
            return state | {"status": f"ended by step {t + 1}: every client is quarantined"}
        to = participants(fed.clients.ids, free, t, self.C, self.seed)
        sums, new = self.round(fed, state, to)
        far, broken = (float(np.sum(sums[name])) if sums else 0.0 for name in ("far", "broken"))
        found = blame(fed, sums) if far or broken else (to[:0], to[:0])
        if far:
            return state | {"status": f"diverged by step {t + 1}", "gone": found[0]}
        quarantined = state["quarantined"].copy()
        quarantined[found[1]] = t + 1
        return state | new | {"t": t + 1, "quarantined": quarantined}


def dimension(fed: Federation) -> int:
    """How many parameters clients have; a CoterieError where they differ, or where nobody says."""
    replies = fed.ask(shape)
    found = np.unique(replies["dim"]) if replies else np.empty(0)
    if len(found) != 1:
        raise CoterieError(
            "No client said how many parameters it has: start again when some answer."
            if not len(found)
            else f"Clients have between {found[0]} and {found[-1]} parameters: give all the same columns and classes."
        )
    return int(found[0])


def participants(ids: Any, free: Ints, t: int, C: float, seed: int) -> Ints:
    """The share C of the clients ``free`` that takes part in round t, drawn by keys: one at least, in rising order."""
    m = max(int(C * len(free) + 0.5), 1)
    if m == len(free):
        return free
    u = keyed.uniform(seed, "participation", ids[free], t, 1)[:, 0]
    return np.sort(free[np.argpartition(u, m - 1)[:m]])


def blame(fed: Federation, sums: Sums) -> tuple[Ints, Ints]:
    """Who of those that were just added up has diverged, and whose data are broken."""
    replies = fed.ask(verdicts, to=sums.to[sums.rows])
    if not replies:
        return sums.to[:0], sums.to[:0]
    who = replies.to[replies.rows]
    return who[replies["verdict"] == FAR], who[replies["verdict"] == BROKEN]


def average(sums: Sums, w: Floats) -> Floats:
    """What was sent, divided by its weight; w (d,) or (k, d) where nothing was."""
    if not sums:
        return w
    weight = np.asarray(sums["w"])[..., None]
    return np.where(weight > 0.0, sums["x"] / np.where(weight > 0.0, weight, 1.0), w)


def models(fed: Federation, work: Any, fallback: Floats, **message: Any) -> Floats:
    """The clients' own models (m, d) that ``work`` replies; ``fallback`` (d,) for those that do not answer."""
    theta = np.tile(fallback, (len(fed.clients), 1))
    replies = fed.ask(work, **message)
    if replies:
        theta[replies.to[replies.rows]] = replies["theta"]
    return theta
