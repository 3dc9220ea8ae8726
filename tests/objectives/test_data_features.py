"""What is compared of clients whose rows are no table: images, and masks of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from coterie.objectives.data_features import comparable, moments


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3)], ids=["channel", "flat"])
def test_with_masks_every_pixel_is_a_row_of_its_channels_and_of_what_it_is(shape):
    rng = np.random.default_rng(0)
    X, y = rng.random((3, 2, 2, 3)), rng.integers(0, 2, (3, *shape))
    X[2, 0, 0, 0] = np.nan
    starts, stops = np.array([0, 2]), np.array([2, 3])
    clients = SimpleNamespace(X=X, y=y, starts=starts, stops=stops, counts=stops - starts, weights=np.ones(3))
    table = comparable(clients)
    assert table.starts.tolist() == [0, 12] and table.stops.tolist() == [12, 18]
    np.testing.assert_array_equal(table.X[:6], X[0].reshape(2, 6).T)
    np.testing.assert_array_equal(table.y[:12], y[:2].ravel())
    rows, weight, mean, _ = moments(table, np.arange(3), np.zeros(3), np.ones(3))
    assert rows.tolist() == [12, 5]  # a pixel that is no number weighs nothing
    np.testing.assert_allclose(weight, [2.0, 5 / 6])
    np.testing.assert_allclose(mean[0], [*X[:2].mean(axis=(0, 2, 3)), y[:2].mean()])
