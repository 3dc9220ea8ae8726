"""What a table can and cannot tell: columns that no client has a view of its own on, and columns that repeat others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.data.design import INTERCEPT

F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_TOLERANCE = 1e-10
_BLOCK = 1 << 12
_PROBE = 64


def constant_within_clients(clients: Clients) -> Mask:
    """Columns whose coefficient cannot differ between clients, so that all clients must share it.

    These are columns (other than the intercept) that are constant within every client, and columns that within every
    client are a multiple of an earlier column that can be personal (``x:size`` beside ``x`` where ``size`` is the
    client's).

    Parameters
    ----------
    clients : Clients

    Returns
    -------
    (p,) bool
    """
    full = np.flatnonzero(clients.counts > 0)
    starts = clients.starts[full]
    stops = clients.stops[full]
    p = clients.X.shape[1]
    shared = np.zeros(p, dtype=bool)
    personal: list[int] = []
    for k in range(p):
        if _is_intercept(clients, k):
            personal.append(k)
        elif _constant(clients.X[:, k], starts, stops) or any(
            not _is_intercept(clients, j) and _multiple(clients.X[:, j], clients.X[:, k], starts, stops)
            for j in personal
        ):
            shared[k] = True
        else:
            personal.append(k)
    return shared


def _is_intercept(clients: Clients, k: int) -> bool:
    if clients.terms[k] == INTERCEPT:
        return True
    column = clients.X[:, k]
    return (
        len(column) > 0
        and column[0] != 0
        and bool(np.all(column[:_PROBE] == column[0]) and np.all(column == column[0]))
    )


def _probe(starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The largest few clients: where a column varies it does so there, and the whole table need not be read."""
    if len(starts) <= _PROBE:
        return np.arange(len(starts))
    return np.sort(np.argpartition(starts - stops, _PROBE)[:_PROBE])


def _constant(x: F64, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> bool:
    """Whether a column is constant within each of these clients."""
    for i in _probe(starts, stops):
        if x[starts[i]] != x[stops[i] - 1]:
            return False
    same = np.repeat(x[starts], stops - starts) == x
    return bool(same.all())


def _multiple(x: F64, z: F64, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> bool:
    """Whether ``z = c_i x`` within each of these clients."""
    for i in _probe(starts, stops):
        rows = slice(starts[i], stops[i])
        if not _proportional(x[rows], z[rows], np.zeros(1, dtype=np.int64)):
            return False
    return _proportional(x, z, starts)


def _proportional(x: F64, z: F64, starts: npt.NDArray[np.int64]) -> bool:
    counts = np.diff(np.append(starts, len(x)))
    top_x = np.maximum.reduceat(np.abs(x), starts)
    top_z = np.maximum.reduceat(np.abs(z), starts)
    x = x / np.repeat(np.where(top_x > 0, top_x, 1.0), counts)  # squares of huge or tiny values stay finite
    z = z / np.repeat(np.where(top_z > 0, top_z, 1.0), counts)
    xx = np.add.reduceat(x * x, starts)
    ratio = np.add.reduceat(x * z, starts) / np.where(xx > 0, xx, 1.0)
    return bool(np.abs(z - np.repeat(ratio, counts) * x).max() <= _TOLERANCE)


def collinear(clients: Clients) -> str | None:
    """The sentence that names columns out of range or combinations of others over all rows, or None.

    Parameters
    ----------
    clients : Clients

    Returns
    -------
    str or None
        Columns are compared in their order, so that the later one is named as superfluous.
    """
    n, p = clients.X.shape
    if n < p:
        return f"There are {n:,} rows for {p:,} columns: give more rows, or leave columns out of the formula."
    if _well_conditioned(clients.X) and 1e-100 <= np.abs(clients.y).max() <= 1e100:
        return None
    scale = np.maximum(np.abs(clients.X.max(axis=0)), np.abs(clients.X.min(axis=0)))
    for name, size in [*zip(clients.terms, scale, strict=True), ("the outcome", np.abs(clients.y).max())]:
        if size > 1e100 or 0 < size < 1e-100:
            what = name if name == "the outcome" else f"column '{name}'"
            return f"The largest value of {what} is {size:.3g}, which cannot be squared safely: use other units."
    zero = np.flatnonzero(scale == 0)
    if len(zero):
        return f"Column '{clients.terms[zero[0]]}' is 0 in every row: leave it out of the formula."
    R = _triangle(clients.X, scale)
    R = R / np.sqrt(np.sum(R**2, axis=0))
    kept: list[int] = []
    for k in range(p):
        if not kept:
            kept.append(k)
            continue
        known, wanted = R[:, kept], R[:, k]
        c, *_ = np.linalg.lstsq(known, wanted, rcond=None)
        if np.linalg.norm(wanted - known @ c) > _TOLERANCE:
            kept.append(k)
            continue
        parts = [f"'{clients.terms[j]}'" for j, v in zip(kept, c, strict=True) if abs(v) > 1e-8]
        if len(parts) == 1 and parts[0] == f"'{INTERCEPT}'":
            return f"Column '{clients.terms[k]}' is the same in every row: leave it out of the formula."
        what = "a multiple of" if len(parts) == 1 else "a combination of"
        return (
            f"Column '{clients.terms[k]}' is {what} {' and '.join(filter(None, [', '.join(parts[:-1]), parts[-1]]))}: "
            "its coefficient cannot be told from theirs. Leave one of them out of the formula."
        )
    return None


def _well_conditioned(X: F64) -> bool:
    """Whether a glance at X'X is enough: sound sizes, and no column near a combination of the others."""
    gram = np.zeros((X.shape[1],) * 2)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), _BLOCK):
            rows = X[start : start + _BLOCK]
            gram += rows.T @ rows
    size = np.sqrt(np.diag(gram))
    if not np.all((size > 1e-95) & (size < 1e95)):
        return False
    return bool(np.linalg.eigvalsh(gram / np.outer(size, size))[0] > 1e-6)


def _triangle(X: F64, scale: F64) -> F64:
    """R of the QR decomposition of the scaled columns, in blocks of rows: no squares of condition numbers as in X'X."""
    R: F64 = np.empty((0, X.shape[1]))
    for start in range(0, len(X), _BLOCK):
        R = np.asarray(np.linalg.qr(np.vstack([R, X[start : start + _BLOCK] / scale]), mode="r"))
    return R
