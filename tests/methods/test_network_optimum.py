"""The exact solver of objective (1)-(2) of seed 003 against CVXPY, against the objective written out, at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.network.optimum import optimum
from coterie.relations.layout import Layout
from coterie.relations.network import Network
from tests.methods.network_table import by_cvxpy, near, objective, table

LAYOUTS = {
    "personal": Layout.columns(3, np.arange(3)),
    "one-shared": Layout.columns(3, np.array([0, 2])),
    "intercept": Layout.columns(3, np.array([0])),
    "tied": Layout(np.array([0, -1, 0]), np.array([-1, 0, -1])),
    "zero": Layout(np.array([0, -1, -1]), np.array([-1, 0, -1])),
}


@pytest.mark.parametrize("lam", [1e-3, 0.02])
@pytest.mark.parametrize("p", [1, 2, np.inf])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("name", ["personal", "one-shared"])
def test_it_is_the_minimum(name, family, p, lam):
    layout = LAYOUTS[name]
    glm, theta = table(family=family)
    network = near(theta)
    found = optimum(InProcess(glm), network, lam, p, layout=layout, kkt=1e-8)
    value, x, Z = by_cvxpy(glm, network, lam, p, layout)
    assert found.kkt <= 1e-8
    assert abs(found.value - value) <= 1e-7 * (1 + abs(value))
    np.testing.assert_allclose(found.x, x, atol=2e-4)
    np.testing.assert_allclose(found.Z, Z, atol=2e-4)
    here = objective(glm, network, lam, p, found.theta, found.Z)
    np.testing.assert_allclose(found.value, here, rtol=1e-12)
