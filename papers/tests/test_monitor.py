"""Gradients of groups and their variances along a run, against the notes' formulas written out."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.group_gradients import by_block, gathered, observe
from coterie.methods.groups.group_models import address
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.objectives.mixed import Mixed
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic
from coterie.relations.parameter_layout import GroupLayout
from papers.paper_000.monitor import monitored
from tests.methods.groups import test_group_models as modules
from tests.methods.test_group_sgd import COUNTS, GROUP, WEIGHTS, heads, quadratics, softmax
from tests.reference import group_sgd_twin as twin


def test_an_observation_tells_gradients_ratios_and_variances():
    o = softmax(COUNTS, 3)
    fed = InProcess(o, GROUP, WEIGHTS, seed=3)
    R, B = 5, 2
    method = GroupSGD(eta=0.2, shared=("0", "4", "5"), B=B)
    trace = monitored(fed, method, 3, every=2, replicates=R)[1]
    np.testing.assert_array_equal(trace["t"], [0, 2])
    at = list(method.run(fed, [2]))[-1]["w"]
    names, shared = [[(str(j), 1) for j in range(9)]] * 3, ["0", "4", "5"]
    x = twin.fill(twin.empty(names, shared), names, shared, at)
    theta = np.array([twin.model(x, names[g], shared, g) for g in GROUP])
    every = Draws(np.zeros(7, dtype=np.uint64), np.zeros(7, dtype=np.int64))
    g = gradient(o, theta, every)
    grad = twin.flat(twin.assembled(x, names, shared, GROUP, WEIGHTS, g))
    np.testing.assert_allclose(trace["norm"][1], grad @ grad)
    np.testing.assert_allclose(trace["shared_norm"][1], grad[:3] @ grad[:3])
    means = np.array([WEIGHTS[h == GROUP] @ g[h == GROUP] / WEIGHTS[h == GROUP].sum() for h in range(3)])
    np.testing.assert_allclose(trace["group_norm"][1], np.sum(means**2, axis=1))
    off = np.sum((means[:, [0, 4, 5]] - grad[:3]) ** 2, axis=1)
    np.testing.assert_allclose(trace["M"][1], off / (grad @ grad))
    np.testing.assert_allclose(trace["M_shared"][1], off / (grad[:3] @ grad[:3]))
    pairs = [np.sum((means[a, [0, 4, 5]] - means[b, [0, 4, 5]]) ** 2) for a in range(3) for b in range(3)]
    np.testing.assert_allclose(trace["pair"][1], max(pairs) / (grad @ grad))
    keys = keyed_random.starts(3, "look", fed.clients.ids)
    drawn = np.array([gradient(o, theta, Draws(keys, np.full(7, 2 * R + r), B)) for r in range(R)])
    whole = np.array([twin.flat(twin.assembled(x, names, shared, GROUP, WEIGHTS, one)) for one in drawn])
    blocks = np.r_[np.zeros(3), np.repeat([1, 2, 3], 6)].astype(int)
    np.testing.assert_allclose(trace["empirical"][1], np.bincount(blocks, whole.var(axis=0, ddof=1)))
    formula = twin.block_variances(names, shared, GROUP, WEIGHTS, drawn.var(axis=0, ddof=1))
    np.testing.assert_allclose(trace["formula"][1], formula)
    np.testing.assert_allclose(trace["share"][1], np.bincount(GROUP, WEIGHTS) / WEIGHTS.sum())


def test_the_notes_formula_is_the_formula_where_clients_count_alike():
    sigma = np.array([0.3, 1.0, 0.5, 2.0, 0.7, 0.4, 1.1])
    q = quadratics()
    fed = InProcess(NoisyQuadratic(q.A, q.b, sigma), GROUP)
    trace = monitored(fed, GroupSGD(eta=0.01, shared=("0",)), 1, replicates=4000)[1]
    s2 = np.array([np.mean(sigma[g == GROUP] ** 2) for g in range(3)])
    share = np.bincount(GROUP) / 7
    notes = np.concatenate([[share @ s2 / 7], share * 3 * s2 / 7])
    np.testing.assert_allclose(trace["formula"][0], notes, rtol=0.05)
    np.testing.assert_allclose(trace["empirical"][0], notes, rtol=0.08)
    np.testing.assert_allclose(trace["client"][0], 7 * notes, rtol=0.05)


def test_a_stationary_point_of_the_sum_that_is_none_of_the_groups_shows():
    A = np.tile(np.eye(2), (4, 1, 1))
    b = np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, 2.0], [-1.0, 2.0]])  # groups want x_s = 1 and -1
    fed = InProcess(Quadratic(A, b), [0, 0, 1, 1])
    trace = monitored(fed, GroupSGD(eta=0.9, shared=("0",)), 61, every=10)[1]
    assert trace["norm"][-1] < 1e-12
    np.testing.assert_allclose(trace["group_norm"][-1], 1.0, atol=1e-6)
    assert trace["pair"][-1] > 1e12
    assert (np.diff(trace["pair"]) > 0).all()
    alike = Quadratic(A, np.abs(b))
    trace = monitored(InProcess(alike, [0, 0, 1, 1]), GroupSGD(eta=0.9, shared=("0",)), 61, every=10)[1]
    assert trace["M"].max() < 1e-12
    assert trace["group_norm"][-1].max() < 1e-10


def test_groups_of_other_shapes_and_layers_that_stay_are_observed():
    fed = InProcess(Mixed.of(heads()), GROUP, WEIGHTS, seed=3)
    trace = monitored(fed, GroupSGD(eta=0.2, shared=("body",), tau=2, B=2), 4)[1]
    assert trace["M"].shape == (4, 3) and trace["formula"].shape == (4, 4)
    fed, method = InProcess(softmax(COUNTS, 3), GROUP, WEIGHTS), GroupSGD(eta=0.2, shared=("0", "1"), personal=("8",))
    assert monitored(fed, method, 5)[1]["M"].shape == (5, 3)


def test_groups_that_are_given_are_observed_as_those_of_clusters():
    o, order = softmax(COUNTS, 3), np.array([3, 0, 5, 6, 1, 4, 2])
    fields = {"eta": 0.2, "shared": ("0", "1"), "B": 2, "tau": 2}
    mixed = InProcess(o.take(order), None, WEIGHTS[order], order.astype(np.uint64))
    a = monitored(InProcess(o, GROUP, WEIGHTS), GroupSGD(**fields), 4, every=2)[1]
    b = monitored(mixed, GroupSGD(**fields, group=GROUP[order]), 4, every=2)[1]
    np.testing.assert_allclose(a["formula"], b["formula"], rtol=1e-12)


def test_gathering_is_the_transpose_of_models():
    layers = [{"a": 2, "b": 1, "c": 3}, {"c": 3, "d": 2, "a": 2}, {"a": 2, "c": 3}]
    layout = GroupLayout.of(layers, ("a", "c"))
    np.testing.assert_array_equal(by_block(layout, np.arange(8.0)), [10, 5, 13, 0])
    rng = np.random.default_rng(0)
    x, parts, share = rng.normal(size=8), [rng.normal(size=len(layout.of_group(g))) for g in range(3)], np.ones(3)
    product = sum(share[g] * (layout.models(x)[g] @ parts[g]) for g in range(3))
    assert gathered(layout, parts, share) @ x == pytest.approx(product)


@pytest.mark.soak
def test_the_variance_formula_on_two_architectures():
    fed, method, B, R = modules.federation(), GroupSGD(eta=0.3, shared=("body*",), B=3), 3, 100
    state = method.init(fed)
    layout = GroupLayout(**state["layout"])
    to = address(fed, modules.GROUP, layout.models(state["w"]), np.arange(8))
    draws, formula = [], np.zeros(3)
    for t in range(4):
        sums = fed.total(observe, **to, uncompressed=method.transport, weigh="clients", B=B, R=R, t=t, rows=0)
        draws.append(gathered(layout, sums["drawn"], np.full(2, 1 / 8)))
    X, y = (torch.tensor(a) for a in modules.data())
    for i, g in enumerate(modules.GROUP):
        module, model = modules.net(bool(g)).double(), torch.tensor(layout.models(state["w"])[g])
        nn.utils.vector_to_parameters(model, module.parameters())
        rows = []
        for r in range(modules.ROWS * i, modules.ROWS * (i + 1)):
            loss = nn.functional.cross_entropy(module(X[r : r + 1]), y[r : r + 1])
            rows.append(nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(module.parameters()))).numpy())
        variance = np.var(rows, axis=0) / B
        formula[0] += variance[:9].sum() / 8**2
        formula[1 + g] += variance[9:].sum() / 8**2
    apart = (np.concatenate(draws) - np.concatenate(draws).mean(axis=0)) ** 2 * (400 / 399)
    by = np.array([by_block(layout, row) for row in apart])
    error = by.std(axis=0, ddof=1) / np.sqrt(400)
    assert (np.abs(by.mean(axis=0) - formula) <= 2.5758 * error).all()
