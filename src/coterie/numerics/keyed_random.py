"""Random numbers as a function of (seed, stream, client, step), never of order or position.

Every draw is a SplitMix64 output [1]_ from a state hashed out of its key, so any partition of clients into sites,
in any order, sees the same numbers.

References
----------
.. [1] Steele, Lea, Flood (2014), Fast splittable pseudorandom number generators, OOPSLA.
.. [2] Aumasson, Bernstein (2012), SipHash: a fast short-input PRF, INDOCRYPT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.numerics.arrays import kernel

U64 = npt.NDArray[np.uint64]

BLOCK = 4096  # so many texts are hashed together

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def text_ids(texts: Sequence[str] | npt.NDArray[Any]) -> U64:
    """64-bit hashes (m,) of texts: pandas' ``hash_array``, SipHash-2-4 [2]_, without pandas, which nets do not load."""
    if len(texts) > BLOCK:
        return np.concatenate([text_ids(texts[at : at + BLOCK]) for at in range(0, len(texts), BLOCK)])
    data = np.array([*map(str.encode, texts), b""], dtype=object)[:-1]  # one more: no texts have no kind
    length = np.fromiter(map(len, data), np.int64, len(data))
    out = np.empty(len(data), dtype=np.uint64)
    for n in np.unique(length // 8):
        some = np.flatnonzero(length // 8 == n)
        words = data[some].astype(f"S{8 * n + 8}").view("<u8").reshape(len(some), n + 1)
        words[:, n] |= length[some].astype(np.uint64) << np.uint64(56)
        out[some] = _siphash(words)
    return _mix(out)


def _siphash(words: U64) -> U64:
    """The hash (m,) of rows of words (m, n), the last of which begins with the length."""
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    key = [int.from_bytes(half, "little") for half in (b"01234567", b"89123456")]
    a, b, c, d = (np.full(len(words), one ^ key[k % 2], dtype=np.uint64) for k, one in enumerate(start))

    def turned(x: U64, by: int) -> U64:
        return (x << np.uint64(by)) | (x >> np.uint64(64 - by))

    def two_rounds() -> None:
        nonlocal a, b, c, d
        for _ in range(2):
            a, c = a + b, c + d
            b, d = turned(b, 13) ^ a, turned(d, 16) ^ c
            a, c = turned(a, 32) + d, c + b
            b, d = turned(b, 17) ^ c, turned(d, 21) ^ a
            c = turned(c, 32)

    for word in words.T:
        d = d ^ word
        two_rounds()
        a = a ^ word
    c = c ^ np.uint64(0xFF)
    two_rounds()
    two_rounds()
    return a ^ b ^ c ^ d


def starts(seed: int, stream: str, ids: npt.ArrayLike) -> U64:
    """What the keys of every client (m,) are made from, whatever the step; kernels go on from here."""
    text = f"{int(seed)}/{stream}".encode()
    start = np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    return _mix(start ^ np.atleast_1d(np.asarray(ids, dtype=np.uint64)))


def keys(seed: int, stream: str, ids: npt.ArrayLike, step: npt.ArrayLike = 0) -> U64:
    """64-bit keys (m,), one for each client, of ids (m,) that are 64-bit hashes of labels.

    ``stream`` says what the numbers are for ("split", "coins", ...); other streams are independent. ``step``, one for
    all or (m,), is the method's own step number.
    """
    h = at_step(starts(seed, stream, ids), step)
    return np.broadcast_to(h, np.broadcast_shapes(h.shape, np.shape(ids)))


def at_step(start: U64, step: npt.ArrayLike) -> U64:
    """Those keys, from :func:`starts`."""
    with np.errstate(over="ignore"):
        return _mix(start + np.asarray(step).astype(np.uint64) * GOLDEN)


def fraction_at(state: U64, counter: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), drawn as number ``counter`` of keys ``state``: of any shapes that go together."""
    with np.errstate(over="ignore"):
        bits = _mix(state + (counter.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform(seed: int, stream: str, ids: npt.ArrayLike, step: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (m, n): n for each client."""
    return fraction_at(keys(seed, stream, ids, step)[:, None], np.arange(n))


def uniforms(start: U64, step: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
    """The same from :func:`starts` (m,) and steps (m,)."""
    return fraction_at(at_step(start, step)[:, None], np.arange(n))


def normal(start: U64, step: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
    """Standard normal numbers, shape (m, n), by Box and Muller, from :func:`starts` (m,) and steps (m,)."""
    u = uniforms(start, step, 2 * n)
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u[:, :n])) * np.cos(2.0 * np.pi * u[:, n:]))


def uniform_rows(
    seed: int, stream: str, ids: npt.ArrayLike, step: npt.ArrayLike, counts: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """One uniform number for each row, shape (sum(counts),): client i owns ``counts[i]`` consecutive rows."""
    counts = np.asarray(counts, dtype=np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    position = np.arange(int(counts.sum())) - first
    return fraction_at(np.repeat(keys(seed, stream, ids, step), counts), position)


def shuffles(keys: U64, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Orders of 0, ..., n - 1 (sum of counts n,), one for each key (m,), each as likely as another (Fisher, Yates)."""
    first = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(counts)), counts)
    b = np.arange(len(owner)) - first[owner]
    at, out = np.minimum((fraction_at(keys[owner], b) * (b + 1)).astype(np.int64), b), np.empty(len(b), dtype=np.int64)
    if len(counts) < 32:  # fewer are faster one after another
        for lo, n in zip(first, counts, strict=True):
            order: list[int] = []
            for here, other in enumerate(at[lo : lo + n].tolist()):
                order.append(here)
                order[here], order[other] = order[other], here
            out[lo : lo + n] = order
        return out
    first, falling = first[np.argsort(-counts, kind="stable")], np.sort(-counts)
    for here in range(counts.max(initial=0)):
        place = first[: np.searchsorted(falling, -here)] + here
        other = place - here + at[place]
        out[place] = out[other]
        out[other] = here
    return out


def generator(seed: int, stream: str, client: int, step: int) -> np.random.Generator:
    """A NumPy generator for one client (for shuffles and torch); about 30 microseconds each."""
    return np.random.Generator(np.random.PCG64(int(keys(seed, stream, [client], step)[0])))


@kernel
def scramble(z: np.uint64) -> np.uint64:
    """SplitMix64's output function."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def key(start: np.uint64, step: int) -> np.uint64:
    """``keyed_random.keys`` of one client, from its ``keyed_random.starts``."""
    return scramble(start + np.uint64(step) * GOLDEN)


@kernel
def fraction(key: np.uint64, draw: int) -> float:
    """A number in [0, 1), draw number ``draw`` of a key: ``keyed_random.uniform(...)[draw]``."""
    bits = scramble(key + (np.uint64(draw) + np.uint64(1)) * GOLDEN) >> np.uint64(11)
    return float(bits) * 2.0**-53


@kernel
def whole(key: np.uint64, draw: int, n: int) -> int:
    """One of 0, ..., n - 1, from draw number ``draw`` of a key: ``floor(n * keyed_random.uniform(...)[draw])``."""
    return min(int(fraction(key, draw) * n), n - 1)
