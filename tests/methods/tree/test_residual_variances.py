"""A residual variance for every client, against a dense likelihood and a literal EM."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from coterie.data.clients import Clients
from coterie.errors import CoterieError
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.variances import PRIOR_ROWS
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run

M, N = 40, 12


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(M), N)
    X = np.column_stack([np.ones(M * N), rng.normal(size=M * N)])
    sd = np.exp(0.8 * rng.normal(size=M))
    theta = [1.0, -2.0] + 0.7 * rng.normal(size=(M, 2))
    y = np.einsum("ij,ij->i", X, theta[labels]) + sd[labels] * rng.normal(size=M * N)
    return Clients.from_arrays(X, y, labels), sd


def fit(clients, **options):
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(2), 0)
    return run("hierarchical", clients, problem, {"covariance": "diagonal", **options})[0]


def dense(clients, f):
    """The marginal log-likelihood at a fit's own variances and root."""
    total = 0.0
    for i in range(len(clients)):
        rows = slice(clients.starts[i], clients.stops[i])
        X = clients.X[rows]
        V = X @ f.D_client[0] @ X.T + f.client_sigma2[i] * np.eye(len(X))
        total += multivariate_normal.logpdf(clients.y[rows], X @ f.root, V)
    return total


def test_likelihood_is_that_of_dense_matrices(data):
    clients, _ = data
    f = fit(clients, residual="by-client", reml=False)
    assert f.log_likelihood == pytest.approx(dense(clients, f), abs=1e-7)


def test_a_client_keeps_the_variance_that_one_more_step_of_em_gives(data):
    clients, _ = data
    f = fit(clients, residual="by-client", reml=False)
    mean = 1.0 / np.mean(1.0 / f.client_sigma2)
    D = np.linalg.inv(f.D_client[0])
    for i in range(len(clients)):
        rows = slice(clients.starts[i], clients.stops[i])
        X, y = clients.X[rows], clients.y[rows]
        S = np.linalg.inv(X.T @ X / f.client_sigma2[i] + D)
        theta = S @ (X.T @ y / f.client_sigma2[i] + D @ f.root)
        square = np.sum((y - X @ theta) ** 2) + np.trace(X @ S @ X.T)
        assert (square + PRIOR_ROWS * mean) / (len(y) + PRIOR_ROWS) == pytest.approx(f.client_sigma2[i], rel=2e-3)


def test_variances_are_recovered_and_help(data):
    clients, sd = data
    own, common = fit(clients, residual="by-client"), fit(clients)
    assert np.corrcoef(np.log(own.client_sigma2), np.log(sd**2))[0, 1] > 0.9
    assert own.log_likelihood > common.log_likelihood + 50
    assert own.sigma2 == pytest.approx(own.client_sigma2.mean())


def test_equal_residuals_stay_nearly_equal():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 200)
    X = np.column_stack([np.ones(6000), rng.normal(size=6000)])
    y = X @ [1.0, 2.0] + rng.normal(size=30)[labels] + rng.normal(size=6000)
    f = fit(Clients.from_arrays(X, y, labels), residual="by-client")
    assert np.all(np.abs(np.log(f.client_sigma2)) < 0.4)


def test_a_client_of_one_row_keeps_a_sound_variance():
    rng = np.random.default_rng(1)
    labels = np.concatenate([[0], np.repeat(np.arange(1, 30), 8)])
    X = np.column_stack([np.ones(len(labels)), rng.normal(size=len(labels))])
    y = X @ [0.0, 1.0] + rng.normal(size=30)[labels] + rng.normal(size=len(labels))
    f = fit(Clients.from_arrays(X, y, labels), residual="by-client")
    assert np.all(np.isfinite(f.client)) and np.all(f.client_sigma2 > 0.05)


@pytest.mark.filterwarnings("error")
def test_rows_that_a_client_s_model_gives_exactly_have_no_variance_of_their_own(data):
    clients, _ = data
    exact = slice(clients.starts[0], clients.stops[0])
    y = clients.y.copy()
    y[exact] = clients.X[exact] @ [1.0, -2.0]
    few = slice(0, clients.stops[4])
    with pytest.raises(CoterieError, match="lie exactly on its model"):
        fit(Clients.from_arrays(clients.X[few], y[few], np.repeat(np.arange(5), N)), residual="by-client")


def test_rows_that_learned_variances_give_exactly_have_none_either():
    """Five clients of two rows in clusters of own variances and correlations: nothing is left but rounding."""
    rng = np.random.default_rng(58)
    m, k = int(rng.integers(3, 7)), int(rng.integers(2, 5))
    client = np.repeat(np.arange(m), k)
    x = rng.normal(size=m * k)
    y = rng.normal(size=m)[client] + 0.5 * x + rng.normal(size=m * k) * np.exp(rng.normal(size=m))[client]
    c = Clients.from_arrays(np.c_[np.ones(m * k), x], y, client, client // 2)
    problem = GroupedProblem(ClusterTree.of(c), "gaussian", np.arange(2), 0)
    with pytest.raises(CoterieError, match="lie exactly on its model"):
        run("hierarchical", c, problem, {"covariance": "full", "own": True, "residual": "by-client"})
