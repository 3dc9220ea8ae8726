"""Forces of a drawing, compiled, against their twin."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.relations.network import Network
from coterie.report import network_figures
from tests.reference import graph_layout_twin as twin


@pytest.mark.parametrize("side", [1, 4, 7])
def test_push(side):
    place, force = np.random.default_rng(0).normal(size=(60, 2)), np.empty((60, 2))
    network_figures.repel(place, side, force)
    np.testing.assert_allclose(force, twin.repel(place, side), rtol=1e-9)


def test_settle():
    rng = np.random.default_rng(1)
    network, place = Network.random(25, 3), rng.normal(size=(25, 2)) * 4
    pull, moved = rng.uniform(0.2, 2.0, len(network)), place.copy()
    network_figures.relax(moved, network.edges, pull, 3, 8)
    np.testing.assert_allclose(moved, twin.relax(place, network.edges, pull, 3, 8), rtol=1e-8, atol=1e-10)


def test_many_cells_come_close_to_no_cells():
    place, exact, near = np.random.default_rng(2).normal(size=(2000, 2)), np.empty((2000, 2)), np.empty((2000, 2))
    network_figures.repel(place, 1, exact)
    network_figures.repel(place, 13, near)
    assert np.linalg.norm(exact - near) < 0.02 * np.linalg.norm(exact)
