"""What every codec promises, over random rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.codecs import by_name
from coterie.codecs.quantisation import cluster_ends
from coterie.codecs.range_coder import ANY, ORDER0, ORDER1, RUNS, UNIFORM, decode_labels, encode_labels

NAMES = (
    *("none", "float32", "float16", "qsgd:4", "qsgd:2", "qsgd:4:l2:coded", "qsgd:8", "topk:0.1", "topk:3:32"),
    *("sign", "kmeans:4", "kmeans:2", "lowrank:1", "lowrank:2"),
)
UNBIASED = [name for name in NAMES if by_name(name).unbiased]
BIASED = [name for name in NAMES if not by_name(name).unbiased]

numbers = st.floats(-1e30, 1e30)
rows = hnp.arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 40)), elements=numbers)


@pytest.mark.parametrize("name", NAMES)
@given(x=rows, seed=st.integers(0, 2**63))
@settings(max_examples=40, deadline=None)
def test_what_is_claimed_is_what_is_read_in_any_order(name: str, x: np.ndarray, seed: int) -> None:
    m, d = x.shape
    codec, keys, rng = by_name(name), np.arange(m, dtype=np.uint64), np.random.default_rng(seed)
    for order in (None, rng.permutation(d), rng.permuted(np.tile(np.arange(d), (m, 1)), axis=1)):
        sent = codec.encode(x, keys, 5, order)
        read = codec.decode(sent.payload, d, order)
        assert read.tobytes() == sent.claimed.tobytes()
        assert len(sent.payload) == m
        again = codec.encode(x, keys, 5, order)
        assert again.payload.values.tobytes() == sent.payload.values.tobytes()


@pytest.mark.parametrize("name", NAMES)
@given(x=rows)
@settings(max_examples=20, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(name: str, x: np.ndarray) -> None:
    codec, keys = by_name(name), np.arange(len(x), dtype=np.uint64) + np.uint64(7)
    together = codec.encode(x, keys, 2).payload
    for i in range(len(x)):
        alone = codec.encode(x[i : i + 1], keys[i : i + 1], 2).payload
        assert alone.values.tobytes() == together[i].tobytes()


@pytest.mark.parametrize("name", BIASED)
@given(x=rows)
@settings(max_examples=60, deadline=None)
def test_biased_codecs_contract(name: str, x: np.ndarray) -> None:
    """``|C(x) - x|^2 <= (1 - 1/d) |x|^2``, what feedback needs, with room for the values' own rounding."""
    lost = by_name(name).encode(x, np.arange(len(x)), 0).claimed - x
    squares = np.sum(x * x, axis=1)
    rank = int(name.split(":")[1]) if name.startswith("lowrank") else 0
    kept = 0.0 if rank else 1.0 / x.shape[1]  # a projection on random columns never adds, but may keep nothing
    assert np.all(np.sum(lost * lost, axis=1) <= (1.0 - kept + 2.0**-7) * squares + 1e-70)


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_codecs_have_the_right_mean_and_other_draws_at_other_steps(name: str) -> None:
    x, draws = np.random.default_rng(3).normal(size=(1, 9)), 40_000
    read = by_name(name).encode(np.repeat(x, draws, axis=0), np.zeros(draws), np.arange(draws)).claimed
    error = read.std(axis=0) / np.sqrt(draws)
    assert np.all(np.abs(read.mean(axis=0) - x[0]) <= 5.0 * error + 1e-9)
    assert len(np.unique(read, axis=0)) > 1 or name == "none"
    keyed = by_name(name).encode(np.repeat(x, draws, axis=0), np.arange(draws), 0).claimed
    assert np.all(np.abs(keyed.mean(axis=0) - x[0]) <= 5.0 * keyed.std(axis=0) / np.sqrt(draws) + 1e-9)


@given(
    labels=hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 300)), elements=st.integers(0, 6)),
    more=st.integers(0, 249),
)
@settings(max_examples=60, deadline=None)
def test_labels_come_back_under_every_model(labels: np.ndarray, more: int) -> None:
    k = int(labels.max()) + 1 + more
    for models in (UNIFORM, ORDER0, ORDER1, RUNS, ANY):
        codes = encode_labels(labels, k, models)
        assert np.array_equal(decode_labels(codes, labels.shape[1], k), labels)
    packed = labels.shape[1] * np.log2(k) / 8
    assert np.diff(codes.offsets).max() <= packed + 2


@given(x=hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-9, 9, width=16)), k=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_k_means_on_a_line_is_exact(x: np.ndarray, k: int) -> None:
    """Against the package kmeans1d."""
    import kmeans1d

    x, start, cost = np.sort(x), 0, 0.0
    for end in cluster_ends(x, np.ones(len(x)), k):
        part, start = x[start:end], end
        cost += np.sum((part - part.mean()) ** 2) if len(part) else 0.0
    found = kmeans1d.cluster(x, k)
    best = np.sum((x - np.array(found.centroids)[found.clusters]) ** 2)
    assert start == len(x)
    assert cost <= best + 1e-9
