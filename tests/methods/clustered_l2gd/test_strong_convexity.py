"""Constants of losses, mu_F and the squares at the optimum, against dense matrices and definitions."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.federation import PerRow, work
from coterie.methods.clustered_l2gd import strong_convexity
from coterie.methods.clustered_l2gd.fit import gradients_at_optimum
from coterie.methods.clustered_l2gd.strong_convexity import client_constants
from coterie.methods.clustered_l2gd.theory import noise
from coterie.methods.given_strengths import given
from coterie.numerics.arrays import full
from coterie.objectives.constants import (
    BLOCK,
    SAFETY,
    constants,
    extreme_eigenvalues,
    hessians,
    packed_product,
    squared_gradients,
)
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTies
from tests.engines.faults import Loopback
from tests.messages import names
from tests.methods.dense import table as rows_of
from tests.methods.known_clusters import gradient, table

FAMILIES = ["gaussian", "binomial", "poisson"]


def mu_F(*arguments):  # noqa: N802
    return strong_convexity.mu_F(*arguments, tolerance=1e-6)


@work
def put(site, theta):
    site.state["at"] = theta
    return {}


def federation(glm, clusters, theta=None, **engine):
    fed = InProcess(glm, clusters, **engine)
    if theta is not None:
        fed.ask(put, theta=PerRow(theta))
    return fed


def slices(glm, i):
    rows = slice(glm.starts[i], glm.stops[i])
    return glm.X[rows], glm.offset[rows], glm.weights[rows]


def second(family, eta):
    e = np.exp(eta)
    return {"gaussian": np.ones_like(eta), "binomial": e / (1 + e) ** 2, "poisson": e}[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_smoothness_against_its_definition(family) -> None:
    glm, _ = table(family)
    theta = np.random.default_rng(1).normal(size=(len(glm), glm.p)) * 0.5
    c, least = constants(glm, theta), hessians(glm, theta)
    assert c.local == (family == "poisson")
    np.testing.assert_array_equal(c.rows, glm.counts)
    for i in range(len(glm)):
        X, offset, w = slices(glm, i)
        v = {"gaussian": 1.0, "binomial": 0.25}.get(family)
        if v is None:
            v = SAFETY * np.maximum(np.exp(offset), np.exp(offset + X @ theta[i]))
        values = np.linalg.eigvalsh((X.T * (w * v)) @ X)
        assert c.L[i] == pytest.approx(values[-1], rel=1e-12)
        assert c.L_row[i] == pytest.approx(len(w) * np.max(w * v * np.sum(X**2, axis=1)), rel=1e-12)
        np.testing.assert_allclose(full(least[i]), (X.T * (w * second(family, offset + X @ theta[i]))) @ X, atol=1e-12)
        if family == "gaussian" and len(X) >= 3:
            assert c.mu[i] == pytest.approx(values[0], rel=1e-8)
        else:
            assert c.mu[i] == 0.0
    assert (c.L_row * (1 + 1e-12) >= c.L).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_differ_as_little_as_promised(family) -> None:
    """On the line to theta, and a little to its side: what L of a Poisson outcome is for."""
    glm, _ = table(family)
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(len(glm), glm.p)) * 0.5
    c, grad = constants(glm, theta), gradient(glm)
    reach = np.log(SAFETY) / np.max(np.abs(glm.X).sum(axis=1))
    for _ in range(20):
        a, b = (rng.uniform(size=(len(glm), 1)) * theta + reach * rng.uniform(-1, 1, theta.shape) for _ in range(2))
        change = np.linalg.norm(grad(a, 0) - grad(b, 0), axis=1)
        assert (change <= c.L * np.linalg.norm(a - b, axis=1) * (1 + 1e-9)).all()


def test_poisson_without_a_place_takes_the_counts() -> None:
    glm, _ = table("poisson")
    X, offset, w = slices(glm, 2)
    y = glm.y[glm.starts[2] : glm.stops[2]]
    v = SAFETY * np.maximum(y, np.exp(offset))
    assert constants(glm).L[2] == pytest.approx(np.linalg.eigvalsh((X.T * (w * v)) @ X)[-1])


def test_clients_without_rows_or_with_few() -> None:
    glm, _ = table()
    none = constants(replace(glm, stops=glm.starts))
    assert not none.L.any() and not none.L_row.any() and not none.mu.any()
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 20))
    few = GLM(X, rng.normal(size=300), np.zeros(300), np.ones(300), np.arange(30) * 10, np.arange(1, 31) * 10)
    assert not constants(few).mu.any()
    twice = GLM(X[:, [0, 1, 0]], few.y, few.offset, few.weights, few.starts, few.stops)
    assert not constants(twice).mu.any()


def test_blocks_of_matrices() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(BLOCK + 7, 3, 2))
    A = np.einsum("mni,mnj->mij", X, X)
    low, high = extreme_eigenvalues(np.stack([A[:, 0, 0], A[:, 1, 0], A[:, 1, 1]], axis=1))
    np.testing.assert_allclose(np.stack([low, high], axis=1), np.linalg.eigvalsh(A), rtol=1e-9)
    x = rng.normal(size=(len(A), 2))
    packed = np.stack([A[:, 0, 0], A[:, 1, 0], A[:, 1, 1]], axis=1)
    np.testing.assert_allclose(packed_product(packed, x), np.einsum("mij,mj->mi", A, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_squares_row_by_row(family) -> None:
    glm, _ = table(family)
    theta = np.random.default_rng(5).normal(size=(len(glm), glm.p)) * 0.5
    whole, rows = squared_gradients(glm, theta)
    np.testing.assert_allclose(whole, np.sum(gradient(glm)(theta, 0) ** 2, axis=1), rtol=1e-10)
    for i in range(len(glm)):
        one = GLM(
            glm.X, glm.y, glm.offset, glm.weights, *[np.arange(glm.starts[i], glm.stops[i]) + s for s in (0, 1)], family
        )
        each = gradient(one)(np.tile(theta[i], (len(one), 1)), 0)
        assert rows[i] == pytest.approx(len(one) * np.sum(each**2), rel=1e-10)


def test_quadratics_and_objectives_that_are_not_known() -> None:
    rng = np.random.default_rng(6)
    B = rng.normal(size=(5, 4, 3))
    q = Quadratic(np.einsum("mni,mnj->mij", B, B), rng.normal(size=(5, 3)))
    c, values = constants(q), np.linalg.eigvalsh(q.A)
    np.testing.assert_allclose(np.stack([c.mu, c.L, c.L_row]), values[:, [0, 2, 2]].T, rtol=1e-9)
    assert not c.local
    x = rng.normal(size=(5, 3))
    np.testing.assert_allclose(squared_gradients(q, x), np.tile(np.sum(q.gradient(x) ** 2, axis=1), (2, 1)))
    some = InProcess(q, np.array([0, 0, 1, 1, 1]))
    ties = ClusterTies.of(some.clients.clusters, 2, 1.0, 2.0, None)
    assert mu_F(some, ties) == pytest.approx(dense(q.A, ties)[0], rel=2e-6)
    with pytest.raises(CoterieError, match=names("smoothness str not known")):
        constants("loss")
    with pytest.raises(CoterieError, match=names("no Hessians give mu")):
        hessians("loss", x)


@pytest.mark.parametrize("engine", ["blocks", "bytes"])
def test_constants_are_asked_for_at_home(engine) -> None:
    glm, clusters = table("poisson")
    theta = np.random.default_rng(7).normal(size=(len(glm), glm.p)) * 0.3
    fed = InProcess(glm, clusters, block=3) if engine == "blocks" else Loopback(glm, clusters, sites=4)
    fed.ask(put, theta=PerRow(theta))
    c, expected = client_constants(fed, "at"), constants(glm, theta)
    for name in ("L", "L_row", "mu", "rows", "local"):
        np.testing.assert_array_equal(getattr(c, name), getattr(expected, name))
    assert not client_constants(InProcess(*table())).local
    ties = ClusterTies.of(clusters, 5, 1.0, 1.0, None)
    assert mu_F(fed, ties, "at") == pytest.approx(mu_F(federation(glm, clusters, theta), ties, "at"), rel=1e-5)


def dense(H, ties):
    """Eigenvalues of F's Hessian, written out."""
    m, d = len(H), H.shape[1]
    Z = np.zeros((m, m))
    for j, alpha in enumerate(ties.alpha):
        g = np.where(ties.clusters == j, ties.gamma, 0.0)
        Z += (1 - alpha) * (np.diag(g) - np.outer(g, g) / max(g.sum(), 1e-300))
    g = ties.alpha[ties.clusters] * ties.gamma
    Z += np.diag(g) - np.outer(g, g) / max(g.sum(), 1e-300)
    big = np.kron(Z, np.eye(d))
    for i in range(m):
        big[i * d : (i + 1) * d, i * d : (i + 1) * d] += H[i]
    return np.linalg.eigvalsh(big)


STRENGTHS = {
    "equal": (1.0, 0.5, None),
    "one cluster": (2.0, None, None),
    "apart": (0.7, 0.0, None),
    "form 2.1": (np.linspace(0.1, 3, 20), None, np.array([0.0, 0.3, 0.9, 1.0, 0.5])),
    "some own": (np.linspace(0.1, 3, 20), np.array([0.1, 2.0, 0.0, np.inf, 1.0]), None),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("few", [True, False])
def test_mu_f_against_dense_eigenvalues(family, strength, few) -> None:
    gamma, lam, alpha = STRENGTHS[strength]
    glm, clusters = table(family, rows=(1, 4) if few else (6, 9))
    ties = ClusterTies.of(clusters, 5, gamma, lam, alpha)
    theta = np.random.default_rng(8).normal(size=(len(glm), glm.p)) * 0.5
    values = dense(full(hessians(glm, theta)), ties)
    found = mu_F(federation(glm, clusters, theta, block=6), ties, "at")
    if values[0] < 1e-12 * values[-1]:
        assert found == 0.0
        assert few and strength in ("apart", "form 2.1", "some own")  # the cluster of one client has few rows
    else:
        assert values[0] * (1 - 3e-6) <= found <= values[0] * (1 + 1e-9)


def test_mu_f_with_clients_that_are_alone() -> None:
    glm, clusters = table(rows=(4, 9))
    gamma = np.where(np.arange(20) % 3 == 0, 0.0, 1.0)
    for lam in (0.0, 1.0, np.inf):
        ties = ClusterTies.of(clusters, 5, gamma, lam, None)
        found = mu_F(federation(glm, clusters), ties)
        assert found == pytest.approx(dense(full(hessians(glm, np.zeros((20, 3)))), ties)[0], rel=3e-6)
    few, clusters = table(rows=(1, 3))
    assert mu_F(federation(few, clusters), ClusterTies.of(clusters, 5, gamma, 1.0, None)) == 0.0
    assert mu_F(federation(few, clusters), ClusterTies.of(clusters, 5, 1.0, 1.0, None)) > 0.01
    one = glm.take(np.array([2]))
    for gamma_one in (0.0, 1.0):
        found = mu_F(InProcess(one), ClusterTies.of(np.array([0]), 1, gamma_one, None, None))
        assert found == pytest.approx(constants(one).mu[0], rel=1e-9)


def simulation(k: int) -> tuple[GLM, ClusterTies]:
    """Section 6.1 at m = 10 rows: k clusters of 20 clients with 20 coefficients."""
    rng, m = np.random.default_rng(9), 20 * k
    rows = np.arange(m + 1) * 10
    X = rng.normal(size=(10 * m, 20))
    glm = GLM(X, rng.normal(size=10 * m), np.zeros(10 * m), np.ones(10 * m), rows[:-1], rows[1:])
    return glm, ClusterTies.of(np.repeat(np.arange(k), 20), k, 1.0, 1.0, None)


def test_mu_f_of_the_papers_simulation() -> None:
    """All f_i have mu = 0, and mu_F is near 0.29 (ten draws: 0.288, s.d. 0.009); in less than 100 exchanges."""
    glm, ties = simulation(20)
    fed = InProcess(glm, ties.clusters)
    found = strong_convexity.mu_F(fed, ties)
    assert not constants(glm).mu.any()
    assert 0.27 < found < 0.31
    assert fed.ledger.exchanges < 100
    assert found <= mu_F(fed, ties) <= found * 1.001
    glm, ties = simulation(4)
    exact = dense(full(glm.gram(np.ones(20))[0]), ties)[0]
    assert mu_F(InProcess(glm, ties.clusters), ties) == pytest.approx(exact, rel=2e-6)


def fitted(family, gamma, lam, separate=False):
    """The exact optimum of a small table, kept by its clients."""
    t = rows_of(10, family, counts=[9] * 12, p=3, parents=([0] * 5 + [1] * 4 + [2] * 3,))
    if separate:
        t = replace(t, y=(t.X[:, 1] > 0).astype(float))
    c = t.clients()
    fed, problem = t.setting()
    theta = given(fed, problem, gamma, lam).client
    fed.ask(put, theta=PerRow(theta))
    return (
        fed,
        ClusterTies.of(c.clusters, 3, gamma, lam, None),
        GLM(c.X, c.y, c.offset, c.weights, c.starts, c.stops, family),
        theta,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_mu_f_and_noise_at_the_optimum(family) -> None:
    fed, ties, glm, theta = fitted(family, np.linspace(0.5, 2, 12), np.array([0.5, 1.0, 2.0]))
    assert mu_F(fed, ties, "at") == pytest.approx(dense(full(hessians(glm, theta)), ties)[0], rel=3e-6)
    o, grad = gradients_at_optimum(fed, ties, "at"), gradient(glm)(theta, 0)
    s = np.zeros((3, 3))
    np.add.at(s, ties.clusters, ties.gamma[:, None] * theta)
    own, network = ties.averages(s)
    phi = ties.alpha[ties.clusters, None] * ties.gamma[:, None] * (theta - network)
    psi = (1 - ties.alpha)[ties.clusters, None] * ties.gamma[:, None] * (theta - own[ties.clusters])
    np.testing.assert_allclose(grad + phi + psi, 0.0, atol=1e-4 * np.abs(grad).max())
    for got, v in ((o.phi, phi), (o.psi, psi), (o.loss, grad)):
        np.testing.assert_allclose(got, np.bincount(ties.clusters, np.sum(v**2, axis=1)), rtol=1e-9)
    assert o.start == pytest.approx(np.sum(theta**2))
    assert (o.rows > o.loss).all()
    p = np.array([0.1, 0.2, 0.3])
    assert 0 < noise(0.1, p, o.phi, o.psi, o.loss, exact=True) < noise(0.1, p, o.phi, o.psi, o.loss)


@pytest.mark.parametrize("lam", [0.0, 1.0, np.inf])
def test_mu_f_of_separated_outcomes_is_zero(lam) -> None:
    fed, ties, glm, theta = fitted("binomial", 1.0, lam, separate=True)
    assert dense(full(hessians(glm, theta)), ties)[0] > 0.0  # the exact solver's ridge holds the model back
    assert mu_F(fed, ties, "at") == 0.0


def test_units_of_columns_do_not_make_an_objective_flat() -> None:
    glm, clusters = table("binomial", rows=(6, 9))
    scaled = replace(glm, X=glm.X * [1.0, 1e-3, 1e2])
    theta = np.zeros((20, 3))
    ties = ClusterTies.of(clusters, 5, 1.0, 1.0, None)
    found = mu_F(federation(scaled, clusters, theta), ties, "at")
    assert found == pytest.approx(dense(full(hessians(scaled, theta)), ties)[0], rel=1e-4)


def test_a_missing_client_is_named() -> None:
    glm, clusters = table()
    fed = Loopback(glm, clusters, sites=4)
    fed.kill(1)
    with pytest.raises(CoterieError, match="did not answer"):
        mu_F(fed, ClusterTies.of(clusters, 5, 1.0, 1.0, None))


def test_curvatures_that_overflow_are_said_to() -> None:
    glm, clusters = table("poisson")
    with pytest.raises(CoterieError, match="overflows: rescale"):
        client_constants(InProcess(replace(glm, offset=glm.offset + 800), clusters))
