"""What a table can and cannot tell: columns that no client has a view of its own on, and columns that repeat others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.data.design import INTERCEPT
from coterie.errors import CoterieError, joined, listed, nearest
from coterie.numerics.arrays import Bools, Floats, Ints

_TOLERANCE = 1e-10
_SINE = 1e-7
"""Angle to the other columns below which a column is a combination of them, as in R's ``lm``: squares of its inverse,
which standard errors hold, would keep no digits."""
_SINE_OF_SUMS = 1e-5  # the same where only sums of products are known, of which such squares are left
_BLOCK = 1 << 12
_PROBE = 64
_FAR = 20_000.0
_NAMED = 6  # columns that are all named; of more, the first


def constant_within_clients(clients: Clients) -> Bools:
    """Columns (p,) bool whose coefficient cannot differ between clients, so that all clients must share it.

    These are columns (other than the intercept) that are constant within every client, and columns that within every
    client are a multiple of an earlier column that can be personal (``x:size`` beside ``x`` where ``size`` is the
    client's).
    """
    same, constant, multiple = _within(clients)
    return _shared(same | (np.array(clients.terms) == INTERCEPT), constant, multiple)


def far_from_zero(terms: Sequence[str], weight: float, x: Floats, xx: Floats) -> str | None:
    """What is wrong with a column so far from zero that sums can hardly tell it from the intercept; None if none is.

    ``weight`` is that of all rows, ``x`` and ``xx`` (p,) are sums of the columns and of their squares.
    """
    if INTERCEPT not in terms:
        return None
    mean, square = x / weight, xx / weight
    far = np.maximum(square - mean**2, 0.0) * _FAR**2 < mean**2
    far[list(terms).index(INTERCEPT)] = False
    return _too_far(terms[int(np.argmax(far))], _FAR) if far.any() else None


def _too_far(term: str, times: float) -> str:
    return (
        f"Column '{term}' lies more than {times:,.0f} standard deviations from zero, which leaves its numbers too few "
        "digits: subtract one that is near its mean, or write scale() around it in the formula."
    )


def orthogonal_columns(clients: Clients, first: Ints) -> Floats | None:
    """B (p, p) for which the columns of ``X @ B`` are orthogonal; None where those of X nearly are.

    Columns ``first`` (q,) become combinations of each other only, the others of these and each other. Where the
    intercept is among ``first`` it comes first, and stays as it is.
    """
    X, p = clients.X, clients.X.shape[1]
    if _well_conditioned(_gram(X)):
        return None
    intercept = [k for k in range(p) if clients.terms[k] == INTERCEPT]
    order = np.argsort([2 * (k not in first) + (k not in intercept) for k in range(p)], kind="stable")
    scale = np.abs(_range(X)).max(axis=0)
    R = np.linalg.qr(triangle(X, scale, np.sqrt(clients.weights))[:, order], mode="r")
    B = np.zeros((p, p))
    B[np.ix_(order, order)] = np.linalg.inv(R * np.sign(np.diag(R))[:, None])
    B *= np.sqrt(clients.weights.sum()) / scale[:, None]
    if intercept and order[0] == intercept[0]:
        B[:, order[0]] /= B[order[0], order[0]]
    return B


def _shared(intercept: Bools, constant: Bools, multiple: Bools) -> Bools:
    """Which columns (p,) all clients must share; ``multiple[j, k]`` counts where column j may be personal."""
    shared, personal = np.zeros(len(constant), dtype=bool), np.zeros(len(constant), dtype=bool)
    for k in np.flatnonzero(~intercept):
        shared[k] = constant[k] or multiple[personal, k].any()
        personal[k] = not shared[k]
    return shared


def _within(clients: Clients) -> tuple[Bools, Bools, Bools]:
    """Columns (p,) that are one number, not 0, everywhere, and those that are constant within every client.

    Last (p, p), [j, k]: whether column k, later than j, is a multiple of column j within every client.
    """
    full = np.flatnonzero(clients.counts > 0)
    starts, stops, X, p = clients.starts[full], clients.stops[full], clients.X, clients.X.shape[1]
    constant = np.array([_constant(X[:, k], starts, stops) for k in range(p)], dtype=bool)
    first, multiple = X[starts], np.zeros((p, p), dtype=bool)
    for k in range(1, p):
        for j in np.flatnonzero(_possible_multiples(X, k, starts, stops)[:k]):
            x, z = first[:, j], first[:, k]
            both = constant[j] and constant[k]
            multiple[j, k] = np.all((x != 0) | (z == 0)) if both else _multiple(X[:, j], X[:, k], starts, stops)
    return constant & (first == first[:1]).all(axis=0) & (first != 0).any(axis=0), constant, multiple


@dataclass(frozen=True)
class Facts:
    """What :func:`constant_within` and :func:`collinear_over` know of some of the clients, who are elsewhere."""

    rows: int
    clients: int
    most: int  # observations of one client
    gram: Floats  # (p, p) X'X
    low: Floats  # (p + 1,) smallest values of the columns, and of y
    high: Floats  # (p + 1,) largest values
    constant: Bools  # (p,) columns that are constant within every client
    multiple: Bools  # (p, p) [j, k]: column k is a multiple of column j within every client
    weight: float = 0.0  # of all rows

    @classmethod
    def of(cls, clients: Clients) -> Facts:
        """The facts of clients that are here."""
        X, (_, constant, multiple) = clients.X, _within(clients)
        low = np.append(X.min(axis=0, initial=np.inf), clients.y.min(initial=np.inf))
        high = np.append(X.max(axis=0, initial=-np.inf), clients.y.max(initial=-np.inf))
        most, weight = int(clients.observations.max(initial=0)), clients.weights.sum()
        return cls(len(X), len(clients), most, _gram(X), low, high, constant, multiple, weight)

    @classmethod
    def joined(cls, parts: Sequence[Facts]) -> Facts:
        """The facts of all clients of several parts."""
        return cls(
            sum(f.rows for f in parts),
            sum(f.clients for f in parts),
            max(f.most for f in parts),
            np.sum([f.gram for f in parts], axis=0),
            np.min([f.low for f in parts], axis=0),
            np.max([f.high for f in parts], axis=0),
            np.all([f.constant for f in parts], axis=0),
            np.all([f.multiple for f in parts], axis=0),
            sum(f.weight for f in parts),
        )


def constant_within(terms: Sequence[str], facts: Facts) -> Bools:
    """The same as :func:`constant_within_clients`, from facts."""
    same = (facts.low[:-1] == facts.high[:-1]) & (facts.low[:-1] != 0.0)
    return _shared(same | (np.array(terms) == INTERCEPT), facts.constant, facts.multiple)


def collinear_over(terms: Sequence[str], facts: Facts, triangles: Callable[[Floats], Sequence[Floats]]) -> str | None:
    """The same as :func:`collinear`, from facts.

    ``triangles(scale)`` is :func:`triangle` of every part; it is called where a closer look is needed.
    """
    low, high = facts.low, facts.high
    top = float(max(abs(low[-1]), abs(high[-1])))
    closer = lambda scale: _stacked(triangles(scale))  # noqa: E731
    return _trouble(terms, facts.rows, facts.gram, top, lambda: (low[:-1], high[:-1]), closer, _SINE_OF_SUMS)


def shared_terms(terms: Sequence[str], shared: Sequence[str]) -> Bools:
    """Which terms (p,) bool were asked to be shared; a category's name stands for its levels, spaces for nothing."""
    plain = [re.sub(r"\[[^\]]*\]", "", t) for t in terms]
    mask = np.zeros(len(terms), dtype=bool)
    for name in shared:
        here = np.array([name in (t, q) for t, q in zip(terms, plain, strict=True)])
        if not here.any():
            here = np.array(["".join(name.split()) == "".join(t.split()) for t in plain])
        if not here.any():
            known = nearest(name, [*terms, *plain]) or f" There are {listed(dict.fromkeys(plain), 10)}."
            raise CoterieError(f"There is no term '{name}' to share.{known}")
        mask |= here
    return mask


def _probe(starts: Ints, stops: Ints) -> npt.NDArray[np.intp]:
    """The largest few clients: where a column varies it does so there, and the whole table need not be read."""
    if len(starts) <= _PROBE:
        return np.arange(len(starts))
    return np.sort(np.argpartition(starts - stops, _PROBE)[:_PROBE])


def _constant(x: Floats, starts: Ints, stops: Ints) -> bool:
    """Whether a column is constant within each of these clients."""
    for i in _probe(starts, stops):
        if x[starts[i]] != x[stops[i] - 1]:
            return False
    same = np.repeat(x[starts], stops - starts) == x
    return bool(same.all())


def _possible_multiples(X: Floats, k: int, starts: Ints, stops: Ints) -> Bools:
    """Which columns (p,) column k may be a multiple of: not those that are 0 where it is largest in some client.

    Of the columns of a category's levels none are left, so that thousands are not compared in pairs.
    """
    size = np.abs(X[:, k])
    rows = [starts[i] + int(np.argmax(size[starts[i] : stops[i]])) for i in _probe(starts, stops)]
    return np.asarray((X[[r for r in rows if size[r] > 0]] != 0).all(axis=0))


def _multiple(x: Floats, z: Floats, starts: Ints, stops: Ints) -> bool:
    """Whether ``z = c_i x`` within each of these clients."""
    for i in _probe(starts, stops):
        rows = slice(starts[i], stops[i])
        if not _proportional(x[rows], z[rows], np.zeros(1, dtype=np.int64)):
            return False
    return _proportional(x, z, starts)


def _proportional(x: Floats, z: Floats, starts: Ints) -> bool:
    counts = np.diff(np.append(starts, len(x)))
    top_x = np.maximum.reduceat(np.abs(x), starts)
    top_z = np.maximum.reduceat(np.abs(z), starts)
    x = x / np.repeat(np.where(top_x > 0, top_x, 1.0), counts)  # squares of huge or tiny values stay finite
    z = z / np.repeat(np.where(top_z > 0, top_z, 1.0), counts)
    xx = np.add.reduceat(x * x, starts)
    ratio = np.add.reduceat(x * z, starts) / np.where(xx > 0, xx, 1.0)
    return bool(np.abs(z - np.repeat(ratio, counts) * x).max() <= _TOLERANCE)


def collinear(clients: Clients, sums: bool = False) -> str | None:
    """The sentence that names columns out of range or combinations of others over all rows, or None.

    Columns are compared in their order, so that the later one is named as superfluous. Where columns are summed as they
    are (``sums``), less can be told.
    """
    X, top = clients.X, float(np.abs(clients.y).max(initial=0.0))
    sine = _SINE_OF_SUMS if sums else _SINE
    return _trouble(clients.terms, len(X), _gram(X), top, lambda: _range(X), lambda scale: triangle(X, scale), sine)


def _trouble(
    terms: Sequence[str],
    n: int,
    gram: Floats,
    top: float,
    bounds: Callable[[], tuple[Floats, Floats]],
    triangle: Callable[[Floats], Floats],
    sine: float,
) -> str | None:
    """The sentence of :func:`collinear`, of n rows with this X'X whose largest outcome is ``top``.

    ``bounds`` gives the smallest and the largest value (p,) of each column.
    """
    p = len(terms)
    if n < p:
        return f"There are {n:,} rows for {p:,} columns: give more rows, or leave columns out of the formula."
    if _well_conditioned(gram) and 1e-100 <= top <= 1e100:
        return None
    low, high = bounds()
    scale, same = np.maximum(np.abs(low), np.abs(high)), low == high
    for name, size in [*zip(terms, scale, strict=True), ("the outcome", top)]:
        if size > 1e100 or 0 < size < 1e-100:
            what = name if name == "the outcome" else f"column '{name}'"
            return f"The largest value of {what} is {size:.3g}, which cannot be squared safely: use other units."
    zero = np.flatnonzero(scale == 0)
    if len(zero):
        return f"Column '{terms[zero[0]]}' is 0 in every row: leave it out of the formula."
    R = triangle(scale)
    R = R / np.sqrt(np.sum(R**2, axis=0))
    kept: list[int] = []
    for k in range(p):
        known, wanted = R[:, kept], R[:, k]
        c, *_ = np.linalg.lstsq(known, wanted, rcond=None)
        apart = float(np.linalg.norm(wanted - known @ c))
        if apart > sine:
            kept.append(k)
            continue
        parts = [f"'{terms[j]}'" for j, v in zip(kept, c, strict=True) if abs(v) > 1e-8]
        ones = R[:, list(terms).index(INTERCEPT)] if INTERCEPT in terms else 0.0 * wanted
        if apart > _TOLERANCE and np.linalg.norm(wanted - ones * (ones @ wanted)) <= sine:
            return _too_far(terms[k], 1.0 / sine)
        if len(parts) == 1 and parts[0] == f"'{INTERCEPT}'":
            if not same[k]:
                return _too_far(terms[k], 1.0 / _TOLERANCE)
            return f"Column '{terms[k]}' is the same in every row: leave it out of the formula."
        what = "a multiple of" if len(parts) == 1 else "a combination of"
        nearly = "" if apart <= _TOLERANCE else f" to {int(-np.log10(apart))} digits"
        others = joined(parts) if len(parts) <= _NAMED else listed(parts)
        return (
            f"Column '{terms[k]}' is {what} {others}{nearly}: "
            f"its coefficient cannot be told from theirs. {_instead(terms[k], parts)}"
        )
    return None


def _instead(term: str, parts: Sequence[str]) -> str:
    """What to do about a column that others give."""
    basis = re.match(r"(c[crs]\(.*)\)\[\d+\]$", term)
    if basis and f"'{INTERCEPT}'" in parts and "constraints" not in term:
        return f"Write {basis[1]}, constraints='center'): this basis holds the intercept."
    return "Leave one of them out of the formula."


def _range(X: Floats) -> tuple[Floats, Floats]:
    return X.min(axis=0, initial=np.inf), X.max(axis=0, initial=-np.inf)


def _gram(X: Floats) -> Floats:
    """X'X, in blocks of rows that stay in cache."""
    gram = np.zeros((X.shape[1],) * 2)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), _BLOCK):
            rows = X[start : start + _BLOCK]
            gram += rows.T @ rows
    return gram


def _well_conditioned(gram: Floats) -> bool:
    """Whether a glance at X'X is enough: sound sizes, and no column near a combination of the others."""
    size = np.sqrt(np.diag(gram))
    if not np.all((size > 1e-95) & (size < 1e95)):
        return False
    return bool(np.linalg.eigvalsh(gram / np.outer(size, size))[0] > 1e-6)


def triangle(X: Floats, scale: Floats, rows: Floats | None = None) -> Floats:
    """R of the QR decomposition of the scaled columns, in blocks of rows: no squares of condition numbers as in X'X.

    ``rows`` (n,) are factors of the rows.
    """
    blocks = (slice(start, start + _BLOCK) for start in range(0, len(X), _BLOCK))
    return _stacked(X[b] / scale if rows is None else X[b] / scale * rows[b, None] for b in blocks)


def _stacked(parts: Iterable[Floats]) -> Floats:
    """R of parts that stand on top of each other."""
    R: Floats | None = None
    for part in filter(len, parts):
        R = np.asarray(np.linalg.qr(part if R is None else np.vstack([R, part]), mode="r"))
    return np.empty((0, 0)) if R is None else R
