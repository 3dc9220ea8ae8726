"""Clients in hidden groups: every row once, groups even, angles as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

from coterie.data.partition import rotated_digits
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


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: rotated_digits(0), "clients must be a whole number of at least 1"),
        (lambda: rotated_digits(2.5), "clients must be a whole number of at least 1"),
        (lambda: rotated_digits(899), "1797 rows are not enough for 899 clients"),
        (lambda: rotated_digits(4, ()), "rotations must be angles"),
        (lambda: rotated_digits(4, (np.nan,)), "rotations must be angles"),
        (lambda: rotated_digits(4, test_fraction=1.0), "test fraction must be between 0 and 1"),
    ],
)
def test_what_cannot_be_dealt_is_named(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()
