"""Every point of a grid of strengths is what the exact solver gives there, with far fewer looks at the rows."""

from itertools import pairwise

import numpy as np
import pytest

from coterie.data.prepare_table import prepare
from coterie.data.splits import split_rows
from coterie.engines.local_engines import InProcess
from coterie.methods import given_strengths
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.strengths import path
from coterie.objectives.holdout import HeldOut
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import objective
from papers.simulate import donor_response
from tests.engines.faults import Faults, Loopback
from tests.methods.dense import Table, table

FAMILIES = ["gaussian", "binomial", "poisson"]
COUNTS = (9, 12, 8, 10, 14, 7)
ONE, TWO = ([0, 0, 1, 1, 2, 2],), ([0, 0, 1, 1, 2, 2], [0, 0, 1])
GAMMAS, LAMS = [0.3, 1.0, 0.5], [0.2, 2.0, 0.7, 5.0]


def halves(t):
    """Every other row to train on; the rest to test on."""
    c = t.clients()
    test = np.arange(len(c.y)) % 2 == 1
    return c.subset(~test), c.subset(test)


def federation(train, held, family, **options):
    rows = HeldOut(objective(train, family), objective(held, family))
    return InProcess(rows, train.clusters, ids=train.ids, **options)


def loss(held, family, theta):
    return objective(held, family).value(theta).sum()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parents", [(), ONE, TWO], ids=["0", "1", "2"])
@pytest.mark.parametrize("z", [(), (2, 1)], ids=str)
def test_every_point_is_the_exact_solution(family, parents, z):
    t = table(61, family, COUNTS, 3, parents, z, weights=True, offset=True, scale=np.array([1.0, 3.0, 0.2]))
    train, held = halves(t)
    fed, problem = federation(train, held, family), t.problem(train)
    lams = LAMS if parents else None
    seen = []
    for point in path(fed, problem, GAMMAS, lams):
        i, j = point.at
        exact = given_strengths.given(federation(train, held, family), problem, GAMMAS[i], lams and lams[j])
        tolerance = 1e-9 if family == "gaussian" else 1e-4
        np.testing.assert_allclose(point.clients(), exact.client, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(point.root, exact.root, rtol=tolerance, atol=tolerance)
        for ours, theirs in zip(point.nodes, exact.nodes, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        assert point.held_out() == pytest.approx(loss(held, family, exact.client), rel=1e-6)
        seen.append(point.at)
    assert sorted(seen) == [(i, j) for i in range(3) for j in range(len(lams or [0]))]
    order = np.argsort(np.argsort(GAMMAS))
    steps = [abs(a[1] - b[1]) + abs(order[a[0]] - order[b[0]]) for a, b in pairwise(seen)]
    assert set(steps) <= {1, 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_other_form_and_strengths_of_each_client(family):
    t = table(62, family, COUNTS, 2, ONE)
    train, held = halves(t)
    problem, rng = t.problem(train), np.random.default_rng(0)
    gammas, alphas = [rng.uniform(0.2, 3.0, 6)], [0.0, np.array([0.2, 0.5, 1.0]), 0.9, 1.0]
    for point in path(federation(train, held, family), problem, gammas, alphas=alphas):
        alpha = alphas[point.at[1]]
        exact = given_strengths.given(federation(train, held, family), problem, gammas[0], alpha=alpha)
        np.testing.assert_allclose(point.clients(), exact.client, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_far_apart_and_at_the_edges(family):
    """Neighbours that are of no help: clients alone, clusters alone, one model."""
    t = table(65, family, COUNTS, 2, ONE)
    train, held = halves(t)
    problem = t.problem(train)
    gammas = [1e4, 0.0, np.inf, 1e-3, np.array([1.0, 0.0, 1.0, 0.0, 0.0, 2.0])]
    lams = [0.0, np.inf, 1e-3, 1e3]
    for point in path(federation(train, held, family), problem, gammas, lams):
        gamma, lam = gammas[point.at[0]], lams[point.at[1]]
        exact = given_strengths.given(federation(train, held, family), problem, gamma, lam)
        size = 1.0 + np.abs(exact.client)
        assert np.max(np.abs(point.clients() - exact.client) / size) < 2e-4, (gamma, lam)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_no_tolerance_solves_every_point_from_the_beginning(family):
    t = table(64, family, COUNTS, 2, ONE)
    train, held = halves(t)
    problem = t.problem(train)
    for point in path(federation(train, held, family), problem, GAMMAS, LAMS, tolerance=0.0):
        exact = given_strengths.given(federation(train, held, family), problem, GAMMAS[point.at[0]], LAMS[point.at[1]])
        np.testing.assert_allclose(point.clients(), exact.client, rtol=1e-8, atol=1e-9)


def test_separated_clients_keep_to_the_solution():
    """Their curvature vanishes, so that what a step gains says little of how far it goes."""
    X = np.c_[np.ones(60), np.tile([-1.0, 1.0], 30)]
    y = np.r_[X[:24, 1] > 0, np.zeros(18), np.ones(18)].astype(float)
    t = Table(X, y, [np.repeat(np.arange(10), 6), np.repeat([0, 1], 30)], "binomial")
    train, held = halves(t)
    problem = t.problem(train)
    gammas = 10.0 ** np.arange(-3.0, 1.01, 0.25)
    for point in path(federation(train, held, "binomial"), problem, gammas, [1e-3, 0.1, 10.0]):
        lam = [1e-3, 0.1, 10.0][point.at[1]]
        exact = given_strengths.given(federation(train, held, "binomial"), problem, gammas[point.at[0]], lam)
        assert abs(point.held_out() - loss(held, "binomial", exact.client)) <= 1e-6 * len(held.y)


@pytest.fixture(scope="module")
def donors():
    df, truth = donor_response(0, 600)
    c, _ = prepare(df, truth["formula"], truth["client"], truth["cluster"], "binomial")
    test = split_rows(c, 0.2, 0)
    return c.subset(~test), c.subset(test), GroupedProblem(ClusterTree.of(c), "binomial", np.arange(3), 0)


def test_the_shape_of_the_donor_table(donors):
    """Rows are read about once a point: three exchanges, and three more for each reading."""
    train, held, problem = donors
    grid = 10.0 ** np.arange(-2.0, 2.01, 0.25)
    fed, worst, exchanges, last = federation(train, held, "binomial"), 0.0, [], 0
    for n, point in enumerate(path(fed, problem, grid, grid)):
        ours = point.held_out()
        exchanges.append(fed.ledger.exchanges - last)
        last = fed.ledger.exchanges
        if n % 10 == 0:
            i, j = point.at
            exact = given_strengths.given(federation(train, held, "binomial"), problem, grid[i], grid[j])
            worst = max(worst, abs(ours - loss(held, "binomial", exact.client)) / len(held.y))
    assert worst < 1e-6
    assert np.median(exchanges[1:]) <= 6
    assert np.mean(exchanges[1:]) < 7
    assert min(exchanges) == 3


def test_blocks_and_threads_do_not_change_it(donors):
    train, held, problem = donors
    runs = []
    for options in ({"block": 64}, {"block": 4096}, {"block": 64, "threads": 1}):
        fed = federation(train, held, "binomial", **options)
        runs.append([point.held_out() for point in path(fed, problem, [0.5, 1.0], [0.1, 1.0])])
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-11)
    assert runs[2] == runs[0]


@pytest.mark.parametrize("sites", [1, 3])
def test_sites_that_speak_through_bytes_that_get_lost(donors, sites):
    train, held, problem = donors
    rows = HeldOut(objective(train, "binomial"), objective(held, "binomial"))
    far = Loopback(rows, train.clusters, ids=train.ids, sites=sites, faults=Faults(reply=0.2, seed=3))
    near = federation(train, held, "binomial")
    runs = [[p.held_out() for p in path(fed, problem, [0.5, 1.0], [0.1, 1.0])] for fed in (near, far)]
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-10)


def test_squares_are_added_up_once(donors):
    train, held, _ = donors
    fed = federation(train, held, "gaussian")
    problem = GroupedProblem(ClusterTree((np.zeros(5, dtype=np.int64),)), "gaussian", np.arange(3), 0)
    for _ in path(fed, problem, [0.5, 1.0], [0.1, 1.0, 10.0]):
        pass
    assert fed.ledger.exchanges == 2 + 2 * 6
