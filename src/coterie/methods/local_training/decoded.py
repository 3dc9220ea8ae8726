"""Sums of what clients send back of models that travel coded."""

from __future__ import annotations

import numpy as np

from coterie.codecs import by_name
from coterie.federation import Ints, Replies, Sums
from coterie.numerics.kernels import Floats


def added(replies: Replies, label: Ints, groups: int | None, base: Floats, index: Ints, up: str) -> Sums:
    """Sums of replies within groups, with models ``x`` for coded changes.

    Parameters
    ----------
    replies : Replies
    label : (rows,)
        Group of each that answered.
    groups : int, optional
        None for one sum, without an axis of groups.
    base : (k, d1)
        Models that the changes are added to.
    index : (rows,)
        Which of them.
    up : str
        Codec of the changes.
    """
    from scipy.sparse import csr_array

    G, m = groups or 1, len(replies.rows)
    count = m if groups is None else np.bincount(label, minlength=G)
    if not replies:
        return Sums({}, replies.to, replies.rows, replies.missing, count)

    def sums(values: Floats, weights: Floats, at: Ints, size: int) -> Floats:
        out = np.asarray(csr_array((weights, (label, at)), shape=(G, size)) @ values.reshape(size, -1))
        return out.reshape(G, *values.shape[1:])

    one, each = np.ones(m), np.arange(m)
    found = {n: sums(v, one, each, m).astype(v.dtype) for n, v in replies.items() if n != "payload"}
    if "payload" in replies:
        w, change = replies["w"], by_name(up).decode(replies["payload"], base.shape[1])
        found["x"] = (sums(change, w, each, m) + sums(base, w, index, len(base))).astype(base.dtype)
    found = found if groups is not None else {n: v[0] for n, v in found.items()}
    return Sums(found, replies.to, replies.rows, replies.missing, count)


def recalled(sums: Sums, lost: Floats | None) -> Sums:
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
