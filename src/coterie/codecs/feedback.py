"""What both ends of a biased codec remember: error feedback at the sender, and the order in which coordinates travel.

Inside client work the memory is ordinary state: read it with ``site.state.get("memory", zeros)``, assign what comes
back. The server uses the same functions, with a memory of one row, for what it sends to all clients. Runs are long
where neighbours are alike, so an order makes messages short; both ends must know it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.codecs.base import Codec
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints


class Sent(NamedTuple):
    """What a sender has after one message: the bytes of each row, what the reader makes of them, its new memory."""

    payload: Ragged
    estimate: Floats
    memory: Floats


FEEDBACKS = ("none", "ef", "ef21")


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
    sent, and both ends keep the estimate ``h <- h + C(g - h)``; the reader has the same numbers by :func:`received`.

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


def received(memory: Floats, payload: Ragged, codec: Codec, order: Ints | None = None) -> Floats:
    """The reader's new estimates (m, d) under EF21, from its former ones."""
    return np.asarray(memory + codec.decode(payload, memory.shape[1], order))


ORDERS = ("natural", "magnitude", "last-update")
KEPT = 0.5  # what a running mean of a client's messages keeps of the older ones


def coordinate_order(kind: str, own: Floats | None = None, update: Floats | None = None) -> Ints | None:
    """The order (m, d) or (d,) for :meth:`Codec.encode`, from what both ends have; None where nothing is known.

    Coordinates go as they come ("natural"); by ``own`` (m, d), what the server last decoded for each client
    ("magnitude"); or by ``update`` (d,), what all know of the last step ("last-update"). Ties stay in their natural
    order.
    """
    if kind not in ORDERS:
        raise CoterieError(f"There is no order {kind!r} of coordinates: there are {', '.join(ORDERS)}.")
    known = {"natural": None, "magnitude": own, "last-update": update}[kind]
    return None if known is None else np.argsort(known, axis=-1, kind="stable")


def blend(own: Floats, said: Floats, feedback: str) -> Floats:
    """What "magnitude" goes by after a message ``said`` (m, d): under EF21 the estimate itself, else a running mean."""
    return said if feedback == "ef21" else KEPT * own + (1.0 - KEPT) * said
