"""Fixed point modulo 2^128: every number against Python's own integers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engines.secure_sum.fixed_point import add, decode, encode, limit, negative, subtract
from coterie.errors import CoterieError
from tests.messages import names

MODULUS = 2**128
WORDS = st.lists(st.integers(0, MODULUS - 1), min_size=1, max_size=5)


def words(numbers):
    return np.array([[n % 2**64, n % MODULUS >> 64] for n in numbers], np.uint64)


def numbers(found):
    return [int(low) + (int(high) << 64) for low, high in found]


@given(a=WORDS, b=WORDS)
def test_arithmetic_is_that_of_integers_modulo_2_to_the_128(a, b):
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    assert numbers(add(words(a), words(b))) == [(x + y) % MODULUS for x, y in zip(a, b, strict=True)]
    assert numbers(subtract(words(a), words(b))) == [(x - y) % MODULUS for x, y in zip(a, b, strict=True)]
    assert numbers(negative(words(a))) == [-x % MODULUS for x in a]


@given(
    x=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=4),
    fraction=st.integers(1, 90),
    scale=st.sampled_from([1.0, 1e-9, 1e-30]),
)
def test_a_float_is_the_nearest_multiple_of_the_step(x, fraction, scale):
    values = np.array(x) * scale
    found = encode(values, fraction, 3, "x")
    assert numbers(found) == [round(Fraction(v) * 2**fraction) % MODULUS for v in values.tolist()]
    near = decode(found, fraction, values.dtype)
    np.testing.assert_allclose(near, values, rtol=2**-51, atol=2.0 ** -(fraction + 1))


@given(
    x=st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=4),
    fraction=st.integers(1, 66),
    dtype=st.sampled_from([np.int64, np.int32, np.uint64, np.int8]),
)
def test_a_whole_number_is_exact(x, fraction, dtype):
    info = np.iinfo(dtype)
    values = np.clip(x, max(info.min, -(2**59)), min(info.max, 2**59)).astype(dtype)
    found = encode(values, fraction, 2, "n")
    assert numbers(found) == [(int(v) << fraction) % MODULUS for v in values]
    np.testing.assert_array_equal(decode(found, fraction, values.dtype), values)


def test_complex_numbers_and_narrow_floats():
    values = np.array([[1.5 - 2j, 0.25j]])
    np.testing.assert_array_equal(decode(encode(values, 64, 2, "z"), 64, values.dtype), values[0])
    narrow = np.array([1.25, -3.0], np.float32)
    np.testing.assert_array_equal(decode(encode(narrow, 64, 2, "x"), 64, narrow.dtype), narrow)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**63 / 7, -(2.0**63) / 7, 1e300])
def test_what_could_overflow_a_sum_is_refused_by_name(bad):
    with pytest.raises(CoterieError, match=r"'loss' holds .*7 sites carries numbers below 1\.32e\+18"):
        encode(np.array([1.0, bad]), 64, 7, "loss")
    with pytest.raises(CoterieError, match="add numbers only"):
        encode(np.array(["a"]), 64, 7, "name")


@pytest.mark.parametrize("fraction", [1, 40, 64, 80, 126])
def test_the_largest_numbers_of_all_sites_do_not_wrap(fraction):
    for dtype in (np.dtype(float), np.dtype(np.int64)):
        largest = np.nextafter(limit(fraction, 7, dtype), 0)
        values = np.array([largest, -largest]).astype(dtype)
        one, total = encode(values, fraction, 7, "x"), np.zeros((2, 2), np.uint64)
        for _ in range(7):
            total = add(total, one)
        np.testing.assert_allclose(decode(total, fraction, dtype).astype(float), 7.0 * values, rtol=1e-15)


def test_a_sum_of_whole_numbers_that_is_not_whole_is_refused():
    for fraction in (40, 64, 80):
        with pytest.raises(CoterieError, match="not whole"):
            decode(np.array([[1, 5]], np.uint64), fraction, np.dtype(np.int64))


def test_a_number_that_is_too_large_is_not_told():
    with pytest.raises(CoterieError, match=names("'g' holds number large")) as told:
        encode(np.array([1.25, -7.654e25]), 64, 3, "g")
    assert "7.654" not in str(told.value)
