"""What main clients hear in a step, and whom they no longer listen to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.collaboration.at_home import send
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.pairs import State
from coterie.numerics.kernels import Bools, Floats, Ints

LARGEST = 1e150
"""Numbers from here on are in no gradient: their squares overflow."""

Tell = Callable[[Ints, State], State]
Listened = tuple[Ints, Floats, State]


@dataclass(frozen=True)
class Heard:
    """What main clients heard in a step.

    Attributes
    ----------
    own, average : (M, d)
        Own gradients, and ``sum_k tau_k g_k`` over those that are listened to. An own gradient is NaN where the model
        has gone so far that there is none.
    spoke, helped : (M,) bool
        Whether a main client's own gradient is there, and any of its collaborators'.
    state : dict
        What is remembered now.
    """

    own: Floats
    average: Floats
    spoke: Bools
    helped: Bools
    state: State

    @classmethod
    def astray(cls, own: Floats, state: State) -> Heard:
        """Where some main client's model has gone too far, there is nothing else to hear."""
        return cls(own, np.zeros_like(own), np.ones(len(own), dtype=bool), np.zeros(len(own), dtype=bool), state)


def listen(fed: Federation, who: Collaborators, at: Ints, metric: Metric, state: State, tell: Tell) -> Listened:
    """Ask clients one by one, and quarantine those that send what is no gradient.

    Where a main client's own gradient is none, the fault may be its model's, which went too far. It is asked once more,
    at the metric's origin: if it has a gradient there, nobody is to blame, and it is heard as NaN.

    Parameters
    ----------
    at : (n,) int64
        Which of ``who.requests`` to ask; those of main clients together with all that are asked at their models.
    tell : callable
        What ``at_home.send`` is told, of requests and a state.

    Returns
    -------
    heard : (h,) int64
        Those of ``at`` that sent a gradient.
    g : (h, d)
        The gradients, in the metric's units.
    state : dict
        With whoever sent something else in quarantine: the number of the step, from 1.
    """
    M, d = len(who.main), len(metric.at)
    heard, g, good = _ask(fed, who, at, d, tell(at, state))
    blamed, lost, doubtful = ~good, np.zeros(len(good), dtype=bool), heard[~good & (heard < M)]
    if len(doubtful):
        again, _, there = _ask(fed, who, doubtful, d, tell(doubtful, state | {"x": np.zeros_like(state["x"])}))
        blamed &= ~np.isin(who.places[heard], doubtful) | np.isin(heard, again[~there])
        lost = np.isin(heard, again[there])
    quarantined = state["quarantined"].copy()
    quarantined[who.requests[heard[blamed]]] = state["t"] + 1
    good = (good | lost) & (quarantined[who.requests[heard]] == 0)
    return (
        heard[good],
        np.where(lost[good, None], np.nan, metric.gradient(g[good])),
        state | {"quarantined": quarantined},
    )


def recheck(
    fed: Federation, who: Collaborators, at: Ints, metric: Metric, state: State, tell: Tell, wrong: CoterieError | None
) -> tuple[Floats, State]:
    """Listen to those whose sums were no gradients, or could not be formed because of ``wrong``.

    Returns
    -------
    own : (M, d)
        NaN for main clients whose models have gone too far, 0 for others.
    state : dict
        With whoever is to blame in quarantine; a CoterieError where all answered and nobody is.
    """
    heard, g, after = listen(fed, who, at, metric, state, tell)
    own, lost = np.zeros((len(who.main), len(metric.at))), np.isnan(g).any(axis=1)
    own[heard[lost]] = np.nan
    if not lost.any() and len(heard) == len(at):
        raise wrong or CoterieError("A gradient that was asked for twice came out differently: key its draws.")
    return own, after


def _ask(fed: Federation, who: Collaborators, at: Ints, d: int, message: State) -> tuple[Ints, Floats, Bools]:
    """Who of ``at`` answered (h,), with what (h, d), and whether that is a gradient (h,)."""
    replies = fed.ask(send, to=who.requests[at], **message)
    if not replies:
        return np.empty(0, dtype=np.int64), np.empty((0, d)), np.empty(0, dtype=bool)
    sent, lengths = replies["g"], np.diff(replies["g"].offsets)
    right = lengths == d
    g = np.full((len(lengths), d), np.nan)
    g[right] = sent.take(np.flatnonzero(right)).values.reshape(-1, d)
    return at[replies.rows], g, (np.abs(g) < LARGEST).all(axis=1)
