"""The kernels of the codecs against slow, literal twins."""

from __future__ import annotations

import binascii
import zlib
from fractions import Fraction

import numpy as np
import pytest

from coterie.codecs import by_name
from coterie.codecs.codec import _CRC16, _CRC32, _crc
from coterie.codecs.quantisation import _cluster, _round
from coterie.codecs.range_coder import ORDER0, ORDER1, RUNS, UNIFORM, decode_labels, encode_labels
from coterie.codecs.sparse_and_low_rank import _columns
from coterie.federation import Ragged
from coterie.numerics import keyed_random


def bits_of(data: bytes) -> list[int]:
    return [byte >> (7 - k) & 1 for byte in data for k in range(8)]


def crc_twin(data: bytes, polynomial: int, width: int, start: int) -> int:
    """Long division, bit by bit."""
    r = start
    for bit in bits_of(data):
        top = (r >> (width - 1) & 1) ^ bit
        r = (r << 1) & ((1 << width) - 1)
        r ^= polynomial if top else 0
    return r


@pytest.mark.parametrize("n", [0, 1, 2, 9, 100])
def test_checksums(n: int) -> None:
    data, salt = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8), 0xDEADBEEF
    start = salt ^ (n * 0x9E3779B1 & 0xFFFFFFFF)
    long = int(_crc(data, _CRC32, np.uint32(salt)))
    assert long == crc_twin(data.tobytes(), 0x04C11DB7, 32, start) ^ 0xFFFFFFFF
    short = int(_crc(data, _CRC16, np.uint32(salt)))
    assert short == crc_twin(data.tobytes(), 0x1021 << 16, 32, start) ^ 0xFFFFFFFF


def test_the_polynomials_are_those_of_the_standard_library() -> None:
    data = b"runs of few values"
    assert crc_twin(data, 0x1021, 16, 0) == binascii.crc_hqx(data, 0)
    turned = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    flipped = crc_twin(turned, 0x04C11DB7, 32, 0xFFFFFFFF) ^ 0xFFFFFFFF
    assert int(f"{flipped:032b}"[::-1], 2) == zlib.crc32(data)


def test_draws_are_the_keyed_ones() -> None:
    starts, steps = keyed_random.starts(4, "codec", np.arange(5)), np.array([0, 3, 3, 7, 10**9])
    kernel = [keyed_random.key(start, step) for start, step in zip(starts, steps, strict=True)]
    assert np.array_equal(kernel, keyed_random.at_step(starts, steps))
    assert np.array_equal(kernel, keyed_random.keys(4, "codec", np.arange(5), steps))


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd(levels: int) -> None:
    """Each coordinate goes up with the probability of its fraction, by its own uniform number."""
    x = np.random.default_rng(levels).normal(size=(4, 30))
    top = np.array([np.abs(r).max() for r in x])
    u = keyed_random.uniform(1, "codec", np.arange(4), 2, 30)
    found = _round(x, top, keyed_random.keys(1, "codec", np.arange(4), 2), levels)
    for i in range(4):
        for j in range(30):
            place = x[i, j] / top[i] * levels
            low = int(np.floor(place))
            assert int(found[i, j]) - levels == low + (u[i, j] >= 1.0 - (place - low))


def test_low_rank_starts() -> None:
    u = keyed_random.uniform(1, "codec", np.arange(3), 2, 8)
    assert np.array_equal(_columns(keyed_random.keys(1, "codec", np.arange(3), 2), 8), 2.0 * u - 1.0)


def test_k_means_on_all_cuts() -> None:
    """Every way to cut seven sorted numbers in three."""
    x = np.random.default_rng(0).normal(size=(20, 7))
    centres, labels = _cluster(x, 3)
    for row, c, which in zip(x, centres, labels, strict=True):
        s = np.sort(row)
        least = min(
            sum(np.sum((p - p.mean()) ** 2) for p in (s[:a], s[a:b], s[b:]))
            for a in range(1, 6)
            for b in range(a + 1, 7)
        )
        assert np.sum((row - c[which]) ** 2) == pytest.approx(least)


def ideal_bits(labels: list[int], k: int, model: int) -> float:
    """What the model's probabilities cost, with frequencies from one half on."""
    counts: dict[int, list[Fraction]] = {}
    same, last, probability, bits = [Fraction(1, 2), Fraction(1, 2)], -1, Fraction(1), 2.0
    for x in labels:
        if model == UNIFORM:
            bits += np.log2(k)
            continue
        f = counts.setdefault(last if model == ORDER1 and last >= 0 else 0, [Fraction(1, 2)] * k)
        total, other = sum(f), int(x != last)
        probability = Fraction(1)
        if model == RUNS and last >= 0:
            probability *= same[other] / sum(same)
            same[other] += 1
            total -= f[last]
        if model != RUNS or last < 0 or other:
            probability *= f[x] / total
            f[x] += 1
        bits -= np.log2(float(probability))
        last = x
    return float(bits)


@pytest.mark.parametrize("model", [UNIFORM, ORDER0, ORDER1, RUNS])
@pytest.mark.parametrize("k", [2, 3, 4, 15])
def test_a_code_is_as_long_as_its_model_says(model: int, k: int) -> None:
    rng = np.random.default_rng(k)
    for row in (rng.integers(0, k, 400), np.sort(rng.integers(0, k, 400)), np.minimum(rng.geometric(0.7, 400), k) - 1):
        codes = encode_labels(row[None].astype(np.uint8), k, model)
        ideal = ideal_bits(list(row), k, model) / 8
        assert ideal - 2 <= len(codes[0]) <= ideal * 1.001 + 1.5
        assert np.array_equal(decode_labels(codes, 400, k)[0], row)


def test_many_rows_cost_what_one_costs() -> None:
    """A thousand clients in one call give the bytes of a thousand calls."""
    x = np.random.default_rng(0).normal(size=(1000, 20))
    together = by_name("kmeans:4").encode(x, np.arange(1000), 0).payload
    apart = Ragged.of([by_name("kmeans:4").encode(x[i : i + 1], i, 0).payload[0] for i in range(0, 1000, 50)])
    assert np.array_equal(together.take(np.arange(0, 1000, 50)).values, apart.values)
