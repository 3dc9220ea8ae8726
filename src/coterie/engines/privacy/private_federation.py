"""A federation whose sums are differentially private: clipped contributions, noise from every client, an account.

Dwork and Roth (2014), section 3.5; for training, McMahan, Ramage, Talwar, Zhang (2018), Learning differentially private
recurrent language models, Algorithm 1, with clients that count alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from coterie.engines.privacy import gaussian_mechanism as gaussian
from coterie.engines.privacy.gaussian_mechanism import ABOUT_ROWS, BY_ROW, PUBLIC, Accountant, Event, unbounded
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.engines.routing import addressed, grouped
from coterie.errors import CoterieError
from coterie.federation import By, Federation, Ints, PerCluster, PerRow, Sums, Work, work_name
from coterie.numerics.arrays import Floats
from coterie.options import Option, checked
from coterie.queries import Query, WrappedFederation


def _some(clip: Any) -> Any:
    if isinstance(clip, dict) and not clip:
        raise ValueError("no bound")
    return clip


class BudgetSpent(CoterieError):
    """The next exchange would cost more than the epsilon that was allowed; it was not asked."""


class Private(WrappedFederation):
    """A federation around another one, for methods to use in its place.

    Whatever comes out of its ``total`` is (epsilon, delta)-differentially private for data that differ in one client,
    or in one row, whose part is there or left out. Its ``ask`` gives what says nothing of rows, and refuses the rest.

    ``account`` (an :class:`Accountant`) holds what every client has taken part in, and ``noise`` is the multiplier.

    Notes
    -----
    ``clip`` bounds the L2 norm of what one client (or row) adds to a sum. A number bounds the change of a model, as
    methods send it whose clients train at home; other replies need a bound for each of their names. An exchange that
    would cost more than ``epsilon`` raises :class:`BudgetSpent` before anybody is asked. Without a ``noise``, the least
    one is taken with which ``rounds`` exchanges stay within it.

    A client's noise has the variance ``(noise clip)^2 / (quorum n)`` where n are asked in its group, so the sum of
    those that answer has enough. With a quorum below 1, some may drop out, or tell others their noise; all add a little
    more, and an exchange that fewer answer ends the run. Behind ``hide="site"`` sums over n sites have about
    ``sqrt(n)`` times the noise, which the account does not count. Who sees less than the sum sees less noise: use
    secure sums where the coordinator is not trusted. Clients of other groups of the same exchange cost nothing more, as
    each is in one. ``public`` works say nothing of rows on the word of whoever names them; a run with a ``seed`` is
    *not private*, and says so.
    """

    private = True
    fed: Any  # an engine, which can be saved, or another one around it

    @checked
    def __init__(
        self,
        fed: Federation,
        *,
        clip: Annotated[
            float | dict[str, float],
            Option("Bound.", above=0.0, what="a bound above 0, or one for each name of a reply", read=_some),
        ],
        noise: Annotated[
            float | None, Option("Standard deviation of the noise in a sum, divided by clip; 0 clips only.", low=0.0)
        ] = None,
        epsilon: Annotated[float | None, Option("Budget of the whole run.", above=0.0)] = None,
        rounds: Annotated[int | None, Option("Exchanges in which a client is asked.", low=1)] = None,
        delta: Annotated[float, Option("Chance that epsilon does not hold.", above=0.0, below=1.0)] = 1e-5,
        unit: Annotated[Literal["client", "row"], Option("What is hidden: all rows of a client, or one.")] = "client",
        quorum: Annotated[float, Option("Share of those asked whose noise is enough.", above=0.0, high=1.0)] = 1.0,
        sampling: Annotated[
            float, Option("Probability to be in a sum, by a coin that nobody sees.", above=0.0, high=1.0)
        ] = 1.0,
        hide: Annotated[
            Literal["all", "site"], Option("Behind whose noise: of all in a sum, or of a client's own site alone.")
        ] = "all",
        seed: Annotated[int | None, Option("For research: noise that repeats.")] = None,
        public: tuple[Work, ...] = (),
    ) -> None:
        _agree(clip, noise, epsilon, rounds, unit)
        gaussian.accounting()
        super().__init__(fed)
        self.clip, self.delta, self.unit, self.budget = clip, float(delta), unit, epsilon
        self.quorum, self.sampling, self.seed, self.rounds = quorum, float(sampling), seed, rounds
        self._site = np.zeros(len(fed.clients), dtype=np.int64)
        for number, clients in enumerate(getattr(fed, "sites", ()) if hide == "site" else ()):
            self._site[clients] = number
        searched = noise is None
        self.noise = gaussian.noise_for(epsilon or 0.0, delta, rounds or 1, sampling) if noise is None else float(noise)
        self.event = Event(self.noise, self.sampling)
        self.account, self.number = Accountant(len(fed.clients), self.delta), 0
        self._sure = rounds or 0 if searched else 0  # so many exchanges cost no more than the budget
        self._public = PUBLIC | {work_name(work) for work in public} | (ABOUT_ROWS if unit == "row" else set())

    def _answer(self, query: Query) -> Any:
        """Replies of works that say nothing of rows, and private sums; a CoterieError for other replies.

        Of models that clients trained at home, ``x`` and ``w`` are sums as if every one weighed 1. BudgetSpent where a
        sum would cost too much; a CoterieError where a reply has no bound, or a client is asked more than once;
        BelowQuorum where so few answered that there is too little noise: it is charged in full all the same.
        """
        name = work_name(query.work)
        if query.kind == "ask":
            _uncoded(query.message)
            if name not in self._public:
                raise CoterieError(
                    f"{name} asks for clients' own replies, which no sum hides: take a method that adds up, or "
                    "ask within the federation that this one is around, if the replies stay with their owners."
                )
        return query.of(self.fed) if name in self._public else self._private(name, query)

    def _private(self, name: str, query: Query) -> Sums:
        _, _, message, to, _, by, groups = query
        form = self._form(name, message, by)
        rows = addressed(to, self.clients)
        rows = np.arange(len(self.clients)) if rows is None else rows
        if to is not None and len(np.unique(rows)) < len(rows):
            raise CoterieError(f"{name} asks a client twice in an exchange, which would cost it privacy twice.")
        clusters = self.clients.clusters[rows]
        labels, size = (rows * 0, 1) if by is None else grouped(by, clusters, groups, self.clients.k)
        site, sites = self._site[rows], int(self._site.max(initial=0)) + 1
        enough = np.ceil(self.quorum * np.bincount(labels * sites + site, minlength=size * sites) - 1e-9)
        share = self.noise / np.sqrt(np.maximum(enough, 1.0))[labels * sites + site]
        enough = enough if sites == 1 else np.zeros(size)  # whoever answers has enough by itself
        self._charge(rows)
        how: dict[str, Any] = {"form": form, "bound": self.clip, "sampling": self.sampling}
        how |= {"noise": float(share[0]) if by is None and sites == 1 and len(rows) else PerRow(share)}
        how |= {"seed": None if self.seed is None else [self.seed, self.number]}
        found = self.fed.total(gaussian.clipped, to=to, by=by, groups=groups, inner=name, message=message, **how)
        count = np.atleast_1d(np.asarray(found.count))
        short = np.flatnonzero((count > 0) & (count < enough))
        if len(short):
            g = int(short[0])
            raise BelowQuorum(
                f"Only {count[g]} clients answered of the {int(enough[g])} whose noise would hide one of them: wait "
                "for more, or begin again with a smaller quorum."
            )
        return self._released(found, form, message, labels, None if by is None else size)

    def spent(self) -> tuple[float, float]:
        """(epsilon, delta) of all exchanges so far, for the client that was asked most."""
        return self.account.epsilon(), self.delta

    @property
    def statement(self) -> str:
        """What may be said of the results, in a sentence."""
        epsilon, delta = self.spent()
        what = "all rows of a client" if self.unit == "client" else "one row"
        if self.seed is not None:
            return f"Not private: the noise was drawn with the seed {self.seed} (epsilon would be {epsilon:.3g})."
        if math.isinf(epsilon):
            return "Not private: sums were clipped and had no noise."
        return (
            f"The sums hide {what}: epsilon {epsilon:.3g} at delta {delta:g} "
            f"(noise multiplier {self.noise:.3g}, clip {self.clip})."
        )

    def snapshot(self, tag: str) -> dict[str, Any]:
        """What a checkpoint keeps: the engine's part, and what was spent."""
        return {**self.fed.snapshot(tag), "private": self._position()}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`."""
        self._load_position(snapshot)
        self.fed.resume({name: value for name, value in snapshot.items() if name != "private"})

    def keep(self, state: Mapping[str, Any]) -> None:
        """Let the journal of ``fed`` begin at a state, and remember what was spent up to it."""
        self.fed.keep({"state": dict(state), "private": self._position()})

    @property
    def kept(self) -> dict[str, Any] | None:
        """The state of the last :meth:`keep`, None if there is none; what was spent up to it is charged again."""
        kept = self.fed.kept
        if kept is None:
            return None
        self._load_position(kept)
        state: dict[str, Any] = kept["state"]
        return state

    def _position(self) -> dict[str, Any]:
        return {"spent": self.account.as_list(), "number": self.number}

    def _load_position(self, kept: Mapping[str, Any]) -> None:
        if "private" not in kept:
            raise CoterieError("The checkpoint is of a run without privacy: resume it without, or begin again.")
        self.account.load(kept["private"]["spent"])
        self.number = int(kept["private"]["number"])

    def _form(self, name: str, message: Mapping[str, Any], by: By) -> str:
        """What of the replies is bounded."""
        if self.unit == "row":
            if name not in BY_ROW:
                raise CoterieError(
                    f"{name} does not bound what a row adds to its reply: train with the method dp-sgd for unit='row'."
                )
            return "rows"
        if not isinstance(self.clip, float | int):
            return "names"
        transport, w = message.get("transport"), message.get("w")
        _uncoded(message)
        if not isinstance(transport, Mapping) or w is None:
            raise CoterieError(unbounded(name, ["x"]).replace("'x' in the", "What is in the").replace("'x'", "'name'"))
        if isinstance(w, PerCluster):
            if not isinstance(by, str):
                raise CoterieError(f"{name} sends clusters their own models and adds across them: take by='cluster'.")
            return "update:cluster"
        if not isinstance(w, PerRow) and np.ndim(w) != 1:
            raise CoterieError(f"{name} lets clients choose among models, which tells of their rows: take fedavg.")
        return "update:row" if isinstance(w, PerRow) else "update:all"

    def _charge(self, clients: Ints) -> None:
        """Book the exchange before anybody is asked, so that nothing that went out can be forgotten."""
        if self.budget is not None and not (
            self.account.counts.keys() <= {self.event} and self.account.most(self.event) < self._sure
        ):
            cost = self.account.epsilon(self.event, clients)
            if cost > self.budget * (1.0 + 1e-9):
                raise BudgetSpent(
                    f"The privacy budget is spent: another exchange would cost an epsilon of {cost:.3g}, and "
                    f"{self.budget:g} is allowed."
                )
        self.account.add(self.event, clients)
        self.number += 1

    def _released(self, found: Sums, form: str, message: Mapping[str, Any], labels: Ints, size: int | None) -> Sums:
        """Sums as the method expects them: of models, not of their changes."""
        if not found:
            return found
        values = dict(found)
        if form.startswith("update"):
            count = np.asarray(found.count, dtype=np.float64)
            w = message["w"]
            base, dtype = _bases(w, found, labels, size), np.asarray(getattr(w, "value", w)[0]).dtype
            values["x"] = _each(found["x"], base, lambda x, b: (b + x / self.sampling).astype(dtype, copy=False))
            values |= {"w": count, "diverged": 0.0 * count, "broken": 0.0 * count}
        elif self.sampling < 1.0:
            values = {n: _each(v, v, lambda x, _: x / self.sampling) for n, v in values.items()}
        return Sums(values, found.to, found.rows, found.missing, found.count)


def _uncoded(message: Mapping[str, Any]) -> None:
    transport = message.get("transport")
    if isinstance(transport, Mapping) and {"up", "down"} & set(transport):
        raise CoterieError("Models that travel coded cannot be private: leave the codecs up and down out.")


def _bases(w: Any, found: Sums, labels: Ints, size: int | None) -> Any:
    """Sums of the models that were sent to those who answered, by group."""
    if isinstance(w, PerCluster):
        return [n * np.asarray(b, dtype=np.float64) for n, b in zip(found.count, w.value, strict=True)]
    if not isinstance(w, PerRow):
        return np.multiply.outer(np.asarray(found.count, dtype=np.float64), np.asarray(w, dtype=np.float64))
    sent = np.asarray(w.value, dtype=np.float64)
    out = np.zeros((size or 1, sent.shape[1]))
    np.add.at(out, labels[found.rows], sent[found.rows])
    return out if size is not None else out[0]


def _each(sums: Any, other: Any, change: Callable[[Floats, Floats], Floats]) -> Any:
    """The change of sums that are an array, or of each in a list."""
    if isinstance(sums, list):
        return [change(np.asarray(s), np.asarray(o)) for s, o in zip(sums, other, strict=True)]
    return change(sums, np.asarray(other))


def _agree(clip: Any, noise: float | None, epsilon: float | None, rounds: int | None, unit: str) -> None:
    """What one option says of another."""
    if unit == "row" and isinstance(clip, Mapping):
        raise CoterieError("For unit='row', clip is one number: the bound of all that a row adds.")
    if noise is None and epsilon is None:
        raise CoterieError("Give noise, the noise multiplier, or epsilon and rounds, by which it is found.")
    if noise is None and rounds is None:
        raise CoterieError("An epsilon needs rounds, the number of exchanges that it is to last for, or a noise.")
