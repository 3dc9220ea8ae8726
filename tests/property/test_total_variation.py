"""Laws of the pinned total-variation prox for any vector and weight."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.numerics.total_variation import pinned_tv
from tests.reference.pinned_tv_twin import differences, objective, violation

numbers = st.one_of(st.floats(-100, 100, allow_subnormal=False), st.integers(-3, 3).map(float))
vectors = arrays(np.float64, st.integers(1, 60), elements=numbers)
weights = st.floats(1e-3, 1e3)


@settings(deadline=None)
@given(vectors, weights)
def test_it_is_the_minimum(g, weight):
    q = pinned_tv(g, weight)
    assert violation(q, g, weight) < 1e-12


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e60, 1e60)), st.floats(0.0, 1e60))
def test_sizes_may_differ_beyond_rounding(g, weight):
    q = pinned_tv(g, weight)
    assert violation(q, g, weight) <= 1e-13 * np.abs(g).max()
    assert np.abs(q).max() <= np.abs(g).max() * (1.0 + 1e-13)


@settings(deadline=None)
@given(vectors, weights)
def test_it_is_odd(g, weight):
    np.testing.assert_array_equal(pinned_tv(-g, weight), -pinned_tv(g, weight))


@settings(deadline=None)
@given(vectors, weights, st.integers(-40, 40))
def test_it_scales_with_gradient_and_weight(g, weight, exponent):
    scale = 2.0**exponent  # exactly, as no digit is lost
    np.testing.assert_array_equal(pinned_tv(scale * g, scale * weight), scale * pinned_tv(g, weight))


@settings(deadline=None)
@given(vectors, vectors, weights)
def test_it_brings_vectors_nearer(g, h, weight):
    n = min(len(g), len(h))
    apart = np.linalg.norm(pinned_tv(g[:n], weight) - pinned_tv(h[:n], weight))
    assert apart <= np.linalg.norm(g[:n] - h[:n]) + 1e-10


@settings(deadline=None)
@given(vectors, weights, weights)
def test_more_weight_varies_less_and_never_parts_what_was_one(g, one, other):
    less, more = sorted((one, other))
    loose, tight = pinned_tv(g, less), pinned_tv(g, more)
    assert np.abs(differences(tight)).sum() <= np.abs(differences(loose)).sum() + 1e-9
    assert np.abs(tight).max() <= np.abs(g).max() + 1e-9
    assert np.abs(differences(tight))[differences(loose) == 0.0].max(initial=0.0) < 1e-9


@settings(deadline=None)
@given(vectors, weights)
def test_two_halves_of_a_weight_in_turn_are_the_whole(g, weight):
    np.testing.assert_allclose(pinned_tv(pinned_tv(g, weight / 2), weight / 2), pinned_tv(g, weight), atol=1e-9)


@settings(deadline=None)
@given(vectors, weights, st.integers(0, 2**32 - 1))
def test_nothing_nearby_is_better(g, weight, seed):
    q = pinned_tv(g, weight)
    step = np.random.default_rng(seed).normal(size=len(g)) * 1e-3
    assert objective(q, g, weight) <= objective(q + step, g, weight) + 1e-9
