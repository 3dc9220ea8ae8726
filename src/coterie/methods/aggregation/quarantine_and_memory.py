"""A federation whose sums of gradients leave out clients that return none, and remember those that are absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import By, Check, Federation, PerRow, Ragged, Sums, To, Work
from coterie.methods.aggregation.rules import Aggregator, Received, State
from coterie.methods.stepwise import LARGEST
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.queries import WrappedFederation


def one_by_one(g: Floats) -> Ragged:
    """Gradients (m, d) as rows that may have any length, so that what another site sends does not stop the others."""
    return Ragged(g.ravel(), np.arange(len(g) + 1) * g.shape[1])


class Guarded(WrappedFederation):
    """A federation for one exchange around another one, for methods to use in its place.

    Its ``total`` is of work that replies ``g``, a gradient times its weight, and ``weight``; and the gradient
    ``one_by_one`` if it is told no weight. The first M requests are main ones, of a client at its own model; request j
    is group j. The others are of clients asked at these models, in the groups M + j. Whoever returns something else
    than finite numbers is quarantined and not asked again, and nobody is asked for a main client in quarantine.
    Gradients are added up at the sites, unless somebody must look at each: an aggregator (by default the weighted
    mean), or a memory of those that did not answer (``remember``, or a ``participation`` below 1), whose last gradients
    then keep their place.

    ``state`` is the method's: ``t``, who is ``quarantined`` (clients,) since which step, counted from 1, and what an
    aggregator or the memory (``g``, ``known``, ``age``) keeps. It is not changed; what it becomes is the attribute
    ``state``. ``safe`` are values (d,) of the message, a model first, at which a client that is right has a gradient.
    Where a main client's own gradient is none, it is asked once more, with these. If it has one there, nobody is to
    blame but the model, which diverged: its sum is NaN. ``units`` takes gradients (..., d) as clients send them to
    those that are added up.
    """

    def __init__(
        self,
        fed: Federation,
        state: State,
        safe: Mapping[str, Floats],
        *,
        units: Callable[[Floats], Floats] = np.asarray,
        aggregator: Aggregator | None = None,
        participation: float = 1.0,
        remember: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(fed)
        self.safe, self.M, self.d = safe, 0, len(next(iter(safe.values())))
        self.main = np.empty(0, dtype=np.int64)  # of every request, the main request at whose model it asks
        self.one_by_one = remember or aggregator is not None or participation < 1.0
        self.aggregator = aggregator or Aggregator()
        self.units, self.participation, self.seed = units, participation, seed
        self.state: State = {"quarantined": np.zeros(len(fed.clients), dtype=np.int64)} | state

    def total(
        self,
        work: Work,
        /,
        to: To = None,
        by: By = None,
        groups: int | None = None,
        *,
        check: Check | None = None,
        **message: Any,
    ) -> Sums:
        """Sums ``g`` (2 M, d) and ``weight`` (2 M,) within groups, each main request alone and the others of each.

        Where gradients are looked at one by one, ``g`` is their aggregate, and ``weight`` 1, or 0 where there is none.
        A CoterieError where sums cannot be formed and nobody is to blame. Gradients are judged here: ``check`` is not.
        """
        if by is None or isinstance(by, str) or not groups or groups % 2:
            raise CoterieError("Guarded gradients have two groups for each main client: give `by` and `groups`.")
        clients = np.arange(len(self.clients)) if to is None else np.asarray(to)
        clients = np.flatnonzero(clients) if clients.dtype == np.bool_ else clients
        if clients.dtype.kind not in "iu":
            raise CoterieError("Guarded gradients are asked of clients: give `to` as their numbers, or a mask.")
        labels: Ints = np.asarray(by, dtype=np.int64)
        self.M, self.main = groups // 2, labels % (groups // 2)
        form = self._aggregated if self.one_by_one else self._summed
        values, answered = form(work, clients, labels, message)
        missing = np.delete(np.arange(len(labels)), answered)
        return Sums(values, clients, answered, missing, np.bincount(labels[answered], minlength=groups))

    def _allowed(self, to: Ints) -> Bools:
        trusted = (self.state["quarantined"] == 0)[to]
        return np.asarray(trusted & trusted[self.main])

    def _summed(self, work: Work, to: Ints, by: Ints, message: State) -> tuple[Mapping[str, Floats], Ints]:
        """The sums, and the requests that answered."""
        rows, failed, groups = np.flatnonzero((message["weight"].value > 0.0) & self._allowed(to)), None, 2 * self.M
        try:
            sums = self.fed.total(work, to=to[rows], by=by[rows], groups=groups, **_subset(message, rows))
            if not sums:
                return {"g": np.zeros((groups, self.d)), "weight": np.zeros(groups)}, rows[:0]
            if sums["g"].shape != (groups, self.d):
                raise CoterieError(f"Gradients must have {self.d} columns, as the model, not {sums['g'].shape[1:]}.")
            invalid = ~(np.abs(sums["g"]) < LARGEST).all(axis=1)
            doubtful = rows[np.isin(self.main[rows], self.main[rows[invalid[by[rows]]]])] if invalid.any() else rows[:0]
        except CoterieError as e:  # sums of unequal shapes, or a site that refuses
            failed, doubtful = e, rows[np.unique(to[rows], return_index=True)[1]]
        if not len(doubtful):
            return {"g": self.units(sums["g"]), "weight": sums["weight"]}, rows[sums.rows]
        answered, _, diverged = self._individual(work, to, doubtful, message)
        if diverged.any():
            return self._diverged(answered[diverged]), answered
        if len(answered) == len(doubtful):
            raise failed or CoterieError("A gradient that was asked for twice came out differently: key its draws.")
        return self._summed(work, to, by, message)

    def _aggregated(self, work: Work, to: Ints, by: Ints, message: State) -> tuple[Mapping[str, Floats], Ints]:
        """The aggregates, and the requests that answered."""
        M, d, t, weight = self.M, self.d, self.state["t"], message["weight"].value
        coins = keyed_random.uniform(self.seed, "participation", self.clients.ids[to[M:]], t, 1)[:, 0]
        asked = np.concatenate([np.ones(M, dtype=bool), (coins < self.participation) & (weight[M:] > 0.0)])
        rows = np.flatnonzero(asked & self._allowed(to))
        answered, g, diverged = self._individual(work, to, rows, message)
        if "g" not in self.state:
            P = len(to) - M
            self.state |= {"g": np.zeros((P, d)), "known": np.zeros(P, dtype=bool), "age": np.zeros(P, dtype=np.int64)}
            self.state |= self.aggregator.init(M, P, d)
        own, received, main = np.zeros((M, d)), np.zeros(M, dtype=bool), answered < M
        own[answered[main]], received[answered[main]] = g[main], True
        new = answered[~main] - M
        memory, known, age = self.state["g"].copy(), self.state["known"].copy(), self.state["age"] + 1
        memory[new], known[new], age[new] = g[~main], True, 0
        weights = np.where(known & (self.state["quarantined"][to[M:]] == 0), weight[M:], 0.0)
        self.state |= {"g": memory, "known": known, "age": age}
        if diverged.any():
            return self._diverged(answered[diverged]), answered
        gradients = Received(self.main[M:], memory, known, age, own, t)
        average, helped, self.state = self.aggregator(gradients, weights, self.state)
        counts = np.concatenate([received, helped]).astype(np.float64)
        return {"g": np.concatenate([own, average]), "weight": counts}, answered

    def _diverged(self, main: Ints) -> Mapping[str, Floats]:
        """Where some main client's model has diverged, there is nothing else to add up."""
        g, weight = np.zeros((2 * self.M, self.d)), np.zeros(2 * self.M)
        g[main], weight[: self.M] = np.nan, 1.0
        return {"g": g, "weight": weight}

    def _individual(self, work: Work, to: Ints, rows: Ints, message: State) -> tuple[Ints, Floats, Bools]:
        """Which of the requests ``rows`` sent a gradient, the gradients, and whose model diverged.

        Who sent something else is quarantined. ``rows`` has the main requests whose models others of it are asked at.
        """
        answered, g, valid = self._ask(work, to, rows, message)
        if valid.all():
            return answered, self.units(g), ~valid
        blamed, diverged, doubtful = ~valid, np.zeros(len(valid), dtype=bool), answered[~valid]
        doubtful = doubtful[self.main[doubtful] == doubtful]
        if len(doubtful):
            safe = {name: PerRow(np.tile(value, (len(to), 1))) for name, value in self.safe.items()}
            again, _, right = self._ask(work, to, doubtful, message | safe)
            blamed &= ~np.isin(self.main[answered], doubtful) | np.isin(answered, again[~right])
            diverged = np.isin(answered, again[right])
        quarantined = self.state["quarantined"].copy()
        quarantined[to[answered[blamed]]] = self.state["t"] + 1
        self.state["quarantined"] = quarantined
        kept = (valid | diverged) & (quarantined[to[answered]] == 0)
        return answered[kept], np.where(diverged[kept, None], np.nan, self.units(g[kept])), diverged[kept]

    def _ask(self, work: Work, to: Ints, rows: Ints, message: State) -> tuple[Ints, Floats, Bools]:
        """Which requests answered (h,), with what (h, d), and whether that is a gradient (h,)."""
        message = _subset({name: value for name, value in message.items() if name != "weight"}, rows)
        replies, d = self.fed.ask(work, to=to[rows], **message), self.d
        if not replies:
            return np.empty(0, dtype=np.int64), np.empty((0, d)), np.empty(0, dtype=bool)
        sent: Any = replies["g"]
        lengths = np.diff(sent.offsets)
        right = np.flatnonzero(lengths == d)
        if len(right) == len(lengths):
            g = sent.values.reshape(-1, d)
        else:
            g = np.full((len(lengths), d), np.nan)
            g[right] = sent.take(right).values.reshape(-1, d)
        return rows[replies.rows], g, (np.abs(g) < LARGEST).all(axis=1)


def _subset(message: State, rows: Ints) -> State:
    """The message for some requests, named in rising order."""
    some = {name: v for name, v in message.items() if isinstance(v, PerRow) and len(v.value) > len(rows)}
    return message | {name: PerRow(np.asarray(v.value)[rows]) for name, v in some.items()}
