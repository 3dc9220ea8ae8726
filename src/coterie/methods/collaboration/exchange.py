"""One exchange of Algorithm 1: gradients of main clients and collaborators, and who is not to be listened to.

Collaborators' gradients are added up before a main client hears them, unless somebody must look at each: a rule that
weighs them, or a memory of those that did not answer. Whoever sends what is not a finite gradient is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow
from coterie.methods.collaboration.at_home import add
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.heard import LARGEST, Heard, listen, recheck
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.needs import need_columns
from coterie.methods.collaboration.pairs import Pairs, Rules, State
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints


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
