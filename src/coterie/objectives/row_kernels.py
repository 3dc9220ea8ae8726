"""Gradients of clients' losses over weighted rows, and runs of local steps along them, compiled.

Rows are sorted by client: client i owns ``starts[i]:stops[i]``, and its block stays in cache for its whole run. A GLM
has a parameter for each column; multinomial losses have one for each column and class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.likelihoods import Kind, derivatives
from coterie.numerics.arrays import Floats, Ints, inlined, kernel, part, reading
from coterie.numerics.keyed_random import key, whole

Data = tuple[Kind, Floats, Floats, Floats, Floats, Ints, Ints]
"""A family's kind, then X, y, offset, weights, starts, stops: what kernels over rows take first."""
Keys = npt.NDArray[np.uint64]
SOFTMAX = -1
"""The code of multinomial losses, beside those of families: y are classes, and there is no offset."""

row_derivatives = part(derivatives)


@part
def predictors(X: Floats, r: int, theta: Floats, z: Floats) -> None:
    """z (K,) = the linear predictors of row r: the coefficient of column j for class c is number ``j K + c``."""
    K = z.shape[0]
    z[:] = 0.0
    for j in range(X.shape[1]):
        x = X[r, j]
        if x != 0.0:  # pixels often are
            for c in range(K):
                z[c] += x * theta[j * K + c]


@part
def probabilities(z: Floats, label: int) -> float:
    """Turn linear predictors into probabilities; minus the logarithm of the label's."""
    top, total, own = float(z[0]), 0.0, float(z[label])
    for c in range(1, z.shape[0]):
        if z[c] > top:
            top = float(z[c])
    for c in range(z.shape[0]):
        z[c] = np.exp(z[c] - top)
        total += z[c]
    for c in range(z.shape[0]):
        z[c] /= total
    return top - own + float(np.log(total))


@part
def _add_softmax_row(X: Floats, y: Floats, r: int, theta: Floats, scale: float, z: Floats, g: Floats) -> None:
    K, label = z.shape[0], int(y[r])
    predictors(X, r, theta, z)
    probabilities(z, label)
    z[label] -= 1.0
    for j in range(X.shape[1]):
        t = scale * X[r, j]
        if t != 0.0:
            for c in range(K):
                g[j * K + c] += t * z[c]


@part
def _add_glm_row(
    family: Kind, X: Floats, y: Floats, offset: Floats, r: int, theta: Floats, scale: float, g: Floats
) -> None:
    eta = offset[r]
    for j in range(theta.shape[0]):
        eta += X[r, j] * theta[j]
    s = -scale * row_derivatives(family, eta, y[r])[1]
    for j in range(theta.shape[0]):
        g[j] += s * X[r, j]


@part
def add_row(data: Data, r: int, theta: Floats, scale: float, z: Floats, g: Floats) -> None:
    """g += scale times the gradient of row r's loss, without its weight and ridge; z (classes,) is scratch."""
    family, X, y, offset, _, _, _ = data
    if family[0] == SOFTMAX:
        _add_softmax_row(X, y, r, theta, scale, z, g)
    else:
        _add_glm_row(family, X, y, offset, r, theta, scale, g)


@inlined
def add_gradient(
    data: Data,
    ridge: float,
    i: int,
    theta: Floats,
    scale: float,
    start: np.uint64,
    step: int,
    size: int,
    z: Floats,
    g: Floats,
) -> None:
    """g += scale times the gradient of client i's loss, over all its rows or over the ``size`` that the step draws."""
    family, X, y, offset, weights, starts, stops = data
    lo, n, seen = starts[i], stops[i] - starts[i], 0.0
    if scale == 0.0 or n == 0:
        return
    drawn, each = key(start, step), scale * n / size if size > 0 else scale
    for b in range(size if size > 0 else n):
        r = lo + (whole(drawn, b, n) if size > 0 else b)
        seen += each * weights[r]
        if family[0] == SOFTMAX:  # told apart here, so that short rows are compiled into the loop
            _add_softmax_row(X, y, r, theta, each * weights[r], z, g)
        else:
            _add_glm_row(family, X, y, offset, r, theta, each * weights[r], g)
    if ridge > 0.0:
        for j in range(g.shape[0]):
            g[j] += seen * ridge * theta[j]


@reading
def gradients(
    data: Data, classes: int, ridge: float, scale: Floats, theta: Floats, keys: Keys, first: Ints, size: int
) -> Floats:
    """Gradients (m, d) of scale (m,) times the losses at theta (m, d)."""
    out, z = np.zeros(theta.shape), np.empty(classes)
    for i in range(theta.shape[0]):
        add_gradient(data, ridge, i, theta[i], scale[i], keys[i], first[i], size, z, out[i])
    return out


@reading
def walk(
    data: Data,
    classes: int,
    ridge: float,
    scale: Floats,
    theta: Floats,
    anchor: Floats,
    eta: Floats,
    pull: float,
    steps: Ints,
    keys: Keys,
    first: Ints,
    size: int,
    fresh: bool,
    shift: Floats,
    on: Floats,
) -> Floats:
    """Local steps on scale (m,) times the losses: see ``mean_loss.walk``; an empty shift or ``on`` is none."""
    family, X, y, offset, weights, starts, stops = data
    out, g, z = theta.copy(), np.empty(theta.shape[1]), np.empty(classes)
    shifts, some = shift.shape[0] > 0, on.shape[0] > 0
    for i in range(theta.shape[0]):
        at, lo, n = out[i], starts[i], stops[i] - starts[i]
        each, count = (scale[i] * n / size, size) if size > 0 else (scale[i], n)
        for s in range(steps[i]):
            # As add_gradient, written out: counting the arrays that it takes is a quarter of one row's step.
            g[:], seen, drawn = 0.0, 0.0, key(keys[i], first[i] + (s if fresh else 0))
            for b in range(count if scale[i] != 0.0 and n > 0 else 0):
                r = lo + (whole(drawn, b, n) if size > 0 else b)
                seen += each * weights[r]
                if family[0] == SOFTMAX:
                    _add_softmax_row(X, y, r, at, each * weights[r], z, g)
                else:
                    _add_glm_row(family, X, y, offset, r, at, each * weights[r], g)
            if ridge > 0.0:
                for j in range(g.shape[0]):
                    g[j] += seen * ridge * at[j]
            if shifts:
                for j in range(g.shape[0]):
                    g[j] += shift[i, j]
            if some:
                for j in range(g.shape[0]):
                    at[j] -= eta[i] * on[j] * (g[j] + pull * (at[j] - anchor[i, j]))
            else:
                for j in range(g.shape[0]):
                    at[j] -= eta[i] * (g[j] + pull * (at[j] - anchor[i, j]))
    return out


@reading
def path(
    data: Data,
    classes: int,
    ridge: float,
    scale: Floats,
    theta: Floats,
    shift: Floats,
    P: Floats,
    eta: Floats,
    steps: int,
    keys: Keys,
    first: Ints,
    size: int,
) -> Floats:
    """Sums (m, d) of the gradients met on ``steps`` local steps; zero where scale is."""
    m, d = theta.shape
    out, at, g, z = np.zeros((m, d)), np.empty(d), np.empty(d), np.empty(classes)
    for i in range(m):
        at[:] = theta[i]
        for s in range(steps if scale[i] > 0.0 else 0):
            g[:] = 0.0
            add_gradient(data, ridge, i, at, scale[i], keys[i], first[i] + s, size, z, g)
            for j in range(d):
                out[i, j] += g[j]
            if s + 1 < steps:
                for j in range(d):
                    for k in range(d):
                        at[j] -= eta[i] * P[j, k] * (g[k] - shift[i, k])
    return out


@reading
def katyusha(
    data: Data,
    classes: int,
    ridge: float,
    x: Floats,
    y0: Floats,
    z0: Floats,
    h: Floats,
    by: tuple[float, float, float, float, float],
    scale: Floats,
    steps: Ints,
    keys: Keys,
    first: Ints,
    size: int,
    on: Floats,
) -> tuple[Floats, Floats]:
    """Per client: ``steps`` steps of Algorithm 2 without a communication; the new y and z; an empty ``on`` is none."""
    a1, a2, b1, pace, eta = by
    some = on.shape[0] > 0
    yy, zz = y0.copy(), z0.copy()
    d = x.shape[1]
    theta, g, scratch = np.empty(d), np.empty(d), np.empty(classes)
    for i in range(x.shape[0]):
        for s in range(steps[i]):
            for j in range(d):
                theta[j] = a1 * zz[i, j] + a2 * x[i, j] + (1.0 - a1 - a2) * yy[i, j]
                g[j] = 0.0
            add_gradient(data, ridge, i, theta, 1.0, keys[i], first[i] + s, size, scratch, g)
            add_gradient(data, ridge, i, x[i], -1.0, keys[i], first[i] + s, size, scratch, g)
            for j in range(d):
                step = h[i, j] if some and on[j] == 0.0 else h[i, j] + scale[i] * g[j]
                yy[i, j] = theta[j] - eta * step
                zz[i, j] = b1 * zz[i, j] + (1.0 - b1) * theta[j] - pace * step
    return yy, zz


@kernel
def totals(weights: Floats, starts: Ints, stops: Ints) -> Floats:
    """Sums (m,) of the weights of every client's rows."""
    out = np.zeros(starts.shape[0])
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            out[i] += weights[r]
    return out


def owned_rows(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """The rows of all clients, client after client: whose each is, and its number (sum of counts,)."""
    counts = stops - starts
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)


def weighted_sums(rows: Any, values: npt.NDArray[Any] | float) -> Floats:
    """Sums (m,) of weights times numbers of rows, given client after client (sum of counts,)."""
    owner, at = owned_rows(rows.starts, rows.stops)
    return np.asarray(np.bincount(owner, rows.weights[at] * values, len(rows)), dtype=np.float64)


def weighted_means(rows: Any, values: npt.NDArray[Any]) -> Floats:
    """The same sums over the weights of clients' rows (m,); NaN where no row weighs."""
    size = rows.sizes()
    return np.where(size > 0.0, weighted_sums(rows, values) / np.where(size > 0.0, size, 1.0), np.nan)


def row_ranges(starts: npt.ArrayLike, stops: npt.ArrayLike, n: int) -> tuple[Ints, Ints]:
    """Clients' row ranges (m,) among n rows as whole numbers; a CoterieError for what is none."""
    try:
        lo, hi = (np.ascontiguousarray(a, dtype=np.int64) for a in (starts, stops))
        whole = np.array_equal(np.asarray(starts), lo) and np.array_equal(np.asarray(stops), hi)
    except (TypeError, ValueError):
        whole = False
    if not whole or lo.shape != hi.shape or lo.ndim != 1 or np.any((lo < 0) | (lo > hi) | (hi > n)):
        raise CoterieError(f"starts and stops must be row ranges, one for each client, within {n} rows.")
    return lo, hi
