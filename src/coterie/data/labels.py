"""Labels of clients and clusters: as they were, in natural order, with hashes that do not depend on order or type."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.label_normalisation import joined, tidy
from coterie.errors import CoterieError

I64 = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of labels: ``labels[codes]``.

    Attributes
    ----------
    codes : (n,) int64
        Place of each row's label; -1 where it is missing.
    labels : (m,) array
        Distinct labels in natural order (numbers by size, text by code point): integers, floats, booleans, datetimes
        or Python strings.
    joined : tuple of str
        Those of the labels that the column writes in several ways that look alike.
    """

    codes: I64
    labels: Labels
    joined: tuple[str, ...] = ()

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Rows without a label, (n,) bool."""
        return self.codes < 0

    def take(self, rows: npt.NDArray[Any]) -> Coded:
        """Some of the rows (mask or positions), with the labels that are still used."""
        codes = self.codes[rows]
        used = np.bincount(codes, minlength=len(self.labels)) > 0
        return Coded((np.cumsum(used, dtype=np.int64) - 1)[codes], self.labels[used], self.joined)


def encode(values: Any) -> Coded:
    """Codes and distinct labels of a column.

    Whole numbers stored as floats (as happens when a label is missing) become integers; columns that mix numbers and
    text become text, so that 1 and "1" are one client. Text that looks the same is one label: see
    :func:`coterie.data.label_normalisation.tidy`.

    Parameters
    ----------
    values : (n,) Series, array or sequence

    Returns
    -------
    Coded
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return _integers(values)
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu":
        return _integers(series.to_numpy())
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    try:
        codes, uniques = pd.factorize(series)
    except (TypeError, NotImplementedError) as e:  # lists and the like, which cannot be told apart quickly
        kind = type(next(iter(series.dropna()), None)).__name__
        raise CoterieError(
            f"Column '{series.name}' holds values of type {kind}, which cannot be labels: make text or numbers of them."
        ) from e
    labels = _one_kind(uniques)
    several = joined(np.asarray(uniques), labels) if labels.dtype.kind == "O" else ()
    return _sorted(codes.astype(np.int64, copy=False), labels, several)


def _integers(values: Labels) -> Coded:
    if len(values) == 0:
        return Coded(np.empty(0, dtype=np.int64), values)
    if bool(np.all(values[1:] >= values[:-1])):
        new = np.ones(len(values), dtype=bool)
        np.not_equal(values[1:], values[:-1], out=new[1:])
        return Coded(np.cumsum(new, dtype=np.int64) - 1, values[new])
    low, high = int(values.min()), int(values.max())
    if high - low < max(4 * len(values), 1024) and abs(low) < 2**62 and abs(high) < 2**62:
        shifted = values.astype(np.int64, copy=False) - low  # a table look-up is faster than hashing
        present = np.zeros(high - low + 1, dtype=bool)
        present[shifted] = True
        labels = (np.flatnonzero(present) + low).astype(values.dtype)
        return Coded((np.cumsum(present, dtype=np.int64) - 1)[shifted], labels)
    import pandas as pd

    codes, uniques = pd.factorize(values)
    return _sorted(codes.astype(np.int64, copy=False), uniques)


def _one_kind(uniques: Any) -> Labels:
    """Distinct labels as an array of one kind; several of them may become equal."""
    distinct = np.asarray(uniques)
    if distinct.dtype.kind in "iubM":
        return distinct
    if distinct.dtype.kind == "f":
        return _whole(distinct)
    kinds = {type(u) for u in distinct}
    if kinds and all(issubclass(k, (int, float, np.integer, np.floating)) and k is not bool for k in kinds):
        if any(issubclass(k, (float, np.floating)) for k in kinds):
            return _whole(distinct.astype(np.float64))
        with suppress(OverflowError):  # of numbers that are too large for a machine, the texts are as good
            return distinct.astype(np.int64)
    if kinds and kinds <= {bool, np.bool_}:
        return distinct.astype(bool)
    return _texts(distinct)


def _whole(values: npt.NDArray[np.float64]) -> Labels:
    if np.all(np.abs(values) < 2.0**53) and np.array_equal(values, np.floor(values)):
        return values.astype(np.int64)
    return values


def _sorted(codes: I64, distinct: Labels, several: tuple[str, ...] = ()) -> Coded:
    order = np.argsort(distinct, kind="stable")
    labels = distinct[order]
    new = np.ones(len(labels), dtype=bool)
    if len(labels):
        new[1:] = labels[1:] != labels[:-1]
    rank = np.full(len(labels) + 1, -1, dtype=np.int64)  # the last entry is what code -1 reads
    rank[order] = np.cumsum(new) - 1
    return Coded(rank[codes], labels[new], several)


def label_text(label: Any) -> str:
    """The text of a label: the same for 1, 1.0, "1" and b"1", and for text that looks the same."""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    if isinstance(label, Decimal) and label.is_finite() and label == int(label):
        return str(int(label))
    if isinstance(label, bytes):
        return tidy(label.decode(errors="backslashreplace"))
    if isinstance(label, np.datetime64):
        return str(label.astype("datetime64[us]"))
    return tidy(str(label))


def _texts(labels: Labels) -> Labels:
    out = np.empty(len(labels), dtype=object)
    out[:] = [label_text(v) for v in labels]
    return out


def label_ids(labels: Labels) -> npt.NDArray[np.uint64]:
    """64-bit hashes of labels (SipHash of their text): the key of every random number of a client.

    Parameters
    ----------
    labels : (m,) array

    Returns
    -------
    (m,) uint64
        The same for 1 and "1", on any machine and in any order.
    """
    from pandas.util import hash_array

    text = labels.astype(str).astype(object) if labels.dtype.kind in "iu" else _texts(labels)
    return np.asarray(hash_array(text, categorize=False), dtype=np.uint64)


def find_labels(known: Labels, values: Any) -> I64:
    """Positions of a column's labels among known ones, for prediction.

    Parameters
    ----------
    known : (m,) array
        Distinct labels in any order.
    values : (n,) Series, array or sequence
        Compared by their text, so 1, 1.0 and "1" are the same label.

    Returns
    -------
    (n,) int64
        Position in `known`; -1 for labels not seen and for missing ones.
    """
    import pandas as pd

    column = encode(values)
    if known.dtype.kind in "iu" and column.labels.dtype.kind in "iu":
        index, wanted = pd.Index(known.astype(np.int64)), pd.Index(column.labels.astype(np.int64))
    else:
        index, wanted = pd.Index(_texts(known), dtype=object), pd.Index(_texts(column.labels), dtype=object)
    first = np.flatnonzero(~index.duplicated())  # a model may be older than the joining of labels that look the same
    found = index[first].get_indexer(wanted)
    place = np.append(np.where(found < 0, -1, first[found]), -1).astype(np.int64)
    return place[column.codes]
