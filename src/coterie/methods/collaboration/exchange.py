"""One exchange of Algorithm 1: gradients of main clients and collaborators, and who is not to be listened to.

Collaborators' gradients are added up before a main client hears them, unless somebody must look at each: a rule that
weighs them, or a memory of those that did not answer. Whoever sends what is not a finite gradient is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Ragged, Site, work
from coterie.methods.aggregation.received import Pairs, Rules, State
from coterie.methods.collaboration.collaborators import Collaborators, need_columns
from coterie.methods.collaboration.metric import Metric
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import path


@dataclass(frozen=True)
class Exchange:
    """Who is asked for gradients, and how.

    Attributes
    ----------
    who : Collaborators
    metric : Metric
        Units of all that main clients hold.
    batch : int
        Rows of a gradient, drawn with replacement; 0 takes all.
    local : int
        Local steps of everybody between two exchanges (section 7).
    rules : Rules, optional
        How gradients are weighed and put together one by one; by default they are added up at the sites.
    participation : float
        With what probability a collaborator takes part in a step.
    remember : bool
        Whether a collaborator that does not answer keeps its last place in the average; where some do not take part,
        or rules look at each, they do.
    seed : int
        Of who takes part.
    """

    who: Collaborators
    metric: Metric
    batch: int = 1
    local: int = 1
    rules: Rules | None = None
    participation: float = 1.0
    remember: bool = False
    seed: int = 0

    @property
    def one_by_one(self) -> bool:
        """Whether gradients are looked at one by one."""
        return self.rules is not None or self.remember or self.participation < 1.0

    @property
    def _hear(self) -> Callable[..., Heard]:
        return self._each if self.one_by_one else self._sums

    def init(self, fed: Federation) -> State:
        """What is remembered before the first step; a CoterieError for clients that do not fit together."""
        d, who = len(self.metric.at), self.who
        need_columns(fed, who, d)
        state: State = {"quarantined": np.zeros(len(fed.clients), dtype=np.int64)}
        if self.one_by_one:
            P = len(who.who)
            state |= {"g": np.zeros((P, d)), "known": np.zeros(P, dtype=bool), "age": np.zeros(P, dtype=np.int64)}
            state |= (self.rules or Rules()).init(who, d)
        return state

    def hear(self, fed: Federation, state: State, shift: Floats, eta: Floats) -> Heard:
        """Gradients at ``state["x"]`` (M, d); local steps of collaborators take off ``shift`` (M, d)."""
        going = {"shift": shift, "eta": eta} if self.local > 1 else None
        return self._hear(fed, state, self.local, "rows", going)

    def _asked(self, state: State) -> Bools:
        """Whom to ask (M + P,): nobody in quarantine, and nobody on behalf of a main client that is."""
        free = state["quarantined"] == 0
        return np.asarray(free[self.who.requests] & free[self.who.main][self.who.places])

    def sampled(self, fed: Federation, state: State, samples: int) -> Heard:
        """Means of so many sampled gradients at ``state["x"]``, of rows that no step draws (C.4: a batch for c_0).

        Of what is remembered, only who is in quarantine changes.
        """
        heard = self._hear(fed, state, samples, "first bias", None)
        return replace(heard, state=state | {"quarantined": heard.state["quarantined"]})

    def _message(self, at: Ints, state: State, local: int, stream: str, going: State | None) -> State:
        place = self.who.places[at]
        message: State = {"theta": PerRow(self.metric.theta(state["x"])[place])}
        message |= {"t": state["t"], "local": local, "batch": self.batch, "stream": stream}
        if going is not None:
            off = np.where((at < len(self.who.main))[:, None], 0.0, self.metric.cotangent(going["shift"])[place])
            message |= {"shift": PerRow(off), "P": self.metric.preconditioner, "eta": PerRow(going["eta"][place])}
        return message

    def _sums(self, fed: Federation, state: State, local: int, stream: str, going: State | None) -> Heard:
        who, M, d = self.who, len(self.who.main), len(self.metric.at)
        w = np.concatenate([np.ones(M), who.tau])
        at = np.flatnonzero((w > 0.0) & self._asked(state))
        group = np.concatenate([np.arange(M), M + who.of])[at]
        tell = partial(self._message, local=local, stream=stream, going=going)
        sums, wrong = None, None
        try:
            sums = fed.total(add, to=who.requests[at], by=group, groups=2 * M, w=PerRow(w[at]), **tell(at, state))
            bad = ~(np.abs(sums["g"]) < LARGEST).all(axis=1) if sums else np.zeros(2 * M, dtype=bool)
            doubtful = at[(bad[:M] | bad[M:])[who.places[at]]]
        except CoterieError as e:  # sums of unequal shapes, or a site that refuses
            wrong, doubtful = e, at[np.unique(who.requests[at], return_index=True)[1]]
        if len(doubtful):
            own, state = recheck(fed, who, doubtful, self.metric, state, tell, wrong)
            return Heard.astray(own, state) if np.isnan(own).any() else self._sums(fed, state, local, stream, going)
        g, spoke = np.zeros((2 * M, d)), np.zeros(2 * M, dtype=bool)
        if sums:
            spoke = sums["w"] > 0.0
            g = self.metric.gradient(sums["g"] / np.where(spoke, sums["w"], 1.0)[:, None])
        return Heard(g[:M], g[M:], spoke[:M], spoke[M:], state)

    def _each(self, fed: Federation, state: State, local: int, stream: str, going: State | None) -> Heard:
        who, M, t = self.who, len(self.who.main), state["t"]
        takes = keyed.uniform(self.seed, "participation", fed.clients.ids[who.who], t, 1)[:, 0] < self.participation
        asked = np.concatenate([np.ones(M, dtype=bool), takes & (who.tau > 0.0)])
        at = np.flatnonzero(asked & self._asked(state))
        tell = partial(self._message, local=local, stream=stream, going=going)
        heard, g, state = listen(fed, who, at, self.metric, state, tell)
        own, spoke = np.zeros((M, g.shape[1])), np.zeros(M, dtype=bool)
        main = heard < M
        own[heard[main]], spoke[heard[main]] = g[main], True
        new = heard[~main] - M
        memory, known, age = state["g"].copy(), state["known"].copy(), state["age"] + 1
        memory[new], known[new], age[new] = g[~main], True, 0
        weights = np.where(known & (state["quarantined"][who.who] == 0), who.tau, 0.0)
        state = state | {"g": memory, "known": known, "age": age}
        if np.isnan(own).any():
            return Heard.astray(own, state)
        rules = self.rules or Rules()
        average, helped, state = rules(Pairs(who, memory, known, age, own, state["x"], t), weights, state)
        return Heard(own, average, spoke, helped, state)


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
