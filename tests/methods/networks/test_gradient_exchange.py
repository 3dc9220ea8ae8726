"""SimilarityNetwork, GradientExchange, Layout and Network with input that is wrong or extreme."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.ifca import IFCA
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.objectives.quadratic import Quadratic
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.messages import names

POINTS = np.random.default_rng(0).normal(size=(6, 3))
NETWORK, LAYOUT = Network.nearest(POINTS, 2), Layout.of(["o", "a", "b"], shared=["o"])
CODECS = ("float32", "float16", "qsgd:4", "topk:0.1", "sign", "kmeans:4", "lowrank", "tv:4")


def run(points=POINTS, steps=20, start=(None, None), **changes):
    n, d = points.shape
    fed = InProcess(Quadratic(np.tile(np.eye(d), (n, 1, 1)), points), np.zeros(n, dtype=np.int64))
    method = SimilarityNetwork(**{"network": NETWORK, "layout": LAYOUT, "lam": 0.01, "eta": 0.5} | changes)
    return list(method.run(fed, [steps], method.init(fed, *start)))[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lam": "x"}, "lam must be a number"),
        ({"lam": None}, names("lam number from 0")),
        ({"p": "2"}, "p must be 1, 2 or inf"),
        ({"eta": np.nan}, names("eta number above 0 nan")),
        ({"eta": "x"}, "eta must be a number"),
        ({"eta": [0.1, 0.2]}, "eta must be a number"),
        ({"eta": lambda t: np.nan}, names("eta step 0 number above 0")),
        ({"eta": lambda t: 0.1 - t}, names("eta step 1 number above 0 -0.9")),
        ({"own": np.ones(5)}, names("own one number, or 6 one for each client 5")),
        ({"own": np.zeros(6)}, names("own number above 0")),
        ({"own": lambda t: np.ones(3)}, names("own number 6 client 3")),
        ({"phases": 5}, names("phases 2 whole numbers")),
        ({"phases": (1.5, 1)}, names("phases 2 whole numbers")),
        ({"held": -1}, names("held number from 0")),
        ({"unit": np.ones(2)}, names("unit number 3 parameter")),
        ({"gap": np.nan}, names("gap number above 0")),
        ({"network": "ring"}, names("network Network 'ring'")),
        ({"layout": None}, "layout must be a Layout"),
        ({"transport": "tv:4"}, names("transport table values 'tv:4'")),
        ({"network": Network.of(5, [])}, names("network 5 clients federation 6")),
        ({"layout": Layout.of(["a", "b"])}, "The layout has 2 parameters and a client's model 3"),
        ({"start": (np.zeros(2), None)}, names("x finite numbers shape 1")),
        ({"start": (None, np.full((6, 2), np.nan))}, "Z must be finite numbers"),
    ],
)
def test_a_method_says_what_is_wrong(change, says):
    with pytest.raises(CoterieError, match=says):
        run(**change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"up": 5}, "up must be the name of a codec"),
        ({"down": ""}, "down must be the name of a codec"),
        ({"participation": "half"}, "participation must be a number"),
        ({"batch": -1}, "batch must be a whole number"),
        ({"seed": "a"}, "seed must be a whole number"),
    ],
)
def test_a_link_says_what_is_wrong(change, says):
    with pytest.raises(CoterieError, match=says):
        GradientExchange(**change)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None])
def test_seeds_of_its_rivals_are_whole_numbers(seed):
    with pytest.raises(CoterieError, match="seed must be a whole number"):
        IFCA(eta=0.1, k=2, seed=seed)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("feedback", ["none", "ef", "ef21"])
@pytest.mark.parametrize("d", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_gradients_of_zeros_and_short_ones_travel(codec, feedback, d):
    transport, own = GradientExchange(up=codec, down=codec, feedback=feedback), Layout.of([f"a{j}" for j in range(d)])
    still = run(np.zeros((6, d)), layout=own, transport=transport)
    assert still["status"] == "running" and not still["Z"].any()
    moved = run(POINTS[:, :d], layout=own, transport=transport, steps=5)
    assert moved["status"] == "running" and np.isfinite(moved["Z"]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_client_without_a_gradient_is_left_out_of_the_run(value):
    points = POINTS.copy()
    points[2] = value
    state = run(points, transport=GradientExchange(up="tv:4", feedback="ef"))
    assert state["status"] == "running" and np.flatnonzero(state["quarantined"]).tolist() == [2]
    assert np.isfinite(state["x"]).all() and np.isfinite(state["Z"]).all()
    assert run(np.full((6, 3), value))["status"] == "ended by step 1: every client is quarantined"


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (5, {}, names("names list sizes 5")),
        ([1, 2], {}, names("names list whole 1")),
        ({"a": -1}, {}, names("'a' whole numbers from 1")),
        ({"a": 2.5}, {}, names("'a' whole numbers from 1")),
        (["a", "b"], {"shared": 5}, "not 5"),
        (["a", "b"], {"tied": ["a"]}, "tied must be a table"),
    ],
)
def test_a_layout_says_what_is_wrong(names, options, says):
    with pytest.raises(CoterieError, match=says):
        Layout.of(names, **options)


def test_edges_of_unequal_length_are_refused():
    with pytest.raises(CoterieError, match="pairs of clients' numbers"):
        Network.of(3, [(0, 1), (1,)])


@pytest.mark.parametrize("unit", [1e-250, 1e-150, 1e150, 1e300])
def test_points_of_any_size_have_the_same_neighbours(unit):
    for weighted in (False, True):
        a, b = (Network.nearest(points, 2, weighted=weighted) for points in (POINTS, POINTS * unit))
        np.testing.assert_array_equal(a.edges, b.edges)
        np.testing.assert_allclose(a.weight, b.weight, rtol=1e-9)
