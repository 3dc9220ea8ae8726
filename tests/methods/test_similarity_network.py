"""Algorithm 6 of paper 003: it ends where the exact solver does, in all its forms, and survives what goes wrong."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.networks.fit import step_sizes
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.networks.objective import NetworkObjective
from coterie.methods.networks.optimum import optimum
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.objectives.glm import GLM
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.engines.faults import Faults, Loopback
from tests.messages import names

N, ROWS = 12, 30
LAM = 0.004


def clients(family: str = "gaussian", seed: int = 0) -> GLM:
    rng = np.random.default_rng(seed)
    beta = np.repeat(rng.normal(size=(3, 3)), N // 3, axis=0) + 0.1 * rng.normal(size=(N, 3))
    X = np.c_[np.ones(N * ROWS), rng.normal(size=(N * ROWS, 2))]
    eta = np.sum(X * np.repeat(beta, ROWS, axis=0), axis=1)
    y = (
        eta + rng.normal(size=len(eta))
        if family == "gaussian"
        else (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta)))
    )
    starts = np.arange(N) * ROWS
    return GLM(X, y.astype(float), np.zeros(len(y)), np.ones(len(y)), starts, starts + ROWS, family)


INSIDE = [(i, j) for g in range(0, N, 4) for i in range(g, g + 4) for j in range(i + 1, g + 4)]
NETWORK = Network.of(N, [*INSIDE, (3, 4)])
MIXED = Layout.of(["a", "b", "c"], shared=["b"])


def federation(objective: GLM, **options) -> InProcess:
    return InProcess(objective, np.zeros(N, dtype=np.int64), ids=np.arange(N, dtype=np.uint64), **options)


def method(fed, layout: Layout = MIXED, p: float = 2, **options) -> SimilarityNetwork:
    size = step_sizes(fed, layout, np.ones(3), options.get("phases") is None)
    eta, own = options.pop("eta", size.eta), options.pop("own", size.own)
    return SimilarityNetwork(network=NETWORK, layout=layout, lam=LAM, p=p, eta=eta, own=own, **options)


def gap(fed, layout: Layout, p: float, state) -> float:
    """How far F is above its minimum, relative to its start at zero."""
    best = optimum(fed, NETWORK, LAM, p, layout=layout, kkt=1e-9)
    exact = NetworkObjective(fed, NETWORK, LAM, p, layout, np.ones(3), None)

    def value(x, Z):
        here = exact.ask(x, Z)
        return here.value / here.weight

    start = value(np.zeros(layout.d1), np.zeros((N, layout.d2)))
    return (value(state["x"], state["Z"]) - best.value) / (start - best.value)


def run(fed, steps_taken: int, layout: Layout = MIXED, p: float = 2, **options):
    *_, state = method(fed, layout, p, **options).run(fed, [steps_taken])
    return state


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_full_gradients_end_at_the_optimum(family, p):
    fed = federation(clients(family))
    assert abs(gap(fed, MIXED, p, run(fed, 200, p=p))) < 1e-6


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (Layout.of(["a", "b", "c"]), {}),
        (Layout.of(["a", "b", "c"], both=["a"]), {}),
        (Layout.of(["a", "b", "c"], zero=["c"], shared=["a"]), {}),
        (Layout.of(["a", "b", "c"], tied={"c": "b"}), {}),
        (MIXED, {"phases": (1, 1)}),
        (MIXED, {"phases": (2, 3)}),
    ],
    ids=["personal", "both", "zero", "tied", "alternating", "alternating 2:3"],
)
def test_every_layout_and_the_alternating_form_do(layout, options):
    fed = federation(clients())
    assert abs(gap(fed, layout, 2, run(fed, 300, layout, **options))) < 1e-6


@cache
def bytes_without_codecs(steps):
    fed = federation(clients())
    run(fed, steps)
    return fed.ledger.bytes_up


def test_as_printed_with_one_step_size_for_both():
    fed = federation(clients())
    assert abs(gap(fed, MIXED, 2, run(fed, 500, eta=0.4, own=None))) < 1e-6


@pytest.mark.soak("float16-ef", "qsgd:4-none", "topk:0.34-ef21")
@pytest.mark.parametrize(
    "transport",
    [
        GradientExchange(up="float16", feedback="ef", down="float16"),
        GradientExchange(up="qsgd:4", down="float32"),
        GradientExchange(up="tv:2", feedback="ef", order="magnitude"),
        GradientExchange(up="sign", feedback="ef21", order="last-update", down="float16"),
        GradientExchange(up="topk:0.34", feedback="ef21"),
    ],
    ids=lambda transport: f"{transport.up}-{transport.feedback}",
)
def test_codecs_end_there_too_and_save_bytes(transport):
    fed = federation(clients())
    size = step_sizes(fed, MIXED, np.ones(3))
    asked = fed.ledger.bytes_up
    state = run(fed, 200, eta=0.3 * size.eta, own=0.3 * size.own, transport=transport)
    sent = fed.ledger.bytes_up - asked
    # only EF21's noise goes away with constant steps
    limit = {"none": 0.02, "ef": 2e-3, "ef21": 1e-6}[transport.feedback]
    assert gap(fed, MIXED, 2, state) < limit
    assert sent < bytes_without_codecs(200)


@pytest.mark.soak
def test_rows_and_clients_that_are_drawn_end_near_it_with_decreasing_steps():
    fed = federation(clients())
    size = step_sizes(fed, MIXED, np.ones(3))
    eta, own = (lambda t, s=s: s / (1 + 0.02 * t) for s in size[:2])
    transport = GradientExchange(batch=8, participation=0.7)
    assert gap(fed, MIXED, 2, run(fed, 1000, eta=eta, own=own, transport=transport)) < 0.01


def test_a_client_with_nan_is_quarantined_by_name_and_keeps_a_model_from_its_neighbours():
    objective = clients()
    y = objective.y.copy()
    y[objective.starts[5] : objective.stops[5]] = np.nan
    broken = GLM(objective.X, y, objective.offset, objective.weights, objective.starts, objective.stops)
    fed = federation(broken)
    state = run(fed, 300)
    assert state["status"] == "running" and np.flatnonzero(state["quarantined"]).tolist() == [5]
    assert np.isfinite(state["Z"]).all()
    np.testing.assert_allclose(state["Z"][5], state["Z"][[4, 6, 7]].mean(axis=0), atol=0.2)


def broken_at(*which: int) -> GLM:
    objective = clients()
    y = objective.y.copy()
    for i in which:
        y[objective.starts[i] : objective.stops[i]] = np.nan
    return GLM(objective.X, y, objective.offset, objective.weights, objective.starts, objective.stops)


def test_clients_with_nan_are_quarantined_also_where_they_take_part_alone():
    state = run(federation(broken_at(2, 7)), 300, transport=GradientExchange(participation=0.1, seed=3))
    assert state["status"] == "running" and np.flatnonzero(state["quarantined"]).tolist() == [2, 7]


def test_a_run_ends_where_all_clients_have_nan():
    state = run(federation(broken_at(*range(N))), 10)
    assert state["status"] == "ended by step 1: every client is quarantined"


def test_lost_replies_change_nothing_in_the_end():
    objective = clients()
    lossy = Loopback(
        objective,
        np.zeros(N, dtype=np.int64),
        ids=np.arange(N, dtype=np.uint64),
        sites=4,
        faults=Faults(reply=0.2, seed=1),
    )
    transport = GradientExchange(up="float16", feedback="ef21", down="float32")
    *_, state = method(federation(objective), transport=transport).run(lossy, [200])
    assert abs(gap(federation(objective), MIXED, 2, state)) < 1e-3


def test_a_step_too_large_ends_with_a_status_that_says_so():
    fed = federation(clients())
    state = run(fed, 2000, eta=50.0)
    assert state["status"].startswith("diverged by step")
    assert np.isfinite(state["x"]).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lam": np.inf}, "fit the pooled model"),
        ({"lam": -1.0}, names("lam number from 0")),
        ({"lam": np.nan}, names("lam number from 0")),
        ({"phases": (0, 1)}, names("phases 2 whole numbers")),
    ],
)
def test_parameters_that_cannot_be(change, says):
    options = {"network": NETWORK, "layout": MIXED, "lam": LAM, "eta": 0.1} | change
    with pytest.raises(CoterieError, match=says):
        SimilarityNetwork(**options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"up": "zip"}, "no codec 'zip'"),
        ({"feedback": "back"}, names("feedback none ef ef21")),
        ({"participation": 0.0}, names("participation number above 0")),
        ({"order": "random"}, names("order natural magnitude last-update 'random'")),
    ],
)
def test_links_that_cannot_be(change, says):
    with pytest.raises(CoterieError, match=says):
        GradientExchange(**change)


def test_a_network_or_layout_of_others_is_refused():
    fed = federation(clients())
    with pytest.raises(CoterieError, match=names("network 3 clients federation 12")):
        next(method(fed, MIXED).__class__(network=Network.of(3, []), layout=MIXED, lam=0.1, eta=0.1).run(fed, [1]))
    with pytest.raises(CoterieError, match=names("layout 2 parameters client's model 3")):
        SimilarityNetwork(network=NETWORK, layout=Layout.of(["a", "b"]), lam=0.1, eta=0.1).init(fed)
