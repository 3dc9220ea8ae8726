"""The server's end of models that travel coded: a federation that codes what it sends and decodes what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from coterie.codecs import by_name
from coterie.errors import CoterieError
from coterie.federation import By, Federation, Ints, PerCluster, PerRow, Ragged, Replies, Sums, To, Work
from coterie.methods.local_training.decoded import added, recalled
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats

State = dict[str, Any]


class Coded:
    """A federation for one round, whose messages with a ``link`` travel coded: models ``w`` down, and changes up.

    All clients are to hold the same reference of a model; what is sent is its coded change since the last message.
    Clients' changes are added to the model as the server has it, so what a biased codec loses is part of the next
    change; what an unbiased one adds is left, as its errors would grow with what is left of them. A client that missed
    a message is sent the whole reference first: a codec ``down`` saves bytes where most clients take part in every
    round. With a codec ``up`` the server sees every client's change, not sums only.

    Parameters
    ----------
    fed : Federation
    state : dict
        Of the method: how many ``messages`` there were; with a codec ``down`` also the ``reference`` (k, d1) of every
        model, and which of them every client ``holds`` (m,), -1 for none.
    up, down : str
        Codecs; "none" for no code.
    seed : int
        Of the server's codec.
    """

    def __init__(self, fed: Federation, state: State, up: str, down: str, seed: int) -> None:
        self.fed, self.up, self.down, self.seed = fed, up, down, seed
        self.clients, self.ledger, self.mark, self.restore = fed.clients, fed.ledger, fed.mark, fed.restore
        nobody = np.full(len(fed.clients), -1, dtype=np.int64)
        first: State = {"messages": 0}
        if down != "none":
            first |= {"reference": np.empty((0, 0)), "holds": nobody}
        self.state: State = {name: state.get(name, value) for name, value in first.items()}
        self._labels: Ints | None = None  # which model each client was sent; None: all of them
        self._base, self._index = np.empty((0, 0)), np.empty(0, dtype=np.int64)  # what they were, and which of these
        self._lost: Floats | None = None  # of each model, what a biased codec has kept from the clients

    def ask(self, work: Work, /, to: To = None, **message: Any) -> Replies:
        """See ``Federation.ask``."""
        if "link" not in message:
            return self.fed.ask(work, to=to, **message)
        return self._arrived(self.fed.ask(work, to=to, **self._told(to, None, None, message)), message)

    def total(self, work: Work, /, to: To = None, by: By = None, groups: int | None = None, **message: Any) -> Sums:
        """See ``Federation.total``; of clients' changes it makes the sums ``x`` that there would be without codes."""
        if "link" not in message or self.up == "none":
            told = self._told(to, by, groups, message) if "link" in message else message
            sums = self._arrived(self.fed.total(work, to=to, by=by, groups=groups, **told), message)
            return recalled(cast("Sums", sums), self._lost)
        told = self._told(to, by, groups, message)
        replies = self._arrived(self.fed.ask(work, to=to, check=self._check, **told), message)
        if by is None:
            return self._added(replies, np.zeros(len(replies.to), dtype=np.int64), None)
        labels = self.clients.clusters[replies.to] if isinstance(by, str) else np.asarray(by, dtype=np.int64)
        return self._added(replies, labels, int(labels.max(initial=-1)) + 1 if groups is None else groups)

    def _told(self, to: To, by: By, groups: int | None, message: State) -> State:
        """The message as it travels."""
        codecs = {name: codec for name, codec in (("up", self.up), ("down", self.down)) if codec != "none"}
        told = message | {"link": {**message["link"], **codecs, "message": self.state["messages"]}}
        self.state["messages"] += 1
        if "w" in message:
            everyone = np.arange(len(self.clients))
            to = everyone if to is None else everyone[cast("Ints", to)]
            told["w"] = self._model(to, by, groups, message["w"])
        return told

    def _model(self, to: Ints, by: By, groups: int | None, w: Any) -> Any:
        """What the clients ``to`` are sent for the models w (d1,) or (k, d1), or PerRow with one for each of ``by``."""
        if isinstance(w, PerCluster):
            raise CoterieError("Models that go to clusters do not travel coded: leave the codecs up and down out.")
        if not isinstance(w, PerRow):
            self._labels, models = None, np.atleast_2d(w)
            which, k, self._index = np.arange(len(models)), len(models), np.zeros(len(to), dtype=np.int64)
        else:
            self._labels, k = to, len(self.clients)
            if by is not None:
                self._labels = self.clients.clusters[to] if isinstance(by, str) else np.asarray(by, dtype=np.int64)
                k = int(self._labels.max(initial=-1)) + 1 if groups is None else groups
            which, at, self._index = np.unique(self._labels, return_index=True, return_inverse=True)
            models = cast("Floats", w.value)[at]
            if not np.array_equal(models[self._index], cast("Floats", w.value)):
                raise CoterieError("With a codec, the clients of a group are sent one model.")
        self._base = models
        return w if self.down == "none" else self._change(to, which, k, models)

    def _change(self, to: Ints, which: Ints, k: int, models: Floats) -> State:
        """The coded changes of the references ``which``, of k, to the models, and references that clients lack."""
        reference, holds, each = self.state["reference"], self.state["holds"].copy(), self._labels is not None
        if reference.shape != (k, models.shape[1]):
            reference, holds[:] = np.zeros((k, models.shape[1]), dtype=models.dtype), -1
        known = np.isin(which if each else np.zeros_like(which), holds[to])
        old = np.where(known[:, None], reference[which], models)  # what nobody holds goes out whole, as it is
        codec = by_name(self.down)
        coded = codec.encode(models - old, keyed.starts(self.seed, "deliver", which), self.state["messages"])
        base = (old + coded.claimed).astype(models.dtype)
        if codec.unbiased:
            self._base = base
        else:
            self._lost = np.zeros_like(reference)
            self._lost[which] = models - base
        lacks = holds[to] != (self._labels if each else 0)
        full = old[self._index[lacks]] if each else np.tile(old.ravel(), (int(lacks.sum()), 1))
        holds[np.isin(holds, which if each else 0)] = -1
        self.state |= {"reference": reference.copy(), "holds": holds}
        self.state["reference"][which] = base
        parts = Ragged(full.ravel(), np.concatenate([[0], np.cumsum(lacks * (full.shape[1] if len(full) else 0))]))
        news = PerRow(coded.payload.take(self._index)) if each else coded.payload
        return {"full": PerRow(parts), "news": news, "each": each}

    def _arrived(self, replies: Replies, message: State) -> Replies:
        """Note who holds what was just sent."""
        if self.down != "none" and "w" in message and "link" in message:
            who = replies.rows
            self.state["holds"][replies.to[who]] = 0 if self._labels is None else self._labels[who]
        return replies

    def _check(self, rows: Ints, values: Mapping[str, Any]) -> None:
        """Refuse changes that cannot be decoded, while their site can be left out."""
        if "payload" in values:
            by_name(self.up).decode(values["payload"], self._base.shape[1])

    def _added(self, replies: Replies, labels: Ints, groups: int | None) -> Sums:
        label, index = labels[replies.rows], self._index[replies.rows]
        index = label if self._labels is None and len(self._base) > 1 else index
        return added(replies, label, groups, self._base, index, self.up)
