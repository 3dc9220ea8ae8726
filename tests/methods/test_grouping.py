"""Groups that are not known: found by updates, by restarts, by merging; their number; and how sure each client's is."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.stats import t as student

from coterie.engines import InProcess, Loopback
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.groups.confidence import adapt, judge, judge_groups, probability
from coterie.methods.groups.evaluation import (
    Groups,
    by_held_out,
    correctly_grouped,
    held_loss,
    numbered,
    training_loss,
)
from coterie.methods.groups.restarts import by_restarts, draw
from coterie.methods.groups.updates import alike, by_updates, silhouette, sketch
from coterie.methods.ifca import IFCA
from coterie.objectives.glm import GLM
from coterie.objectives.holdout import HeldOut, halves, hold_out
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax

K = 3


def rows(groups=3, each=6, n=20, seed=0, wrong=0.0):
    """Clients of a group read three classes off two columns in their own way: X, y, starts, stops, groups."""
    rng = np.random.default_rng(seed)
    m = groups * each
    known = np.arange(m) % groups
    X = np.concatenate([np.ones((m * n, 1)), rng.normal(size=(m * n, 4))], axis=1)
    way = np.concatenate([np.zeros((groups, 1, K)), 2.0 * rng.normal(size=(groups, 4, K))], axis=1)
    logits = np.einsum("rj,rjk->rk", X, way[np.repeat(known, n)])
    y = (logits + wrong * rng.normal(size=logits.shape)).argmax(axis=1)
    stops = n * np.arange(1, m + 1)
    return X, y, stops - n, stops, known


softmax = partial(Softmax.of, classes=K, ridge=1e-3)


def federation(**how):
    X, y, starts, stops, known = rows(**how)
    return InProcess(softmax(X, y, starts, stops)), known


def keeping(fraction=0.3, **how):
    X, y, starts, stops, known = rows(**how)
    return InProcess(hold_out(softmax, X, y, starts, stops, fraction)), known


# -- rows kept back


def test_rows_kept_back_are_each_in_one_part_and_drawn_by_key():
    X, y, starts, stops, _ = rows(n=10)
    both = hold_out(softmax, X, y, starts, stops, 0.3)
    assert (both.train.counts == 7).all() and (both.held.counts == 3).all()
    assert np.shares_memory(both.train.X, both.held.X)
    for i in (0, 5):
        parts = [o.X[o.starts[i] : o.stops[i], 1] for o in (both.train, both.held)]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(X[starts[i] : stops[i], 1]))
    again = hold_out(softmax, X, y, starts[[3]], stops[[3]], 0.3, ids=[3])
    np.testing.assert_array_equal(again.held.X[7:10], both.held.X[both.held.starts[3] : both.held.stops[3]])
    other = hold_out(softmax, X, y, starts, stops, 0.3, seed=1)
    assert not np.array_equal(other.held.X, both.held.X)


def test_few_rows_are_kept_back_with_care():
    X, y, *_ = rows(n=10)
    both = hold_out(softmax, X, y, [0, 0, 1, 3], [0, 1, 3, 6], 0.9)
    assert both.train.counts.tolist() == [0, 1, 1, 1] and both.held.counts.tolist() == [0, 0, 1, 2]
    with pytest.raises(CoterieError, match="between 0 and 1, not 1"):
        hold_out(softmax, X, y, [0], [5], 1.0)
    with pytest.raises(CoterieError, match="the same clients"):
        HeldOut(both.train, both.held.take(np.arange(2)))


def test_methods_see_the_rows_to_train_on_alone():
    X, y, starts, stops, _ = rows()
    both = hold_out(softmax, X, y, starts, stops)
    method = FedAvg(eta=0.5, E=3, B=4)
    one, two = (list(method.run(InProcess(o), [5]))[-1]["w"] for o in (both, both.train))
    np.testing.assert_array_equal(one, two)


# -- by updates


@pytest.mark.parametrize("how", ["k-means", "agglomerative"])
def test_updates_tell_the_groups_and_their_number(how):
    fed, known = federation()
    found = by_updates(fed, np.zeros(15), eta=0.5, steps=30, how=how)
    assert found.k == 3 and correctly_grouped(found.labels, known) == 18
    assert max(found.score, key=found.score.get) == 3 and found.sizes.tolist() == [6, 6, 6]


def test_one_step_is_told_apart_from_several():
    """What all clients have in common hides the groups after one step, here because classes are not as frequent."""
    fed, known = federation(seed=5, n=8, each=8, wrong=0.5)
    w = list(FedAvg(eta=0.5, E=1).run(fed, [1]))[-1]["w"]
    one, many = (correctly_grouped(by_updates(fed, w, eta=0.5, steps=s, k=3).labels, known) for s in (1, 50))
    assert many >= 22 and many >= one


def test_clients_send_a_short_sketch_that_keeps_cosines():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(20, 5000)) + 2.0 * rng.normal(size=(4, 5000))[np.arange(20) % 4]
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    s = sketch(u, 1024, seed=3)
    assert s.shape == (20, 1024)
    np.testing.assert_array_equal(s, sketch(u, 1024, seed=3))
    assert np.abs(s @ s.T - u @ u.T).max() < 5.0 / np.sqrt(1024)
    many = np.mean([sketch(u[:2], 64, seed) @ sketch(u[:2], 64, seed).T for seed in range(300)], axis=0)
    np.testing.assert_allclose(many, u[:2] @ u[:2].T, atol=0.03)
    assert sketch(u, 0) is u and sketch(u, 6000) is u
    fed, known = federation()
    found = by_updates(fed, np.zeros(15), eta=0.5, q=9, k=3)
    assert found.about["directions"].shape == (18, 9) and correctly_grouped(found.labels, known) >= 16


def test_clients_that_do_not_move_are_in_no_group():
    X, y, starts, stops, known = rows()
    stops = stops.copy()
    stops[4] = starts[4]
    fed = InProcess(softmax(X, y, starts, stops))
    found = by_updates(fed, np.zeros(15), eta=0.5, k=3)
    assert found.labels[4] == -1 and correctly_grouped(found.labels, known) == 17
    with pytest.raises(CoterieError, match="17 clients sent updates"):
        by_updates(fed, np.zeros(15), eta=0.5, k=17)
    with pytest.raises(CoterieError, match="not 'magic'"):
        by_updates(fed, np.zeros(15), eta=0.5, how="magic")


def test_sites_change_nothing():
    X, y, starts, stops, _ = rows()
    one = by_updates(InProcess(softmax(X, y, starts, stops)), np.zeros(15), eta=0.5, B=3, q=9, k=3)
    two = by_updates(Loopback(softmax(X, y, starts, stops), sites=3), np.zeros(15), eta=0.5, B=3, q=9, k=3)
    np.testing.assert_array_equal(one.labels, two.labels)


def test_clients_that_are_alike_are_one_group_as_often_as_promised():
    """The test is exact: of 40 federations of like clients 2 are split in the mean, and 6 or more once in 70."""
    every = (federation(groups=1, each=12, n=8, wrong=1.0, seed=s)[0] for s in range(40))
    found = [by_updates(fed, np.zeros(15), eta=0.5, k=(1, 2)) for fed in every]
    assert sum(one.k > 1 for one in found) <= 5
    for one in found:
        assert (one.k == 1) == (one.about["alike"] > 0.05) and set(one.score) == {2}
    assert min(one.about["alike"] for one in found) < 0.2 and max(one.about["alike"] for one in found) > 0.8


@pytest.mark.parametrize(("groups", "each"), [(2, 3), (3, 6), (4, 2)])
def test_few_clients_of_several_groups_are_not_taken_for_one(groups, each):
    fed, known = federation(groups=groups, each=each, n=30)
    found = by_updates(fed, np.zeros(15), eta=0.5)
    assert found.k == groups and correctly_grouped(found.labels, known) == len(known) and found.about["alike"] <= 0.05


def test_like_clients_of_unlike_sizes_are_alike():
    rng = np.random.default_rng(0)
    both = rng.normal(size=(300, 2, 12)) * np.geomspace(0.1, 3.0, 300)[:, None, None]
    both[:, :, 0] += 1.0  # what all have in common, which the noise of small clients hides
    both /= np.linalg.norm(both, axis=2, keepdims=True)
    assert 0.05 < alike(both) <= 1.0
    assert alike(both + 0.3 * rng.normal(size=(300, 1, 12))) <= 0.002
    assert alike(both[:2]) == 1.0 or alike(both[:2]) == 0.5  # of two pairings
    assert alike(np.zeros((5, 2, 3))) == 1.0


def test_halves_are_drawn_by_key_and_hold_every_row_once():
    X, y, starts, stops, _ = rows(each=2, n=7)
    stops[3] = starts[3] + 1
    whole = softmax(X, y, starts, stops)
    first, second = halves(whole, np.arange(6))
    np.testing.assert_array_equal(first.sizes() + second.sizes(), whole.sizes())
    assert first.sizes().tolist() == [3, 3, 3, 0, 3, 3] and not np.any(first.weights * second.weights)
    again = halves(softmax(X, y, starts[[2]], stops[[2]]), [2])[0]
    np.testing.assert_array_equal(again.weights[starts[2] : stops[2]], first.weights[starts[2] : stops[2]])
    kept = halves(hold_out(softmax, X, y, starts, stops), np.arange(6))
    assert sum(half.sizes() for half in kept).tolist() == [5, 5, 5, 1, 5, 5]


def test_losses_without_rows_have_no_halves():
    A = np.tile(np.eye(3), (6, 1, 1))
    fed = InProcess(Quadratic(A, np.repeat([[3.0, 0, 0], [0, 3.0, 0]], 3, axis=0)))
    found = by_updates(fed, np.zeros(3), eta=0.1, steps=5)
    assert found.k == 2 and found.about["alike"] is None


# -- by restarts of IFCA


def test_restarts_find_the_groups_and_say_how_often():
    fed, known = federation(wrong=0.3)
    found = by_restarts(fed, IFCA(k=3, eta=0.5, tau=5), np.zeros(15), rounds=8, restarts=10)
    assert correctly_grouped(found.labels, known) == 18
    assert 0.0 < found.about["same"] <= 1.0 and len(found.about["losses"]) == 10
    assert found.score[3] == found.about["losses"].min()
    at = int(np.argmin(found.about["losses"]))
    np.testing.assert_array_equal(found.labels, found.about["labels"][at])
    assert training_loss(fed, found.about["w"]) == pytest.approx(found.score[3])


def test_first_clients_are_drawn_by_key():
    every = [tuple(draw(np.arange(12, dtype=np.uint64), 3, r, seed=1)) for r in range(20)]
    assert every == [tuple(draw(np.arange(12, dtype=np.uint64), 3, r, seed=1)) for r in range(20)]
    assert all(len(set(one)) == 3 for one in every) and len(set(every)) > 10
    with pytest.raises(CoterieError, match="18 clients cannot be in 19 groups"):
        by_restarts(federation()[0], IFCA(k=19, eta=0.5), np.zeros(15), rounds=1)


def test_the_number_of_groups_by_rows_kept_back():
    fed, _ = keeping(n=40)
    found = by_updates(fed, np.zeros(15), eta=0.5, k=range(2, 6))
    chosen = by_held_out(fed, found.about["partitions"], rounds=30, eta=0.5, tau=5)
    assert chosen.k == 3 and set(chosen.score) == {1, 2, 3, 4, 5}


def test_one_group_is_chosen_where_clients_are_alike():
    X, y, starts, stops, _ = rows(groups=1, each=12, n=30, wrong=1.0)
    fed = InProcess(hold_out(softmax, X, y, starts, stops))
    found = by_updates(fed, np.zeros(15), eta=0.5, k=range(2, 5))
    assert by_held_out(fed, found.about["partitions"], rounds=30, eta=0.5, tau=5).k == 1


def test_losses_are_those_of_the_rows_kept_back():
    fed, _ = keeping()
    theta = np.random.default_rng(0).normal(size=(18, 15))
    X, y, starts, stops, _ = rows()
    o = hold_out(softmax, X, y, starts, stops, 0.3).held
    assert held_loss(fed, theta) == pytest.approx(o.value(theta).sum() / o.counts.sum())
    some = np.array([1, 4])
    assert held_loss(fed, theta, some) == pytest.approx(o.value(theta)[some].sum() / o.counts[some].sum())
    with pytest.raises(CoterieError, match="No rows were kept back"):
        held_loss(federation()[0], theta)


# -- how sure


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
    with pytest.raises(CoterieError, match="Quadratic tells no losses of single rows"):
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


# -- clients never seen


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


# -- what is found


def test_groups_are_numbered_and_matched():
    assert numbered(np.array([5, -1, 2, 5])).tolist() == [0, -1, 1, 0]
    found = Groups(numbered(np.array([1, 1, 0])))
    assert found.k == 2 and found.sizes.tolist() == [2, 1]
    assert correctly_grouped(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])) == 4
    assert correctly_grouped(np.array([0, 0, 0, -1]), np.array([0, 0, 1, 1])) == 2
    assert correctly_grouped(np.array([-1]), np.array([0])) == 0


def test_a_silhouette_of_clients_drawn_may_miss_a_small_group():
    """One client among 3000 is not drawn with every seed; then there is one group only."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = (np.arange(3000) == 7).astype(np.int64)
    found = [silhouette(points, labels, seed) for seed in range(6)]
    assert -1.0 in found and max(found) > -1.0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"eta": np.nan}, "eta must be a number above 0"),
        ({"eta": 0.5, "k": "four"}, "k must be a whole number"),
        ({"eta": 0.5, "k": [2, 2.5]}, "k must be a whole number"),
        ({"eta": 0.5, "w": np.zeros(14)}, "The common model must be 15 numbers"),
    ],
)
def test_what_updates_cannot_be_asked(how, says):
    with pytest.raises(CoterieError, match=says):
        by_updates(federation()[0], **{"w": np.zeros(15)} | how)
