"""Clients in hidden groups: every row once, groups even, angles and channels as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

from coterie.data.rotated import noisy_labels, rotated_channels, rotated_digits, tilted_channels
from coterie.errors import CoterieError


def owners(part):
    return np.repeat(np.arange(len(part.starts)), part.stops - part.starts)


def both(dealt):
    """X, y and client of train and test rows, aligned with ``dealt.row``."""
    X, y = (np.concatenate([getattr(p, name) for p in (dealt.train, dealt.test)]) for name in ("X", "y"))
    return X, y, np.concatenate([owners(dealt.train), owners(dealt.test)])


@pytest.mark.parametrize(("clients", "rotations"), [(40, (0, 90, 180, 270)), (7, (0, 30)), (1, (0,)), (898, (0, 180))])
def test_every_image_is_one_client_s_at_its_angle(clients, rotations):
    found, digits = rotated_digits(clients, rotations, seed=3), load_digits()
    X, y, client = both(found)
    np.testing.assert_array_equal(np.sort(found.row), np.arange(1797))
    np.testing.assert_array_equal(y, digits.target[found.row])
    np.testing.assert_array_equal(X[:, 0], 1.0)
    for r in range(0, 1797, 13):
        angle = rotations[found.group[client[r]]]
        image = rotate(digits.images[found.row[r]] / 16, angle, reshape=False, order=1)
        np.testing.assert_allclose(X[r, 1:].reshape(8, 8), image, atol=1e-9)
    sizes = np.bincount(found.group, minlength=len(rotations))
    assert sizes.max() - sizes.min() <= 1 and len(found.group) == clients
    counts = np.bincount(client, minlength=clients)
    assert counts.max() - counts.min() <= 1
    for part in (found.train, found.test):
        assert (part.stops > part.starts).all() and part.stops[-1] == len(part.y)
        np.testing.assert_array_equal(part.starts[1:], part.stops[:-1])


def test_a_quarter_turn_is_counter_clockwise():
    plain, turned = rotated_digits(2, (0,)), rotated_digits(2, (90,))
    up, left = (d.train.X[5, 1:].reshape(8, 8) for d in (plain, turned))
    np.testing.assert_array_equal(left, np.rot90(up))
    assert not np.array_equal(left, up)


def test_the_share_held_out_and_the_seed():
    a, b, c = (rotated_digits(40, seed=s, test_fraction=0.25) for s in (1, 1, 2))
    assert abs(len(a.test.y) / 1797 - 0.25) < 0.01
    np.testing.assert_array_equal(a.train.X, b.train.X)
    np.testing.assert_array_equal(a.group, b.group)
    assert not np.array_equal(a.row, c.row) and not np.array_equal(a.group, c.group)
    assert not np.array_equal(a.group, np.sort(a.group))  # hidden: not by the clients' numbers


def test_labels_pass_through_their_group_s_channel():
    rng = np.random.default_rng(0)
    n = 40_000
    X, y = rng.normal(size=(n, 2)), rng.integers(0, 3, n)
    T = rng.dirichlet(np.ones(3), (2, 3))
    found = noisy_labels(X, y, 10, T, seed=1)
    rows, labels, client = both(found)
    np.testing.assert_array_equal(rows, X[found.row])
    np.testing.assert_array_equal(np.sort(found.row), np.arange(n))
    for g in range(2):
        for a in range(3):
            here = (found.group[client] == g) & (y[found.row] == a)
            share = np.bincount(labels[here], minlength=3) / here.sum()
            assert (np.abs(share - T[g, a]) < 4.5 * np.sqrt(T[g, a] / here.sum()) + 1e-12).all()
    assert found.classes == 3


def test_channels():
    np.testing.assert_allclose(rotated_channels(2, 0.1), [[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]])
    np.testing.assert_allclose(rotated_channels(3, 0.0)[1], [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(rotated_channels(4, 0.2, 2).sum(axis=2), 1.0)
    assert rotated_channels(4, 0.2, 2).shape == (2, 4, 4) and rotated_channels(1).tolist() == [[[1.0]]]
    np.testing.assert_allclose(tilted_channels(2, 0.4), [[[0.6, 0.4], [0, 1]], [[1, 0], [0.4, 0.6]]])
    X = np.zeros((10, 1))
    exact = noisy_labels(X, np.arange(10) % 2, 5, rotated_channels(2, 0.0))
    _, labels, client = both(exact)
    np.testing.assert_array_equal(labels, (exact.row % 2 + exact.group[client]) % 2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: rotated_digits(0), "clients must be a whole number of at least 1"),
        (lambda: rotated_digits(2.5), "clients must be a whole number of at least 1"),
        (lambda: rotated_digits(899), "1797 rows are not enough for 899 clients"),
        (lambda: rotated_digits(4, ()), "rotations must be angles"),
        (lambda: rotated_digits(4, (np.nan,)), "rotations must be angles"),
        (lambda: rotated_digits(4, test_fraction=1.0), "test fraction must be between 0 and 1"),
        (lambda: noisy_labels([[1.0], [np.nan]], [0, 1], 1), "of finite numbers"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, 1, 1], 1), "one class for each row"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, 0.5], 1), "Classes must be whole numbers"),
        (lambda: noisy_labels([[1.0], [2.0]], ["a", "b"], 1), "Classes must be whole numbers"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, -1], 1), "Classes must be whole numbers"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, 1], 1, np.eye(2)), "channels \\(groups, classes, classes\\)"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, 1], 1, np.ones((1, 2, 2))), "adds up to 1"),
        (lambda: noisy_labels([[1.0], [2.0]], [0, 1], 2), "2 rows are not enough for 2 clients"),
        (lambda: rotated_channels(2, 0.1, 3), "2 rotations of 2 classes at most"),
        (lambda: tilted_channels(2, 1.5), "noise must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_dealt_is_named(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()
