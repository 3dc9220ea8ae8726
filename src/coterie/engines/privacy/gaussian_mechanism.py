"""What a site does before a private sum leaves it: clip what every client adds, and put the client's noise on top.

Contributions are cut down to a grid whose step is a power of two, about a millionth of the noise, and the noise is
rounded to the same grid. Their sums are exact whatever the order, and nothing is left of the low bits by which noise in
floating point can be told from what it hides (Mironov 2012).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Array, Ragged, Site, find_work, work
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats

Reply = dict[str, Any]

BROKEN = "private: contributed nothing"
"""State (m,) int64: in how many exchanges a client's contribution was not finite, so that it added zero."""

PUBLIC = frozenset(
    f"coterie.methods.{name}"
    for name in (
        *("local_training.rounds:begin", "fedopt:statistics"),
        *("groups.group_models:fingerprints", "groups.group_models:begin"),
    )
)
"""Works whose replies say how a model is built and where it starts, and nothing of what rows hold."""

ABOUT_ROWS = frozenset(("coterie.methods.dp_sgd:row_counts",))
"""How many rows clients have: no secret where what is hidden is what a row holds."""

BY_ROW = frozenset(("coterie.methods.dp_sgd:gradients",))
"""Works that bound what every row adds, ``work(site, clip, chosen, ...)``: see :func:`_rows`."""

_KNOWN = {"x", "w", "diverged", "broken"}  # what training clients send: local_training.client_work.make_reply
_SLACK, _BITS, _FAR = 1.0 - 1e-9, 20, 2**32


@work
def clipped(
    site: Site, inner: str, message: Mapping[str, Any], form: str, bound: Any, noise: Any, sampling: float, seed: Any
) -> Reply:
    """Clients' contributions to a private sum, clipped, with their share of its noise.

    The work called ``inner`` makes them from ``message``. The ``form`` says what is bounded: the change of a model
    since it came ("update:all", "update:row", "update:cluster": one model for all, for each client, for each cluster),
    every name of the reply ("names"), or what each row adds ("rows"). ``bound`` is the L2 norm of a contribution, a
    dict for the form "names"; ``noise``, a number or (m,), the standard deviation of a client's noise in units of the
    bound; ``sampling`` the probability of a client, or of a row, to be in the sum. Without a ``seed``, noise comes from
    the operating system and nobody can repeat it; a seed and the number of an exchange, [int, int], can.
    """
    noise = np.broadcast_to(np.asarray(noise, dtype=np.float64), (len(site),))
    if form == "rows":
        rows = _rows(site, inner, message, bound, sampling, seed)
        good, bounds = _finite(rows), dict.fromkeys(rows, float(bound))
    else:
        reply = dict(find_work(inner)(site, **message))
        if form == "names":
            rows, bounds = _named(reply, bound, inner), {name: float(bound[name]) for name in reply}
            noise = noise * np.sqrt(len(bounds))
            good = _finite(rows)
        else:
            rows, good = _update(reply, message["w"], form, site, inner)
            bounds = {"x": float(bound)}
        chosen = good if sampling >= 1.0 else good & (_uniform(site, "coins", seed, len(site)) < sampling)
        rows = {name: shortened(np.where(_over(chosen, v), v, 0.0), bounds[name]) for name, v in rows.items()}
    before = np.asarray(site.state.get(BROKEN, np.zeros(len(site), dtype=np.int64)))
    site.state[BROKEN] = before + ~good
    finite = {name: np.where(_over(_finite({name: v}), v), v, 0.0) for name, v in rows.items()}
    return {name: noised(site, name, v, noise * bounds[name], seed) for name, v in finite.items()}


def shortened(rows: Array, bound: float) -> Floats:
    """Rows (m, ...) of an L2 norm of ``bound`` at most: longer ones are scaled down."""
    flat = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    top = np.abs(flat).max(axis=1, initial=0.0)
    unit = flat / np.where(top > 0.0, top, 1.0)[:, None]
    with np.errstate(over="ignore"):
        norm = top * np.sqrt(np.einsum("mi,mi->m", unit, unit))
    # a little short of the bound, so that rounding never takes a row past it
    with np.errstate(over="ignore", divide="ignore"):
        scale = np.where(norm > bound * _SLACK, bound * _SLACK / norm, 1.0)
    return np.asarray(flat * scale[:, None]).reshape(np.shape(rows))


def noised(site: Site, name: str, rows: Floats, deviation: Floats, seed: Any) -> Floats:
    """Rows (m, ...) cut to a grid, with Gaussian noise of a standard deviation (m,) on the same grid."""
    if not np.any(deviation > 0.0):
        return rows
    flat = rows.reshape(len(rows), -1)
    step = np.ldexp(1.0, np.frexp(np.where(deviation > 0.0, deviation, 1.0))[1] - 1 - _BITS)[:, None]
    noise = normal(site, name, seed, flat.shape[1]) * deviation[:, None]
    return np.asarray((np.trunc(flat / step) + np.rint(noise / step)) * step).reshape(rows.shape)


def normal(site: Site, name: str, seed: Any, n: int) -> Floats:
    """Standard normal numbers (m, n): keyed by a seed, or of the operating system's secret ones."""
    if seed is not None:
        return keyed_random.normal(keyed_random.starts(seed[0], f"private {name}", site.ids), seed[1], n)
    from scipy.special import ndtri

    bits = np.frombuffer(os.urandom(8 * len(site) * n), dtype=np.uint64).reshape(len(site), n)
    whole = bits >> np.uint64(1)
    place = whole + 0.5
    far = whole < _FAR  # here one number of 63 bits would be many steps of the grid: it gets more bits
    place[far] = whole[far] + 0.5 * 2.0**-53 + _uniform(site, name, None, int(far.sum()))
    half = ndtri(place * 2.0**-64)  # below zero; the last bit is the sign
    return np.asarray(np.where(bits & np.uint64(1), half, -half))


def _uniform(site: Site, name: str, seed: Any, n: int) -> Floats:
    """Uniform numbers (n,) in [0, 1): one for each client, or for each of their rows."""
    if seed is None:
        return np.asarray((np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)) * 2.0**-53)
    counts = np.ones(len(site), dtype=np.int64) if n == len(site) else site.objective.counts
    return keyed_random.uniform_rows(seed[0], f"private {name}", site.ids, seed[1], counts)


def _rows(site: Site, inner: str, message: Any, bound: float, sampling: float, seed: Any) -> Reply:
    """What a work of :data:`BY_ROW` sums of its rows, or of those chosen, each at most ``bound`` over all names."""
    if inner not in BY_ROW:
        raise CoterieError(f"{inner} does not bound what a row adds: train with the method dp-sgd for unit='row'.")
    chosen = None
    if sampling < 1.0:
        chosen = _uniform(site, "row coins", seed, int(site.objective.counts.sum())) < sampling
    return {
        n: np.asarray(v, dtype=np.float64)
        for n, v in find_work(inner)(site, **message, clip=bound, chosen=chosen).items()
    }


def _update(reply: Reply, w: Any, form: str, site: Site, inner: str) -> tuple[Reply, Bools]:
    """The change (m, d1) of each client's model since it was sent, and where it is finite."""
    others = sorted(set(reply) - _KNOWN)
    if others or "x" not in reply:
        raise CoterieError(unbounded(inner, others or sorted(reply)))
    weight, base = np.asarray(reply["w"], dtype=np.float64), np.asarray(w, dtype=np.float64)
    base = base[site.clusters] if form == "update:cluster" else base
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.asarray(reply["x"], dtype=np.float64) / np.where(weight > 0.0, weight, 1.0)[:, None] - base
    return {"x": change}, (weight > 0.0) & np.isfinite(change).all(axis=1)


def _named(reply: Reply, bound: Mapping[str, float], inner: str) -> Reply:
    loose = [name for name in reply if name not in bound]
    if loose:
        raise CoterieError(unbounded(inner, loose))
    for name, value in reply.items():
        if isinstance(value, Ragged) or np.asarray(value).dtype.kind not in "biuf":
            raise CoterieError(f"{name!r} of {inner} cannot be clipped: reply real numbers.")
    return {name: np.asarray(value, dtype=np.float64) for name, value in reply.items()}


def unbounded(inner: str, names: list[str]) -> str:
    """Why a work is refused."""
    what = ", ".join(map(repr, names))
    return (
        f"{what} in the replies of {inner} has no bound, so no noise would hide a client in its sum: give a bound by "
        f"name, clip={{{names[0]!r}: ...}}, or take a method that sends changes of one model (fedavg, fedprox, ditto)."
    )


def _finite(rows: Reply) -> Bools:
    return np.asarray(np.logical_and.reduce([np.isfinite(v.reshape(len(v), -1)).all(axis=1) for v in rows.values()]))


def _over(mask: Bools, values: Array) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *(1,) * (values.ndim - 1))
