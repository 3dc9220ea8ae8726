"""Labels of hidden groups pass through their channels."""

import numpy as np

from papers.paper_003.labels import noisy_labels, rotated_channels, tilted_channels


def both(partitioned):
    """X, y and client of train and test rows, aligned with ``partitioned.row``."""
    parts = partitioned.train, partitioned.test
    X, y = (np.concatenate([getattr(p, name) for p in parts]) for name in ("X", "y"))
    return X, y, np.concatenate([np.repeat(np.arange(len(p.starts)), p.stops - p.starts) for p in parts])


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
    np.testing.assert_allclose(rotated_channels(4, 0.2).sum(axis=2), 1.0)
    np.testing.assert_allclose(tilted_channels(2, 0.4), [[[0.6, 0.4], [0, 1]], [[1, 0], [0.4, 0.6]]])
    X = np.zeros((10, 1))
    exact = noisy_labels(X, np.arange(10) % 2, 5, rotated_channels(2, 0.0))
    _, labels, client = both(exact)
    np.testing.assert_array_equal(labels, (exact.row % 2 + exact.group[client]) % 2)
