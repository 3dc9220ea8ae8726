"""Groups that are known: the augmented model's gradient, its variance, its diagnostics, and what is refused."""

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.scaffold import Scaffold
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.objectives.mixed import Mixed
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from coterie.relations.parameter_layout import GroupLayout
from tests.messages import names
from tests.reference import group_sgd_twin as twin

COUNTS = np.array([4, 7, 5, 3, 6, 8, 5])
GROUP = np.array([0, 0, 0, 1, 1, 2, 2])
WEIGHTS = np.array([1.0, 0.5, 2.0, 1.0, 1.5, 1.0, 0.7])


def softmax(counts, classes, seed=0, p=3):
    rng = np.random.default_rng(seed)
    stops = np.cumsum(counts)
    n = stops[-1]
    return Softmax.of(rng.normal(size=(n, p)), rng.integers(0, classes, n), stops - counts, stops, classes, ridge=0.05)


def quadratics(m=7, d=4, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    return Quadratic(root @ root.transpose(0, 2, 1) / d + np.eye(d), rng.normal(size=(m, d)))


def last(method, fed, rounds):
    state = method.init(fed)
    for _ in range(rounds):
        state = method.step(fed, state)
    return state


def test_one_step_is_sgd_on_the_augmented_objective():
    q = quadratics()
    fed = InProcess(q, GROUP, WEIGHTS)
    state = last(GroupSGD(eta=0.1, shared=("1", "3")), fed, 6)
    A, b = q.A, q.b

    def f(x):
        total = 0.0
        for i, g in enumerate(GROUP):
            theta = np.array([x[2 + 2 * g], x[0], x[3 + 2 * g], x[1]])
            total += WEIGHTS[i] * (theta @ A[i] @ theta / 2 - b[i] @ theta)
        return total / WEIGHTS.sum()

    x = np.zeros(8)
    for _ in range(6):
        h = 1e-5
        x = x - 0.1 * np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(8)])
    np.testing.assert_allclose(state["w"], x, atol=1e-9)


@pytest.mark.parametrize("B", [0, 2])
@pytest.mark.parametrize("own", ["weighted", "averaged"])
def test_rounds_are_those_of_the_loop(own, B):
    o = softmax(COUNTS, 3)
    names = [[(str(j), 1) for j in range(9)]] * 3
    shared = ["0", "1", "2", "7"]
    fed = InProcess(o, GROUP, WEIGHTS, seed=3)
    method = GroupSGD(eta=0.2, shared=tuple(shared), tau=3, B=B, own=own)
    keys = keyed_random.starts(3, "rows", fed.clients.ids)

    def walk(i, theta, t):
        for s in range(3):
            draws = Draws(keys[i : i + 1], np.array([3 * t + s]), B)
            theta = theta - 0.2 * gradient(o.take(np.array([i])), theta[None], draws)[0]
        return theta

    x = twin.run(twin.empty(names, shared), names, shared, GROUP, WEIGHTS, None, walk, 0.2, 3, 4, own == "averaged")
    np.testing.assert_allclose(last(method, fed, 4)["w"], twin.flat(x), rtol=1e-12, atol=1e-14)


def test_all_shared_is_fedavg_and_nothing_shared_is_fedavg_in_each_group():
    o = softmax(COUNTS, 3)
    options = {"eta": 0.2, "B": 2}
    whole = last(GroupSGD(shared="*", E=1, weigh="rows", **options), InProcess(o, GROUP), 5)
    np.testing.assert_allclose(whole["w"], last(FedAvg(**options), InProcess(o, GROUP), 5)["w"], rtol=1e-12)
    apart = last(GroupSGD(E=1, weigh="rows", own="averaged", **options), InProcess(o, GROUP), 5)
    for g in range(3):
        rows = np.flatnonzero(g == GROUP)
        alone = last(FedAvg(**options), InProcess(o.take(rows), ids=rows.astype(np.uint64)), 5)
        np.testing.assert_allclose(apart["w"].reshape(3, -1)[g], alone["w"], rtol=1e-12)


def test_groups_that_are_given_are_those_of_clusters():
    o = softmax(COUNTS, 3)
    order = np.array([3, 0, 5, 6, 1, 4, 2])
    fields = {"eta": 0.2, "shared": ("0", "1"), "B": 2, "tau": 2}
    fed = InProcess(o, GROUP, WEIGHTS)
    mixed = InProcess(o.take(order), None, WEIGHTS[order], order.astype(np.uint64))
    a, method = last(GroupSGD(**fields), fed, 4), GroupSGD(**fields, group=GROUP[order])
    b = last(method, mixed, 4)
    np.testing.assert_allclose(a["w"], b["w"], rtol=1e-12)
    np.testing.assert_allclose(GroupSGD(**fields).models(fed, a)[order], method.models(mixed, b), rtol=1e-12)


def heads(seed=0):
    """Softmax with 2, 4 and 3 classes: the first layer is shared, others have shapes of their own."""
    return [Named(softmax(COUNTS[g == GROUP], K, seed + g), K) for g, K in enumerate((2, 4, 3))]


class Named:
    """A softmax whose parameters have names: two intercept-like numbers that all have, and the rest."""

    def __init__(self, inner, classes):
        self.inner, self.classes = inner, classes

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def take(self, rows):
        return Named(self.inner.take(rows), self.classes)

    @property
    def names(self):
        return {"head": self.dim - 2, "body": 2}

    def sizes(self):
        return self.inner.sizes()

    def mean_gradient(self, *a):
        return self.inner.mean_gradient(*a)

    def walk(self, *a):
        return self.inner.walk(*a)


def test_heads_of_other_shapes():
    parts = heads()
    fed = InProcess(Mixed.of(parts), GROUP, WEIGHTS, seed=3)
    method = GroupSGD(eta=0.2, shared=("body",), tau=2, B=2)
    state = last(method, fed, 4)
    names = [list(p.names.items()) for p in parts]
    keys = keyed_random.starts(3, "rows", fed.clients.ids)
    place = np.array([0, 1, 2, 0, 1, 0, 1])

    def walk(i, theta, t):
        here = parts[GROUP[i]].take(place[i : i + 1])
        for s in range(2):
            theta = theta - 0.2 * gradient(here, theta[None], Draws(keys[i : i + 1], np.array([2 * t + s]), 2))[0]
        return theta

    x = twin.run(twin.empty(names, ["body"]), names, ["body"], GROUP, WEIGHTS, None, walk, 0.2, 2, 4)
    np.testing.assert_allclose(state["w"], twin.flat(x), rtol=1e-12, atol=1e-14)
    models = method.models(fed, state)
    assert [len(models[i]) for i in range(7)] == [6, 6, 6, 12, 12, 9, 9]
    for rows, part in fed_objective(fed).kinds():
        assert (part.accuracy(np.stack([models[i] for i in rows])) >= 0).all()


def fed_objective(fed):
    return fed._run.site.objective


def test_layers_that_stay_with_clients():
    o = softmax(COUNTS, 3)
    fed = InProcess(o, GROUP, WEIGHTS)
    method = GroupSGD(eta=0.2, shared=("0", "1"), personal=("8",), tau=2)
    state = last(method, fed, 5)
    models = method.models(fed, state)
    assert len(state["w"]) == 2 + 3 * 6
    assert len(np.unique(models[:, 8])) == 7
    assert len(np.unique(models[:, 5])) == 3 and len(np.unique(models[:, 0])) == 1


def test_the_layout_of_groups():
    layers = [{"a": 2, "b": 1, "c": 3}, {"c": 3, "d": 2, "a": 2}, {"a": 2, "c": 3}]
    layout = GroupLayout.of(layers, ("a", "c"))
    assert (layout.k, layout.dim, layout.shared) == (3, 8, 5)
    np.testing.assert_array_equal(layout.of_group(0), [0, 1, 5, 2, 3, 4])
    np.testing.assert_array_equal(layout.of_group(1), [2, 3, 4, 6, 7, 0, 1])
    np.testing.assert_array_equal(layout.of_group(2), [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("layers", "shared", "sentence"),
    [
        ([{"a": 2}, {"a": 3}], "a", "Shared layer 'a' has 2 numbers in group 0 and 3 in group 1"),
        ([{"a": 2, "ab": 1}, {"a": 2}], "a*", "Shared layer 'ab' is in group 0, not in group 1"),
        ([{"a": 2}, {"a": 2, "ab": 1}], "a*", "Shared layer 'ab' is in group 1, not in group 0"),
        ([{"conv": 2}, {"conv": 2}], "cnov", "'cnov' matches no parameter. Did you mean 'conv'?"),
    ],
)
def test_layers_that_cannot_be_shared(layers, shared, sentence):
    with pytest.raises(CoterieError) as error:
        GroupLayout.of(layers, (shared,))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("fields", "clusters", "sentence"),
    [
        ({"shared": ("head",)}, GROUP, "Shared layer 'head' has 4 numbers in group 0 and 10 in group 1"),
        ({"shared": ("body",)}, np.zeros(7, dtype=int), "have different layers: give each architecture groups"),
        ({"group": GROUP}, np.arange(7), "must be clusters"),
        ({"group": GROUP + 1}, GROUP, "Group 0 has no clients: number the groups from 0 without a gap"),
        ({"group": GROUP[1:]}, GROUP, "group must be a whole number from 0 for each of 7 clients"),
        ({"up": "qsgd:4", "personal": ("head",)}, GROUP, "travel without codecs"),
        ({"shared": ("foot",)}, GROUP, "'foot' matches no parameter. There are head, body."),
    ],
)
def test_groups_that_do_not_fit(fields, clusters, sentence):
    fed = InProcess(Mixed.of(heads()), clusters)
    with pytest.raises(CoterieError) as error:
        GroupSGD(eta=0.1, **fields).init(fed)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tau": 2, "E": 1}, "Give tau, steps of a round, or E"),
        ({"weigh": "row"}, "weigh must be clients or rows, not 'row'"),
        ({"own": "mean"}, "own must be weighted or averaged"),
        ({"shared": 3}, "shared must be names of parameters, or patterns"),
    ],
)
def test_options_that_are_none(fields, sentence):
    with pytest.raises(CoterieError) as error:
        GroupSGD(eta=0.1, **fields)
    assert sentence in str(error.value)


def test_other_methods_refuse_mixed_shapes_by_what_to_do():
    with pytest.raises(CoterieError, match=names("train GroupSGD kind model clusters")):
        FedAvg(eta=0.1).init(InProcess(Mixed.of(heads())))


@pytest.mark.parametrize(
    "method", [GroupSGD(eta=0.1, B=2, shared=("0",)), FedAvg(eta=0.1, B=2), Scaffold(eta=0.1, B=2)]
)
def test_kinds_of_one_size_are_mixed_under_any_method(method):
    parts = [softmax(np.array([4, 5, 3]), 3), softmax(np.array([4, 2]), 3)]
    fed = InProcess(Mixed.of(parts), [0, 0, 0, 1, 1], seed=1)
    together = method.models(fed, last(method, fed, 3))
    assert np.isfinite(together).all() and together.shape == (5, parts[0].dim)


def test_a_client_without_rows_and_one_with_broken_rows_do_not_count():
    o = softmax(np.array([4, 0, 5, 3]), 3)
    o.X[5] = np.nan
    fed = InProcess(o, [0, 0, 1, 1])
    state = last(GroupSGD(eta=0.2, shared=("0",)), fed, 3)
    assert state["status"] == "running" and np.isfinite(state["w"]).all()
    np.testing.assert_array_equal(state["quarantined"], [0, 0, 1, 0])
    np.testing.assert_allclose(state["share"], [0.5, 0.5])


@pytest.mark.parametrize("given", [False, True])
def test_models_of_groups_may_travel_coded(given):
    fields = {"eta": 0.2, "shared": ("0", "1"), "tau": 2, "group": GROUP if given else None}
    plain = last(GroupSGD(**fields), InProcess(softmax(COUNTS, 3), GROUP, WEIGHTS), 6)
    fed = InProcess(softmax(COUNTS, 3), GROUP, WEIGHTS)
    coded = last(GroupSGD(**fields, up="float16", down="float16"), fed, 6)
    assert np.abs(coded["w"] - plain["w"]).max() < 1e-3
    assert not np.array_equal(coded["w"], plain["w"])
