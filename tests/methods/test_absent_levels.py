"""Training rows that lack a level of a category: the variances are those of the columns that rows tell of."""

import numpy as np

from coterie.data.clients import Clients
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run


def fitted(*more):
    rng = np.random.default_rng(0)
    client = np.arange(160) % 8
    x = rng.normal(size=160)
    y = x * (1.0 + 0.2 * (client % 3)) + 0.3 * client + rng.normal(size=160)
    clients = Clients.from_arrays(np.column_stack([np.ones(160), x, *(column(x) for column in more)]), y, client)
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.array([0, 1]), 0)
    return run("hierarchical", clients, problem, {"covariance": "diagonal"})[0]


def test_a_column_of_zeros_changes_nothing():
    plain, wider = fitted(), fitted(np.zeros_like)
    np.testing.assert_allclose(wider.log_likelihood, plain.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(wider.sigma2, plain.sigma2, rtol=1e-6)
    np.testing.assert_allclose(wider.client[:, :2], plain.client, atol=1e-6)


def test_a_column_that_others_give_changes_the_likelihood_by_a_constant_at_most():
    plain, wider = fitted(), fitted(lambda x: 2.0 - x)
    assert np.isfinite(wider.log_likelihood)
    np.testing.assert_allclose(wider.sigma2, plain.sigma2, rtol=1e-6)
