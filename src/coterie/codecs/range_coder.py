"""Rows of labels 0, ..., k - 1 in as few bytes as an adaptive arithmetic code needs.

A range coder [1]_ [2]_ with carry, and four models of a row of which the shortest is taken (2 bits say which): all
labels equally likely (this is bit packing, for k that are no powers of two as well), frequencies learned on the way,
frequencies after each label, and runs (is it the label before it, and if not, which). Learned frequencies start at one
half for each label (Krichevsky and Trofimov).

A coded row has no length of its own: zeros at its end are cut off, and the reader goes on with zeros.

References
----------
.. [1] Martin (1979), Range encoding: an algorithm for removing redundancy from a digitised message.
.. [2] Witten, Neal, Cleary (1987), Arithmetic coding for data compression, Communications of the ACM 30.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.codecs.codec import Bytes
from coterie.federation import Ragged
from coterie.numerics.arrays import Ints, kernel

Words = npt.NDArray[np.uint64]

UNIFORM, ORDER0, ORDER1, RUNS = 1, 2, 4, 8
ANY = UNIFORM | ORDER0 | ORDER1 | RUNS  # models, as bits of a set

_LOW, _RANGE, _AT = 0, 1, 2  # the coder's state: three words; the reader keeps its code where the writer keeps low
_TOP = np.uint64(1 << 24)
_WORD = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_EIGHT = np.uint64(8)
_SEVENTH = np.uint64(24)
_FULL = 1 << 14  # learned frequencies are halved when their sum gets here


def encode_labels(labels: Bytes, k: int, models: int = ANY) -> Ragged:
    """The code of each row of ``labels`` (m, d) below ``k`` (at most 256), by the shortest of ``models``."""
    out, lengths = _encode(np.ascontiguousarray(labels, dtype=np.uint8), k, models)
    return Ragged(out, np.concatenate([[0], np.cumsum(lengths)]))


def decode_labels(codes: Ragged, d: int, k: int) -> Bytes:
    """The labels (m, d) of :func:`encode_labels`. Any bytes give some labels: the checksum is the frame's."""
    return _decode(np.ascontiguousarray(codes.values, dtype=np.uint8), codes.offsets, d, k)


@kernel
def _put(coder: Words, out: Bytes, below: int, share: int, total: int) -> None:
    """Narrow the range to the part from ``below`` to ``below + share`` of ``total``."""
    part = coder[_RANGE] // np.uint64(total)
    coder[_LOW] += part * np.uint64(below)
    coder[_RANGE] = part * np.uint64(share)
    if coder[_LOW] > _WORD:
        _carry(coder, out)
    while coder[_RANGE] < _TOP:
        out[coder[_AT]] = np.uint8(coder[_LOW] >> _SEVENTH)
        coder[_AT] += np.uint64(1)
        coder[_LOW] = (coder[_LOW] << _EIGHT) & _WORD
        coder[_RANGE] <<= _EIGHT


@kernel
def _carry(coder: Words, out: Bytes) -> None:
    coder[_LOW] &= _WORD
    i = coder[_AT] - np.uint64(1)
    while out[i] == 255:
        out[i] = 0
        i -= np.uint64(1)
    out[i] += np.uint8(1)


@kernel
def _finish(coder: Words, out: Bytes) -> int:
    """Write the number in the range that ends with most zeros; the length without them."""
    for free in range(32, -1, -8):
        mask = (np.uint64(1) << np.uint64(free)) - np.uint64(1)
        end = (coder[_LOW] + mask) & ~mask
        if end - coder[_LOW] < coder[_RANGE]:
            coder[_LOW] = end
            break
    if coder[_LOW] > _WORD:
        _carry(coder, out)
    for k in range(4):
        out[coder[_AT]] = np.uint8((coder[_LOW] >> np.uint64(24 - 8 * k)) & _BYTE)
        coder[_AT] += np.uint64(1)
    n = int(np.int64(coder[_AT]))
    while n > 0 and out[n - 1] == 0:
        n -= 1
    return n


@kernel
def _open(coder: Words, data: Bytes) -> None:
    coder[_LOW], coder[_RANGE], coder[_AT] = np.uint64(0), _WORD, np.uint64(0)
    for _ in range(4):
        _next(coder, data)


@kernel
def _next(coder: Words, data: Bytes) -> None:
    at = coder[_AT]
    byte = np.uint64(data[at]) if at < np.uint64(data.shape[0]) else np.uint64(0)
    coder[_LOW] = ((coder[_LOW] << _EIGHT) | byte) & _WORD
    coder[_AT] += np.uint64(1)


@kernel
def _get(coder: Words, total: int) -> int:
    """Where in 0, ..., total - 1 the code lies."""
    return int(np.int64(min(coder[_LOW] // (coder[_RANGE] // np.uint64(total)), np.uint64(total - 1))))


@kernel
def _take(coder: Words, data: Bytes, below: int, share: int, total: int) -> None:
    part = coder[_RANGE] // np.uint64(total)
    coder[_LOW] -= part * np.uint64(below)
    coder[_RANGE] = part * np.uint64(share)
    while coder[_RANGE] < _TOP:
        _next(coder, data)
        coder[_RANGE] <<= _EIGHT


@kernel
def _learn(counts: Ints, label: int) -> None:
    """Frequencies in halves; their sum is kept behind them."""
    k = counts.shape[0] - 1
    counts[label] += 2
    counts[k] += 2
    if counts[k] > _FULL:
        counts[k] = 0
        for j in range(k):
            counts[j] = (counts[j] + 1) >> 1
            counts[k] += counts[j]


@kernel
def _tables(model: int, k: int) -> Ints:
    """Frequencies of each context, one half each; for runs the last context is (same, other)."""
    contexts = k if model == ORDER1 else (2 if model == RUNS else 1)
    counts = np.ones((contexts, k + 1), np.int64)
    counts[:, k] = k
    return counts


@kernel
def _put_row(row: Bytes, k: int, model: int, out: Bytes) -> int:
    coder = np.array([np.uint64(0), _WORD, np.uint64(0)], np.uint64)
    which = 0 if model == UNIFORM else (1 if model == ORDER0 else (2 if model == ORDER1 else 3))
    _put(coder, out, which, 1, 4)
    counts, same = _tables(model, k), np.array([1, 1, 2])
    last = -1
    for x in row:
        label = int(np.int64(x))
        if model == UNIFORM:
            _put(coder, out, label, 1, k)
            continue
        context, left_out = 0, -1
        if model == ORDER1 and last >= 0:
            context = last
        elif model == RUNS and last >= 0:
            other = int(label != last)
            _put(coder, out, 0 if other == 0 else same[0], same[other], same[2])
            _learn(same, other)
            left_out = last
        if left_out < 0 or label != last:
            f = counts[context]
            below, total = 0, f[k] - (f[left_out] if left_out >= 0 else 0)
            for j in range(label):
                below += f[j] if j != left_out else 0
            _put(coder, out, below, f[label], total)
            _learn(f, label)
        last = label
    return _finish(coder, out)


@kernel
def _get_row(data: Bytes, k: int, row: Bytes) -> None:
    coder = np.empty(3, np.uint64)
    _open(coder, data)
    which = _get(coder, 4)
    _take(coder, data, which, 1, 4)
    model = 1 << which
    counts, same = _tables(model, k), np.array([1, 1, 2])
    last = -1
    for i in range(row.shape[0]):
        if model == UNIFORM:
            label = _get(coder, k)
            _take(coder, data, label, 1, k)
            row[i] = np.uint8(label)
            continue
        context, left_out, other = 0, -1, 1
        if model == ORDER1 and last >= 0:
            context = last
        elif model == RUNS and last >= 0:
            other = int(_get(coder, same[2]) >= same[0])
            _take(coder, data, 0 if other == 0 else same[0], same[other], same[2])
            _learn(same, other)
            left_out = last
        label = last
        if other == 1:
            f = counts[context]
            total = f[k] - (f[left_out] if left_out >= 0 else 0)
            target, below, label = _get(coder, total), 0, 0
            while label == left_out or below + f[label] <= target:
                below += f[label] if label != left_out else 0
                label += 1
            _take(coder, data, below, f[label], total)
            _learn(f, label)
        row[i] = np.uint8(label)
        last = label


@kernel
def _encode(labels: Bytes, k: int, models: int) -> tuple[Bytes, Ints]:
    m, d = labels.shape
    out, lengths = np.empty(max(m * (4 * d + 16), 1), np.uint8), np.zeros(m, np.int64)
    best, buffer = np.empty(4 * d + 16, np.uint8), np.empty(4 * d + 16, np.uint8)
    at = 0
    for i in range(m):
        shortest = -1
        for b in range(4):
            if models >> b & 1:
                n = _put_row(labels[i], k, 1 << b, buffer)
                if shortest < 0 or n < shortest:
                    shortest = n
                    best[:n] = buffer[:n]
        out[at : at + shortest] = best[:shortest]
        lengths[i] = shortest
        at += shortest
    return out[:at].copy(), lengths


@kernel
def _decode(values: Bytes, offsets: Ints, d: int, k: int) -> Bytes:
    out = np.empty((offsets.shape[0] - 1, d), np.uint8)
    for i in range(out.shape[0]):
        _get_row(values[offsets[i] : offsets[i + 1]], k, out[i])
    return out
