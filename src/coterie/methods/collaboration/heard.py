"""What main clients hear in a step, and whom they no longer listen to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods.collaboration.at_home import send
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.pairs import State
from coterie.numerics.kernels import Bools, Floats, Ints


@dataclass(frozen=True)
class Heard:
    """What main clients heard in a step.

    Attributes
    ----------
    own, average : (M, d)
        Own gradients, and ``sum_k tau_k g_k`` over those that are listened to.
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


def listen(
    fed: Federation, who: Collaborators, at: Ints, metric: Metric, state: State, message: dict[str, Any]
) -> tuple[Ints, Floats, State]:
    """Ask clients one by one.

    Parameters
    ----------
    at : (n,) int64
        Which of ``who.requests`` to ask.
    message : dict
        What ``at_home.send`` is told.

    Returns
    -------
    heard : (h,) int64
        Those of ``at`` that sent a gradient.
    g : (h, d)
        The gradients, in the metric's units.
    state : dict
        With whoever sent something else in quarantine: the number of the step, from 1.
    """
    d, to = len(metric.at), who.requests[at]
    replies = fed.ask(send, to=to, **message)
    if not replies:
        return np.empty(0, dtype=np.int64), np.empty((0, d)), state
    sent, lengths = replies["g"], np.diff(replies["g"].offsets)
    right = lengths == d
    g = np.full((len(lengths), d), np.nan)
    g[right] = sent.take(np.flatnonzero(right)).values.reshape(-1, d)
    good = np.isfinite(g).all(axis=1)
    quarantined = state["quarantined"].copy()
    quarantined[to[replies.rows[~good]]] = state["t"] + 1
    good &= quarantined[to[replies.rows]] == 0
    return at[replies.rows[good]], metric.gradient(g[good]), state | {"quarantined": quarantined}
