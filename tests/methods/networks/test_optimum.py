"""The exact solver of objective (1)-(2) of paper 003 against CVXPY, against the objective written out, at its edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods import local, pooled
from coterie.methods.networks.fit import solved_end
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import optimum
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.penalised_tree import prepare
from coterie.numerics.network.edge_penalty_problem import DUAL, l1_level, project
from coterie.numerics.network.newton import slopes
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTree
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.messages import names
from tests.methods.networks.network_table import by_cvxpy, near, objective, table

FAMILIES = ("gaussian", "binomial", "poisson")
NORMS = (1, 2, np.inf)
PERSONAL = Layout.columns(3, np.arange(3))
LAYOUTS = {
    "shared": Layout.columns(3, np.array([0, 2])),
    "intercept": Layout.columns(3, np.array([0])),
    "tied": Layout(np.array([0, -1, 0]), np.array([-1, 0, -1])),
    "zero": Layout(np.array([0, -1, -1]), np.array([-1, 0, -1])),
    "sum": Layout(np.array([0, 1, -1]), np.array([0, 1, 2])),
    "all": Layout.columns(3, np.empty(0, dtype=np.int64)),
}


def is_the_minimum(glm, network, lam, p, layout):
    found = optimum(InProcess(glm), network, lam, p, layout=layout, kkt=1e-8)
    value, x, Z = by_cvxpy(glm, network, lam, p, layout)
    assert abs(found.value - value) <= 1e-7 * (1 + abs(value))
    np.testing.assert_allclose(found.theta, layout.theta(x, Z), atol=3e-4)
    here = objective(glm, network, lam, p, found.theta, found.Z)
    np.testing.assert_allclose(found.value, here, rtol=1e-12)
    return found


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_minimum(family, p):
    glm, theta = table(family=family)
    assert is_the_minimum(glm, near(theta), 0.01, p, PERSONAL).kkt <= 1e-8


@pytest.mark.parametrize(("p", "name"), list(zip((1, 2, np.inf, 2, 1, 2), LAYOUTS, strict=True)))
def test_it_is_the_minimum_whatever_is_shared(name, p):
    glm, theta = table(seed=3)
    assert is_the_minimum(glm, near(theta), 0.005, p, LAYOUTS[name]).kkt <= 1e-8


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_certificate_is_what_it_says(family, p):
    """Duals are feasible, carry the gradients over the edges, and are complementary to the differences."""
    layout = LAYOUTS["shared"]
    glm, theta = table(family=family, seed=5)
    network, lam = near(theta), 0.004
    found = optimum(InProcess(glm), network, lam, p, layout=layout, kkt=1e-7)
    assert np.all(np.linalg.norm(found.dual, DUAL[p], axis=1) <= lam * network.weight * (1 + 1e-12))
    g = gradients(glm, found.theta)
    R = glm.weights.sum()
    rows = sum(rows_squared(glm, i, found.theta[i]) for i in range(len(glm)))
    carried = np.zeros_like(found.Z)
    np.add.at(carried, network.edges[:, 0], found.dual)
    np.add.at(carried, network.edges[:, 1], -found.dual)
    off = np.sum((layout.to_personal(g) / R + carried) ** 2)
    off += np.sum((layout.to_shared(g.sum(axis=0)) / R) ** 2) / len(glm)
    assert np.sqrt(off) <= 1e-7 * np.sqrt(rows) / R * (1 + 1e-6)
    D = found.Z[network.edges[:, 0]] - found.Z[network.edges[:, 1]]
    slack = lam * network.weight @ np.linalg.norm(D, p, axis=1) - np.sum(found.dual * D)
    size = np.sqrt(np.sum(found.Z**2) + len(glm) * np.sum(found.x**2))
    assert -1e-12 <= slack <= 1e-7 * np.sqrt(rows) / R * size
    np.testing.assert_allclose(found.kkt, max(np.sqrt(off), slack / size) * R / np.sqrt(rows), rtol=1e-3)


def scores(glm, i, theta):
    rows = slice(glm.starts[i], glm.stops[i])
    eta = glm.offset[rows] + glm.X[rows] @ theta
    mean = {"gaussian": eta, "binomial": 1 / (1 + np.exp(-eta)), "poisson": np.exp(eta)}[glm.family.name]
    return (glm.weights[rows] * (mean - glm.y[rows]))[:, None] * glm.X[rows]


def gradients(glm, theta):
    return np.array([scores(glm, i, t).sum(axis=0) for i, t in enumerate(theta)])


def rows_squared(glm, i, theta):
    g = scores(glm, i, theta)
    return len(g) * np.sum(g**2)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_penalty_is_local_and_an_infinite_one_pooled(family):
    glm, theta = table(n=20, family=family)
    glm.y[: glm.stops[0]] = 1.0  # a separated client
    network = Network.nearest(theta, 4, connected=True)
    problem = GroupedProblem(ClusterTree((np.zeros(1, dtype=np.int64),)), family, np.arange(3), 0)
    fed = InProcess(glm)
    setup = prepare(fed, problem.tree, problem.family, problem.personal, 0)
    unit = setup.unit
    own, one = local.fit(fed, problem).client, pooled.fit(fed, problem).client
    held = Prior.of(network, family_named(family))
    alone = optimum(
        fed,
        network,
        0.0,
        layout=PERSONAL,
        unit=unit,
        prior=Prior.of(network, family_named(family), True, setup.prior()),
        kkt=1e-9,
    )
    np.testing.assert_allclose(alone.theta * unit, own, atol=1e-6)
    np.testing.assert_array_equal(solved_end(fed, problem, network, 0.0, PERSONAL).client, own)
    np.testing.assert_array_equal(solved_end(fed, problem, network, np.inf, PERSONAL).client, one)
    assert solved_end(fed, problem, network, 1.0, PERSONAL) is None
    assert solved_end(fed, problem, network, 0.0, LAYOUTS["shared"]) is None
    for lam in (50.0, np.inf):
        found = optimum(fed, network, lam, layout=PERSONAL, unit=unit, prior=held, kkt=1e-9)
        np.testing.assert_allclose(found.theta * unit, one, atol=1e-6)
        assert found.groups.max() == 0


def test_an_infinite_penalty_makes_one_model_for_each_component():
    glm, _ = table(n=9, family="gaussian")
    network = Network.of(9, [(0, 3), (3, 6), (1, 4), (4, 7)])
    found = optimum(InProcess(glm), network, np.inf, layout=PERSONAL, kkt=1e-10)
    np.testing.assert_array_equal(found.groups, [0, 1, 2, 0, 1, 3, 0, 1, 4])
    for k in range(5):
        rows = np.concatenate([np.arange(glm.starts[i], glm.stops[i]) for i in np.flatnonzero(found.groups == k)])
        root = np.sqrt(glm.weights[rows])
        exact = np.linalg.lstsq(root[:, None] * glm.X[rows], root * (glm.y - glm.offset)[rows])[0]
        np.testing.assert_allclose(found.theta[found.groups == k], np.tile(exact, (np.sum(found.groups == k), 1)))


def test_a_start_saves_exchanges_and_units_only_change_what_is_penalised():
    glm, theta = table(n=30, rows=30)
    fed, network = InProcess(glm), near(theta)
    first = optimum(fed, network, 0.01, layout=PERSONAL)
    again = optimum(fed, network, 0.01, layout=PERSONAL, start=first)
    assert again.exchanges == 1 and again.kkt == pytest.approx(first.kkt)
    close = optimum(fed, network, 0.0095, layout=PERSONAL, start=first)
    assert close.exchanges < first.exchanges
    unit = np.array([1.0, 3.0, 0.5])
    scaled = replace(glm, X=glm.X / unit)
    other = optimum(InProcess(scaled), network, 0.01, layout=PERSONAL, unit=unit)
    np.testing.assert_allclose(other.theta, first.theta, atol=1e-5)


@pytest.mark.parametrize("p", NORMS)
def test_admm_finds_the_same_without_hessians(p):
    glm, theta = table(n=20)
    network, fed = near(theta), InProcess(glm)
    held = Prior.of(network, family_named("binomial"))
    for layout in (PERSONAL, LAYOUTS["shared"]):
        newton = optimum(fed, network, 0.005, p, layout=layout, prior=held, kkt=1e-8)
        bytes_up = fed.ledger.bytes_up
        found = optimum(fed, network, 0.005, p, layout=layout, prior=held, kkt=1e-6, solver="admm")
        assert found.kkt <= 1e-6 and abs(found.value - newton.value) <= 1e-6 * newton.value
        np.testing.assert_allclose(found.theta, newton.theta, atol=1e-3)
        assert fed.ledger.bytes_up - bytes_up <= found.exchanges * 20 * 8 * (3 + 3)
    with pytest.raises(CoterieError, match="use Newton"):
        optimum(fed, network, 1.0, layout=LAYOUTS["tied"], solver="admm")


def test_hard_cases_end():
    """Few rows, a column of zeros, a client without weight, equal columns, a count far too high, clients alone."""
    glm, _ = table(n=12, rows=2, family="poisson")
    glm.X[:, 2] = glm.X[:, 1]
    glm.y[3], glm.offset[4] = 3000.0, 10.0
    glm.weights[glm.starts[5] : glm.stops[5]] = 0.0
    network = Network.of(12, [(0, 5), (5, 6), (6, 0), (1, 2)])
    held = Prior.of(network, family_named("poisson"))
    for lam in (1e-8, 1e-3, 10.0, np.inf):
        found = optimum(InProcess(glm), network, lam, layout=PERSONAL, prior=held)
        assert found.kkt <= 1e-6 and np.isfinite(found.theta).all()
    flat, _ = table(n=4, rows=1, family="gaussian")
    flat.X[:, 1] = 0.0
    found = optimum(InProcess(flat), Network.of(4, [(0, 1), (2, 3)]), 1e-3, layout=PERSONAL)
    assert found.kkt <= 1e-6 and np.abs(found.theta[:, 1]).max() < 1e-6
    one, _ = table(n=1)
    assert optimum(InProcess(one), Network.of(1, []), 1.0, layout=PERSONAL).kkt <= 1e-6


@pytest.mark.parametrize("lam", [1e-9, 1e-4, 1.0, np.inf])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_that_are_fitted_exactly_end_at_once(lam, rows):
    """Nothing is left then but rounding, beside which no gradient looks small."""
    glm, theta = table(n=6, rows=rows, family="gaussian")
    glm.y[:] = glm.offset + glm.X @ np.array([3.0, -1.0, 2.0])
    for network in (near(theta), Network.of(6, [(0, 1), (2, 3)])):
        found = optimum(InProcess(glm), network, lam, layout=PERSONAL)
        assert found.kkt <= 1e-6 and found.exchanges < 20
        theta = np.repeat(found.theta, np.diff([*glm.starts, len(glm.y)]), axis=0)
        np.testing.assert_allclose(glm.offset + np.sum(glm.X * theta, axis=1), glm.y, atol=1e-6)


def test_bad_input():
    glm, theta = table(n=6)
    fed, network = InProcess(glm), near(theta)
    with pytest.raises(CoterieError, match=names("7 clients federation 6")):
        optimum(fed, Network.complete(7), 1.0, layout=PERSONAL)
    with pytest.raises(CoterieError, match="use rounds"):
        optimum(InProcess(Quadratic(np.eye(3)[None], np.zeros((1, 3)))), Network.of(1, []), 1.0, layout=PERSONAL)
    huge, _ = table(n=6, family="poisson")
    with pytest.raises(CoterieError, match="logarithm of a size"):
        optimum(InProcess(replace(huge, offset=np.full(len(huge.y), 800.0))), network, 1.0, layout=PERSONAL)


@pytest.mark.parametrize("p", NORMS)
def test_projections_and_their_derivatives(p):
    """A projection is nearest among many feasible points; its derivative is that of differences."""
    rng = np.random.default_rng(4)
    edges = np.array([[0, 1]])
    for _ in range(30):
        y, radius = rng.normal(size=4), rng.uniform(0.3, 3.0)
        at = y.copy()
        project(at, float(p), radius, 0.0)
        assert np.linalg.norm(at, DUAL[p]) <= radius * (1 + 1e-12)
        others = rng.normal(size=(200, 4))
        others *= radius * rng.uniform(size=(200, 1)) / np.linalg.norm(others, DUAL[p], axis=1, keepdims=True)
        assert np.all(np.sum((others - at) * (y - at), axis=1) <= 1e-10)
        a, b = slopes(
            np.stack([y, np.zeros(4)]), np.zeros((1, 4)), 1.0, (edges, np.array([radius]), float(p)), np.zeros(1)
        )
        d = 1e-6 * rng.normal(size=4)
        across = b[0] * (b[0] @ d) if len(b) else 0.0
        up, down = y + d, y - d
        project(up, float(p), radius, 0.0)
        project(down, float(p), radius, 0.0)
        np.testing.assert_allclose((up - down) / 2e-6, (a[0] * d - across) / 1e-6, atol=1e-5)


def test_a_projection_ends_where_rounding_alternates():
    rng = np.random.default_rng(0)
    for _ in range(20_000):
        y = np.sort(rng.uniform(0.3, 2.0, 4))[::-1].copy()
        radius = rng.uniform(0.05, 0.9)
        near_level = (y[:3].sum() - radius) / 3
        y[3] = near_level * (1 + rng.integers(-3, 4) * 2.2e-16)
        if near_level > 0.0 and y.sum() > radius:
            assert abs(np.maximum(y - l1_level(y, radius, 0.0), 0.0).sum() - radius) < 1e-12
