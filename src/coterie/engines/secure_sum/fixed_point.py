"""Numbers as fixed-point integers modulo 2^128, two uint64 limbs each: adding them is exact, in any order.

An array of n numbers is an (n, 2) uint64 array, low limb first; negative numbers are two's complement. The step is
2^-fraction. Nothing wraps: numbers that could carry a sum over the modulus are refused before they are added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Array

Words = npt.NDArray[np.uint64]


def limit(fraction: int, sites: int, dtype: np.dtype[np.generic]) -> float:
    """What every number must stay below in size, so that no sum over ``sites`` can overflow."""
    bits = min(127 - fraction, 63) if dtype.kind in "iu" else 127 - fraction
    return float(2.0**bits / sites * (1 - 2.0**-40))  # a hair less: what is compared was rounded


def encode(values: Array, fraction: int, sites: int, name: str) -> Words:
    """Numbers as words.

    Parameters
    ----------
    values : array of float, int or complex
        Complex numbers become two each.
    fraction : int
        Bits after the point, 1 to 126: floats are rounded to the nearest multiple of 2^-fraction.
    sites : int
        How many such numbers are added at most.
    name : str
        What the numbers are called in the error.

    Returns
    -------
    (n, 2) uint64

    Raises
    ------
    CoterieError
        For NaN, infinity, or a number not below :func:`limit`.
    """
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values, np.complex128).reshape(-1).view(np.float64)
    flat = values.reshape(-1)
    if flat.dtype.kind not in "fiu":
        raise CoterieError(f"{name!r} is {flat.dtype}: secure sums add numbers only.")
    bound = limit(fraction, sites, flat.dtype)
    size = np.abs(flat.astype(np.float64))
    if not bool(np.all(size < bound)):  # NaN is not below anything either
        # Without the number, which is what is to be hidden.
        raise CoterieError(
            f"{name!r} holds a number that is too large or none, and a secure sum of {sites} sites carries numbers "
            f"below {bound:.3g} in size: scale it, or use fewer bits after the point (`fraction`)."
        )
    words = np.empty((len(flat), 2), np.uint64)
    if flat.dtype.kind == "f":
        high = np.floor(np.ldexp(size, fraction - 64))
        # Both steps are exact: the part below 2^64 keeps the bits that are left, and only rint rounds.
        words[:, 0] = np.rint(np.ldexp(np.ldexp(size, fraction - 64) - high, 64))
        words[:, 1] = high
    else:
        wide = flat.astype(np.int64 if flat.dtype.kind == "i" else np.uint64)  # the least int8 has no opposite
        whole = np.where(flat < 0, -wide, wide).astype(np.uint64)
        words[:, 0] = whole << np.uint64(fraction) if fraction < 64 else 0
        words[:, 1] = whole >> np.uint64(64 - fraction) if fraction <= 64 else whole << np.uint64(fraction - 64)
    below = flat < 0
    words[below] = negative(words[below])
    return words


def decode(words: Words, fraction: int, dtype: np.dtype[np.generic]) -> Array:
    """The numbers of (n, 2) words: float64 (complex128 for pairs), or int64; floats are right to a rounding or two.

    A CoterieError refuses whole numbers with a part after the point: a mask has not come off.
    """
    below = words[:, 1] >> np.uint64(63) == 1
    size = words.copy()
    size[below] = negative(words[below])
    low, high = size[:, 0], size[:, 1]
    if dtype.kind not in "iu":
        values = np.ldexp(high.astype(np.float64), 64 - fraction) + np.ldexp(low.astype(np.float64), -fraction)
        values[below] *= -1
        return values.view(np.complex128) if dtype.kind == "c" else values
    if fraction < 64:
        whole = (high << np.uint64(64 - fraction)) | (low >> np.uint64(fraction))
        rest = low & np.uint64(2**fraction - 1)
    else:
        whole = high >> np.uint64(fraction - 64)
        rest = low | (high & np.uint64(2 ** (fraction - 64) - 1))
    if np.any(rest):
        raise CoterieError("A secure sum of whole numbers is not whole: a site or the coordinator is broken.")
    integers: Array = whole.view(np.int64)
    return np.where(below, -integers, integers)


def add(a: Words, b: Words) -> Words:
    """``a + b`` modulo 2^128."""
    total = a + b
    total[:, 1] += total[:, 0] < a[:, 0]
    return total


def subtract(a: Words, b: Words) -> Words:
    """``a - b`` modulo 2^128."""
    rest = a - b
    rest[:, 1] -= a[:, 0] < b[:, 0]
    return rest


def negative(a: Words) -> Words:
    """``-a`` modulo 2^128."""
    return subtract(np.zeros_like(a), a)
