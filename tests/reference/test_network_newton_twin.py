"""The kernels of the exact network solver against matrices written out, and one pass over rows against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.federation import PerRow
from coterie.methods.networks.objective import derivatives
from coterie.numerics.arrays import full
from coterie.numerics.network.conjugate_gradients import (
    EdgeCurvature,
    add_ties,
    conjugate,
    curvature_times,
    factor,
    precondition,
)
from coterie.numerics.network.newton import NOBODY, multipliers, slopes
from tests.methods.networks.network_table import loss, table

N, Q, D1 = 6, 3, 2
EDGES = np.array([[0, 1], [1, 2], [0, 2], [3, 4]], dtype=np.int64)


@pytest.fixture
def problem():
    """Positive definite curvature over x and clients, and duals of edges with weights of their own."""
    rng = np.random.default_rng(0)
    J = rng.normal(size=(N, 9, Q + D1))
    H = np.einsum("nri,nrj->nij", J, J)
    blocks = tuple(np.ascontiguousarray(a) for a in (H[:, :Q, :Q], H[:, :Q, Q:], H[:, Q:, Q:].sum(axis=0)))
    return blocks, rng.normal(size=(N, Q)), rng.normal(size=(len(EDGES), Q)), rng.uniform(0.5, 2.0, len(EDGES))


def dense(blocks):
    """The curvature of (z_1, ..., z_n, x) as one matrix."""
    Hzz, Hzx, Hxx = blocks
    A = np.zeros((N * Q + D1, N * Q + D1))
    for i in range(N):
        here = slice(i * Q, (i + 1) * Q)
        A[here, here], A[here, N * Q :], A[N * Q :, here] = Hzz[i], Hzx[i], Hzx[i].T
    A[N * Q :, N * Q :] = Hxx
    return A


def incidence():
    B = np.zeros((len(EDGES) * Q, N * Q + D1))
    for e, (i, j) in enumerate(EDGES):
        B[e * Q : (e + 1) * Q, i * Q : (i + 1) * Q] = np.eye(Q)
        B[e * Q : (e + 1) * Q, j * Q : (j + 1) * Q] = -np.eye(Q)
    return B


@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_directions_are_those_of_one_large_system(problem, p):
    blocks, Z, U, radius = problem
    sigma, graph = 0.7, (EDGES, radius, p)
    a, b = slopes(Z, U, sigma, graph, np.zeros(len(EDGES)))
    assert len(b) == (0 if p == 1.0 else len(EDGES))
    P = np.zeros((len(EDGES) * Q, len(EDGES) * Q))
    for e in range(len(EDGES)):
        here = slice(e * Q, (e + 1) * Q)
        P[here, here] = np.diag(a[e]) - (np.outer(b[e], b[e]) if len(b) else 0.0)
    B = incidence()
    A, tied = dense(blocks), sigma * B.T @ P @ B
    rng = np.random.default_rng(1)
    gz, gx = rng.normal(size=(N, Q)), rng.normal(size=D1)
    stacked = np.concatenate([gz.ravel(), gx])
    oz, ox = np.empty((N, Q)), np.empty(D1)
    curvature_times(blocks, gz, gx, oz, ox)
    np.testing.assert_allclose(np.concatenate([oz.ravel(), ox]), A @ stacked)
    ties = EdgeCurvature(EDGES, sigma, a, b, NOBODY, NOBODY)
    add_ties(ties, gz, oz)
    np.testing.assert_allclose(np.concatenate([oz.ravel(), ox]), (A + tied) @ stacked)
    dz, dx, factors = np.zeros((N, Q)), np.zeros(D1), factor(blocks, ties)
    conjugate(blocks, ties, factors, dz, dx, -gz, -gx, 1e-12, 500, np.empty((3, N, Q)))
    np.testing.assert_allclose(np.concatenate([dz.ravel(), dx]), -np.linalg.solve(A + tied, stacked), atol=1e-9)
    kept = np.zeros_like(A)  # without what ties one client to another
    for i in range(N):
        here = slice(i * Q, (i + 1) * Q)
        kept[here, here] = tied[here, here]
    precondition(factors, gz, gx, oz, ox)
    np.testing.assert_allclose(np.concatenate([oz.ravel(), ox]), np.linalg.solve(A + kept, stacked), rtol=1e-7)


def test_multipliers_pull_at_both_ends(problem):
    _, Z, U, radius = problem
    P, G = np.empty_like(U), np.ones((N, Q))
    multipliers(Z, U, 0.7, (EDGES, radius, 2.0), P, np.zeros(len(EDGES)), G)
    y = U + 0.7 * (Z[EDGES[:, 0]] - Z[EDGES[:, 1]])
    expected = y * np.minimum(1.0, radius / np.linalg.norm(y, axis=1))[:, None]
    np.testing.assert_allclose(P, expected)
    np.testing.assert_allclose(G, 1.0 + (incidence().T @ expected.ravel())[: N * Q].reshape(N, Q))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_one_pass_over_rows(family):
    glm, theta = table(n=5, rows=4, family=family)
    unit = np.array([1.0, 2.0, 0.3])
    s = InProcess(glm).ask(derivatives, unit=unit, theta=PerRow(theta))
    for i, (lo, hi) in enumerate(zip(glm.starts, glm.stops, strict=True)):
        X, w, y = glm.X[lo:hi] * unit, glm.weights[lo:hi], glm.y[lo:hi]
        eta = glm.offset[lo:hi] + X @ theta[i]
        mean = {"gaussian": eta, "binomial": 1 / (1 + np.exp(-eta)), "poisson": np.exp(eta)}[family]
        v = {"gaussian": np.ones(len(y)), "binomial": mean * (1 - mean), "poisson": mean}[family]
        g = (w * (mean - y))[:, None] * X
        np.testing.assert_allclose(s["value"][i], np.sum(w * loss(family, eta, y)))
        np.testing.assert_allclose(s["g"][i], g.sum(axis=0), atol=1e-12)
        np.testing.assert_allclose(full(s["A"])[i], X.T @ ((w * v)[:, None] * X), atol=1e-12)
        np.testing.assert_allclose(s["square"][i], len(y) * np.sum(g**2))
        np.testing.assert_allclose(s["weight"][i], w.sum())
