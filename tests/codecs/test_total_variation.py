"""The pinned-TV codebook: what is claimed is read, budgets hold, gradients that shrink are still sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.codecs import by_name
from coterie.codecs.compression import ORDERS, Compression, coordinate_order, with_feedback
from coterie.codecs.total_variation import TotalVariation, quantised_runs
from coterie.errors import CoterieError
from coterie.numerics.total_variation import pinned_tv
from tests.messages import names

CODECS = {
    name: by_name(name)
    for name in ("tv", "tv:2", "tv:256:relative=0", "tv:all", "tv:all:relative=2:prox", "tv:4:gamma=1", "tv:bytes=12")
}
every = pytest.mark.parametrize("name", CODECS)
rows = hnp.arrays(
    np.float64, st.tuples(st.integers(0, 4), st.integers(1, 50)), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def sizes(codec: TotalVariation, x: np.ndarray) -> np.ndarray:
    return np.diff(codec.encode(x, np.arange(len(x)), 0).payload.offsets)


@every
@given(x=rows, seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_what_is_claimed_is_what_is_read(name: str, x: np.ndarray, seed: int) -> None:
    (m, d), codec = x.shape, CODECS[name]
    for order in (None, np.random.default_rng(seed).permutation(d)):
        sent = codec.encode(x, np.arange(m), 3, order)
        assert by_name(codec.name).decode(sent.payload, d, order).tobytes() == sent.claimed.tobytes()
        for i in range(m):
            assert codec.encode(x[i : i + 1], 9, 3, order).payload.values.tobytes() == sent.payload[i].tobytes()


@given(x=rows)
@settings(max_examples=60, deadline=None)
def test_something_is_kept_of_every_row(x: np.ndarray) -> None:
    for codec in (by_name("tv"), by_name("tv:2:relative=5"), by_name("tv:all:relative=1")):
        lost = codec.encode(x, np.arange(len(x)), 0).claimed - x
        size = np.sum(x * x, axis=1)
        assert np.all(np.sum(lost * lost, axis=1) <= (1.0 + 2.0**-7) * size + 1e-70)
    noise = np.random.default_rng(0).choice([-1.0, 1.0], size=(200, 30)) * np.linspace(1, 2, 30)
    for codec in (by_name("tv"), by_name("tv:2:relative=50")):
        assert np.all(np.abs(codec.encode(noise, np.arange(200), 0).claimed).max(axis=1) > 0.0)


def test_values_of_runs_are_their_means_or_the_prox() -> None:
    g = np.random.default_rng(1).normal(size=(20, 57))
    q = pinned_tv(g, 1.0)
    shrunk = TotalVariation(k=None, gamma=1.0, debias=False).encode(g, np.arange(20), 0).claimed
    np.testing.assert_allclose(shrunk, q, rtol=2.0**-8)
    means = TotalVariation(k=None, gamma=1.0).encode(g, np.arange(20), 0).claimed
    for row, runs, sent in zip(g, q, means, strict=True):
        cuts = np.flatnonzero(np.diff(runs, prepend=np.nan))
        expected = [part.mean() for part in np.split(row, cuts[1:])]
        np.testing.assert_allclose(sent[cuts], expected, rtol=2.0**-8)
    assert np.sum((means - g) ** 2) < np.sum((shrunk - g) ** 2)


def test_k_values_are_the_best_for_the_runs() -> None:
    """Against the package kmeans1d, over elements."""
    import kmeans1d

    g = np.random.default_rng(2).normal(size=(30, 40))
    centres, labels = quantised_runs(g, np.full(30, 0.7), 3, True)
    q = pinned_tv(g, 0.7)
    for row, runs, book, which in zip(g, q, centres, labels, strict=True):
        cuts = np.flatnonzero(np.diff(runs, prepend=np.nan))
        means = np.repeat([part.mean() for part in np.split(row, cuts[1:])], np.diff(cuts, append=40))
        found = kmeans1d.cluster(means, 3)
        best = np.array(found.centroids)[found.clusters]
        assert np.sum((book[which] - means) ** 2) == pytest.approx(np.sum((best - means) ** 2))
        assert not np.diff(which.astype(int))[np.diff(means) == 0.0].any()


@pytest.mark.parametrize("name", ["tv:4", "tv:2", "tv:16", "tv:all"])
@pytest.mark.parametrize("d", [1, 2, 57, 1000])
def test_a_budget_is_kept_and_used(name: str, d: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(25, d)) * 10.0 ** rng.integers(-9, 9, size=(25, 1))
    x[0], x[1] = 0.0, 1.0
    errors = []
    for budget in (22, 28, 60, 400):
        codec = by_name(f"{name}:bytes={budget}")
        sent = codec.encode(x, np.arange(25), 0)
        assert np.diff(sent.payload.offsets).max() <= budget
        errors.append(np.sum(((sent.claimed - x) / np.abs(x).max(axis=1, keepdims=True).clip(1e-9)) ** 2))
    assert errors == sorted(errors, reverse=True)
    if d == 1000 and name in ("tv:16", "tv:all"):
        assert np.diff(sent.payload.offsets)[2:].min() > 0.9 * 400


def test_an_update_of_57_coordinates_is_a_tenth_of_float32() -> None:
    x = np.random.default_rng(4).standard_t(3, size=(200, 57))
    plain = sizes(by_name("float32"), x).mean()
    assert sizes(by_name("tv"), x).mean() < plain / 10
    assert sizes(by_name("tv:2:relative=1"), x).mean() < plain / 20


def test_a_relative_weight_never_stalls_and_a_fixed_one_does() -> None:
    center, eta = np.random.default_rng(5).normal(size=(1, 57)), 0.3

    def distance(codec: TotalVariation, steps: int = 400) -> float:
        x = np.zeros((1, 57))
        for t in range(steps):
            x = x - eta * codec.encode(x - center, np.zeros(1), t).claimed
        return float(np.linalg.norm(x - center) / np.linalg.norm(center))

    assert distance(by_name("tv:4:gamma=1:prox")) > 0.3
    assert distance(by_name("tv:4:prox")) < 1e-6
    assert distance(by_name("tv")) < 1e-6


def test_error_feedback_sends_everything_in_the_end() -> None:
    g = np.random.default_rng(6).normal(size=(8, 57))
    codec, memory, total = by_name("tv"), np.zeros_like(g), np.zeros_like(g)
    for t in range(200):
        sent = with_feedback("ef", memory, g, codec, np.arange(8), t)
        memory, total = sent.memory, total + sent.estimate
    np.testing.assert_allclose(total / 200, g, atol=0.15)
    np.testing.assert_allclose(total + memory, 200 * g, rtol=1e-9)


@every
def test_damaged_bytes_are_refused(name: str) -> None:
    x = np.random.default_rng(8).normal(size=(1, 57))
    codec = CODECS[name]
    sent = codec.encode(x, np.arange(1), 3).payload
    for i in range(len(sent.values)):
        bad = sent.values.copy()
        bad[i] ^= 1 << (i % 8)
        with pytest.raises(CoterieError, match="Row 0"):
            codec.decode(type(sent)(bad, sent.offsets), 57)
        with pytest.raises(CoterieError, match="Row 0"):
            codec.decode(type(sent)(sent.values[:i], [0, i]), 57)


def test_bodies_that_cannot_be_are_refused_even_with_a_right_checksum() -> None:
    from coterie.federation import Ragged

    for body in (b"", b"\x05", b"\x05\x00", b"\x05\x00" + b"\x01" * 12, b"\x00\x00"):
        with pytest.raises(CoterieError, match=names("Row 0 not message codec 'tv:all'")):
            TotalVariation(k=None)._unpack(Ragged.of([body]), 9)
    with pytest.raises(CoterieError, match=names("Row 1 not message codec 'tv:4'")):
        TotalVariation()._unpack(Ragged.of([b"\x00" * 6, b"\x01" * 4]), 9)


def test_orders_are_what_both_ends_know() -> None:
    own, update = np.array([[3.0, -1.0, 2.0], [0.0, 0.0, -5.0]]), np.array([[0.5, 0.5, -1.0]])
    assert coordinate_order("magnitude", own, update).tolist() == [[1, 2, 0], [2, 0, 1]]
    assert coordinate_order("last-update", own, update).tolist() == [[2, 0, 1]]
    assert ORDERS == ("natural", "magnitude", "last-update")
    with pytest.raises(CoterieError, match=names("order natural magnitude last-update 'random'")):
        Compression(order="random")


def test_an_order_that_fits_makes_runs_longer() -> None:
    x = np.random.default_rng(9).normal(size=(1, 5000))
    near = x + 0.1 * np.random.default_rng(10).normal(size=x.shape)
    codec = by_name("tv:4:relative=1")
    plain, ordered = (codec.encode(x, 0, 0, o) for o in (None, coordinate_order("magnitude", near, near)))
    assert ordered.payload.offsets[-1] < 0.5 * plain.payload.offsets[-1]
    assert np.sum((ordered.claimed - x) ** 2) < 0.5 * np.sum((plain.claimed - x) ** 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: by_name("tv:1"), "k must be a whole number from 2 to 256"),
        (lambda: by_name("tv:257"), "2 to 256"),
        (lambda: by_name("tv:4:relative=-1"), "relative must be a number from 0"),
        (lambda: by_name("tv:4:gamma=-1"), "gamma must be a number from 0"),
        (lambda: by_name("tv:4:bytes=7"), "tv:4:bytes=7.*need 8 bytes an update at least, not 7"),
        (lambda: by_name("tv:four"), "has parameters that 'tv' does not take"),
        (lambda: by_name("tv:4:weight=1"), "has parameters that 'tv' does not take"),
        (lambda: by_name("tv").encode([[1.0], [1e39]], 0, 0), "Row 1 has numbers too large"),
        (lambda: by_name("tv").encode([[1.0], [np.nan]], 0, 0), "Row 1 has NaN or infinite"),
    ],
)
def test_bad_input_is_said(make: object, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        make()
