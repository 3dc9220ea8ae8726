"""How sure a client's group is, and groups of clients never seen."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.groups.evaluation import adapt, correctly_grouped, judge, judge_groups, probability
from coterie.methods.groups.find import by_restarts
from coterie.methods.ifca import IFCA
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from tests.messages import names
from tests.methods.groups.grouped_rows import federation, keeping, rows, softmax


def test_with_two_groups_the_probability_is_that_of_a_paired_t_test():
    fed, _ = federation()
    w = np.random.default_rng(1).normal(size=(2, 15))
    found = judge_groups(fed, w, held=False)
    X, y, starts, stops, _ = rows()
    o = softmax(X, y, starts, stops)
    a, b = (o.row_losses(np.tile(model, (18, 1))).reshape(18, 20) for model in w)
    gap = (b - a).mean(axis=1)
    se = (b - a).std(axis=1, ddof=1) / np.sqrt(20)
    np.testing.assert_allclose(found.margin, np.abs(gap))
    np.testing.assert_allclose(found.se, se)
    np.testing.assert_array_equal(found.group, (gap < 0).astype(int))
    np.testing.assert_allclose(found.probability, student.cdf(np.abs(gap) / se, 19))
    np.testing.assert_allclose(found.loss, np.stack([a.mean(axis=1), b.mean(axis=1)], axis=1))


def test_clear_groups_are_sure_and_identical_ones_are_not():
    fed, known = keeping(n=40)
    found = by_restarts(fed, IFCA(k=3, eta=0.5, tau=5), np.zeros(15), rounds=10, restarts=6)
    w = found.about["w"]
    clear = judge_groups(fed, w)
    assert (
        correctly_grouped(clear.group, known) == 18
        and clear.probability.min() > 0.9
        and np.median(clear.probability) > 0.98
    )
    same = judge_groups(fed, np.stack([w[0]] * 3))
    np.testing.assert_allclose(same.probability, 1.0 / 3.0)
    np.testing.assert_allclose(same.margin, 0.0)
    pair = judge_groups(fed, np.stack([w[0], w[0], w[1], w[2]]))  # the best group twice: a coin between them
    np.testing.assert_allclose(pair.probability[pair.group == 0], 0.45, atol=0.06)


def test_probabilities_are_shares_of_right_choices():
    """Of simulated clients to whom 80% is said, 80% really are better off, if any margin and noise is as likely."""
    rng = np.random.default_rng(0)
    m, n = 200_000, 8
    true, noise = rng.uniform(-30.0, 30.0, m), np.exp(rng.uniform(-2.0, 2.0, m))
    x = true[:, None] + noise[:, None] * rng.normal(size=(m, n))
    mean, se = x.mean(axis=1), x.std(axis=1, ddof=1) / np.sqrt(n)
    gap = np.stack([np.full(m, np.inf), np.abs(mean)], axis=1)
    p = probability(gap, np.stack([np.ones(m), se], axis=1), np.full(m, float(n)))
    good = np.sign(true) == np.sign(mean)
    for low, high in ((0.5, 0.65), (0.65, 0.8), (0.8, 0.9), (0.9, 0.97), (0.97, 0.999)):
        there = (p > low) & (p <= high)
        assert there.sum() > 500
        assert good[there].mean() == pytest.approx(p[there].mean(), abs=0.03)


def test_with_several_groups_it_is_a_lower_bound():
    rng = np.random.default_rng(0)
    n, k, m = 30, 4, 300
    losses = rng.normal(size=(m, n, k)) + 0.3 * rng.normal(size=(m, 1, k))
    mean = losses.mean(axis=1)
    best = mean.argmin(axis=1)
    worse = losses - losses[np.arange(m), :, best][..., None]
    gap, se = worse.mean(axis=1), worse.std(axis=1, ddof=1) / np.sqrt(n)
    gap[np.arange(m), best] = np.inf
    p = probability(gap, se, np.full(m, float(n)))
    draws = rng.normal(size=(2000, m, k)) / np.sqrt(n) + mean  # the posterior of independent normal losses
    joint = (draws.argmin(axis=2) == best).mean(axis=0)
    assert (p >= 0.25).all() and (p <= joint + 0.06).all()
    assert np.corrcoef(p, joint)[0, 1] > 0.9


def test_few_rows_say_little():
    X, y, *_ = rows()
    fed = InProcess(softmax(X, y, [0, 0, 1], [0, 1, 3]))
    found = judge_groups(fed, np.random.default_rng(1).normal(size=(2, 15)), held=False)
    assert found.group[0] == -1 and found.probability[:2].tolist() == [0.5, 0.5]
    assert np.isnan(found.se[:2]).all() and np.isfinite(found.se[2]) and np.isfinite(found.margin[1])
    one = judge_groups(fed, np.zeros((1, 15)), held=False)
    assert one.probability.tolist() == [1.0, 1.0, 1.0] and np.isnan(one.margin).all()


def test_a_table_can_be_judged_too():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(30, 2)), rng.normal(size=(2, 2))
    y, starts = X @ w[0] + 0.1 * rng.normal(size=30), np.arange(0, 30, 10)
    glm = GLM(X, y, np.zeros(30), np.ones(30), starts, starts + 10, "gaussian")
    assert judge_groups(InProcess(glm), w, held=False).group.tolist() == [0, 0, 0]
    with pytest.raises(CoterieError, match=names("Quadratic tells losses single rows")):
        judge_groups(InProcess(Quadratic(np.eye(2)[None], np.zeros((1, 2)))), w, held=False)


def test_broken_models_are_never_the_best():
    fed, _ = federation()
    w = np.stack([np.full(15, np.nan), np.zeros(15)])
    found = judge_groups(fed, w, held=False)
    assert (found.group == 1).all() and (found.probability > 0.5).all()


def test_a_view_of_clients_judges_as_all_do():
    """Separable: rows depend on their own client alone."""
    X, y, starts, stops, _ = rows()
    w = np.random.default_rng(1).normal(size=(3, 15))
    fed = InProcess(softmax(X, y, starts, stops))
    whole = fed.ask(judge, w=w, held=False)
    part = fed.ask(judge, to=[7, 2], w=w, held=False)
    for name in whole:
        np.testing.assert_allclose(part[name], whole[name][[7, 2]], rtol=1e-12)


def test_new_clients_get_their_group_and_adapt_what_is_personal():
    fed, _ = federation()
    w = by_restarts(fed, IFCA(k=3, eta=0.5, tau=5), np.zeros(15), rounds=10, restarts=6).about["w"]
    X, y, starts, *_ = rows(n=30)
    few = InProcess(softmax(X[20:], y[20:], starts, np.minimum(starts + 6, len(X) - 20)))
    here = adapt(few, w)
    np.testing.assert_array_equal(here.models, w[here.group])
    short = adapt(few, w, eta=0.2, steps=5, personal=("0",))
    moved = short.models != w[short.group]
    assert moved[:, 0].all() and not moved[:, 1:].any()
    whole = adapt(few, w, eta=0.2, steps=5)
    assert (whole.models != w[whole.group]).any(axis=0).all()
    assert ((short.assignment.probability >= 1.0 / 3.0) & (short.assignment.probability <= 1.0)).all()
    with pytest.raises(CoterieError, match="head"):
        adapt(few, w, steps=1, personal=("head*",))


def test_new_clients_of_known_groups_are_recognised():
    X, y, starts, stops, known = rows(each=12)
    old = np.arange(18)
    fed = InProcess(softmax(X, y, starts[old], stops[old]))
    w = by_restarts(fed, IFCA(k=3, eta=0.5, tau=5), np.zeros(15), rounds=10, restarts=6).about["w"]
    new = InProcess(softmax(X, y, starts[18:], starts[18:] + 8))
    here = adapt(new, w, eta=0.1, steps=3)
    assert correctly_grouped(here.group, known[18:]) == 18
    nobody = InProcess(softmax(X, y, [0], [0]))
    empty = adapt(nobody, w, eta=0.1, steps=3)
    np.testing.assert_array_equal(empty.models, w[[0]])
    far = adapt(new, w, eta=1e200, steps=3)
    np.testing.assert_array_equal(far.models, w[far.group])
