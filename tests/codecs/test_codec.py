"""Damaged bytes, wrong codecs, and rows that no codec sends."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.codecs import DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER, by_name
from coterie.codecs.compression import FEEDBACKS, ORDERS
from coterie.errors import CoterieError
from coterie.federation import Ragged
from tests.messages import names

NAMES = (
    *("none", "float32", "float16", "qsgd:4", "qsgd:2:coded", "topk:2", "sign", "kmeans:4", "kmeans:2"),
    "lowrank:1",
)
every_codec = pytest.mark.parametrize("name", NAMES)


def message(name: str, d: int = 12, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    x = np.full((1, d), 0.1) + spread * np.random.default_rng(d).normal(size=(1, d))
    sent = by_name(name).encode(x, 0, 0)
    return sent.payload[0], sent.claimed


def refused(name: str, data: np.ndarray, d: int) -> bool:
    with pytest.raises(CoterieError, match="Row 0") as error:
        by_name(name).decode(Ragged.of([data]), d)
    assert str(error.value).count(".") <= 2
    return True


@every_codec
@pytest.mark.parametrize("d", [1, 2, 12])
def test_every_flipped_bit_is_found(name: str, d: int) -> None:
    data, _ = message(name, d)
    for bit in range(8 * len(data)):
        hurt = data.copy()
        hurt[bit // 8] ^= 1 << bit % 8
        assert refused(name, hurt, d)


@every_codec
def test_every_burst_up_to_the_checksum_is_found(name: str) -> None:
    data, _ = message(name)
    rng = np.random.default_rng(0)
    for at in range(len(data) - 1):
        for _ in range(8):
            hurt = data.copy()
            hurt[at : at + 2] ^= rng.integers(1, 256, size=2, dtype=np.uint8)
            assert refused(name, hurt, 12)


@every_codec
def test_bytes_cut_off_or_added_are_found(name: str) -> None:
    data, _ = message(name)
    for length in range(len(data)):
        assert refused(name, data[:length], 12)
    for extra in (0, 255):
        assert refused(name, np.append(data, np.uint8(extra)), 12)
    assert refused(name, data[1:], 12)
    assert refused(name, np.zeros(40, np.uint8), 12)


@every_codec
def test_long_messages_are_covered_too(name: str) -> None:
    data, claimed = message(name, 3_000)
    assert np.array_equal(by_name(name).decode(Ragged.of([data]), 3_000), claimed)
    for bit in np.random.default_rng(1).integers(0, 8 * len(data), size=60):
        hurt = data.copy()
        hurt[bit // 8] ^= 1 << bit % 8
        assert refused(name, hurt, 3_000)


def test_a_squeezed_body_is_covered_too() -> None:
    data, claimed = message("none", 400, 0.0)
    assert len(data) < 60
    assert np.array_equal(by_name("none").decode(Ragged.of([data]), 400), claimed)
    for bit in range(8 * len(data)):
        hurt = data.copy()
        hurt[bit // 8] ^= 1 << bit % 8
        assert refused("none", hurt, 400)


def test_two_ends_that_disagree_get_an_error() -> None:
    x = np.random.default_rng(0).normal(size=(2, 12))
    order = np.arange(12)[::-1].copy()
    sent = by_name("qsgd:4").encode(x, np.arange(2), 0).payload
    ordered = by_name("qsgd:4").encode(x, np.arange(2), 0, order).payload
    for codec, payload, d, given in (
        ("qsgd:2", sent, 12, None),
        ("qsgd:4:l2", sent, 12, None),
        ("float16", sent, 12, None),
        ("qsgd:4", sent, 11, None),
        ("qsgd:4", sent, 12, order),
        ("qsgd:4", ordered, 12, None),
        ("qsgd:4", ordered, 12, np.roll(order, 1)),
    ):
        with pytest.raises(CoterieError, match="Row 0"):
            by_name(codec).decode(payload, d, given)


def test_only_the_damaged_row_is_named() -> None:
    sent = by_name("sign").encode(np.ones((3, 8)), np.arange(3), 0).payload
    values = sent.values.copy()
    values[sent.offsets[2]] ^= 1
    with pytest.raises(CoterieError, match=r"Row 2 .*codec 'sign'"):
        by_name("sign").decode(Ragged(values, sent.offsets), 8)


@every_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(name: str, bad: float) -> None:
    x = np.ones((3, 4))
    x[1, 2] = bad
    with pytest.raises(CoterieError, match=names("Row 1 NaN infinite")):
        by_name(name).encode(x, np.arange(3), 0)


@every_codec
@pytest.mark.parametrize("d", [1, 2, 7, 100])
def test_zeros_stay_zeros(name: str, d: int) -> None:
    sent = by_name(name).encode(np.zeros((2, d)), np.arange(2), 0)
    assert not sent.claimed.any()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_numbers_beyond_a_codec_are_refused_or_held(name: str) -> None:
    """Never infinite, never silently clipped."""
    codec, x = by_name(name), np.full((1, 4), 1e300)
    if name in ("float16", "lowrank:1"):
        assert np.allclose(codec.encode(x, 0, 0).claimed, x, rtol=1e-2)
    elif name != "topk:2":
        with pytest.raises(CoterieError, match="too large"):
            codec.encode(x, 0, 0)


@pytest.mark.parametrize(("order", "d"), [([0, 1, 1], 3), ([0, 1], 3), ([1, 2, 3], 3), ([[0, 1, 2]] * 3, 3)], ids=str)
def test_an_order_must_be_a_permutation(order: list[int], d: int) -> None:
    with pytest.raises(CoterieError, match="permutation"):
        by_name("sign").encode(np.ones((2, d)), np.arange(2), 0, np.array(order))


@pytest.mark.parametrize("shape", [(3,), (2, 0), (2, 2, 2)])
def test_rows_have_two_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(CoterieError, match="at least one number"):
        by_name("float32").encode(np.ones(shape), 0, 0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("float33", "Did you mean 'float32'"),
        ("qsgd:1", "'qsgd:1': bits must be a whole number from 2 to 8, not 1"),
        ("qsgd:4:l3", "norm must be max or l2"),
        ("qsgd:4:max:l2", "one norm"),
        ("topk:0", "share must be a number above 0"),
        ("topk:2.5", "share below 1"),
        ("topk:nan", "share must be a number above 0"),
        ("topk:0.1:8", "16 or 32"),
        ("kmeans:1", "k must be a whole number from 2 to 256"),
        ("kmeans:x", "does not take"),
        ("sign:3", "does not take"),
        ("lowrank:1:3", "does not take"),
        ("lowrank:0", "rank must be a whole number from 1"),
        ("lowrank:1:3x0", "a height and a width"),
    ],
)
def test_names_that_are_refused(name: str, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        by_name(name)


@every_codec
def test_names_come_back(name: str) -> None:
    codec = by_name(name)
    assert by_name(codec.name) == codec


def test_no_codec_is_float64() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5)) * 1e-200
    assert np.array_equal(by_name(None).encode(x, np.arange(2), 0).claimed, x)


def test_low_rank_wants_its_shape_and_comes_near_the_best_matrix() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(CoterieError, match=names("12 coordinates no matrices 5 x 3")):
        by_name("lowrank:1:5x3").encode(rng.normal(size=(1, 12)), 0, 0)
    x = (rng.normal(size=(2, 40, 1)) * rng.normal(size=(2, 1, 30)) + 0.3 * rng.normal(size=(2, 40, 30))).reshape(2, -1)
    left, values, right = np.linalg.svd(x.reshape(2, 40, 30))
    best = np.sqrt((values[:, 1:] ** 2).sum(axis=1))
    codec = by_name("lowrank:1:40x30")
    losses = np.array([np.linalg.norm(codec.encode(x, np.arange(2), t).claimed - x, axis=1) for t in range(20)])
    assert np.all(losses >= best) and np.all(np.median(losses, axis=0) < 0.5 * (best + np.linalg.norm(x, axis=1)))
    one = (values[:, :1, None] * left[:, :, :1] * right[:, :1]).reshape(2, -1)  # which one iteration finds
    assert np.allclose(codec.encode(one, np.arange(2), 0).claimed, one, atol=2e-3 * np.abs(one).max())


def test_the_default_is_one_of_them() -> None:
    codec, x = by_name(DEFAULT), np.random.default_rng(0).normal(size=(2, 57))
    sent = codec.encode(x, np.arange(2), 0)
    assert np.array_equal(codec.decode(sent.payload, 57), sent.claimed)
    assert np.diff(sent.payload.offsets).max() <= 16
    assert DEFAULT_FEEDBACK in FEEDBACKS and DEFAULT_ORDER in ORDERS
