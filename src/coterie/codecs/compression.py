"""Models and gradients that travel compressed: what clients and the server do at their ends, and remember.

Models go down as their compressed change since the reference that the client holds (EF21's update); what goes up is
compressed with the feedback that its codec needs. What a codec loses is not lost for good: both ends know what was
sent, and only exchanges that count change it. A method whose clients have models of their own asks a
:class:`Compression` what to send them and what they sent; :class:`CompressedFederation` wraps a federation for methods
whose clients share few models.

Runs are long where neighbours are alike, so an order of coordinates makes messages short; both ends must know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from coterie.codecs import by_name, codec_option
from coterie.codecs.codec import Codec
from coterie.errors import CoterieError
from coterie.federation import By, Federation, PerCluster, PerRow, Ragged, Replies, Site, Sums
from coterie.lazy_modules import sparse
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.options import Checked, Option
from coterie.queries import Query, WrappedFederation

State = dict[str, Any]

FEEDBACKS = ("none", "ef", "ef21")
ORDERS = ("natural", "magnitude", "last-update")
KEPT = 0.5  # what a running mean of a client's messages keeps of the older ones
SAFE = 1e4  # numbers below it fit every codec


class Sent(NamedTuple):
    """What a sender has after one message: the bytes of each row, what the reader makes of them, its new memory."""

    payload: Ragged
    estimate: Floats
    memory: Floats


def with_feedback(
    feedback: str,
    memory: Floats,
    gradient: Floats,
    codec: Codec,
    keys: npt.ArrayLike,
    step: npt.ArrayLike,
    order: Ints | None = None,
) -> Sent:
    """Encode gradients g (m, d) with a feedback, from a memory (m, d) that is zero at first.

    "none": ``C(g)`` is sent, and the memory stays as it is; right for unbiased codecs. "ef", error feedback [1]_ [2]_:
    ``C(e + g)`` is sent, and what was lost is kept, ``e <- e + g - C(e + g)``. "ef21" [3]_: the change ``C(g - h)`` is
    sent, and both ends keep the estimate ``h <- h + C(g - h)``.

    References
    ----------
    .. [1] Seide, Fu, Droppo, Li, Yu (2014), 1-bit stochastic gradient descent, Interspeech.
    .. [2] Karimireddy, Rebjock, Stich, Jaggi (2019), Error feedback fixes SignSGD, ICML, Algorithm 2.
    .. [3] Richtarik, Sokolov, Fatkhullin (2021), EF21, NeurIPS, Algorithm 2.
    """
    if feedback == "ef21":
        done = codec.encode(gradient - memory, keys, step, order)
        estimate = memory + done.claimed
        return Sent(done.payload, estimate, estimate)
    wanted = gradient if feedback == "none" else memory + gradient
    done = codec.encode(wanted, keys, step, order)
    return Sent(done.payload, done.claimed, memory if feedback == "none" else wanted - done.claimed)


def coordinate_order(kind: str, said: Floats, moved: Floats) -> Ints:
    """The order (m, d) in which coordinates travel, from what both ends have; ties stay in their natural order.

    They go by what the server last decoded for each client ("magnitude"), or by how its model moved ("last-update").
    """
    return np.argsort(said if kind == "magnitude" else moved, axis=-1, kind="stable")


def blend(own: Floats, said: Floats, feedback: str) -> Floats:
    """What "magnitude" goes by after a message ``said`` (m, d): under EF21 the estimate itself, else a running mean."""
    return said if feedback == "ef21" else KEPT * own + (1.0 - KEPT) * said


@dataclass(frozen=True)
class Compression(Checked):
    """The codecs of a method, and what is remembered of what they lose.

    What ``up`` loses is added to what is sent next (ef: error feedback), or differences to the last estimate are sent
    (ef21); models always go as differences. Coordinates travel up as they come, by a client's last messages, or by the
    last move of its model.
    """

    up: Annotated[str, codec_option("Of what clients send: see :func:`coterie.codecs.by_name`.")] = "none"
    down: Annotated[str, codec_option("Of what clients are sent.")] = "none"
    feedback: Annotated[str, Option("What happens to what ``up`` loses.", choices=FEEDBACKS)] = "none"
    order: Annotated[str, Option("In which coordinates travel up.", choices=ORDERS)] = "natural"
    seed: Annotated[int, Option("Of the server's codec.", low=0)] = 0

    @property
    def active(self) -> bool:
        """Whether anything is compressed."""
        return (self.up, self.down) != ("none", "none")

    def deliver(self, reference: Floats, models: Floats, ids: npt.ArrayLike, step: int) -> Sent:
        """Compress the change of models (m, d) since their references; ``memory`` are the new references."""
        keys = keyed_random.starts(self.seed, "deliver", ids)
        return with_feedback("ef21", reference, models, by_name(self.down), keys, step)

    def memory(self, n: int, d: int) -> State:
        """What the server remembers of what n clients were sent and sent themselves, at first."""
        names = ["held"] * (self.down != "none") + ["estimate"] * (self.feedback == "ef21")
        return {name: np.zeros((n, d)) for name in (*names, *("said", "at") * (self.order != "natural"))}

    def message(self, state: State, models: Floats, to: Ints, ids: npt.ArrayLike, step: int) -> tuple[Any, Floats]:
        """What travels to the clients ``to`` of their models (m, d), and what they hold once it arrived."""
        if self.down == "none":
            return models, models
        sent = self.deliver(state["held"][to], models, ids, step)
        return sent.payload, sent.memory

    def decode(self, payload: Any, state: State, to: Ints, models: Floats) -> tuple[Floats, State]:
        """What the clients ``to`` sent (m, d) by :meth:`send`, whose models were ``models``, and the new state."""
        if self.up == "none":
            return payload, state
        order = None
        if self.order != "natural":
            order = coordinate_order(self.order, state["said"][to], models - state["at"][to])
        values = by_name(self.up).decode(payload, models.shape[1], order)
        if self.feedback == "ef21":
            values = state["estimate"][to] + values
        if order is not None:
            said = blend(state["said"][to], values, self.feedback)
            state = state | {"said": with_rows(state["said"], to, said), "at": with_rows(state["at"], to, models)}
        return values, state

    def send(self, site: Site, value: Floats, step: int, models: Any = None, good: Any = True) -> Ragged:
        """Compress what clients send (m, d), ordered by their ``models``; those not ``good`` remember nothing of it."""
        memory, order = value, None
        if self.order != "natural":
            zero = np.zeros(value.shape)
            said, at = site.state.get("said", zero), site.state.get("at", zero)
            order = coordinate_order(self.order, said, models - at)
        if self.feedback != "none":
            memory = site.state.get("memory", np.zeros(value.shape, dtype=value.dtype))
        keys, good = keyed_random.starts(site.seed, "codec", site.ids), np.asarray(good)[..., None]
        sent = with_feedback(self.feedback, np.where(good, memory, 0.0), value, by_name(self.up), keys, step, order)
        if self.feedback != "none":
            site.state["memory"] = np.where(good, sent.memory, memory).astype(value.dtype)
        if order is not None:
            site.state["said"] = blend(said, sent.estimate, self.feedback)
            if self.order == "last-update":
                site.state["at"] = models
        return sent.payload

    def receive(self, site: Site, payload: Any, d: int) -> Floats:
        """The models (m, d) of clients, which hold them as the references of the next message."""
        if self.down == "none":
            return np.asarray(payload)
        held = site.state.get("held", np.zeros((len(site), d))) + by_name(self.down).decode(payload, d)
        site.state["held"] = held
        return np.asarray(held)


def with_rows(array: Any, at: Ints, value: Any) -> Any:
    """A copy of ``array`` with ``value`` in the rows ``at``."""
    out = array.copy()
    out[at] = value
    return out


def receive_models(site: Site, w: Any, codec: str) -> Floats:
    """The models (m, k, d) that a :class:`CompressedFederation` sent, as they are (k, d) or compressed.

    A compressed message is ``{"full", "change", "each"}``: the reference that a client is to hold, for those that do
    not hold it (no numbers for the others), and the compressed change of it since, k rows for all, or one for ``each``.
    """
    if not isinstance(w, dict):
        return np.broadcast_to(w, (len(site), *w.shape))
    full, lengths = w["full"].values, np.diff(w["full"].offsets)
    lacks, size = lengths > 0, int(lengths.max(initial=0))
    held = np.array(site.state.get("held", np.zeros((len(site), size), dtype=full.dtype)))
    if lacks.any():
        held[lacks] = full.reshape(-1, size)
    k = 1 if w["each"] else len(w["change"])
    held = held.reshape(len(site), k, -1)
    change = by_name(codec).decode(w["change"], held.shape[2])
    held = (held + (change[:, None] if w["each"] else change)).astype(held.dtype)
    site.state["held"] = held.reshape(len(site), -1)
    return np.asarray(held)


def send_change(site: Site, models: Floats, good: Bools, name: str, step: int) -> tuple[Ragged, Bools]:
    """The compressed change of models (m, d) since ``state["base"]`` where they are good, and where it could be made.

    What a biased codec loses is remembered, and added the next time.
    """
    codec, change = by_name(name), models - site.state["base"]
    memory = 0.0 if codec.unbiased else site.state.get("memory", np.zeros(models.shape, dtype=models.dtype))
    keys = keyed_random.starts(site.seed, "codec", site.ids)
    good = good & _representable(codec, np.where(good[:, None], memory + change, 0.0), keys, step)
    change = np.where(good[:, None], change, 0.0)
    return Compression(name, feedback="none" if codec.unbiased else "ef").send(site, change, step, good=good), good


def _representable(codec: Codec, rows: Floats, keys: Any, step: int) -> Bools:
    """Which rows a codec can hold (m,): some have a largest number."""
    out = np.ones(len(rows), dtype=bool)
    for i in range(len(rows)) if np.abs(rows).max(initial=0.0) >= SAFE else ():
        try:
            codec.encode(rows[i : i + 1], keys[i : i + 1], step)
        except CoterieError:
            out[i] = False
    return out


class CompressedFederation(WrappedFederation):
    """A federation for one round, whose messages with a ``transport`` travel compressed: models ``w`` down, changes up.

    All clients are to hold the same reference of a model. Clients' changes are added to the model as the server has it,
    so what a biased codec loses is part of the next change; what an unbiased one adds is left, as its errors would grow
    with what is left of them. A client that missed a message is sent the whole reference first: a codec ``down`` saves
    bytes where most clients take part in every round. With a codec ``up`` the server sees every client's change, not
    sums only. The method's ``state`` holds how many ``messages`` there were; with a codec ``down`` also the
    ``reference`` (k, d) of every model, and which of them every client ``holds`` (m,), -1 for none.
    """

    def __init__(self, fed: Federation, state: State, compression: Compression) -> None:
        super().__init__(fed)
        self.compression, self.up, self.down = compression, compression.up, compression.down
        nobody = np.full(len(fed.clients), -1, dtype=np.int64)
        first: State = {"messages": 0}
        if self.down != "none":
            first |= {"reference": np.empty((0, 0)), "holds": nobody}
        self.state: State = {name: state.get(name, value) for name, value in first.items()}
        self._labels: Ints | None = None  # which model each client was sent; None: all of them
        self._base, self._index = np.empty((0, 0)), np.empty(0, dtype=np.int64)  # what they were, and which of these
        self._lost: Floats | None = None  # of each model, what a biased codec has kept from the clients

    def _answer(self, query: Query) -> Any:
        """Replies as they travel, which a ``check`` sees; of clients' changes, the sums that there would be without."""
        coded = "transport" in query.message
        changes = coded and query.kind == "total" and self.up != "none"
        sent = self._compressed(query) if coded else query
        if changes:
            sent = Query("ask", query.work, sent.message, query.to, self._check)
        found = sent.of(self.fed)
        if coded and self.down != "none" and "w" in query.message:  # who answered holds what was just sent
            rows = found.rows
            self.state["holds"][found.to[rows]] = 0 if self._labels is None else self._labels[rows]
        if not changes:
            return found if query.kind == "ask" else _with_lost(found, self._lost)
        if query.by is None:
            return self._summed(found, np.zeros(len(found.to), dtype=np.int64), None)
        return self._summed(found, *self._grouped(found.to, query.by, query.groups))

    def _grouped(self, to: Ints, by: By, groups: int | None) -> tuple[Ints, int]:
        """The group of each of the clients ``to``, and the number of groups."""
        labels = self.clients.clusters[to] if isinstance(by, str) else np.asarray(by, dtype=np.int64)
        return labels, int(labels.max(initial=-1)) + 1 if groups is None else groups

    def _compressed(self, query: Query) -> Query:
        message = query.message
        codecs = {name: codec for name, codec in (("up", self.up), ("down", self.down)) if codec != "none"}
        out = {**message, "transport": {**message["transport"], **codecs, "message": self.state["messages"]}}
        self.state["messages"] += 1
        if "w" in message:
            everyone = np.arange(len(self.clients))
            to = everyone if query.to is None else everyone[cast("Ints", query.to)]
            out["w"] = self._models(to, query.by, query.groups, message["w"])
        return query._replace(message=out)

    def _models(self, to: Ints, by: By, groups: int | None, w: Any) -> Any:
        """What the clients ``to`` are sent for the models w (d,) or (k, d), or PerRow with one for each of ``by``."""
        if isinstance(w, PerCluster):
            raise CoterieError("Models that go to clusters do not travel compressed: leave the codecs up and down out.")
        if not isinstance(w, PerRow):
            self._labels, models = None, np.atleast_2d(w)
            which, k, self._index = np.arange(len(models)), len(models), np.zeros(len(to), dtype=np.int64)
        else:
            self._labels, k = (to, len(self.clients)) if by is None else self._grouped(to, by, groups)
            which, first, self._index = np.unique(self._labels, return_index=True, return_inverse=True)
            models = cast("Floats", w.value)[first]
            if not np.array_equal(models[self._index], cast("Floats", w.value)):
                raise CoterieError("With a codec, the clients of a group are sent one model.")
        self._base = models
        return w if self.down == "none" else self._changes(to, which, k, models)

    def _changes(self, to: Ints, which: Ints, k: int, models: Floats) -> State:
        """The compressed changes of the references ``which``, of k, to the models, and references that clients lack."""
        reference, holds, each = self.state["reference"], self.state["holds"].copy(), self._labels is not None
        if reference.shape != (k, models.shape[1]):
            reference, holds[:] = np.zeros((k, models.shape[1]), dtype=models.dtype), -1
        known = np.isin(which if each else np.zeros_like(which), holds[to])
        old = np.where(known[:, None], reference[which], models)  # what nobody holds goes out whole, as it is
        sent = self.compression.deliver(old, models, which, self.state["messages"])
        base = sent.memory.astype(models.dtype)
        if by_name(self.down).unbiased:
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
        change = PerRow(sent.payload.take(self._index)) if each else sent.payload
        return {"full": PerRow(parts), "change": change, "each": each}

    def _check(self, rows: Ints, values: Mapping[str, Any]) -> None:
        """Refuse changes that cannot be decoded, while their site can be left out."""
        if "payload" in values:
            by_name(self.up).decode(values["payload"], self._base.shape[1])

    def _summed(self, replies: Replies, labels: Ints, groups: int | None) -> Sums:
        label, index = labels[replies.rows], self._index[replies.rows]
        index = label if self._labels is None and len(self._base) > 1 else index
        return _sum_changes(replies, label, groups, self._base, index, self.up)


def _sum_changes(replies: Replies, label: Ints, groups: int | None, base: Floats, index: Ints, up: str) -> Sums:
    """Sums of replies within groups, with models ``x`` for compressed changes.

    ``label`` (rows,) is the group of each that answered, ``groups`` their number (None: one sum, without an axis); the
    changes are added to the models ``base`` (k, d1), of which ``index`` (rows,) says which.
    """
    G, m = groups or 1, len(replies.rows)
    count = m if groups is None else np.bincount(label, minlength=G)
    if not replies:
        return Sums({}, replies.to, replies.rows, replies.missing, count)

    def sums(values: Floats, weights: Floats, at: Ints, size: int) -> Floats:
        out = np.asarray(sparse.csr_array((weights, (label, at)), shape=(G, size)) @ values.reshape(size, -1))
        return out.reshape(G, *values.shape[1:])

    one, each = np.ones(m), np.arange(m)
    found = {n: sums(v, one, each, m).astype(v.dtype) for n, v in replies.items() if n != "payload"}
    if "payload" in replies:
        w, change = replies["w"], by_name(up).decode(replies["payload"], base.shape[1])
        found["x"] = (sums(change, w, each, m) + sums(base, w, index, len(base))).astype(base.dtype)
    found = found if groups is not None else {n: v[0] for n, v in found.items()}
    return Sums(found, replies.to, replies.rows, replies.missing, count)


def _with_lost(sums: Sums, lost: Floats | None) -> Sums:
    """Sums of models to which is added what clients were not told of their model: ``lost`` (k, d1), one for each group.

    Where there are sums of no groups, and several models, they are left as they are.
    """
    if lost is None or not {"x", "w"} <= set(sums):
        return sums
    x, w = sums["x"], np.asarray(sums["w"])[..., None]
    if len(lost) > 1 and lost.shape != x.shape:
        return sums
    x = x + (w * lost).reshape(x.shape).astype(x.dtype)
    return Sums({**sums, "x": x}, sums.to, sums.rows, sums.missing, sums.count)
