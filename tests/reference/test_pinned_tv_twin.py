"""The pinned total-variation prox against a literal string, the corrected Algorithm 4, and CVXPY."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics.total_variation import pinned_tv
from tests.reference.pinned_tv_twin import admm, exact, objective, transposed, violation


def cases(n: int) -> list[tuple[np.ndarray, float]]:
    """Vectors of 1 to 40 elements with ties, zeros, offsets, small and large sizes, and weights of all sizes."""
    rng = np.random.default_rng(3)
    out = []
    for i in range(n):
        d = int(rng.integers(1, 41)) if i % 4 else i // 4 % 3 + 1
        g = rng.normal(size=d) + rng.choice([0.0, 0.0, 3.0, -3.0])
        g = [g, np.round(g), np.cumsum(g), g * (rng.random(d) < 0.3), np.sort(g)][i % 5]
        out.append((g * rng.choice([1e-3, 1.0, 1e3]), float(rng.choice([0.0, 1e-2, 0.1, 0.5, 1.0, 3.0, 30.0, 1e6]))))
    return out


def test_it_is_the_literal_string() -> None:
    for g, weight in cases(600):
        np.testing.assert_allclose(pinned_tv(g, weight), exact(g, weight), rtol=0, atol=1e-12 * max(1, np.abs(g).max()))


@pytest.mark.soak
def test_it_is_what_cvxpy_finds() -> None:
    import cvxpy as cp

    for g, weight in cases(200):
        size = np.abs(g).max() or 1.0  # in units that suit the solver, and no weight far beyond what clears all
        gamma = min(weight / size, 2.0 * len(g))
        q = cp.Variable(len(g))
        jumps = cp.abs(q[-1]) + (cp.norm1(cp.diff(q)) if len(g) > 1 else 0.0)
        problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(q - g / size) + gamma * jumps))
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
        np.testing.assert_allclose(pinned_tv(g, weight) / size, q.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("weight", "rho", "iterations"), [(0.1, 3.0, 200), (1.0, 3.0, 500), (5.0, 10.0, 5000)])
def test_the_corrected_algorithm_4_comes_to_it(weight: float, rho: float, iterations: int) -> None:
    g = np.random.default_rng(0).normal(size=200)
    q = pinned_tv(g, weight)
    y = next(itertools.islice(admm(g, weight, rho), iterations, None))
    np.testing.assert_allclose(y, q, rtol=0, atol=1e-6)
    assert objective(q, g, weight) <= objective(y, g, weight) * (1.0 + 1e-12)


def test_it_is_half_of_the_plain_prox_of_the_vector_and_its_negative_mirror() -> None:
    g = np.random.default_rng(1).normal(size=300) + 0.2
    mirrored = np.concatenate([g, -g[::-1]])
    # the plain prox has no tie at its end: its dual is 0 there as at its start
    u = np.cumsum(mirrored - np.concatenate([(q := pinned_tv(g, 2.0)), -q[::-1]]))
    assert abs(u[-1]) < 1e-12
    assert np.abs(u).max() <= 2.0 + 1e-12


@pytest.mark.parametrize("weight", [0.1, *(pytest.param(w, marks=pytest.mark.soak) for w in (1.0, 5.0)), 1e3])
@pytest.mark.parametrize("offset", [0.0, 1e6, pytest.param(-1e6, marks=pytest.mark.soak)])
@pytest.mark.parametrize("shape", ["noise", "walk", "steps"])
def test_a_million_elements_far_from_zero_lose_nothing(shape: str, offset: float, weight: float) -> None:
    noise = np.random.default_rng(2).normal(size=10**6)
    g = {"noise": noise, "walk": np.cumsum(noise), "steps": np.repeat(noise[:1000], 1000) * 10 + noise}[shape] + offset
    q = pinned_tv(g, weight)
    assert violation(q, g, weight) < 1e-12 * np.abs(g).max()


def test_rows_have_their_own_weights() -> None:
    rng = np.random.default_rng(4)
    rows, weight = rng.normal(size=(30, 57)), rng.exponential(size=30)
    weight[:2] = 0.0, np.inf
    found = pinned_tv(rows, weight)
    for q, g, w in zip(found, rows, weight, strict=True):
        assert np.array_equal(q, pinned_tv(g, w))
    assert np.array_equal(found[0], rows[0])
    assert not found[1].any()
    assert np.array_equal(pinned_tv(rows[:, ::-1], 1.0)[3], pinned_tv(np.ascontiguousarray(rows[3, ::-1]), 1.0))


def test_one_and_two_elements() -> None:
    assert pinned_tv([3.0], 1.0).tolist() == [2.0]
    assert pinned_tv([-3.0], 1.0).tolist() == [-2.0]
    assert pinned_tv([0.5], 1.0).tolist() == [0.0]
    assert pinned_tv([0.0, 5.0], 1.0).tolist() == [1.0, 3.0]
    assert pinned_tv([5.0, 0.0], 1.0).tolist() == [4.0, 0.0]


def test_a_weight_no_cumulative_sum_exceeds_leaves_nothing() -> None:
    g = np.random.default_rng(5).normal(size=500)
    most = np.abs(np.cumsum(g)).max()
    assert not pinned_tv(g, most * (1 + 1e-12)).any()
    assert pinned_tv(g, most * (1 - 1e-6)).any()
    assert transposed(np.cumsum(g)) == pytest.approx(g)


@pytest.mark.parametrize(
    ("g", "weight", "sentence"),
    [
        ([1.0, np.nan], 1.0, "Row 0 has elements not finite"),
        ([[1.0, 2.0], [1.0, np.inf]], 1.0, "Row 1 has elements"),
        ([1e300], 1.0, "beyond 1e\\+280"),
        ([1.0], -1.0, "not negative"),
        ([1.0], np.nan, "not negative"),
        ([[1.0], [2.0]], [1.0, 2.0, 3.0], "one for each of 2 rows"),
        (np.zeros((1, 1, 1)), 1.0, "not 3 axes"),
        (1.0, 1.0, "not 0 axes"),
    ],
)
def test_bad_input_is_said(g: object, weight: object, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        pinned_tv(g, weight)


def test_nothing_is_nothing() -> None:
    assert pinned_tv([], 1.0).shape == (0,)
    assert pinned_tv(np.zeros((0, 3)), 1.0).shape == (0, 3)
