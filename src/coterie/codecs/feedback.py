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


def plain(
    memory: Floats, gradient: Floats, codec: Codec, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None = None
) -> Sent:
    """No feedback: ``C(g)``; the memory stays as it is. Right for unbiased codecs."""
    payload, claimed = _encode(codec, gradient, keys, step, order)
    return Sent(payload, claimed, memory)


def error_feedback(
    memory: Floats, gradient: Floats, codec: Codec, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None = None
) -> Sent:
    """Error feedback: ``C(e + g)`` is sent, what was lost is kept: ``e <- e + g - C(e + g)`` [1]_ [2]_.

    Parameters
    ----------
    memory : (m, d)
        What former messages lost; zeros at first.
    gradient : (m, d)
    codec : Codec
    keys, step, order
        As for :meth:`Codec.encode`.

    Returns
    -------
    Sent
        The reader's estimate is the decoded message itself.

    References
    ----------
    .. [1] Seide, Fu, Droppo, Li, Yu (2014), 1-bit stochastic gradient descent, Interspeech.
    .. [2] Karimireddy, Rebjock, Stich, Jaggi (2019), Error feedback fixes SignSGD, ICML, Algorithm 2.
    """
    wanted = memory + gradient
    payload, claimed = _encode(codec, wanted, keys, step, order)
    return Sent(payload, claimed, wanted - claimed)


def ef21(
    memory: Floats, gradient: Floats, codec: Codec, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None = None
) -> Sent:
    """EF21: the change ``C(g - h)`` is sent, and both ends keep ``h <- h + C(g - h)``, the estimate [1]_.

    Parameters and result are those of :func:`error_feedback`; the memory is the estimate, and the reader has the same
    numbers by :func:`received`.

    References
    ----------
    .. [1] Richtarik, Sokolov, Fatkhullin (2021), EF21, NeurIPS, Algorithm 2.
    """
    payload, claimed = _encode(codec, gradient - memory, keys, step, order)
    estimate = memory + claimed
    return Sent(payload, estimate, estimate)


def received(memory: Floats, payload: Ragged, codec: Codec, order: Ints | None = None) -> Floats:
    """The reader's new estimates (m, d) under :func:`ef21`, from its former ones."""
    return np.asarray(memory + codec.decode(payload, memory.shape[1], order))


FEEDBACKS = {"none": plain, "ef": error_feedback, "ef21": ef21}


def _encode(
    codec: Codec, rows: Floats, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None
) -> tuple[Ragged, Floats]:
    done = codec.encode(rows, keys, step, order)
    return done.payload, done.claimed


ORDERS = ("natural", "magnitude", "last-update")
KEPT = 0.5
"""What a running mean of a client's messages keeps of the older ones."""


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
