"""The compiled noisy quadratic against its literal twin, for the same keyed numbers; its logarithm and sine."""

import numpy as np
import pytest

from coterie.numerics.keyed_random import starts
from papers.paper_004 import noisy_quadratic
from papers.paper_004.noisy_quadratic import Curve, simulate
from papers.tests.noisy_quadratic_twin import losses, pair

TIMES = [0, 1, 2, 7, 60]


def curves(d):
    rng = np.random.default_rng(d)
    half = rng.normal(size=(2, d, d)) / d**0.5
    A0, A1 = half @ half.transpose(0, 2, 1) + np.eye(d)
    x0, x1, start = rng.normal(size=(3, d))
    made = []
    for N, eta, alpha, beta, c0 in (
        (1, 0.01, 0.0, 0.0, 0),
        (3, 0.02, 0.75, 0.0, 0),
        (3, 0.02, 0.75, 0.05, 0),
        (10, 0.02, 0.5, 0.05, 1),
        (10, 0.01, 10 / 11, 1.0, 7),
    ):
        made.append(Curve(A0, A1, x0, x1, 2.0, N, eta, alpha, beta, start, c0))
    return made


@pytest.mark.parametrize("d", [1, 2, pytest.param(5, marks=pytest.mark.soak)])
def test_the_kernel_is_the_pseudo_code(d):
    ours = simulate(curves(d), TIMES, runs=3, seed=11)
    for k, curve in enumerate(curves(d)):
        for run in range(3):
            np.testing.assert_allclose(ours[k, run], losses(curve, TIMES, run, 11), rtol=1e-11)


def test_runs_depend_on_neither_threads_nor_how_many_there_are():
    few, many = (simulate(curves(2), TIMES, runs, 5, threads) for runs, threads in ((3, 1), (150, 2)))
    np.testing.assert_array_equal(few, many[:, :3])
    assert not np.any(few[:, :, 1:] == simulate(curves(2), TIMES, 3, 6)[:, :, 1:])


def test_normal_numbers():
    a, b = np.empty(40_000), np.empty(40_000)
    keys = starts(3, "noisy quadratic", np.arange(40_000, dtype=np.uint64))
    noisy_quadratic.normals(keys, 17, 1, a, b)
    for run in range(20):
        x, y = pair(3, "noisy quadratic", run, 17, 2)
        np.testing.assert_allclose((a[run], b[run]), (x[1], y[1]), rtol=1e-13)
    for values in (a, b, a * b):
        assert abs(values.mean()) < 4 / 200
        assert values.var() == pytest.approx(1.0, abs=4 * (8 / 40_000) ** 0.5)


def test_logarithm_and_turn_are_as_good_as_the_library():
    w = np.concatenate([np.linspace(1e-16, 1.0, 20_001), [2.0**-53, 2.0**0.5, 0.5**0.5, 1.0]])
    logs = np.array([noisy_quadratic.logarithm(v) for v in w])
    np.testing.assert_allclose(logs, np.log(w), rtol=1e-15, atol=1e-18)
    v = np.concatenate([np.arange(0, 1, 1 / 16), np.linspace(0.0, 1.0 - 2.0**-53, 20_001)])
    turned = np.array([noisy_quadratic.turn(u) for u in v])
    np.testing.assert_allclose(turned[:, 0], np.cos(2 * np.pi * v), atol=1e-15)
    np.testing.assert_allclose(turned[:, 1], np.sin(2 * np.pi * v), atol=1e-15)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"alpha": 1.2}, "alpha must be between 0 and 1, not 1.2."),
        ({"beta": -0.1}, "beta must be between 0 (no correction) and 1, not -0.1."),
        ({"eta": 0.0}, "eta must be positive"),
        ({"c0": 1, "beta": 0.0}, "give a beta in (0, 1] for BC"),
        ({"A1": np.eye(3)}, "A1 must be finite and of shape (2, 2)"),
        ({"A0": np.diag([1.0, -1.0])}, "A0 must be symmetric with positive eigenvalues"),
        ({"start": [0.0, np.nan]}, "start must be finite and of shape (2,)"),
    ],
)
def test_what_has_no_meaning_is_refused(changed, sentence):
    from dataclasses import replace

    from coterie import CoterieError

    with pytest.raises(CoterieError) as refused:
        replace(curves(2)[3], **changed)
    assert sentence in str(refused.value)
